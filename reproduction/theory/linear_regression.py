r"""Linear regression federations, and the three ways to learn from them, solved exactly.

The paper's example (`sec:EBexampel`): inputs x ~ N(0, I) everywhere, labels y = xᵀθ_k + noise. J nodes have
the center's θ_0 = 0, the others θ_k at distance δ from it, in a cone around one direction, so that no mixture
of them is like the center (Assumption 2').

All that a least-squares fit needs of a data set are A = XᵀX/n and c = Xᵀy/n. Their joint distribution is
known (Wishart and normal), so they are drawn directly, which makes data sets of any size equally cheap. The
excess risk is known too: ½‖θ − θ_0‖².
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.errors import InputError
from fedkin.numerics.simplex import project_capped_simplex
from fedkin.theory.distance import population_quadratic, statistical_distance
from fedkin.types import Array

ITERATIONS = 400
"""Projected gradient steps for the weights: more change no digit that the figures show."""

PARAMETER_RADIUS = 8.0
"""Θ, over which G is a maximum, is the ball of this radius around θ_0. All parameters that the studies meet
lie in it, those of the farthest nodes with the fewest points, too (`ExcessRisks.largest_parameter`)."""

CONE = math.pi / 4
"""The angle between the other nodes' θ_k and the axis of their cone."""


@dataclass(frozen=True)
class Federation:
    """What the data of a federation are drawn from.

    Args:
        similar: J, the nodes with the center's distribution.
        others: K − J.
        features: d.
        offset: δ, the distance of the other nodes' θ_k from θ_0.
        noise: The standard deviation of the labels.
        seed: Draws the directions in which the other θ_k lie, the same for every offset.
    """

    similar: int = 3
    others: int = 5
    features: int = 4
    offset: float = 1.0
    noise: float = 1.0
    seed: int = 0

    @property
    def nodes(self) -> int:
        """K."""
        return self.similar + self.others

    @property
    def truths(self) -> np.ndarray:
        """θ_k of every node: (K, d)."""
        aside = np.random.default_rng(self.seed).normal(size=(self.others, self.features))
        aside[:, 0] = 0.0
        aside /= np.linalg.norm(aside, axis=1, keepdims=True)
        directions = math.sin(CONE) * aside
        directions[:, 0] = math.cos(CONE)
        return np.concatenate([np.zeros((self.similar, self.features)), self.offset * directions])

    @property
    def distance(self) -> float:
        """G, exactly."""
        moment = np.eye(self.features)
        losses = [population_quadratic(moment, truth, self.noise) for truth in self.truths]
        own = population_quadratic(moment, np.zeros(self.features), self.noise)
        return statistical_distance(own, losses, PARAMETER_RADIUS).upper


class Moments(NamedTuple):
    """A = XᵀX/n and c = Xᵀy/n of data sets."""

    matrix: Array
    vector: Array


class Sample(NamedTuple):
    """The data of many federations: the first axis runs over them."""

    nodes: Moments
    center: Moments


class ExcessRisks(NamedTuple):
    """What each way of learning loses against the best possible, in every federation."""

    bilevel: np.ndarray
    local: np.ndarray
    equal: np.ndarray
    similar: np.ndarray
    """Equal weights on the J similar nodes alone: the best of W*, which Bi-level has to find."""
    weights: np.ndarray
    """The weights that Bi-level has learned: (federations, nodes)."""
    largest_parameter: float
    """The largest norm of a model that one of these ways returns or that a node would fit alone."""


def draw_moments(
    rng: np.random.Generator, truths: np.ndarray, noise: float, points: int, runs: int
) -> Moments:
    """Draw the moments of `points` points for every truth, in every run.

    XᵀX is Wishart (Bartlett's decomposition), and given X the vector Xᵀ(y − Xθ) is normal with
    covariance noise²·XᵀX.

    Raises:
        InputError: If there are fewer points than features: least squares has no one solution then.
    """
    count, features = truths.shape
    if points < features:
        raise InputError(
            f"{points} points do not determine {features} parameters: give every data set at least as "
            "many points as features"
        )
    shape = (runs, count)
    factor = np.tril(rng.normal(size=(*shape, features, features)), -1)
    for place in range(features):
        factor[..., place, place] = np.sqrt(rng.chisquare(points - place, shape))
    matrix = factor @ np.swapaxes(factor, -1, -2) / points
    scatter = np.einsum("rkij,rkj->rki", factor, rng.normal(size=(*shape, features))) / points
    vector = np.einsum("rkij,kj->rki", matrix, truths) + noise * scatter
    return Moments(jnp.asarray(matrix), jnp.asarray(vector))


