"""Training on some of the nodes only: many groups at a time, one model each, in shared exchanges."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.errors import DivergedError
from fedkin.federation.base import Cost, Federation, WeightedSum
from fedkin.federation.center import Center
from fedkin.methods.bilevel.node import GRADIENT
from fedkin.methods.local_svrg.center import LOSS_CEILING, LocalSvrg
from fedkin.methods.local_svrg.node import INNER_SVRG_ROUND
from fedkin.numerics.lbfgs import minimize_many
from fedkin.types import Key, Vector

MOST_AT_ONCE = 256
"""How many groups are trained at the same time."""

NUMBERS_AT_ONCE = 500_000
"""How many parameters all of their models may have: what L-BFGS and the nodes remember is many times that."""

SMALL_SLOPE = 3e-5
"""Training to convergence ends where no derivative of the loss is larger, in units of the labels."""

MOST_EXCHANGES = 300
"""The most exchanges of such a training."""

SMALLER_STEPS = 3
"""How often a training that diverges is begun again, with a quarter of the learning rate."""


@dataclass(frozen=True)
class GroupTraining:
    """How a model is trained on a group of nodes.

    Args:
        federation: The nodes.
        center: The owner's rows.
        start: The model that every training starts from.
        key: Where randomness comes from: the same for every group, so that groups differ by their nodes only.
        rounds: The rounds of local steps to take; None to train to convergence, for convex models.
    """

    federation: Federation
    center: Center
    start: Vector
    key: Key
    rounds: LocalSvrg | None

    def train(self, weights: np.ndarray) -> "TrainedGroups":
        """Train a model with each row of weights of the nodes."""
        parts = [
            self._converge(part) if self.rounds is None else self._take_rounds(part, self.rounds)
            for part in np.array_split(weights, -(-len(weights) // self._at_once))
        ]
        return TrainedGroups(
            np.concatenate([part.models for part in parts]),
            sum((part.cost for part in parts), Cost()),
            sum(part.unsettled for part in parts),
        )

    @property
    def _at_once(self) -> int:
        return int(np.clip(NUMBERS_AT_ONCE // len(self.start), 1, MOST_AT_ONCE))

    def _converge(self, weights: np.ndarray) -> "TrainedGroups":
        """Minimize the weighted losses by L-BFGS: an exchange brings the gradients of all groups."""
        costs = [Cost()]

        def losses_and_gradients(
            models: np.ndarray, rows: np.ndarray
        ) -> tuple[np.ndarray, np.ndarray]:
            reply = self.federation.exchange(
                at=WeightedSum(
                    GRADIENT, {"theta": _sent(models)}, weights=_sent(weights[rows]), begin=True
                ),
                key=self.key,
            )
            costs[0] += reply.cost
            return np.asarray(reply.at["loss"]), np.asarray(reply.at["gradient"])

        found = minimize_many(
            losses_and_gradients,
            np.tile(np.asarray(self.start, np.float64), (len(weights), 1)),
            small_slope=SMALL_SLOPE * float(np.sqrt(self.center.loss_unit)),
            most_evaluations=MOST_EXCHANGES,
        )
        return TrainedGroups(found.points, costs[0], int(np.sum(~found.settled)))

    def _take_rounds(
        self, weights: np.ndarray, settings: LocalSvrg, smaller: int = SMALLER_STEPS
    ) -> "TrainedGroups":
        """Take rounds of local steps; groups whose training diverges begin again with smaller steps."""
        models = _sent(np.tile(np.asarray(self.start), (len(weights), 1)))
        cost, first = Cost(), np.ones(len(weights))
        fine = np.ones(len(weights), bool)
        for number in range(settings.rounds):
            reply = self.federation.exchange(
                train=WeightedSum(
                    INNER_SVRG_ROUND,
                    settings.message(models),
                    weights=_sent(weights),
                    begin=number == 0,
                    steps=settings.period,
                    reply=settings.reply_of_round(number),
                ),
                key=jax.random.fold_in(self.key, number),
            )
            cost += reply.cost
            models, loss = reply.train["point"], np.asarray(reply.train["loss"])
            first = np.maximum(loss, 1.0) if number == 0 else first
            fine &= (loss <= LOSS_CEILING * first) & np.isfinite(np.asarray(models)).all(axis=1)
        found = np.array(models)
        if not fine.all():
            if not smaller:
                raise DivergedError(
                    "training on a group of nodes diverges: give a smaller learning_rate, below "
                    f"{settings.learning_rate:.2g}"
                )
            slower = replace(settings, learning_rate=settings.learning_rate / 4)
            again = self._take_rounds(weights[~fine], slower, smaller - 1)
            found[~fine], cost = again.models, cost + again.cost
        return TrainedGroups(found, cost, 0)


class TrainedGroups(NamedTuple):
    """A model for every group."""

    models: np.ndarray
    """(groups, d)."""
    cost: Cost
    """What all of them have cost together."""
    unsettled: int
    """How many were to converge and have not."""


def _sent(array: np.ndarray) -> jax.Array:
    return jnp.asarray(array, jnp.result_type(float))
