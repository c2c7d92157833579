"""The center's part of pFedMe (Dinh et al. 2020, its Algorithm 1), all nodes taking part."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp

from fedkin.federation.base import Cost, Federation, Replies
from fedkin.federation.center import Center
from fedkin.methods.base import Info
from fedkin.methods.local_svrg.center import combine, refuse_divergence
from fedkin.methods.personalized import PersonalizedState, beside, check_pull
from fedkin.methods.weights import equal_weights
from fedkin.types import Array, Key, Vector


@dataclass(frozen=True)
class PFedMe:
    """The nodes average a shared model trained on their Moreau envelopes (β = 1).

    In the last synchronization of a step node 0, too, takes the R local rounds on its own data, from the
    same broadcast as the nodes. Its last solution of the proximal subproblem is its personal model, the
    one to evaluate. In earlier synchronizations it need not: of what it does there nothing remains.

    Args:
        learning_rate: The step size γ, of the local rounds (η) and of gradient descent in the subproblem.
        period: The number R = τ of local rounds between two synchronizations.
        rounds: Synchronizations of one step.
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
        """Go on for as many synchronizations as the settings say."""
        node_weights = equal_weights(federation.present)
        shared = personal = state.shared
        cost = Cost()
        first_loss = float("nan")
        diagnostics: dict[str, float] = {}
        for number in range(self.rounds):
            nodes_key, own_key = jax.random.split(jax.random.fold_in(key, number))
            replies, call_cost = self._local_rounds(
                federation, shared, nodes_key, node_weights, reply="shared"
            )
            moved = combine(node_weights, replies["point"])
            loss = float(node_weights @ replies["loss"])
            first_loss = loss if number == 0 else first_loss
            self._check("the shared model", number, moved, first_loss, loss)
            if number == self.rounds - 1:
                own, own_cost = self._local_rounds(
                    center.alone, shared, own_key, None, reply="personal"
                )
                call_cost = beside(call_cost, own_cost)
                personal, own_loss = own["point"][0], float(own["loss"][0])
                # Node 0's loss may be on another scale than the nodes': only numbers that are none count.
                self._check("the personal model", number, personal, own_loss, own_loss)
                diagnostics = {
                    "training_loss": loss,
                    "personal_loss": own_loss,
                    "personal_distance": float(jnp.linalg.norm(personal - moved)),
                    "proximal_iterations": float(node_weights @ replies["iterations"]),
                }
            cost += call_cost
            shared = moved
        info = Info(personal, node_weights, cost, diagnostics)
        return PersonalizedState(shared, state.rounds + self.rounds), info

    def _local_rounds(
        self,
        learners: Federation,
        shared: Vector,
        key: Key,
        node_weights: Array | None,
        *,
        reply: Literal["shared", "personal"],
    ) -> tuple[Replies, Cost]:
        message = {
            "shared": shared,
            "learning_rate": self.learning_rate,
            "proximal": self.proximal,
            "tolerance": self.tolerance,
        }
        return learners.call(
            "pfedme_round",
            message,
            key=key,
            node_weights=node_weights,
            steps=self.period,
            iterations=self.iterations,
            reply=reply,
        )

    def _check(self, what: str, number: int, point: Vector, first_loss: float, loss: float) -> None:
        refuse_divergence(
            what, number + 1, point, first_loss, loss, learning_rate=self.learning_rate
        )
