"""The center's part of Local-SVRG on weighted nodes (Algorithm 1, `alg:localsvrg`)."""

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedkin.errors import DivergedError, InputError
from fedkin.federation.base import Cost, Federation
from fedkin.types import Array, Key, Vector

LOSS_CEILING = 10.0
"""A training loss this many times above the first one (or above 1) counts as divergence."""

MOVE_CEILING = 10.0
"""An adjoint that moves this many times farther in a round than γτ‖∇L_0‖ counts as divergence."""


@dataclass(frozen=True)
class LocalSvrg:
    """The settings of a Local-SVRG solve.

    Args:
        learning_rate: The step size γ.
        period: The number τ of local steps between two synchronizations.
        rounds: The number of synchronizations; the paper's T is `period * rounds`.
        refresh_probability: The probability q of renewing a reference point in a step.
        strong_convexity: The constant μ where it is known; it shapes the averaging weights.
        result: The weighted average of all iterates, as in the paper, or the last iterate.
        tolerance: Stop when a round moves the iterate by less than this fraction of its norm; None to
            take all rounds, which an average needs: only the last round asks for it.
    """

    learning_rate: float
    period: int = 20
    rounds: int = 20
    refresh_probability: float = 0.02
    strong_convexity: float = 0.0
    result: Literal["average", "last"] = "last"
    tolerance: float | None = None

    def __post_init__(self) -> None:
        if self.result == "average" and self.tolerance is not None:
            raise InputError("an average needs all rounds: it cannot go with a tolerance")

    @property
    def averaging_rate(self) -> float:
        """The rate ρ = min{γμ, q/4} of the averaging weights."""
        return min(self.learning_rate * self.strong_convexity, self.refresh_probability / 4)


class SvrgSolution(NamedTuple):
    """What a solve found and what it cost."""

    point: Vector
    cost: Cost
    rounds: int
    loss: float
    """The weighted training loss over the last round (inner problem)."""
    settled: bool
    """Whether the last round has hardly moved the iterate any more (see `LocalSvrg.tolerance`)."""


def solve_inner(
    federation: Federation,
    node_weights: Array,
    start: Vector,
    key: Key,
    settings: LocalSvrg,
    *,
    begin: bool = True,
) -> SvrgSolution:
    """Minimize the weighted loss of the nodes (`eq:blopt_inner`).

    Args:
        federation: The nodes.
        node_weights: The weights w.
        start: The first iterate.
        key: Decides the mini-batches and coins.
        settings: Step size, period and rounds.
        begin: Whether the nodes take `start` as their first reference point; False goes on with the
            reference points they have.

    Raises:
        DivergedError: If the loss or the iterate leaves all bounds.
    """
    point, cost = start, Cost()
    first_loss = loss = float("nan")
    number, settled = 0, False
    for number in range(settings.rounds):
        last = number == settings.rounds - 1
        average = last and settings.result == "average"
        replies, call_cost = federation.call(
            "inner_svrg_round",
            _message(point, settings),
            key=jax.random.fold_in(key, number),
            node_weights=node_weights,
            steps=settings.period,
            start=begin and number == 0,
            reply="average" if average else "point",
        )
        cost += call_cost
        moved = combine(node_weights, replies["point"])
        loss = float(combine(node_weights, replies["loss"][:, None])[0])
        first_loss = loss if number == 0 else first_loss
        refuse_divergence(
            "the model", number + 1, moved, first_loss, loss, learning_rate=settings.learning_rate
        )
        move, point = jnp.linalg.norm(moved - point), moved
        settled = settings.tolerance is not None and bool(
            move <= settings.tolerance * jnp.linalg.norm(point)
        )
        if settled:
            break
    return SvrgSolution(point, cost, number + 1, loss, settled)


def solve_adjoint(
    federation: Federation,
    node_weights: Array,
    theta: Vector,
    target: Vector,
    start: Vector,
    key: Key,
    settings: LocalSvrg,
) -> tuple[SvrgSolution, bool]:
    r"""Solve :math:`\sum_k w_k \nabla^2 L_k(\theta) h = \nabla L_0(\theta)` (`eq:QP_matrixinverse`).

    In one step of a stable iteration h moves by at most γ times the residual. So a round that moves it
    much farther than γτ‖∇L_0(θ)‖ shows that γ is too large, long before numbers overflow.

    Returns:
        The solution, and whether it is one: False if the iteration diverged.
    """
    point, cost = start, Cost()
    ceiling = MOVE_CEILING * settings.learning_rate * settings.period * jnp.linalg.norm(target)
    for number in range(settings.rounds):
        last = number == settings.rounds - 1
        average = last and settings.result == "average"
        message = _message(point, settings)
        if number == 0:
            message |= {"theta": theta, "target": target}
        replies, call_cost = federation.call(
            "adjoint_svrg_round",
            message,
            key=jax.random.fold_in(key, number),
            node_weights=node_weights,
            steps=settings.period,
            start=number == 0,
            reply="average" if average else "point",
        )
        cost += call_cost
        moved = combine(node_weights, replies["point"])
        # The average of all iterates may lie as far from the last as all rounds together have moved.
        farthest = ceiling * settings.rounds if average else ceiling
        if not jnp.linalg.norm(moved - point) <= farthest:
            return SvrgSolution(start, cost, number + 1, float("nan"), settled=False), False
        point = moved
    return SvrgSolution(point, cost, settings.rounds, float("nan"), settled=False), True


def refuse_divergence(
    what: str,
    round_number: int,
    point: Vector,
    first_loss: float,
    loss: float,
    *,
    learning_rate: float,
) -> None:
    """Check that training is still within bounds.

    Args:
        what: What is trained, for the message.
        round_number: The round of this step, from 1 on, for the message.
        point: The iterate after it.
        first_loss: The training loss in the first round.
        loss: The training loss in this round.
        learning_rate: The step size γ to blame.

    Raises:
        DivergedError: If the loss has grown out of proportion, or a number is not finite.
    """
    finite = math.isfinite(loss) and bool(jnp.isfinite(point).all())
    if not (finite and loss <= LOSS_CEILING * max(first_loss, 1.0)):
        raise DivergedError(
            f"training {what} diverged in round {round_number} (loss {first_loss:.3g} at first, "
            f"{loss:.3g} now): the learning rate γ = {learning_rate:g} is too large for "
            f"these data; try learning_rate={learning_rate / 10:g}"
        )


def slower(settings: LocalSvrg, factor: float) -> LocalSvrg:
    """Return the same settings with the learning rate multiplied by a factor."""
    return replace(settings, learning_rate=settings.learning_rate * factor)


@jax.jit
def combine(node_weights: Array, replies: Array) -> Array:
    """Return Σ_k w_k x_k, where nodes of weight zero do not count even if they answer NaN."""
    counted = jnp.where(node_weights[:, None] > 0, replies, 0)
    return node_weights @ counted


def _message(point: Vector, settings: LocalSvrg) -> dict[str, Array | float]:
    return {
        "point": point,
        "learning_rate": settings.learning_rate,
        "refresh_probability": settings.refresh_probability,
        "averaging_rate": settings.averaging_rate,
    }
