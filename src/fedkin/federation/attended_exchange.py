"""One owner's part of an exchange with nodes that may fail to answer, or answer nonsense."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from fedkin.federation.aggregate import combine
from fedkin.federation.base import Cost, Reply, Request, WeightedSum
from fedkin.federation.owners import TRAINING, Ask, Trail
from fedkin.federation.secure.orders import SumOrder
from fedkin.federation.series import Beginning
from fedkin.types import Array, Key

FEWEST_NODES = 2
"""With fewer nodes, there is nothing to weigh."""


@dataclass(frozen=True)
class Assignment:
    """One request as it concerns one node."""

    request: Request
    models: tuple[int, ...]
    """The models that the node works for, by number."""
    begins: Mapping[str, Beginning]
    """The slots that have to begin, for which of these models, and the vectors for it."""
    order: SumOrder | None = None
    """What the node is told of the sums, if it is to mask its replies."""


@dataclass(frozen=True)
class Block:
    """What one owner asks of one node in an exchange."""

    trail: Trail
    """The owner's series, and the number under which the node remembers what it does for it."""
    part: str
    """The part of the node that is asked (`owners.PARTS`)."""
    key: Key
    assignments: Mapping[str, Assignment]
    """By the names of the requests."""


@dataclass(frozen=True)
class Answer:
    """What became of one owner's requests to one node."""

    replies: Mapping[str, Mapping[str, np.ndarray]] | None
    """For each request the named replies, with a row per model; None if there are none."""
    fault: str | None = None
    """Why there are none."""
    evaluations: int = 0
    """Gradients or Hessian-vector products of single points that the node computed."""
    bytes_up: int = 0
    bytes_down: int = 0


def cost_of(answers: Mapping[int, list[Answer]], nodes: int) -> Cost:
    """Return what one round of messages has cost, given all answers of each node that was asked."""
    points = np.zeros(nodes, int)
    for node, own in answers.items():
        points[node] = sum(answer.evaluations for answer in own)
    every = [answer for own in answers.values() for answer in own]
    return Cost(
        synchronizations=1,
        bytes_up=sum(answer.bytes_up for answer in every),
        bytes_down=sum(answer.bytes_down for answer in every),
        node_points=tuple(points.tolist()),
        nodes_asked=len(answers),
    )


