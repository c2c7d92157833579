"""Nodes that may fail to answer, or answer nonsense: who takes part, and what happens to the rest.

Every reply is checked. A node whose reply is missing or bad is left out of that synchronization: a weighted
sum is what it would be with its weight shared out among the others, and its numbers are NaN, for the method
to fill. It also counts as a strike. A node with three strikes in a row is dropped. If it was silent and has
come back, it rejoins at the start of the next outer step.

Several owners may share the exchanges. A node that is dropped is dropped for all of them, and each counts on
it again from the start of its own next step. Numbers that are bad for one owner and good for others are left
out for that owner, and are no strike: its training may have diverged. An owner that is a node itself waits
for that node.
"""

import itertools
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedkin.errors import DivergedError, FedkinError
from fedkin.federation.answer_faults import find_answer_faults
from fedkin.federation.attended_exchange import (
    FEWEST_NODES,
    Answer,
    AttendedExchange,
    Block,
    cost_of,
)
from fedkin.federation.base import Cost
from fedkin.federation.checks import request_fault
from fedkin.federation.owned_engine import OwnedEngine
from fedkin.federation.owners import (
    TRAINING,
    Ask,
    Owner,
    SharedReply,
    Trail,
    leaders,
    likeness_of,
)
from fedkin.federation.secure.book import SumBook
from fedkin.federation.secure.exchange import SecureExchange
from fedkin.federation.secure.orders import FEWEST_SUMMED
from fedkin.federation.series import SeriesBook
from fedkin.federation.task import Slot
from fedkin.models.objective import Objective

STRIKES = 3
"""A node that fails this many times in a row is dropped."""

MOST_SPOILED = 6
"""A node that spoils this many secure sums in a run is dropped for good. The others mask what they have
answered only so often again (`repeats-per-run`), and would refuse to continue because of one node."""

DROPS = 3
"""An owner gives up on a node, the one that it is, that is dropped this many times without a good answer."""

LOOKING_INTERVAL = 1.0
"""The largest number of seconds between two looks for the node that an owner waits for."""

MOST_UNLOOKED = 32
"""The largest number of shared exchanges between two looks for an absent node. A node that is connected but
silent delays the exchange that looks for it, so it is looked for less and less often."""


class TooFewNodesError(FedkinError):
    """Too many nodes are gone for the run to continue; its checkpoint is there to resume from."""


class LostOwnerError(FedkinError):
    """The node that an owner is has not come back: its question has no answer."""


class Look(NamedTuple):
    """In which exchange to look for an absent node next, and how many to wait after that."""

    at: int
    interval: int


