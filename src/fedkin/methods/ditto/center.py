"""The center's part of Ditto (Li et al. 2021, its Algorithm 2), all nodes taking part."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedkin.federation.base import Cost, Federation, WeightedSum
from fedkin.federation.center import Center
from fedkin.methods.base import Info
from fedkin.methods.ditto.node import DITTO_PERSONAL_ROUND, DITTO_SHARED_ROUND
from fedkin.methods.local_svrg.center import refuse_divergence
from fedkin.methods.personalized import (
    PersonalizedMethod,
    check_pull,
    with_center,
)
from fedkin.methods.settings import count
from fedkin.methods.step_size import SMOOTHNESS
from fedkin.methods.weights import equal_weights
from fedkin.types import Key, Vector


@dataclass(frozen=True, kw_only=True)
class Ditto(PersonalizedMethod):
    """A personal model, pulled toward a model that all nodes train. `None` leaves a setting open.

    Args:
        preset: Where open settings come from: `automatic` (from the data), or `paper`.
        learning_rate: The step size γ, for the shared model (η_g) and the personal one (η_l).
        period: The number r = τ of local steps between two synchronizations.
        rounds: The synchronizations of one step.
        proximal: The strength λ of the pull toward the shared model; 0.1 if open, the middle of the
            paper's grid.
        personal_steps: The number s of steps on the personal model per synchronization; 25 if open.

    >>> Ditto(proximal=0.2).chosen_proximal
    0.2
    """

    name: ClassVar[str] = "ditto"
    title: ClassVar[str] = "Ditto"
    color: ClassVar[str] = "#007F5C"
    dark_color: ClassVar[str | None] = "#2CC79B"
    marker: ClassVar[str] = "^"
    dashes: ClassVar[tuple[float, ...]] = (3, 1.5)
    tasks = (DITTO_SHARED_ROUND, DITTO_PERSONAL_ROUND, SMOOTHNESS)
    default_proximal: ClassVar[float] = 0.1
    tuning_grid: ClassVar[Mapping[str, Sequence[Any]]] = {"proximal": (0.05, 0.1, 0.2)}

    personal_steps: int | None = count()

    def prepare(
        self, federation: Federation, center: Center, key: Key
    ) -> tuple["DittoAlgorithm", Cost]:
        """Choose step size and lengths."""
        chosen, cost = self.choose(federation, center, key)
        return DittoAlgorithm(*chosen, self.personal_steps or 25), cost


class DittoState(NamedTuple):
    """State of Ditto. Within a step, node 0 keeps the personal model."""

    shared: Vector
    """The shared model w."""
    personal: Vector
    """Node 0's personal model v."""


@dataclass(frozen=True)
class DittoAlgorithm:
    """The nodes average a shared model w; node 0 keeps a personal model v that is pulled toward it.

    In synchronization t the nodes take r steps from w^t, and node 0 takes s steps on v with that same
    w^t. The model to evaluate is v; it starts at the initial model, and node 0 keeps it from one
    synchronization of a step to the next. For the settings see `Ditto`.
    """

    learning_rate: float
    period: int = 20
    rounds: int = 20
    proximal: float = 0.1
    personal_steps: int = 25

    def __post_init__(self) -> None:
        check_pull(self.learning_rate, self.proximal)

    def init(self, theta: Vector, nodes: int) -> DittoState:
        """Begin at the initial model."""
        return DittoState(theta, theta)

    def step(
        self, state: DittoState, key: Key, federation: Federation, center: Center
    ) -> tuple[DittoState, Info]:
        """Continue for as many synchronizations as the settings say."""
        node_weights = equal_weights(federation.present)
        shared, personal = state.shared, state.personal
        cost = Cost()
        first_losses = losses = (float("nan"), float("nan"))
        for number in range(self.rounds):
            nodes_key, own_key = jax.random.split(jax.random.fold_in(key, number))
            nodes = federation.exchange(
                train=WeightedSum(
                    DITTO_SHARED_ROUND,
                    {"shared": shared, "learning_rate": self.learning_rate},
                    weights=node_weights,
                    steps=self.period,
                ),
                key=nodes_key,
            )
            own = center.alone.exchange(
                train=WeightedSum(
                    DITTO_PERSONAL_ROUND,
                    {
                        "shared": shared,
                        "learning_rate": self.learning_rate,
                        "proximal": self.proximal,
                        **({"personal": personal} if number == 0 else {}),
                    },
                    weights=jnp.ones(1),
                    begin=number == 0,
                    steps=self.personal_steps,
                ),
                key=own_key,
            )
            cost += with_center(nodes.cost, own.cost)
            shared, personal = nodes.train["point"], own.train["point"]
            losses = float(nodes.train["loss"]), float(own.train["loss"])
            first_losses = losses if number == 0 else first_losses
            for what, point, first, loss in zip(
                ("the shared model", "the personal model"),
                (shared, personal),
                first_losses,
                losses,
                strict=True,
            ):
                refuse_divergence(
                    what, number + 1, point, first, loss, learning_rate=self.learning_rate
                )
        info = Info(
            personal,
            node_weights,
            cost,
            {
                "training_loss": losses[0],
                "personal_loss": losses[1],
                "personal_distance": float(jnp.linalg.norm(personal - shared)),
            },
        )
        return DittoState(shared, personal), info
