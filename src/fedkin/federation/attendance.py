"""Nodes that may fail to answer, or answer nonsense: who takes part, and what happens to the rest.

Every reply is checked. A node whose reply is missing or bad is left out of that synchronization: a weighted
sum is what it would be with its weight shared out among the others, and its numbers are NaN, for the method
to fill. It also counts as a strike. A node with three strikes in a row is dropped; one that has come back
rejoins at the start of the next outer step.

Several owners may share the exchanges. A node that is dropped is dropped for all of them, and each counts on
it again from the start of its own next step. An owner that is a node itself waits for that node.
"""

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from fedkin.errors import FedkinError
from fedkin.federation.attended_exchange import (
    FEWEST_NODES,
    Answer,
    AttendedExchange,
    Block,
    cost_of,
)
from fedkin.federation.base import Cost, Reply, Request, as_array
from fedkin.federation.checks import find_faults, form_fault
from fedkin.federation.owners import (
    TRAINING,
    Ask,
    Owner,
    SharedReply,
    Trail,
    leaders,
    likeness_of,
    reply_or_error,
)
from fedkin.federation.series import SeriesBook
from fedkin.federation.task import Slot
from fedkin.models.objective import Objective
from fedkin.types import Key

STRIKES = 3
"""A node that fails this many times in a row is dropped."""

DROPS = 3
"""An owner gives up on a node, the one that it is, that is dropped this many times without a good answer."""

LOOKING_INTERVAL = 1.0
"""The largest number of seconds between two looks for the node that an owner waits for."""


class TooFewNodesError(FedkinError):
    """Too many nodes are gone for the run to continue; its checkpoint is there to resume from."""


class LostOwnerError(FedkinError):
    """The node that an owner is has not come back: its question has no answer."""