class AttendedExchange:
    """What an owner asks for, and what has been answered so far.

    A sum needs somebody who counts. If nobody answers, the fault may lie in between: those who did not
    answer are asked again, until they do or are dropped. An owner that asks the node that it is has
    nobody else to ask, and waits for it.

    Args:
        ask: What the owner asks for.
        present: Returns which of its nodes take part; nodes may leave while the exchange is under way.
        size: The number d of the model's parameters.
    """

    def __init__(self, ask: Ask, present: Callable[[], np.ndarray], size: int) -> None:
        self.ask = ask
        self.complete = False
        """Whether nobody has to be asked any more."""
        self.rounds_in_vain = 0
        """How often those who were asked again have answered, but with numbers that are of no use."""
        self._present = present
        self._size = size
        self._nodes = len(ask.owner.nodes)
        self._series = ask.owner.trail.series
        self._requests = dict(ask.requests)
        self._good: dict[int, Mapping[str, Mapping[str, np.ndarray]]] = {}
        self._assignments: dict[int, dict[str, Assignment]] = {}
        self._cost = Cost()
        started: set[str] = set()
        for request in ask.requests.values():
            self._series.start(request, started)

    def blocks(self) -> dict[int, Block]:
        """Return what is to be asked of those nodes that have not answered, by their places in the engine."""
        owner = self.ask.owner
        if owner.part == TRAINING:
            self._requests = {
                name: self._for_those_present(each) for name, each in self._requests.items()
            }
        answered = {node: own for node, own in self._assignments.items() if node in self._good}
        self._assignments = self._assign() | answered
        found = {
            int(owner.nodes[node]): Block(owner.trail, owner.part, self.ask.key, own)
            for node, own in self._assignments.items()
            if node not in self._good
        }
        self.complete = not found
        return found

    def take(self, answers: Mapping[int, Answer], good: set[int]) -> None:
        """Take in what nodes have answered.

        Args:
            answers: What became of the owner's requests, by the nodes' places in the engine.
            good: The nodes whose answers are believed.
        """
        places = {int(node): place for place, node in enumerate(self.ask.owner.nodes)}
        self._cost += cost_of({places[node]: [own] for node, own in answers.items()}, self._nodes)
        for node, answer in answers.items():
            if node in good and answer.replies is not None:
                self._good[places[node]] = answer.replies
        nobody = not self._good and len(self._assignments) >= FEWEST_NODES
        summed = all(self._has_sum(name, each) for name, each in self._requests.items())
        self.complete = self.ask.owner.part != TRAINING or (not nobody and summed)

    def reply(self) -> Reply | None:
        """Return what the owner gets; None if it has to wait for the node that it is."""
        if self.ask.owner.part != TRAINING and not self._good:
            return None
        for node in self._good:
            for own in self._assignments[node].values():
                for slot in own.request.task.slots:
                    self._series.mark(slot, [(model, node) for model in own.models])
        replies = {name: self._combine(name, each) for name, each in self._requests.items()}
        return Reply(replies, self._cost)

    def _asked(self, request: Request) -> np.ndarray:
        wanted = request.asked(self._nodes, ask_all=self.ask.owner.ask_all)
        return wanted & self._present()

    def _for_those_present(self, request: Request) -> Request:
        """Give all present nodes the same weight where every node that had one has been dropped."""
        if not isinstance(request, WeightedSum):
            return request
        present = self._present()
        weights = np.atleast_2d(np.asarray(request.weights))
        counted = weights != 0
        lost = counted.any(axis=1, keepdims=True) & ~(counted & present).any(axis=1, keepdims=True)
        if not lost.any():
            return request
        equal = present / np.count_nonzero(present)
        filled = jnp.asarray(np.where(lost, equal, weights), jnp.result_type(float))
        return request.with_weights(filled if request.models is not None else filled[0])

    def _assign(self) -> dict[int, dict[str, Assignment]]:
        assignments: dict[int, dict[str, Assignment]] = {}
        for name, request in self._requests.items():
            asked = self._asked(request)
            for node in np.flatnonzero(asked.any(axis=0)).tolist():
                models = tuple(np.flatnonzero(asked[:, node]).tolist())
                begins = self._series.beginnings(request, [(model, node) for model in models])
                assignments.setdefault(node, {})[name] = Assignment(request, models, begins)
        return assignments

    def _has_sum(self, name: str, request: Request) -> bool:
        """Tell whether a request is no sum, or nodes that count have answered it for every model."""
        if not isinstance(request, WeightedSum):
            return True
        needed = self._asked(request) & (np.atleast_2d(np.asarray(request.weights)) != 0)
        answered = np.isin(
            np.arange(self._nodes), [node for node in self._good if name in self._good[node]]
        )
        return bool((needed & answered).any(axis=1).all())

    def _combine(self, name: str, request: Request) -> dict[str, Array]:
        wanted = request.asked(self._nodes, ask_all=self.ask.owner.ask_all)
        answered = [node for node in self._good if name in self._good[node]]
        items = [
            (model, node) for node in answered for model in self._assignments[node][name].models
        ]
        task, dtype = request.task, jnp.result_type(float)
        nothing = dict.fromkeys(task.vector_replies, np.zeros((0, self._size), dtype))
        nothing |= dict.fromkeys(task.number_replies, np.zeros(0, dtype))
        replies = {
            reply: np.concatenate([empty, *(self._good[node][name][reply] for node in answered)])
            for reply, empty in nothing.items()
        }
        return combine(request, wanted, items, replies)
