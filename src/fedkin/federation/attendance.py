"""Nodes that may fail to answer, or answer nonsense: who takes part, and what stands in for the rest.

Every reply is checked. A node whose reply is missing or bad is left out of that synchronization: the
weighted mean of the other replies stands in for its own, which makes every weighted sum what it would
be with the weights renormalized over the others, and moves the weight of a node whose slope is not
known neither up nor down. It also is a strike. A node with three strikes in a row is dropped; one that
has come back is taken in when the next outer step begins.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedkin.errors import FedkinError
from fedkin.federation.base import Cost, Replies
from fedkin.federation.checks import find_faults
from fedkin.models.objective import Objective
from fedkin.types import Array, Key

logger = logging.getLogger(__name__)

STRIKES = 3
"""A node that has failed so many times in a row is dropped."""

FEWEST_NODES = 2
"""With fewer nodes there is nobody to weigh against anybody."""


class TooFewNodesError(FedkinError):
    """So many nodes are gone that the run cannot go on; its checkpoint is there to resume from."""


@dataclass(frozen=True)
class Answer:
    """What became of one request to one node."""

    replies: Mapping[str, np.ndarray] | None
    """The named replies; None if there are none."""
    fault: str | None = None
    """Why there are none."""
    evaluations: int = 0
    """Gradients or Hessian-vector products of single points that the node computed."""
    bytes_up: int = 0
    bytes_down: int = 0


class AttendedFederation(ABC):
    """A federation that goes on without those who are missing.

    A subclass carries the messages (`ask`) and looks for nodes that have come back (`seek`).

    Args:
        objective: The model that the nodes train.
        names: The names of the nodes.
        batches: The largest number of mini-batches of a node.
    """

    def __init__(self, objective: Objective, names: Sequence[str], batches: int) -> None:
        self.objective = objective
        self.names = tuple(names)
        self.batches = batches
        self.present = np.ones(len(self.names), bool)
        self._strikes = np.zeros(len(self.names), int)
        self._notes: dict[str, int] = {}

    @abstractmethod
    def ask(
        self,
        nodes: Sequence[int],
        task: str,
        message: Mapping[str, np.ndarray],
        *,
        key: Key,
        start: bool,
        options: Mapping[str, Any],
    ) -> list[Answer]:
        """Send one request to each of these nodes and wait for their answers, in the same order."""

    @abstractmethod
    def seek(self, absent: Sequence[int]) -> list[int]:
        """Return those of the absent nodes that are there again and ready to work."""

    def call(
        self,
        task: str,
        message: Mapping[str, Array | float],
        *,
        key: Key,
        node_weights: Array | None = None,
        start: bool = False,
        **options: Any,
    ) -> tuple[Replies, Cost]:
        """Ask the nodes that take part. See `Federation.call`."""
        arrays = {name: _as_numpy(value) for name, value in message.items()}
        cost = Cost()
        good: dict[int, Mapping[str, np.ndarray]] = {}
        # If nobody answers, the fault may lie in between: ask again, until everybody is dropped.
        while not good:
            asked = np.flatnonzero(self.present).tolist()
            answers = self.ask(asked, task, arrays, key=key, start=start, options=options)
            cost += self._cost(asked, answers)
            good = self._sift(task, asked, answers, arrays)
            if np.count_nonzero(self.present) < min(FEWEST_NODES, len(self.names)):
                self._refuse_to_go_on()
        weights = None if node_weights is None else np.asarray(node_weights)
        return stand_in(good, len(self.names), weights), cost

    def _sift(
        self,
        task: str,
        asked: Sequence[int],
        answers: Sequence[Answer],
        sent: Mapping[str, np.ndarray],
    ) -> dict[int, Mapping[str, np.ndarray]]:
        """Return the good replies by node; every other one is a strike."""
        replies = [answer.replies for answer in answers]
        faults = find_faults(task, replies, sent, self.objective.size)
        good = {}
        for node, answer, fault in zip(asked, answers, faults, strict=True):
            if answer.replies is None or fault is not None:
                self._strike(node, answer.fault or fault or "no answer")
            else:
                self._strikes[node] = 0
                good[node] = answer.replies
        return good

    def _cost(self, asked: Sequence[int], answers: Sequence[Answer]) -> Cost:
        points = np.zeros(len(self.names), int)
        points[asked] = [answer.evaluations for answer in answers]
        return Cost(
            synchronizations=1,
            bytes_up=sum(answer.bytes_up for answer in answers),
            bytes_down=sum(answer.bytes_down for answer in answers),
            node_points=tuple(points.tolist()),
        )

    def begin_step(self, step: int) -> None:
        """Take in the nodes that have come back."""
        absent = np.flatnonzero(~self.present).tolist()
        for node in self.seek(absent) if absent else []:
            self.present[node] = True
            self._strikes[node] = 0
            self._note(f"{self.names[node]} is back and takes part again")

    def end_step(self) -> tuple[str, ...]:
        """Return what went wrong since the last call, each with how often it did."""
        notes = tuple(
            note if count == 1 else f"{note} ({count} times)" for note, count in self._notes.items()
        )
        self._notes.clear()
        return notes

    def _strike(self, node: int, fault: str) -> None:
        self._strikes[node] += 1
        self._note(f"{self.names[node]} was left out of a synchronization: {fault}")
        if self._strikes[node] >= STRIKES:
            self.present[node] = False
            self._note(f"{self.names[node]} was dropped after {STRIKES} failures in a row")

    def _refuse_to_go_on(self) -> None:
        left = " and ".join(np.array(self.names)[self.present]) or "none"
        why = "; ".join(self.end_step())
        raise TooFewNodesError(
            f"fewer than {FEWEST_NODES} nodes are left ({left}), too few to go on: {why}. Bring the nodes "
            "back and go on with --resume: nothing is lost but this step"
        )

    def _note(self, note: str) -> None:
        logger.warning("%s", note)
        self._notes[note] = self._notes.get(note, 0) + 1


def stand_in(
    good: Mapping[int, Mapping[str, np.ndarray]], nodes: int, weights: np.ndarray | None
) -> Replies:
    """Stack the replies over all nodes, the weighted mean of the good ones in place of all others.

    With r_j the good replies and w_j their weights, every other node is given Σ_j w_j r_j / Σ_j w_j;
    Σ_k w_k r_k over all nodes is then that same mean, as weights sum to one.
    """
    numbers = list(good)
    shares = np.ones(len(numbers)) if weights is None else weights[numbers].astype(np.float64)
    if not shares.sum() > 0:
        shares = np.ones(len(numbers))
    shares = shares / shares.sum()
    stacked: Replies = {}
    for name in good[numbers[0]]:
        own = np.stack([np.asarray(good[number][name]) for number in numbers])
        every = np.empty((nodes, *own.shape[1:]), own.dtype)
        if len(numbers) < nodes:
            # A good reply of weight zero may still be no number where all nodes have diverged.
            counted = np.where(shares.reshape(-1, *[1] * (own.ndim - 1)) > 0, own, 0)
            every[:] = np.tensordot(shares, counted, axes=1).astype(own.dtype)
        every[numbers] = own
        stacked[name] = jnp.asarray(every)
    return stacked


def _as_numpy(value: Array | float) -> np.ndarray:
    """Give a plain number the type of all others, as the simulation does."""
    return np.asarray(
        jnp.asarray(np.asarray(value)) if not isinstance(value, np.ndarray) else value
    )