class AttendedFederation(ABC):
    """A federation that continues without those who are missing.

    A subclass carries the messages (`ask`) and looks for nodes that have come back (`find_returned`).

    Args:
        objective: The model that the nodes train.
        names: The names of the nodes.
        batches: The largest number of mini-batches of a node.
        wait_for_owners: Seconds to wait for lost nodes when nobody but their owners is left.
    """

    def __init__(
        self,
        objective: Objective,
        names: Sequence[str],
        batches: int,
        wait_for_owners: float = 0.0,
    ) -> None:
        self.objective = objective
        self.names = tuple(names)
        self.batches = batches
        self.present = np.ones(len(self.names), bool)
        self._wait_for_owners = wait_for_owners
        self._given_up: set[int] = set()  # nodes whose owners have waited in vain
        self._strikes = np.zeros(len(self.names), int)
        self._drops = np.zeros(len(self.names), int)
        self._last_fault: dict[int, str] = {}
        self._notes: dict[str, int] = {}
        self._owners = itertools.count()
        self._trails = itertools.count()
        self._admitted: dict[Owner, np.ndarray] = {}
        self._only = Owner(next(self._owners), np.arange(len(self.names)), self._new_trail(), None)

    @abstractmethod
    def ask(self, blocks: Mapping[int, Mapping[int, Block]]) -> dict[int, dict[int, Answer]]:
        """Send each of some nodes what owners ask of it, in one message, and wait for the answers.

        Args:
            blocks: By the node's number, and by a number of the owner in this exchange.
        """

    @abstractmethod
    def find_returned(self, absent: Sequence[int]) -> list[int]:
        """Return those of the absent nodes that are there again and ready to work."""

    @abstractmethod
    def export_state(self) -> dict[str, np.ndarray]:
        """Return, as named arrays, what the engine needs to continue after a restart."""

    @abstractmethod
    def import_state(self, arrays: Mapping[str, np.ndarray], slots: Mapping[str, Slot]) -> None:
        """Continue with what `export_state` returned."""

    @property
    def ask_all(self) -> bool:
        """Whether nodes of weight zero are asked too."""
        return self._only.ask_all

    @ask_all.setter
    def ask_all(self, value: bool) -> None:
        self._only.ask_all = value

    @property
    def series(self) -> SeriesBook:
        """The series of the only owner."""
        return self._only.trail.series

    def exchange(self, *, key: Key, **requests: Request) -> Reply:
        """Ask the nodes that take part. See `Federation.exchange`."""
        (reply,), _ = self.exchange_all([Ask(self._only, key, requests)])
        return reply_or_error(reply)

    def exchange_all(self, asks: Sequence[Ask]) -> SharedReply:
        """Ask the nodes that take part what several owners ask for, in one exchange."""
        if asks[0].owner is not self._only:
            self.welcome_back()
            if all(self._own_node_is_away(ask.owner) for ask in asks):
                lost = self._wait_for([int(ask.owner.nodes[0]) for ask in asks])
                if lost is not None:
                    return SharedReply([lost] * len(asks), Cost())
        same = leaders(asks, self._split)
        under_way: dict[int, AttendedExchange | FedkinError] = {}
        for place in sorted(set(same)):
            under_way[place] = self._begin(asks[place])
        cost = Cost()
        while blocks := self._open_blocks(under_way):
            answers = self.ask(blocks)
            cost += cost_of(
                {node: list(own.values()) for node, own in answers.items()}, len(self.names)
            )
            good = self._sift(blocks, answers)
            if np.count_nonzero(self.present) < min(FEWEST_NODES, len(self.names)):
                self._give_up()
            for place, own in under_way.items():
                own_answers = {node: each[place] for node, each in answers.items() if place in each}
                if isinstance(own, AttendedExchange) and own_answers:
                    own.take(own_answers, good)
        replies = {
            place: own.reply() if isinstance(own, AttendedExchange) else own
            for place, own in under_way.items()
        }
        return SharedReply([replies[place] for place in same], cost)

    def add_owner(self, nodes: Sequence[int] | None = None, part: str = TRAINING) -> Owner:
        """Make room for another owner.

        Args:
            nodes: The nodes that it may ask, in its own order; None for all.
            part: The part of the nodes that it asks (`owners.PARTS`).
        """
        places = np.arange(len(self.names)) if nodes is None else np.asarray(nodes, int)
        likeness = likeness_of(places, part)
        owner = Owner(next(self._owners), places, self._new_trail(), likeness, part=part)
        self._admitted[owner] = self.present.copy()
        return owner

    def present_for(self, owner: Owner) -> np.ndarray:
        """Return which nodes of an owner take part: one that has come back, only from its next step on."""
        present = self.present
        if owner.part == TRAINING and owner in self._admitted:
            present = present & self._admitted[owner]
        return present[owner.nodes]

    def admit(self, owner: Owner) -> None:
        """Let an owner, which begins a step, count on nodes that have come back."""
        self._admitted[owner] = self.present.copy()

    def batches_of(self, nodes: np.ndarray) -> int:
        """Return the largest number of mini-batches that a node has."""
        return self.batches

    def export_owner(self, owner: Owner) -> dict[str, np.ndarray]:
        """Return an owner's record of series; the nodes' memory stays with them."""
        return owner.trail.series.export_arrays()

    def import_owner(
        self, owner: Owner, arrays: Mapping[str, np.ndarray], slots: Mapping[str, Slot]
    ) -> None:
        """Continue with what `export_owner` returned; the nodes begin again when they are next asked."""
        owner.likeness = None
        owner.trail = self._new_trail()
        owner.trail.series.import_arrays(arrays)
        owner.trail.series.forget_begun()

    def begin_step(self, step: int) -> None:
        """Let the nodes that have come back rejoin."""
        self.welcome_back()

    def welcome_back(self) -> None:
        """Look for nodes that have come back, and let them take part again."""
        absent = np.flatnonzero(~self.present).tolist()
        for node in self.find_returned(absent) if absent else []:
            self.present[node] = True
            self._strikes[node] = 0
            self._given_up.discard(node)
            self.note(f"{self.names[node]} is back and takes part again")

    def drop(self, node: int, note: str) -> None:
        """Continue without a node, for all owners, until it is back."""
        self.present[node] = False
        self._drops[node] += 1
        for admitted in self._admitted.values():
            admitted[node] = False
        self.note(note)

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

    def _begin(self, ask: Ask) -> AttendedExchange | FedkinError:
        node = int(ask.owner.nodes[0])
        if ask.owner.part != TRAINING and self._drops[node] >= DROPS:
            fault = self._last_fault.get(node, "it does not answer")
            return LostOwnerError(
                f"the node has failed again and again, so its own question has no answer: {fault}"
            )
        try:
            return AttendedExchange(ask, lambda: self.present_for(ask.owner), self.objective.size)
        except FedkinError as error:
            return error

    def _open_blocks(
        self, under_way: dict[int, AttendedExchange | FedkinError]
    ) -> dict[int, dict[int, Block]]:
        """Return what is still to be asked of each node, by the owners' numbers in this exchange."""
        found: dict[int, dict[int, Block]] = {}
        for place, own in list(under_way.items()):
            if isinstance(own, FedkinError) or own.complete:
                continue
            try:
                blocks = own.blocks()
            except FedkinError as error:
                under_way[place] = error
                continue
            for node, block in blocks.items():
                found.setdefault(node, {})[place] = block
        return found

    def _sift(
        self,
        blocks: Mapping[int, Mapping[int, Block]],
        answers: Mapping[int, Mapping[int, Answer]],
    ) -> set[int]:
        """Return the nodes whose replies are good; every other node gets a strike."""
        faults: dict[int, str] = {}
        for node, own in answers.items():
            for answer in own.values():
                if answer.replies is None:
                    faults.setdefault(node, answer.fault or "no answer")
        for place in dict.fromkeys(place for own in blocks.values() for place in own):
            asked = {node: own[place] for node, own in blocks.items() if place in own}
            given = {node: answers[node][place] for node in asked}
            for node, fault in self._faults(asked, given).items():
                faults.setdefault(node, fault)
        for node in answers:
            if node in faults:
                self._strike(node, faults[node])
            else:
                self._strikes[node] = self._drops[node] = 0
        return set(answers) - set(faults)

    def _faults(self, blocks: Mapping[int, Block], answers: Mapping[int, Answer]) -> dict[int, str]:
        """Say what is wrong with nodes' answers to one owner."""
        faults: dict[int, str] = {}
        for name in dict.fromkeys(name for own in blocks.values() for name in own.assignments):
            nodes = [node for node in blocks if name in blocks[node].assignments]
            block = blocks[nodes[0]]
            request = block.assignments[name].request
            replies = [(answers[node].replies or {}).get(name) for node in nodes]
            rows = [len(blocks[node].assignments[name].models) for node in nodes]
            if block.part == TRAINING:
                sent = {key: np.asarray(as_array(value)) for key, value in request.message.items()}
                found = find_faults(request.task, replies, rows, sent, self.objective.size)
            else:
                # What a node says about its own rows concerns its own question only.
                found = [
                    None
                    if own is None
                    else form_fault(request.task, own, count, self.objective.size)
                    for own, count in zip(replies, rows, strict=True)
                ]
            for node, fault in zip(nodes, found, strict=True):
                if fault is not None:
                    faults.setdefault(node, fault)
                elif name not in (answers[node].replies or {}):
                    faults.setdefault(node, f"it did not answer {request.task.name}")
        return faults

    def _strike(self, node: int, fault: str) -> None:
        self._strikes[node] += 1
        self._last_fault[node] = fault
        self.note(f"{self.names[node]} was left out of a synchronization: {fault}")
        if self._strikes[node] >= STRIKES:
            self.drop(node, f"{self.names[node]} was dropped after {STRIKES} failures in a row")

    def _give_up(self) -> None:
        left = " and ".join(np.array(self.names)[self.present]) or "none"
        why = "; ".join(self.end_step())
        raise TooFewNodesError(
            f"fewer than {FEWEST_NODES} nodes are left ({left}), too few to continue: {why}. Bring the nodes "
            "back and continue with --resume: nothing is lost but this step"
        )

    def _own_node_is_away(self, owner: Owner) -> bool:
        return owner.part != TRAINING and not self.present[owner.nodes[0]]

    def _wait_for(self, nodes: Sequence[int]) -> LostOwnerError | None:
        """Wait until one of some lost nodes is back; return why their owners get no answer, if none is."""
        seconds = 0.0 if set(nodes) <= self._given_up else self._wait_for_owners
        deadline = time.monotonic() + seconds
        while not self.present[list(nodes)].any():
            left = deadline - time.monotonic()
            if left <= 0:
                self._given_up |= set(nodes)
                return LostOwnerError(
                    f"the node was lost and has not come back in {self._wait_for_owners:g} s, so its own "
                    "question has no answer: the others have learned without it"
                )
            time.sleep(min(LOOKING_INTERVAL, left))
            self.welcome_back()
        return None

    def _new_trail(self) -> Trail:
        return Trail(number=next(self._trails))

    def _split(self, trail: Trail) -> Trail:
        """Return a trail that continues by itself; for it, nodes begin again when they are next asked."""
        other = self._new_trail()
        other.series = trail.series.copy()
        other.series.forget_begun()
        return other
