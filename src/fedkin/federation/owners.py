"""Several owners at one engine: what each has asked so far, and its part of a shared exchange.

Each owner has its own series, models and key, as if it were the only one. What owners ask for alike, from the
first exchange on, is asked and computed once for all of them, until one of them asks for something else.
"""

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from fedkin.errors import FedkinError
from fedkin.federation.aggregate import Traffic, combine
from fedkin.federation.base import Cost, PerNode, Reply, Request, WeightedSum, as_array
from fedkin.federation.portions import Portion
from fedkin.federation.series import SeriesBook
from fedkin.federation.task import Task
from fedkin.types import Key

TRAINING, ALONE, VALIDATION = PARTS = ("training", "alone", "validation")
"""The parts of a node that an owner may ask, where the owner is a node too: the rows that all learn from,
the same rows as the only node of the owner's own federation, and the rows that its weights are learned by."""


@dataclass(eq=False)
class Trail:
    """What nodes have been asked so far, and under which numbers they remember it.

    Owners that have asked alike have the same trail.
    """

    series: SeriesBook = field(default_factory=SeriesBook)
    models: dict[int, int] = field(default_factory=dict)
    """The number that each of the owner's models has among all models of the engine."""
    members: int = 1
    """How many owners have this trail."""
    number: int = 0
    """The number by which distant nodes tell trails apart."""


@dataclass(eq=False)
class Owner:
    """One of the owners that an engine works for."""

    number: int
    nodes: np.ndarray
    """The nodes that it may ask, in its own order, by their places in the engine."""
    trail: Trail
    likeness: bytes | None
    """Owners of the same likeness have the same trail; None for one that has nobody like it."""
    ask_all: bool = False
    part: str = TRAINING
    """What it asks of its nodes: one of `PARTS`. All but the first are of the node that the owner is."""
    ended: bool = False
    """Whether it has come to its end, and asks for nothing more."""


def likeness_of(
    places: np.ndarray, part: str = TRAINING, arrays: Mapping[str, np.ndarray] | None = None
) -> bytes:
    """Return what owners have in common that have asked nothing yet, or nothing since they were continued.

    Args:
        places: The nodes that they ask.
        part: The part of these.
        arrays: The state that they continue from.
    """
    digest = hashlib.blake2b(places.tobytes() + part.encode(), digest_size=16)
    _add_arrays(digest, arrays or {})
    return digest.digest()


def _add_arrays(digest: "hashlib.blake2b", arrays: Mapping[str, Any]) -> None:
    for name, value in sorted(arrays.items()):
        array = np.asarray(value)
        digest.update(f"{name} {array.shape} {array.dtype}".encode() + array.tobytes())


class Ask(NamedTuple):
    """What one owner asks for in an exchange."""

    owner: Owner
    key: Key
    requests: Mapping[str, Request]


class SharedReply(NamedTuple):
    """What each owner gets from a shared exchange, or why it gets nothing, and the cost for all together.

    The cost in an owner's reply is what the exchange would have cost it alone. None means that the owner
    has to ask again: the node that it is has not answered.
    """

    replies: list[Reply | FedkinError | None]
    cost: Cost


def reply_or_error(reply: Reply | FedkinError | None) -> Reply:
    """Return what the only owner of an engine gets, or raise why it gets nothing."""
    assert reply is not None  # only owners that are nodes wait for themselves
    if isinstance(reply, FedkinError):
        raise reply
    return reply


