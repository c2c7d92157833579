"""What the single loop for convex models remembers and sees, and its line search."""

from typing import NamedTuple, cast

import jax.numpy as jnp
import numpy as np

from fedkin.federation.center import Center
from fedkin.methods.bilevel.curvature import Curvature, Place
from fedkin.methods.bilevel.sketch import Sketch
from fedkin.methods.weights import Roster
from fedkin.numerics.line_search import LineSearch
from fedkin.numerics.simplex_steps import Secants
from fedkin.types import Array, Vector

FARTHEST = 10.0
"""How far a line is followed at most, as a multiple of the step that has opened it."""

AT_END = 1e-6
"""A line search that has come this near to the end of the line, as a share of it, has reached it."""

TRUSTED = 0.5
"""The longest Newton step of a logistic model, measured by its Hessian, that is taken as a whole. The Hessian
says little about models farther away."""


class Visit(NamedTuple):
    """A model and weights that belong together, with what is known there."""

    theta: np.ndarray
    node_weights: np.ndarray
    slopes: np.ndarray
    loss: float
    """The validation loss F(w), corrected for what is left of the inner problem; infinite if unknown."""
    inner_error: float
    """The size of that correction."""


class NewtonState(NamedTuple):
    """What the single loop carries from one exchange to the next. Its arrays are float64."""

    theta: np.ndarray
    node_weights: np.ndarray
    """The weights w that θ belongs to."""
    candidate: np.ndarray
    """The weights u of the next exchange."""
    curvature: Curvature | Sketch
    """What is known of the weighted Hessian."""
    last_step: np.ndarray
    """The last change of θ."""
    accepted: Visit
    """The last weights whose validation loss was accepted."""
    trained: Visit
    """The last exchange that only improved θ, for the check of its training loss, which `loss` is here."""
    secants: Secants
    radius: float
    """The largest change of a weight in a candidate."""
    sidestep: bool
    """Whether the last move was a sidestep."""
    taken_back: bool
    """Whether a step has been taken back since weights were last accepted."""
    flat: int
    """How many evaluations in a row have not lowered the validation loss."""
    iteration: int
    bent: bool
    """Whether the validation loss has shown that it is not convex in the weights."""
    lowest: Visit
    """The lowest minimum so far; its loss is infinite before the first."""
    starts: np.ndarray
    """Weights to start from again, as rows."""
    started: int
    """The iteration of the last start."""
    mismatches: int
    """The exchanges in which the slopes were not those of the gradients."""
    roster: Roster
    """Who takes part, and the weights of those who are away."""


class Evidence(NamedTuple):
    """What one exchange has shown."""

    training_loss: float
    direction: np.ndarray
    """The Newton step d."""
    decrement: float
    """:math:`g^\\top H^{-1} g`, about twice what the weighted training loss is above its minimum."""
    trusted: float
    """The share of the Newton step over which the Hessian is trusted."""
    validation_loss: float
    slopes: np.ndarray
    inner_error: float
    """The sum of w_k times slope, with its sign."""
    gap: float
    """How much lower the validation loss could be, if it is convex in the weights."""
    sure_gap: float
    """The same, with slopes as far off as the residual of h allows."""
    complete: bool
    """Whether every node that takes part has reported its slope."""
    prior_loss: float = 0.0
    """What the weights' distance from the prior adds to the loss."""
    mismatch: str | None = None
    """That the slopes are not those of the gradients, in a sentence."""

    @property
    def loss(self) -> float:
        """What is minimized: F(w), corrected for what is left of the inner problem, and the prior's part."""
        return self.validation_loss + self.inner_error + self.prior_loss


def search_line(
    theta: np.ndarray,
    seen: Evidence,
    center: Center,
    longest: float = 1.0,
    prior_slopes: tuple[float, float] = (0.0, 0.0),
) -> LineSearch:
    """Minimize the validation loss along the Newton step, a convex function, by bisection.

    At the start a part of the loss is due to the inner problem, which the step solves too.

    Args:
        theta: The model.
        seen: Where the line leads, among other things.
        center: Knows the validation loss.
        longest: How far the line may be followed, as a multiple of the step.
        prior_slopes: The first and the second derivative of a prior on the weights along the line.
    """
    first, second = prior_slopes
    found = center.search_line(theta, seen.direction, seen.inner_error - first, longest, second)
    # The share comes in single precision, but a step to a bound has to reach it: the weight is zero there.
    return found._replace(share=longest) if found.share >= (1 - AT_END) * longest else found


def trusted_share(decrement: float, place: Place) -> float:
    """Return the share of a Newton step over which the Hessian at its start is trusted.

    The loss of a regression is a quadratic: all of it is.
    """
    if place.objective.model.task == "regression":
        return 1.0
    return min(1.0, TRUSTED / np.sqrt(max(decrement, 1e-30)))


def longest_share(weights: np.ndarray, step: np.ndarray, cap: float | np.ndarray) -> float:
    """Return how far weights may follow a step, as a multiple of it, within the cap and `FARTHEST`."""
    room = np.where(step > 0, cap - weights, weights)
    moving = np.abs(step) > 1e-12
    return float(np.clip((room[moving] / np.abs(step[moving])).min(initial=FARTHEST), 1, FARTHEST))


def as_sent(array: np.ndarray) -> Vector:
    """Return numbers as they travel."""
    # NumPy makes them faster than JAX, and compiled code takes them as they are.
    return cast(Vector, np.asarray(array, jnp.result_type(float)))


def as_float64(array: Array | np.ndarray) -> np.ndarray:
    """Return numbers as the center computes with them."""
    return np.asarray(array, np.float64)
