"""The center's part of pFedMe (Dinh et al. 2020, its Algorithm 1), all nodes taking part."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedkin.federation.base import Cost, Federation, Reply, WeightedSum
from fedkin.federation.center import Center
from fedkin.federation.task import Task
from fedkin.methods.base import Info
from fedkin.methods.local_svrg.center import refuse_divergence
from fedkin.methods.personalized import (
    PersonalizedMethod,
    PersonalizedState,
    check_pull,
    with_center,
)
from fedkin.methods.pfedme.node import PFEDME_PERSONAL_ROUND, PFEDME_ROUND
from fedkin.methods.step_size import SMOOTHNESS
from fedkin.methods.weights import equal_weights
from fedkin.types import Array, Key, Vector


@dataclass(frozen=True, kw_only=True)
class PFedMe(PersonalizedMethod):
    """A model trained on the nodes' Moreau envelopes, personalized. `None` leaves a setting open.

    Args:
        preset: Where open settings come from: `automatic` (from the data), or `paper`.
        learning_rate: The step size γ, of the local rounds (η) and of gradient descent in the subproblem.
        period: The number R = τ of local rounds between two synchronizations.
        rounds: The synchronizations of one step.
        proximal: The strength λ of the pull toward the shared model; 5 if open, the lowest value of the
            paper's grid. Of the two ends of the grid it had the better best validation accuracy within
            100 synchronizations of a trial (Fashion-MNIST, setting 2, one seed, γ = 0.05); 10 was not
            tried.

    >>> PFedMe().chosen_proximal
    5.0
    """

    name: ClassVar[str] = "pfedme"
    title: ClassVar[str] = "pFedMe"
    color: ClassVar[str] = "#C2639A"
    dark_color: ClassVar[str | None] = "#E494C1"
    marker: ClassVar[str] = "D"
    dashes: ClassVar[tuple[float, ...]] = (7, 2, 1.5, 2)
    tasks = (PFEDME_ROUND, PFEDME_PERSONAL_ROUND, SMOOTHNESS)
    default_proximal: ClassVar[float] = 5.0
    tuning_grid: ClassVar[Mapping[str, Sequence[Any]]] = {"proximal": (5.0, 10.0, 15.0)}

    def prepare(
        self, federation: Federation, center: Center, key: Key
    ) -> tuple["PFedMeAlgorithm", Cost]:
        """Choose step size and lengths."""
        chosen, cost = self.choose(federation, center, key)
        return PFedMeAlgorithm(*chosen), cost


@dataclass(frozen=True)
class PFedMeAlgorithm:
    """The nodes average a shared model trained on their Moreau envelopes (β = 1).

    In the last synchronization of a step node 0, too, takes the R local rounds on its own data, from the
    same broadcast as the nodes. Its last solution of the proximal subproblem is its personal model, the
    one to evaluate. In earlier synchronizations it need not: of what it does there nothing remains.

    Args:
        learning_rate: The step size γ, of the local rounds (η) and of gradient descent in the subproblem.
        period: The number R = τ of local rounds between two synchronizations.
        rounds: The synchronizations of one step.
        proximal: The strength λ of the pull toward the shared model.
        tolerance: The norm δ of the subproblem's gradient that is small enough.
        iterations: The largest number of iterations of a subproblem.
    """

    learning_rate: float
    period: int = 20
    rounds: int = 20
    proximal: float = 5.0
    tolerance: float = 0.005
    iterations: int = 20

    def __post_init__(self) -> None:
        check_pull(self.learning_rate, self.proximal)

    def init(self, theta: Vector, nodes: int) -> PersonalizedState:
        """Begin at the initial model."""
        return PersonalizedState(theta, 0)

    def step(
        self, state: PersonalizedState, key: Key, federation: Federation, center: Center
    ) -> tuple[PersonalizedState, Info]:
        """Continue for as many synchronizations as the settings say."""
        node_weights = equal_weights(federation.present)
        shared = personal = state.shared
        cost = Cost()
        first_loss = float("nan")
        diagnostics: dict[str, float] = {}
        for number in range(self.rounds):
            nodes_key, own_key = jax.random.split(jax.random.fold_in(key, number))
            nodes = self._local_rounds(federation, PFEDME_ROUND, shared, nodes_key, node_weights)
            moved, loss = nodes.train["point"], float(nodes.train["loss"])
            step_cost = nodes.cost
            first_loss = loss if number == 0 else first_loss
            self._check("the shared model", number, moved, first_loss, loss)
            if number == self.rounds - 1:
                own = self._local_rounds(
                    center.alone, PFEDME_PERSONAL_ROUND, shared, own_key, jnp.ones(1)
                )
                step_cost = with_center(step_cost, own.cost)
                personal, own_loss = own.train["point"], float(own.train["loss"])
                # Node 0's loss may be on another scale than the nodes': only non-finite numbers count.
                self._check("the personal model", number, personal, own_loss, own_loss)
                diagnostics = {
                    "training_loss": loss,
                    "personal_loss": own_loss,
                    "personal_distance": float(jnp.linalg.norm(personal - moved)),
                    "proximal_iterations": float(nodes.train["iterations"]),
                }
            cost += step_cost
            shared = moved
        info = Info(personal, node_weights, cost, diagnostics)
        return PersonalizedState(shared, state.rounds + self.rounds), info

    def _local_rounds(
        self, learners: Federation, task: Task, shared: Vector, key: Key, weights: Array
    ) -> Reply:
        message = {
            "shared": shared,
            "learning_rate": self.learning_rate,
            "proximal": self.proximal,
            "tolerance": self.tolerance,
        }
        return learners.exchange(
            train=WeightedSum(
                task, message, weights=weights, steps=self.period, iterations=self.iterations
            ),
            key=key,
        )

    def _check(self, what: str, number: int, point: Vector, first_loss: float, loss: float) -> None:
        refuse_divergence(
            what, number + 1, point, first_loss, loss, learning_rate=self.learning_rate
        )