class OwnerExchange:
    """One owner's part of an exchange that is under way.

    Args:
        ask: What the owner asks for.
        new_number: Returns a number for a model that has none yet.
    """

    def __init__(self, ask: Ask, new_number: Callable[[], int]) -> None:
        self._ask = ask
        self._new_number = new_number
        self._nodes = len(ask.owner.nodes)
        self._series = ask.owner.trail.series
        self._traffic = Traffic(self._nodes)
        self._evaluations = np.zeros(self._nodes, int)
        self._replies: dict[str, dict] = {}
        self._pending = list(ask.requests.items())
        started: set[str] = set()
        for request in ask.requests.values():
            self._series.start(request, started)

    @property
    def next_kind(self) -> tuple[Task, tuple] | None:
        """The task and the options of the next request; None if all are done."""
        if not self._pending:
            return None
        request = self._pending[0][1]
        return request.task, tuple(sorted(request.options.items()))

    def portion(self) -> Portion:
        """Return what the next request asks of which items."""
        request = self._pending[0][1]
        self._asked = request.asked(self._nodes, ask_all=self._ask.owner.ask_all)
        places = np.argwhere(self._asked)
        self._items = places
        beginnings = self._series.beginnings(request, self._items)
        self._traffic.send(request, self._asked, self._items, beginnings)
        numbers = np.array([self._model(model) for model in range(len(self._asked))])
        items = np.stack([numbers[places[:, 0]], self._ask.owner.nodes[places[:, 1]]], axis=1)
        message = {name: as_array(value) for name, value in request.message.items()}
        return Portion(
            items.astype(np.int32), places[:, 0], places[:, 1], message, self._ask.key, beginnings
        )

    def finish(self, found: Mapping[str, np.ndarray], counts: np.ndarray) -> None:
        """Take in what the nodes replied to the next request."""
        name, request = self._pending.pop(0)
        np.add.at(self._evaluations, self._items[:, 1], counts)
        for slot in request.task.slots:
            self._series.mark(slot, self._items)
        self._traffic.receive(found)
        self._replies[name] = combine(request, self._asked, self._items, found)

    def reply(self) -> Reply:
        """Return what the owner gets when all requests are done."""
        cost = Cost(
            synchronizations=1,
            bytes_up=self._traffic.bytes_up,
            bytes_down=self._traffic.bytes_down,
            node_points=tuple(self._evaluations.tolist()),
            nodes_asked=self._traffic.nodes_asked,
        )
        return Reply(self._replies, cost)

    @property
    def evaluations(self) -> tuple[np.ndarray, np.ndarray]:
        """The places of the owner's nodes, and what each has computed for it."""
        return self._ask.owner.nodes, self._evaluations

    @property
    def nodes_asked(self) -> np.ndarray:
        """The places of the nodes that were asked for anything."""
        return self._ask.owner.nodes[self._traffic.asked]

    def _model(self, model: int) -> int:
        models = self._ask.owner.trail.models
        if model not in models:
            models[model] = self._new_number()
        return models[model]


def leaders(asks: Sequence[Ask], split: Callable[[Trail], Trail]) -> list[int]:
    """Say for each ask which ask it is the same as: the first of those that have always asked alike.

    Args:
        asks: What all owners ask for.
        split: Copies a trail for owners that from now on ask for something else.
    """
    assert not any(ask.owner.ended for ask in asks)
    alike: dict[bytes, list[int]] = {}
    found = list(range(len(asks)))
    for place, ask in enumerate(asks):
        if ask.owner.likeness is not None:
            alike.setdefault(ask.owner.likeness, []).append(place)
    for likeness, members in alike.items():
        before = asks[members[0]].owner.trail
        # Those who have the same trail and do not ask now, because they wait, keep it as it is.
        left_behind = before.members > len(members)
        before.members -= len(members) if left_behind else 0
        if len(members) == 1:
            owner = asks[members[0]].owner
            owner.likeness = None
            owner.trail = split(before) if left_behind else before
            continue
        digests = {place: likeness + _digest(asks[place]) for place in members}
        groups = [
            list(group)
            for _, group in itertools.groupby(sorted(members, key=digests.__getitem__), digests.get)
        ]
        for number, group in enumerate(sorted(groups)):
            trail = asks[group[0]].owner.trail
            trail = split(trail) if number > 0 or left_behind else trail
            trail.members = len(group)
            for place in group:
                owner = asks[place].owner
                owner.trail = trail
                alone = len(group) == 1
                owner.likeness = (
                    None if alone else hashlib.blake2b(digests[place], digest_size=16).digest()
                )
                found[place] = group[0]
    return found


def _digest(ask: Ask) -> bytes:
    """Return the same for equal requests with equal keys, and for no others."""
    digest = hashlib.blake2b(np.asarray(jax.random.key_data(ask.key)).tobytes(), digest_size=16)
    digest.update(repr(ask.owner.ask_all).encode())
    for name, request in ask.requests.items():
        kind = type(request).__name__
        described = (name, kind, request.task.name, request.begin, sorted(request.options.items()))
        digest.update(repr(described).encode())
        arrays: dict[str, Any] = dict(request.message)
        if isinstance(request, WeightedSum):
            arrays["weights"] = request.weights
        if isinstance(request, PerNode) and request.nodes is not None:
            arrays["nodes"] = request.nodes
        _add_arrays(digest, arrays)
    return digest.digest()