class AttendedFederation(OwnedEngine):
    """A federation that continues without those who are missing.

    A subclass carries the messages (`ask`), looks for nodes that have come back (`find_returned`), and lets
    nodes copy or forget what they remember of a trail.

    Args:
        objective: The model that the nodes train.
        names: The names of the nodes.
        batches: The largest number of mini-batches of a node.
        wait_for_owners: Seconds to wait for lost nodes when nobody but their owners is left.
        secure: Whether nodes mask their part of every weighted sum.
    """

    def __init__(
        self,
        objective: Objective,
        names: Sequence[str],
        batches: int,
        wait_for_owners: float = 0.0,
        *,
        secure: bool = False,
    ) -> None:
        self.secure = secure
        self.book = SumBook()
        self.objective = objective
        self.names = tuple(names)
        self.batches = batches
        self.present = np.ones(len(self.names), bool)
        self._wait_for_owners = wait_for_owners
        self._given_up: set[int] = set()  # nodes whose owners have waited in vain
        self._distrusted: set[int] = set()  # nodes that are not to come back
        self._strikes = np.zeros(len(self.names), int)
        self._drops = np.zeros(len(self.names), int)
        self._spoiled = np.zeros(len(self.names), int)
        self._last_fault: dict[int, str] = {}
        self._notes: dict[str, int] = {}
        self._owners = itertools.count()
        self._trails = itertools.count()
        self._admitted: dict[Owner, np.ndarray] = {}
        self._exchanges = 0
        self._looks: dict[int, Look] = {}
        nodes = np.arange(len(self.names))
        super().__init__(Owner(next(self._owners), nodes, self._new_trail(), None))

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

    @abstractmethod
    def copy_memory(self, source: int, target: int) -> None:
        """Let all nodes remember for a new trail what they remember for another one, given their numbers."""

    @abstractmethod
    def forget_memory(self, trail: int) -> None:
        """Let all nodes forget what they remember for a trail, given its number."""

    @property
    def series(self) -> SeriesBook:
        """The series of the only owner."""
        return self._only.trail.series

    def exchange_all(self, asks: Sequence[Ask]) -> SharedReply:
        """Ask the nodes that take part what several owners ask for, in one exchange."""
        if asks[0].owner is not self._only:
            self._exchanges += 1
            self.welcome_back(self._due())
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
            if np.count_nonzero(self.present) < min(self._fewest, len(self.names)):
                self._give_up()
            for place, own in under_way.items():
                own_answers = {node: each[place] for node, each in answers.items() if place in each}
                if isinstance(own, AttendedExchange) and own_answers:
                    own.take(own_answers, good[place])
                    if not own.complete and not any(self._strikes[node] for node in own_answers):
                        own.rounds_in_vain += 1
                    if own.rounds_in_vain >= STRIKES:
                        under_way[place] = DivergedError(
                            "nodes that this owner needs answer it with numbers that are not finite or far "
                            "too large: its training has diverged; try a smaller learning_rate, or scale the "
                            "columns"
                        )
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
        present = self.present[owner.nodes]
        if owner.part == TRAINING and owner in self._admitted:
            admitted = present & self._admitted[owner][owner.nodes]
            # With nobody else left, it counts on those that have just come back.
            present = admitted if admitted.any() else present
        return present

    def admit(self, owner: Owner) -> None:
        """Let an owner, which begins a step, count on nodes that have come back."""
        self._admitted[owner] = self.present.copy()

    def remove_owner(self, owner: Owner) -> None:
        """Forget an owner that has come to its end."""
        super().remove_owner(owner)
        self._admitted.pop(owner, None)

    def batches_of(self, nodes: np.ndarray) -> int:
        """Return the largest number of mini-batches that a node has."""
        return self.batches

    def export_owner(self, owner: Owner) -> dict[str, np.ndarray]:
        """Return an owner's record of series; the nodes' memory stays with them."""
        return owner.trail.series.export_arrays()

    def begin_step(self, step: int) -> None:
        """Let the nodes that have come back rejoin."""
        self.book.begin_step(step)
        self.welcome_back()

    def welcome_back(self, wanted: Sequence[int] | None = None) -> None:
        """Look for nodes that have come back, and let them take part again.

        Args:
            wanted: The absent nodes to look for; None for all.
        """
        absent = np.flatnonzero(~self.present).tolist() if wanted is None else list(wanted)
        absent = [node for node in absent if node not in self._distrusted]
        for node in self.find_returned(absent) if absent else []:
            self.present[node] = True
            self._strikes[node] = 0
            self._given_up.discard(node)
            self._looks.pop(node, None)
            self.note(f"{self.names[node]} is back and takes part again")

    def _due(self) -> list[int]:
        """Return the absent nodes to look for in this exchange: after 1, 2, 4, … exchanges without them."""
        due = []
        for node in np.flatnonzero(~self.present).tolist():
            look = self._looks.get(node, Look(self._exchanges, 1))
            if self._exchanges >= look.at:
                due.append(node)
                interval = min(look.interval, MOST_UNLOOKED)
                look = Look(self._exchanges + interval, 2 * interval)
            self._looks[node] = look
        return due

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
        for request in ask.requests.values():
            if (fault := request_fault(request)) is not None:
                return fault
        owner, size = ask.owner, self.objective.size
        try:
            if self.secure and owner.part == TRAINING:
                names = np.array(self.names)[owner.nodes]
                return SecureExchange(ask, lambda: self.present_for(owner), size, names, self.book)
            return AttendedExchange(ask, lambda: self.present_for(owner), size)
        except FedkinError as error:
            return error

    @property
    def _fewest(self) -> int:
        """With fewer nodes than these, no run continues."""
        return FEWEST_SUMMED if self.secure else FEWEST_NODES

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
    ) -> dict[int, set[int]]:
        """Return, for each owner, the nodes whose answers are good; who fails all owners gets a strike."""
        faults: dict[int, str] = {}
        doubts: dict[int, dict[int, str]] = {node: {} for node in answers}
        for node, own in answers.items():
            for answer in own.values():
                if answer.replies is None:
                    faults.setdefault(node, answer.fault or "no answer")
        places = dict.fromkeys(place for own in blocks.values() for place in own)
        for place in places:
            asked = {node: own[place] for node, own in blocks.items() if place in own}
            given = {node: answers[node][place] for node in asked}
            for node, (fault, is_of_form) in find_answer_faults(
                asked, given, self.objective.size
            ).items():
                if is_of_form:
                    faults.setdefault(node, fault)
                else:
                    doubts[node].setdefault(place, fault)
        for node, own in doubts.items():
            if own and self._fails_all(blocks[node], own):
                faults.setdefault(node, next(iter(own.values())))
            if node in faults:
                self._strike(node, faults[node], out_of_range=faults[node] in own.values())
                continue
            self._strikes[node] = self._drops[node] = 0
            for fault in own.values():
                self.note(f"{self.names[node]} was left out of one sum: {fault}")
        if self.secure and len(answers) - len(faults) >= FEWEST_SUMMED:
            self._drop_spoilers(faults)
        return {
            place: {node for node in answers if node not in faults and place not in doubts[node]}
            for place in places
        }

    def _drop_spoilers(self, faults: Mapping[int, str]) -> None:
        """Drop nodes for good that have spoiled too many sums of others."""
        self._spoiled[list(faults)] += 1
        for node in faults:
            if self._spoiled[node] >= MOST_SPOILED and node not in self._distrusted:
                self._distrusted.add(node)
                self.drop(
                    node,
                    f"{self.names[node]} was dropped for good: it has spoiled {MOST_SPOILED} secure sums",
                )

    def _fails_all(self, blocks: Mapping[int, Block], doubts: Mapping[int, str]) -> bool:
        """Tell whether a node's numbers are bad for all owners that train with it, and there are several.

        If there is one, it may be its training that has diverged, unless it is the only owner.
        """
        trained = [place for place, block in blocks.items() if block.part == TRAINING]
        alone = len(trained) == 1 and blocks[trained[0]].trail is not self._only.trail
        return not alone and all(place in doubts for place in trained)

    def _strike(self, node: int, fault: str, *, out_of_range: bool) -> None:
        self._strikes[node] += 1
        self._last_fault[node] = fault
        self.note(f"{self.names[node]} was left out of a synchronization: {fault}")
        if self._strikes[node] < STRIKES:
            return
        if out_of_range:  # it is there, but what it says cannot be believed
            self._distrusted.add(node)
            note = f"{self.names[node]} was dropped for good: its numbers were wrong {STRIKES} times in a row"
        else:
            note = f"{self.names[node]} was dropped after {STRIKES} failures in a row"
        self.drop(node, note)

    def _give_up(self) -> None:
        left = " and ".join(np.array(self.names)[self.present]) or "none"
        why = "; ".join(self.end_step())
        raise TooFewNodesError(
            f"fewer than {self._fewest} nodes are left ({left}), too few to continue: {why}. Bring the nodes "
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

    def _continued(self, arrays: Mapping[str, np.ndarray], slots: Mapping[str, Slot]) -> Trail:
        """Return the trail of a continued owner; for it, nodes begin again when they are next asked."""
        trail = self._new_trail()
        trail.series.import_arrays(arrays)
        trail.series.forget_begun()
        return trail

    def _forget(self, trail: Trail) -> None:
        self.forget_memory(trail.number)

    def _split(self, trail: Trail) -> Trail:
        other = self._new_trail()
        other.series = trail.series.copy()
        self.copy_memory(trail.number, other.number)
        return other
