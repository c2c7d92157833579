"""What a group of nodes is worth: the score of its model, for each of the owner's rows."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from fedkin.events import GroupsTrained, OnEvent
from fedkin.federation.base import Cost
from fedkin.training.alone import losses
from fedkin.types import Points, Vector
from fedkin.valuation.game import Group
from fedkin.valuation.groups import GroupTraining
from fedkin.valuation.result import ScoreName


class Judge:
    """Trains a model on each group of nodes, and scores it on the owner's rows.

    Args:
        training: How models are trained.
        shares: The weights of all nodes.
        players: The places of the nodes that groups are made of.
        score: What counts.
        on_event: Called with the events.
    """

    def __init__(
        self,
        training: GroupTraining,
        shares: np.ndarray,
        players: list[int],
        score: ScoreName,
        on_event: OnEvent | None,
    ) -> None:
        self._training, self._shares, self._players = training, shares, players
        self._score, self._on_event = score, on_event
        self._done, self._unsettled, self.most = 0, 0, 0
        self.cost = Cost()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader should know about the training."""
        if not self._unsettled:
            return ()
        return (
            f"{self._unsettled} of {self._done} models had not converged after the most exchanges: their "
            "groups' worth is inexact",
        )

    def evaluate(self, groups: Sequence[Group]) -> list[np.ndarray]:
        """Return the score of each of the owner's rows, for every group."""
        weights = []
        for group in groups:
            members = np.zeros_like(self._shares)
            chosen = [self._players[player] for player in sorted(group)]
            members[chosen] = self._shares[chosen]
            weights.append(members / members.sum())
        trained = self._training.train(np.stack(weights))
        self.cost += trained.cost
        self._unsettled += trained.unsettled
        self._done += len(groups)
        if self._on_event is not None:
            self._on_event(GroupsTrained(done=self._done, most=max(self.most, self._done)))
        return [self._of_rows(jnp.asarray(theta)) for theta in trained.models]

    def nobody(self) -> np.ndarray:
        """Return the same for the best constant answer: the owner's own class frequencies, or mean."""
        labels = self._rows.labels
        if self._training.center.objective.model.task == "regression":
            outputs = np.full((len(labels), 1), labels.mean(dtype=np.float64))
        else:
            classes = self._training.center.objective.output_shape()[0]
            counts = np.bincount(labels, minlength=classes)
            outputs = np.tile(np.log(np.maximum(counts, 1e-300) / len(labels)), (len(labels), 1))
        return self._scores(outputs)

    def _of_rows(self, theta: Vector) -> np.ndarray:
        outputs = self._training.center.outputs(theta, self._rows.inputs)
        return self._scores(np.asarray(outputs, np.float64).reshape(len(outputs), -1))

    def _scores(self, outputs: np.ndarray) -> np.ndarray:
        task = self._training.center.objective.model.task
        if self._score == "accuracy":
            return (outputs.argmax(axis=1) == self._rows.labels).astype(np.float64)
        lost = losses(outputs, self._rows.labels, task)
        return -2 * lost if task == "regression" else -lost

    @property
    def _rows(self) -> Points:
        rows = self._training.center.rows
        assert rows is not None
        return rows