def draw_sample(
    rng: np.random.Generator, federation: Federation, *, valid: int, train: int, runs: int
) -> Sample:
    """Draw the data of the center and of all nodes, `runs` times."""
    own = np.zeros((1, federation.features))
    center = draw_moments(rng, own, federation.noise, valid, runs)
    return Sample(
        draw_moments(rng, federation.truths, federation.noise, train, runs),
        Moments(center.matrix[:, 0], center.vector[:, 0]),
    )


def excess_risks(sample: Sample, cap: float, similar: int) -> ExcessRisks:
    """Solve all ways of learning, and return the excess risks ½‖θ − θ_0‖² with θ_0 = 0.

    Args:
        sample: The data.
        cap: b.
        similar: J; the similar nodes come first.
    """
    *ways, weights, largest = _solve_all(sample, cap, similar)
    bilevel, local, equal, ideal = (np.asarray(risks) for risks in ways)
    return ExcessRisks(bilevel, local, equal, ideal, np.asarray(weights), float(jnp.max(largest)))


@jax.jit
def _solve_all(sample: Sample, cap: Array | float, similar: Array | int) -> tuple[Array, ...]:
    def one(nodes: Moments, center: Moments) -> tuple[Array, ...]:
        count = len(nodes.vector)
        weights = learn_weights(nodes, center, cap)
        even = jnp.full(count, 1 / count)
        ideal = jnp.where(jnp.arange(count) < similar, 1 / similar, 0.0)
        local = jnp.linalg.solve(center.matrix, center.vector)
        found = jnp.stack([model(nodes, weights), local, model(nodes, even), model(nodes, ideal)])
        alone = jnp.linalg.solve(nodes.matrix, nodes.vector[..., None])[..., 0]
        largest = jnp.max(jnp.linalg.norm(jnp.concatenate([found, alone]), axis=1))
        return (*(0.5 * jnp.sum(found**2, axis=1)), weights, largest)

    return jax.vmap(one)(*sample)


def model(nodes: Moments, weights: Array) -> Array:
    """Return θ(w)."""
    matrix = jnp.einsum("k,kij->ij", weights, nodes.matrix)
    return jnp.linalg.solve(matrix, weights @ nodes.vector)


def validation_loss(nodes: Moments, center: Moments, weights: Array) -> Array:
    """Return F(w), up to a constant."""
    theta = model(nodes, weights)
    return 0.5 * theta @ center.matrix @ theta - center.vector @ theta


def learn_weights(nodes: Moments, center: Moments, cap: Array | float) -> Array:
    """Minimize F over the capped simplex, by projected gradient steps whose length adapts itself.

    A step that lowers F is taken, and the next is twice as long; another is not, and the next is a
    quarter as long: the rule of `AdaptiveBilevel`, with exact gradients.
    """
    count = len(nodes.vector)

    def loss(weights: Array) -> Array:
        return validation_loss(nodes, center, weights)

    def step(_: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        weights, value, length = state
        candidate = project_capped_simplex(weights - length * jax.grad(loss)(weights), cap)
        reached = loss(candidate)
        better = reached <= value
        return (
            jnp.where(better, candidate, weights),
            jnp.where(better, reached, value),
            length * jnp.where(better, 2.0, 0.25),
        )

    start = jnp.full(count, 1 / count)
    slope = jax.grad(loss)(start)
    length = 0.25 / jnp.maximum(jnp.max(jnp.abs(slope - jnp.mean(slope))), 1e-30)
    return jax.lax.fori_loop(0, ITERATIONS, step, (start, loss(start), length))[0]
