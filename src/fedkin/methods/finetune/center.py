"""FedAvg with fine-tuning: the shared model, then steps on the owner's own data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedkin.federation.base import Cost, Federation, WeightedSum
from fedkin.federation.center import Center
from fedkin.methods.base import Info
from fedkin.methods.fedavg import FedAvgAlgorithm
from fedkin.methods.finetune.node import FINE_TUNING
from fedkin.methods.local_svrg.node import INNER_SVRG_ROUND
from fedkin.methods.local_svrg.training import SvrgMethod, TrainingState
from fedkin.methods.personalized import with_center
from fedkin.methods.settings import count
from fedkin.methods.step_size import SMOOTHNESS
from fedkin.types import Key, Vector

CHOICES = 10
"""How many numbers of steps are tried, besides none at all."""


@dataclass(frozen=True, kw_only=True)
class FineTuning(SvrgMethod):
    """Train one model on all nodes alike, then fit it to the owner's data. See also `SvrgMethod`.

    Args:
        personal_steps: The largest number of steps on the owner's data, a multiple of ten or rounded up
            to one; 100 if open. Held-out rows of these data choose how many of them are taken.

    >>> FineTuning(personal_steps=50).personal_steps
    50
    """

    name: ClassVar[str] = "finetune"
    title: ClassVar[str] = "FedAvg + fine-tuning"
    color: ClassVar[str] = "#214BF2"
    dark_color: ClassVar[str | None] = "#9BAEF9"
    marker: ClassVar[str] = "P"
    dashes: ClassVar[tuple[float, ...]] = (6, 1)
    tasks = (INNER_SVRG_ROUND, FINE_TUNING, SMOOTHNESS)
    learning_rate_place: ClassVar[tuple[str, ...]] = ("shared", "training")
    tuning_grid: ClassVar[Mapping[str, Sequence[Any]]] = {
        "learning_rate": (0.05, 0.02, 0.01),
        "personal_steps": (50, 200),
    }

    personal_steps: int | None = count()

    def prepare(
        self, federation: Federation, center: Center, key: Key
    ) -> tuple["FineTuningAlgorithm", Cost]:
        """Choose step size and lengths, as FedAvg does."""
        training, cost = self.choose_training(federation, key)
        shared = FedAvgAlgorithm(self.with_rounds_of_an_outer_step(training, federation))
        return FineTuningAlgorithm(shared, self.personal_steps or 100), cost


@dataclass(frozen=True)
class FineTuningAlgorithm:
    """FedAvg; after each of its steps, the owner fine-tunes a copy of the shared model.

    Args:
        shared: How the shared model is trained.
        personal_steps: The largest number of steps on the owner's data.
    """

    shared: FedAvgAlgorithm
    personal_steps: int = 100

    def init(self, theta: Vector, nodes: int) -> TrainingState:
        """Begin at the initial model."""
        return self.shared.init(theta, nodes)

    def step(
        self, state: TrainingState, key: Key, federation: Federation, center: Center
    ) -> tuple[TrainingState, Info]:
        """Continue to train the shared model, and fine-tune a copy of it."""
        nodes_key, own_key = jax.random.split(key)
        state, info = self.shared.step(state, nodes_key, federation, center)
        message = {"point": state.theta, "learning_rate": self.shared.training.learning_rate}
        own = center.alone.exchange(
            tune=WeightedSum(
                FINE_TUNING,
                message,
                weights=jnp.ones(1),
                steps=-(-self.personal_steps // CHOICES),
                choices=CHOICES,
            ),
            key=own_key,
        )
        diagnostics = {name: float(own.tune[name]) for name in ("gain", "taken")}
        return state, replace(
            info,
            theta=own.tune["point"],
            cost=with_center(info.cost, own.cost),
            diagnostics=info.diagnostics | diagnostics,
        )
