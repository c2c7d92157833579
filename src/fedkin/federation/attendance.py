"""Nodes that may fail to answer, or answer nonsense: who takes part, and what happens to the rest.

Every reply is checked. A node whose reply is missing or bad is left out of that synchronization: a weighted
sum is what it would be with its weight shared out among the others, and its numbers are NaN, for the method
to fill. It also counts as a strike. A node with three strikes in a row is dropped; one that has come back
rejoins at the start of the next outer step.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from fedkin.errors import FedkinError
from fedkin.federation.aggregate import combine
from fedkin.federation.base import Cost, Reply, Request, WeightedSum, as_array
from fedkin.federation.checks import find_faults
from fedkin.federation.series import Beginning, SeriesBook
from fedkin.models.objective import Objective
from fedkin.types import Array, Key

STRIKES = 3
"""A node that fails this many times in a row is dropped."""

FEWEST_NODES = 2
"""With fewer nodes, there is nothing to weigh."""


class TooFewNodesError(FedkinError):
    """Too many nodes are gone for the run to continue; its checkpoint is there to resume from."""


@dataclass(frozen=True)
class Assignment:
    """One request as it concerns one node."""

    request: Request
    models: tuple[int, ...]
    """The models that the node works for, by number."""
    begins: Mapping[str, Beginning]
    """The slots that have to begin, for which of these models, and the vectors for it."""


@dataclass(frozen=True)
class Answer:
    """What became of the requests to one node."""

    replies: Mapping[str, Mapping[str, np.ndarray]] | None
    """For each request the named replies, with a row per model; None if there are none."""
    fault: str | None = None
    """Why there are none."""
    evaluations: int = 0
    """Gradients or Hessian-vector products of single points that the node computed."""
    bytes_up: int = 0
    bytes_down: int = 0


Good = dict[int, Mapping[str, Mapping[str, np.ndarray]]]
"""The good replies by node and request."""


class AttendedFederation(ABC):
    """A federation that continues without those who are missing.

    A subclass carries the messages (`ask`) and looks for nodes that have come back (`find_returned`).

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
        self.ask_all = False
        self.series = SeriesBook()
        self._strikes = np.zeros(len(self.names), int)
        self._notes: dict[str, int] = {}

    @abstractmethod
    def ask(
        self, assignments: Mapping[int, Mapping[str, Assignment]], key: Key
    ) -> dict[int, Answer]:
        """Send each of some nodes its requests, in one message, and wait for the answers."""

    @abstractmethod
    def find_returned(self, absent: Sequence[int]) -> list[int]:
        """Return those of the absent nodes that are there again and ready to work."""

    def exchange(self, *, key: Key, **requests: Request) -> Reply:
        """Ask the nodes that take part. See `Federation.exchange`."""
        started: set[str] = set()
        for request in requests.values():
            self.series.start(request, started)
        cost = Cost()
        good: Good = {}
        # A sum needs somebody who counts. If nobody answers, the fault may lie in between: ask again those
        # who did not answer, until they do or are dropped.
        while True:
            requests = {name: self._for_those_present(each) for name, each in requests.items()}
            assignments = self._assign(requests)
            open_assignments = {node: own for node, own in assignments.items() if node not in good}
            if not open_assignments:
                break
            answers = self.ask(open_assignments, key)
            cost += self._cost(answers)
            good |= self._sift(open_assignments, answers)
            if np.count_nonzero(self.present) < min(FEWEST_NODES, len(self.names)):
                self._give_up()
            nobody = not good and len(assignments) >= FEWEST_NODES
            if not nobody and all(
                self._has_sum(name, each, good) for name, each in requests.items()
            ):
                break
        for node in good:
            for request in requests.values():
                models = self._models_of(request, node)
                for slot in request.task.slots:
                    self.series.mark(slot, [(model, node) for model in models])
        return Reply({name: self._combine(name, requests[name], good) for name in requests}, cost)

    def begin_step(self, step: int) -> None:
        """Let the nodes that have come back rejoin."""
        absent = np.flatnonzero(~self.present).tolist()
        for node in self.find_returned(absent) if absent else []:
            self.present[node] = True
            self._strikes[node] = 0
            self.note(f"{self.names[node]} is back and takes part again")

    def end_step(self) -> tuple[str, ...]:
        """Return what went wrong since the last call, each with how often it did."""
        notes = tuple(
            note if count == 1 else f"{note} ({count} times)" for note, count in self._notes.items()
        )
        self._notes.clear()
        return notes

    def note(self, note: str) -> None:
        """Remember, in a sentence, that something went wrong with a node."""
        self._notes[note] = self._notes.get(note, 0) + 1

    def _asked(self, request: Request) -> np.ndarray:
        return request.asked(len(self.names), ask_all=self.ask_all) & self.present

    def _models_of(self, request: Request, node: int) -> tuple[int, ...]:
        return tuple(np.flatnonzero(self._asked(request)[:, node]).tolist())

    def _for_those_present(self, request: Request) -> Request:
        """Give all present nodes the same weight where every node that had one has been dropped."""
        if not isinstance(request, WeightedSum):
            return request
        weights = np.atleast_2d(np.asarray(request.weights))
        counted = weights != 0
        lost = counted.any(axis=1, keepdims=True) & ~(counted & self.present).any(
            axis=1, keepdims=True
        )
        if not lost.any():
            return request
        equal = self.present / np.count_nonzero(self.present)
        filled = jnp.asarray(np.where(lost, equal, weights), jnp.result_type(float))
        return request.with_weights(filled if request.models is not None else filled[0])

    def _assign(self, requests: Mapping[str, Request]) -> dict[int, dict[str, Assignment]]:
        assignments: dict[int, dict[str, Assignment]] = {}
        for name, request in requests.items():
            for node in np.flatnonzero(self._asked(request).any(axis=0)).tolist():
                models = self._models_of(request, node)
                begins = self.series.beginnings(request, [(model, node) for model in models])
                assignments.setdefault(node, {})[name] = Assignment(request, models, begins)
        return assignments

    def _has_sum(self, name: str, request: Request, good: Good) -> bool:
        """Tell whether a request is no sum, or nodes that count have answered it for every model."""
        if not isinstance(request, WeightedSum):
            return True
        needed = self._asked(request) & (np.atleast_2d(np.asarray(request.weights)) != 0)
        answered = np.isin(
            np.arange(len(self.names)), [node for node in good if name in good[node]]
        )
        return bool((needed & answered).any(axis=1).all())

    def _sift(
        self,
        assignments: Mapping[int, Mapping[str, Assignment]],
        answers: Mapping[int, Answer],
    ) -> Good:
        """Return the good replies by node; every other node gets a strike."""
        faults: dict[int, str] = {
            node: answer.fault or "no answer"
            for node, answer in answers.items()
            if answer.replies is None
        }
        for name in dict.fromkeys(name for own in assignments.values() for name in own):
            nodes = [node for node in assignments if name in assignments[node]]
            request = assignments[nodes[0]][name].request
            found = find_faults(
                request.task,
                [(answers[node].replies or {}).get(name) for node in nodes],
                [len(assignments[node][name].models) for node in nodes],
                {key: np.asarray(as_array(value)) for key, value in request.message.items()},
                self.objective.size,
            )
            for node, fault in zip(nodes, found, strict=True):
                if fault is not None:
                    faults.setdefault(node, fault)
                elif name not in (answers[node].replies or {}):
                    faults.setdefault(node, f"it did not answer {request.task.name}")
        good: Good = {}
        for node, answer in answers.items():
            if node in faults or answer.replies is None:
                self._strike(node, faults[node])
            else:
                self._strikes[node] = 0
                good[node] = answer.replies
        return good

    def _combine(self, name: str, request: Request, good: Good) -> dict[str, Array]:
        wanted = request.asked(len(self.names), ask_all=self.ask_all)
        answered = [node for node in good if name in good[node]]
        items = [(model, node) for node in answered for model in self._models_of(request, node)]
        task, dtype = request.task, jnp.result_type(float)
        nothing = dict.fromkeys(task.vector_replies, np.zeros((0, self.objective.size), dtype))
        nothing |= dict.fromkeys(task.number_replies, np.zeros(0, dtype))
        replies = {
            reply: np.concatenate([empty, *(good[node][name][reply] for node in answered)])
            for reply, empty in nothing.items()
        }
        return combine(request, wanted, items, replies)

    def _cost(self, answers: Mapping[int, Answer]) -> Cost:
        points = np.zeros(len(self.names), int)
        for node, answer in answers.items():
            points[node] = answer.evaluations
        return Cost(
            synchronizations=1,
            bytes_up=sum(answer.bytes_up for answer in answers.values()),
            bytes_down=sum(answer.bytes_down for answer in answers.values()),
            node_points=tuple(points.tolist()),
            nodes_asked=len(answers),
        )

    def _strike(self, node: int, fault: str) -> None:
        self._strikes[node] += 1
        self.note(f"{self.names[node]} was left out of a synchronization: {fault}")
        if self._strikes[node] >= STRIKES:
            self.present[node] = False
            self.note(f"{self.names[node]} was dropped after {STRIKES} failures in a row")

    def _give_up(self) -> None:
        left = " and ".join(np.array(self.names)[self.present]) or "none"
        why = "; ".join(self.end_step())
        raise TooFewNodesError(
            f"fewer than {FEWEST_NODES} nodes are left ({left}), too few to continue: {why}. Bring the nodes "
            "back and continue with --resume: nothing is lost but this step"
        )
