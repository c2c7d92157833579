"""The center's part of APFL (Deng et al. 2020, its Algorithm 1), all nodes taking part."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedkin.federation.base import Cost, Federation, WeightedSum
from fedkin.federation.center import Center
from fedkin.methods.apfl.node import APFL_PERSONAL_ROUND
from fedkin.methods.base import Info
from fedkin.methods.descent.center import Descent, DescentMethod
from fedkin.methods.descent.node import DESCENT_ROUND
from fedkin.methods.personalized import PersonalizedState, with_center
from fedkin.methods.settings import from_zero, share
from fedkin.methods.step_size import SMOOTHNESS
from fedkin.methods.weights import equal_weights
from fedkin.types import Key, Vector


@dataclass(frozen=True, kw_only=True)
class Apfl(DescentMethod):
    """A mixture of a shared and a personal model, whose shares are learned. See also `TrainedMethod`.

    Args:
        mixing: The share α of the personal model at the beginning; 0.5 if open.
        mixing_rate: The step size of α; if open, that of the models. 0 keeps α as it is.

    >>> Apfl(mixing=0.25).mixing
    0.25
    """

    name: ClassVar[str] = "apfl"
    title: ClassVar[str] = "APFL"
    color: ClassVar[str] = "#8E366B"
    dark_color: ClassVar[str | None] = "#CCA5BC"
    marker: ClassVar[str] = "h"
    dashes: ClassVar[tuple[float, ...]] = (1.5, 3)
    tasks = (DESCENT_ROUND, APFL_PERSONAL_ROUND, SMOOTHNESS)
    tuning_grid: ClassVar[Mapping[str, Sequence[Any]]] = {
        "learning_rate": (0.05, 0.02, 0.01),
        "mixing": (0.25, 0.5, 0.75),
    }

    mixing: float | None = share()
    mixing_rate: float | None = from_zero()

    def prepare(
        self, federation: Federation, center: Center, key: Key
    ) -> tuple["ApflAlgorithm", Cost]:
        """Choose step sizes and lengths."""
        descent, cost = self.choose_descent(federation, center, key)
        rate = descent.learning_rate if self.mixing_rate is None else self.mixing_rate
        return ApflAlgorithm(descent, self.mixing or 0.5, rate), cost


@dataclass(frozen=True)
class ApflAlgorithm:
    """The nodes average a shared model; the owner mixes its own version of it with a personal model.

    Args:
        descent: How nodes train.
        mixing: The share of the personal model at the beginning.
        mixing_rate: The step size of that share.
    """

    descent: Descent
    mixing: float
    mixing_rate: float

    def init(self, theta: Vector, nodes: int) -> PersonalizedState:
        """Begin at the initial model."""
        return PersonalizedState(theta, 0)

    def step(
        self, state: PersonalizedState, key: Key, federation: Federation, center: Center
    ) -> tuple[PersonalizedState, Info]:
        """Continue for as many synchronizations as the settings say."""
        node_weights = equal_weights(federation.present)
        shared = mixed = state.shared
        cost, watch, diagnostics = Cost(), self.descent.watch(), {}
        for number in range(self.descent.rounds):
            nodes_key, own_key = jax.random.split(jax.random.fold_in(key, number))
            nodes = federation.exchange(
                train=WeightedSum(
                    DESCENT_ROUND,
                    self.descent.message(shared),
                    weights=node_weights,
                    steps=self.descent.period,
                ),
                key=nodes_key,
            )
            message = {
                "shared": shared,
                "learning_rate": self.descent.learning_rate,
                "mixing": self.mixing,
                "mixing_rate": self.mixing_rate,
            }
            own = center.alone.exchange(
                train=WeightedSum(
                    APFL_PERSONAL_ROUND,
                    message,
                    weights=jnp.ones(1),
                    begin=state.rounds + number == 0,
                    steps=self.descent.period,
                ),
                key=own_key,
            )
            cost += with_center(nodes.cost, own.cost)
            shared, mixed = nodes.train["point"], own.train["point"]
            watch.see(jnp.append(shared, mixed), float(nodes.train["loss"]))
            diagnostics = {
                "training_loss": watch.loss,
                "personal_loss": float(own.train["loss"]),
                "personal_share": float(own.train["share"]),
            }
        rounds = state.rounds + self.descent.rounds
        return PersonalizedState(shared, rounds), Info(mixed, node_weights, cost, diagnostics)
