"""The center's part of Ditto (Li et al. 2021, its Algorithm 2), all nodes taking part."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from fedkin.federation.base import Cost, Federation
from fedkin.federation.center import Center
from fedkin.methods.base import Info
from fedkin.methods.local_svrg.center import combine, refuse_divergence
from fedkin.methods.personalized import PersonalizedState, beside, check_pull
from fedkin.methods.weights import equal_weights
from fedkin.types import Key, Vector


@dataclass(frozen=True)
class Ditto:
    """The nodes average a shared model w; node 0 keeps a personal model v that is pulled toward it.

    In synchronization t the nodes take r steps from w^t, and node 0 takes s steps on v with that same
    w^t. The model to evaluate is v; it starts at the initial model, and node 0 keeps it from one
    synchronization to the next.

    Args:
        learning_rate: The step size γ, for the shared model (η_g) and the personal one (η_l).
        period: The number r = τ of local steps between two synchronizations.
        rounds: Synchronizations of one step.
        proximal: The strength λ of the pull toward the shared model.
        personal_steps: The number s of steps on the personal model in a synchronization.
    """

    learning_rate: float
    period: int = 20
    rounds: int = 20
    proximal: float = 0.1
    personal_steps: int = 25

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
        first_losses = losses = (float("nan"), float("nan"))
        for number in range(self.rounds):
            nodes_key, own_key = jax.random.split(jax.random.fold_in(key, number))
            replies, nodes_cost = federation.call(
                "ditto_shared_round",
                {"shared": shared, "learning_rate": self.learning_rate},
                key=nodes_key,
                node_weights=node_weights,
                steps=self.period,
            )
            own, own_cost = center.alone.call(
                "ditto_personal_round",
                {
                    "shared": shared,
                    "learning_rate": self.learning_rate,
                    "proximal": self.proximal,
                },
                key=own_key,
                steps=self.personal_steps,
                start=state.rounds + number == 0,
            )
            cost += beside(nodes_cost, own_cost)
            shared = combine(node_weights, replies["point"])
            personal = own["point"][0]
            losses = float(node_weights @ replies["loss"]), float(own["loss"][0])
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
        return PersonalizedState(shared, state.rounds + self.rounds), info
