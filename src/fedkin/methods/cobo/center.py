"""The center's part of CoBo (Hashemi et al. 2024): pairs that help each other, found at their midpoints."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.federation.base import Cost, Federation
from fedkin.federation.center import Center
from fedkin.methods.base import Info
from fedkin.methods.cobo.node import MIDPOINT_GRADIENT
from fedkin.methods.descent.center import (
    Descent,
    DescentMethod,
    Each,
    Participants,
    PersonalModels,
    Trained,
    exchange_each,
)
from fedkin.methods.descent.node import DESCENT_ROUND
from fedkin.methods.settings import positive, share
from fedkin.methods.step_size import SMOOTHNESS
from fedkin.types import Array, Key, Vector


@dataclass(frozen=True, kw_only=True)
class CoBo(DescentMethod):
    """Personal models, each pulled toward those that would help it. See also `TrainedMethod`.

    Args:
        attraction: How far models move toward each other in a synchronization; 1, to the mean of all where
            all pairs help each other, if open. In the paper's terms it is γ τ ρ m for m participants.
        outer_learning_rate: The step size η of the weights of pairs; 0.5 if open.

    >>> CoBo(outer_learning_rate=1).outer_learning_rate
    1.0
    """

    name: ClassVar[str] = "cobo"
    title: ClassVar[str] = "CoBo"
    color: ClassVar[str] = "#806B30"
    dark_color: ClassVar[str | None] = "#C6BCA2"
    marker: ClassVar[str] = "8"
    dashes: ClassVar[tuple[float, ...]] = (2, 1, 5, 1)
    tasks = (DESCENT_ROUND, MIDPOINT_GRADIENT, SMOOTHNESS)
    reveals_models: ClassVar[bool] = True
    tuning_grid: ClassVar[Mapping[str, Sequence[Any]]] = {
        "attraction": (0.3, 1.0),
        "outer_learning_rate": (0.1, 0.5, 1.0),
    }

    attraction: float | None = share()
    outer_learning_rate: float | None = positive()

    def prepare(
        self, federation: Federation, center: Center, key: Key
    ) -> tuple["CoBoAlgorithm", Cost]:
        """Choose step sizes and lengths."""
        descent, cost = self.choose_descent(federation, center, key)
        chosen = CoBoAlgorithm(descent, self.attraction or 1.0, self.outer_learning_rate or 0.5)
        return chosen, cost


class CoBoState(NamedTuple):
    """Everybody's models, and who helps whom."""

    personal: PersonalModels
    pairs: Array
    """The weight of each pair, between 0 and 1."""


@dataclass(frozen=True)
class CoBoAlgorithm:
    r"""In every synchronization, pairs drawn at random compare their gradients, and everybody trains.

    .. math:: w_{ij} \leftarrow \operatorname{clip}(w_{ij} + \eta \cos(\nabla f_i(z), \nabla f_j(z)), 0, 1),
              \quad z = \tfrac12 (x_i + x_j), \qquad
              x_i \leftarrow \tilde x_i - \frac{a}{m} \sum_j w_{ij} (x_i - x_j)

    with the model :math:`\tilde x_i` that τ local steps make of :math:`x_i`.

    Args:
        descent: How everybody trains.
        attraction: How far models move toward each other, a.
        outer_learning_rate: The step size η of the weights of pairs.
    """

    descent: Descent
    attraction: float = 1.0
    outer_learning_rate: float = 0.5

    def init(self, theta: Vector, nodes: int) -> CoBoState:
        """Begin with the initial model for everybody, and with all pairs."""
        pairs = 1 - jnp.eye(nodes + 1, dtype=theta.dtype)
        return CoBoState(PersonalModels.begin(theta, nodes), pairs)

    def step(
        self, state: CoBoState, key: Key, federation: Federation, center: Center
    ) -> tuple[CoBoState, Info]:
        """Continue for as many synchronizations as the settings say."""
        everybody = Participants(federation, center)
        count = everybody.count
        models, cost = state.personal.of(everybody), Cost()
        pairs = np.array(state.pairs[:count, :count])
        watch = self.descent.watch()
        for number in range(self.descent.rounds):
            round_key, pairs_key = jax.random.split(jax.random.fold_in(key, number))
            partners = draw_partners(pairs_key, everybody.present)
            midpoints = (models + models[partners]) / 2
            replies, round_cost = exchange_each(
                everybody,
                round_key,
                train=self.descent.for_each(models),
                compare=Each(MIDPOINT_GRADIENT, {"point": midpoints}, {}),
            )
            cost += round_cost
            trained = Trained.of(replies["train"], models)
            mixing = self._mixing(pairs, everybody.present)
            models = trained.models + jnp.asarray(mixing, models.dtype) @ models - models
            gradients = np.asarray(replies["compare"]["gradient"], np.float64)
            pairs = self._compared(pairs, partners, gradients)
            watch.see(models, trained.loss)
        own = everybody.own
        weights = self._mixing(pairs, everybody.present)[own]
        info = Info(
            models[own],
            everybody.node_weights(weights),
            cost,
            {"training_loss": watch.loss, "helpers": float(np.count_nonzero(pairs[own]))},
        )
        kept = state.pairs.at[:count, :count].set(jnp.asarray(pairs, state.pairs.dtype))
        return CoBoState(state.personal.after(models, self.descent.rounds), kept), info

    def _mixing(self, pairs: np.ndarray, present: np.ndarray) -> np.ndarray:
        """Return the matrix that moves models toward each other; rows add up to 1."""
        weights = self.attraction / len(pairs) * pairs * present * present[:, None]
        return weights + np.diag(1 - weights.sum(axis=1))

    def _compared(
        self, pairs: np.ndarray, partners: np.ndarray, gradients: np.ndarray
    ) -> np.ndarray:
        """Return the weights after those who were paired have compared their gradients."""
        moved = pairs.copy()
        norms = np.linalg.norm(gradients, axis=1)
        for one, other in enumerate(partners):
            length = norms[one] * norms[other]
            if one < other and np.isfinite(length) and length > 0:
                cosine = gradients[one] @ gradients[other] / length
                found = np.clip(pairs[one, other] + self.outer_learning_rate * cosine, 0, 1)
                moved[one, other] = moved[other, one] = found
        return moved


def draw_partners(key: Key, present: np.ndarray) -> np.ndarray:
    """Draw pairs of those who take part; who has no partner is its own.

    Args:
        key: Decides the pairs.
        present: Who takes part (bools).
    """
    order = np.asarray(jax.random.permutation(key, len(present)))
    order = order[present[order]]
    partners = np.arange(len(present))
    half = len(order) // 2
    first, second = order[:half], order[half : 2 * half]
    partners[first], partners[second] = second, first
    return partners
