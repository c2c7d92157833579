"""The federation over Flower: one message to each node, which `node.answer` answers where the data are."""

import itertools
import json
import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedkin.errors import InputError
from fedkin.federation.attendance import AttendedFederation
from fedkin.federation.attended_exchange import Answer, Assignment, Block
from fedkin.federation.secure.cards import CardError, KeyCard, identity_of_pem
from fedkin.federation.secure.masks import is_public_key
from fedkin.federation.series import Beginning
from fedkin.federation.task import Slot
from fedkin.flower.discovery import ConnectedNode, read_description
from fedkin.flower.exchanges import (
    has_masked_sums,
    largest_reply,
    read_answers,
    sent_bytes,
    write_block,
    write_exchange,
)
from fedkin.flower.joining import JoinRequest, RunDescription
from fedkin.flower.messenger import Messenger, Response
from fedkin.flower.wire import (
    ANSWER_WITHIN,
    CARD,
    DESCRIBE,
    EXCHANGE_NUMBER,
    PEER,
    Order,
    Parcel,
    Refusal,
    Value,
)
from fedkin.models.named import l2_factor, takes_l2
from fedkin.models.objective import Objective

logger = logging.getLogger(__name__)

JOINING_PATIENCE = 300.0
"""The least number of seconds for joining: a node then loads its libraries and reads its data."""

REJOINING_PATIENCE = 30.0
"""Seconds that the beginning of an outer step waits for nodes that reconnect."""


@dataclass(frozen=True)
class JoinRefusal:
    """The reason why a node cannot take part."""

    reason: str


class FlowerFederation(AttendedFederation):
    """The nodes of a run, each a process with its own data.

    Every node joins the run first. That is one more message to it, which no `Cost` counts, because it is not
    part of the method. A node that is missing or does not answer joins when it is back.

    Args:
        messenger: Sends the messages.
        objective: The model that the nodes train. Its l2 is sent to them.
        names: The names of the run's nodes, in the order of their numbers.
        nodes: Those of them that are connected.
        run: What the nodes must know.
        batches: The largest number of mini-batches of a node, if it is known without asking.
        summaries: The summaries of the nodes' tables on which the run's columns were agreed, as JSON by
            name; a node that returns with another table may not join. None if the data are images.
        wait_for_owners: Seconds to wait for lost nodes when nobody but their owners is left.
        secure: Whether nodes mask their part of every weighted sum (docs/security.md).
        largest_share: The largest share of a node in a sum: the cap of the run.
    """

    def __init__(
        self,
        messenger: Messenger,
        objective: Objective,
        names: Sequence[str],
        nodes: Sequence[ConnectedNode],
        run: RunDescription,
        batches: int = 0,
        summaries: Mapping[str, str] | None = None,
        wait_for_owners: float = 0.0,
        *,
        secure: bool = False,
        largest_share: float = 1.0,
    ) -> None:
        self._messenger = messenger
        self._summaries = summaries
        self._run = run
        self._attempt = uuid.uuid4().hex
        there = {node.name: node.node for node in nodes}
        self._addresses = [there.get(name) for name in names]
        self._strangers: set[int] = set()  # connected, but not nodes of this run
        self._not_joined: set[int] = set()
        self._orders: dict[int, list[Order]] = {number: [] for number in range(len(names))}
        """What each node is to copy or forget, but has not confirmed yet."""
        self._step = 0
        self._sums = 0
        """The number of the last exchange with masked sums."""
        self._largest_share = largest_share
        self._cards: dict[int, str] = {}
        """What each node has last said of its key for this run."""
        self._known_cards: dict[int, dict[int, str]] = {}
        """The cards of others that each node has confirmed."""
        super().__init__(objective, names, batches, wait_for_owners, secure=secure)
        asked = [number for number, name in enumerate(names) if name in there]
        joined = self._join(asked, max(messenger.patience, JOINING_PATIENCE))
        for number, outcome in joined.items():
            if isinstance(outcome, JoinRefusal):
                raise InputError(f"{names[number]} cannot take part: {outcome.reason}")
        sizes = {number: size for number, size in joined.items() if isinstance(size, int)}
        if len(sizes) < min(self._fewest, len(names)):
            present = ", ".join(names[number] for number in sizes) or "none"
            raise InputError(
                f"only {len(sizes)} of the nodes {', '.join(names)} answer ({present}): start the others"
            )
        for number in sorted(set(range(len(names))) - set(sizes)):
            self.present[number] = False
            self.note(f"{names[number]} is missing: the others begin without it")
        self.batches = max([batches, *sizes.values()])

    def ask(self, blocks: Mapping[int, Mapping[int, Block]]) -> dict[int, dict[int, Answer]]:
        """Send one message to each node. See `AttendedFederation.ask`.

        A node that missed the beginning of a series (it was away, or has lost its memory) says so. It
        is asked a second time, with everything that the beginning needs.
        """
        bytes_down = {
            node: {place: sent_bytes(write_block(block)) for place, block in own.items()}
            for node, own in blocks.items()
        }
        largest = max(
            largest_reply(list(own.values()), self.objective.size) for own in blocks.values()
        )
        self._sums += 1
        replies = self._exchange(self._write(blocks), largest)
        late = [node for node in blocks if replies[node].refusal == Refusal.NOT_BEGUN]
        if late:
            names = ", ".join(self.names[node] for node in late)
            logger.info("%s begins again: it missed the beginning", names)
            again = {
                node: {place: _from_the_beginning(block) for place, block in blocks[node].items()}
                for node in late
            }
            replies |= self._exchange(self._write(again), largest)
            for node, own in again.items():
                for place, block in own.items():
                    bytes_down[node][place] += sent_bytes(write_block(block))
        self._not_joined |= {node for node in blocks if replies[node].refusal == Refusal.NOT_JOINED}
        for node in blocks:
            if replies[node].parcel is not None:
                self._orders[node].clear()
                self._known_cards.setdefault(node, {}).update(self._new_cards(node, blocks[node]))
        return {
            node: read_answers(replies[node], own, bytes_down[node]) for node, own in blocks.items()
        }

    def copy_memory(self, source: int, target: int) -> None:
        """Let all nodes copy what they remember for a trail, each with the next message to it."""
        for orders in self._orders.values():
            orders.append(Order(source, target))

    def forget_memory(self, trail: int) -> None:
        """Let all nodes forget what they remember for a trail, each with the next message to it."""
        for orders in self._orders.values():
            orders.append(Order(trail, None))

    def start_over(self) -> None:
        """Let the nodes forget what they did for owners so far, before a run of another method."""
        self._attempt = uuid.uuid4().hex
        self._trails = itertools.count(1)
        self._admitted.clear()
        there = np.flatnonzero(self.present).tolist()
        for node, outcome in self._join(
            there, max(self._messenger.patience, JOINING_PATIENCE)
        ).items():
            if not isinstance(outcome, int):
                reason = "it does not answer" if outcome is None else outcome.reason
                self.drop(node, f"{self.names[node]} has not joined again: {reason}")

    def begin_step(self, step: int) -> None:
        """Let nodes join again that have lost their memory or are back."""
        self._step = step
        super().begin_step(step)

    def welcome_back(self, wanted: Sequence[int] | None = None) -> None:
        """Let nodes join again that have lost their memory or are back."""
        forgetful = sorted(node for node in self._not_joined if self.present[node])
        if forgetful:
            self._rejoin(forgetful)
        super().welcome_back(wanted)

    def find_returned(self, absent: Sequence[int]) -> list[int]:
        """Let absent nodes that are connected again join; without keys, they have new addresses."""
        connected = self._messenger.connected()
        gone = {self.names[node]: node for node in absent if self._addresses[node] not in connected}
        known = {address for address in self._addresses if address is not None}
        unknown = connected.keys() - known - self._strangers
        if gone and unknown:
            request = Parcel({"kind": DESCRIBE})
            replies = self._messenger.exchange(
                dict.fromkeys(unknown, request), 0, self._rejoining_patience
            )
            for address, reply in replies.items():
                found = read_description(address, reply, connected[address])
                if reply.silent:
                    continue  # it is asked again at the next step
                if isinstance(found, str) or found.name not in gone:
                    self._strangers.add(address)
                    if isinstance(found, str):
                        self.note(found)
                else:
                    self._addresses[gone.pop(found.name)] = address
        there = [node for node in absent if self._addresses[node] in connected]
        return self._rejoin(there)

    def _rejoin(self, nodes: Sequence[int]) -> list[int]:
        """Let nodes join again whose tables have not changed; return those that have joined."""
        patience = self._rejoining_patience
        if self._summaries is not None and nodes:
            nodes = self._unchanged(nodes, self._summaries, patience)
        joined = self._join(nodes, patience) if nodes else {}
        for node, outcome in joined.items():
            if isinstance(outcome, JoinRefusal):
                self.note(f"{self.names[node]} is back, but cannot take part: {outcome.reason}")
        return [node for node, outcome in joined.items() if isinstance(outcome, int)]

    @property
    def _rejoining_patience(self) -> float:
        return min(self._messenger.patience, REJOINING_PATIENCE)

    def _unchanged(
        self, nodes: Sequence[int], summaries: Mapping[str, str], patience: float
    ) -> list[int]:
        """Return the nodes whose tables have not changed."""
        request = Parcel({"kind": DESCRIBE})
        unchanged = []
        for node, reply in self._exchange(dict.fromkeys(nodes, request), 0, patience).items():
            found = read_description(self._address(node), reply, self.names[node])
            if isinstance(found, str):
                if not reply.silent:
                    self.note(found)
                continue  # it is asked again at the next step
            if found.summary == summaries[self.names[node]]:
                unchanged.append(node)
            else:
                self.note(f"{self.names[node]} is back with another table and may not join")
        return unchanged

    def export_state(self) -> dict[str, np.ndarray]:
        """Return the record of series and which nodes take part; the nodes' memory stays with them."""
        return {"present": self.present.copy(), **self.series.export_arrays()}

    def import_state(self, arrays: Mapping[str, np.ndarray], slots: Mapping[str, Slot]) -> None:
        """Continue from an exported state; nodes that were dropped join at the next step, if connected."""
        self.series.import_arrays(arrays)
        np.logical_and(self.present, np.asarray(arrays["present"]), out=self.present)

    def _write(self, blocks: Mapping[int, Mapping[int, Block]]) -> dict[int, Parcel]:
        """Write the message to each of some nodes."""
        return {
            node: write_exchange(
                list(own.values()),
                self._attempt,
                self._step,
                self._orders[node],
                self._write_sums(node, own) if has_masked_sums(list(own.values())) else None,
            )
            for node, own in blocks.items()
        }

    def _write_sums(self, node: int, blocks: Mapping[int, Block]) -> dict[str, Value]:
        """Write what belongs to the masked sums of a message."""
        cards = self._new_cards(node, blocks)
        return {
            EXCHANGE_NUMBER: self._sums,
            ANSWER_WITHIN: self._messenger.patience,
            **{f"{PEER}{peer}": card for peer, card in cards.items()},
        }

    def _new_cards(self, node: int, blocks: Mapping[int, Block]) -> dict[int, str]:
        """Return the cards of others that a node needs for some sums and has not confirmed."""
        members = {
            member
            for block in blocks.values()
            for own in block.assignments.values()
            if own.order is not None
            for row in own.order.rows
            for member in row.members
        }
        known = self._known_cards.get(node, {})
        return {
            peer: self._cards[peer]
            for peer in sorted(members - {node})
            if known.get(peer) != self._cards[peer]
        }

    def _exchange(
        self, requests: Mapping[int, Parcel], largest: int, patience: float | None = None
    ) -> dict[int, Response]:
        """Exchange messages, by the nodes' numbers in this run. See `Messenger.exchange`."""
        addresses = {node: self._address(node) for node in requests}
        by_address = {addresses[node]: parcel for node, parcel in requests.items()}
        replies = self._messenger.exchange(by_address, largest, patience)
        return {node: replies[addresses[node]] for node in requests}

    def _address(self, node: int) -> int:
        address = self._addresses[node]
        assert address is not None  # only nodes that have been found are asked
        return address

    def _join(self, nodes: Sequence[int], patience: float) -> dict[int, "int | JoinRefusal | None"]:
        """Ask nodes to join; return the number of mini-batches of each, or None if it does not answer."""
        l2 = l2_factor(self.objective.model) if takes_l2(self._run.model) else None
        run = {name: getattr(self._run, name) for name in RunDescription.model_fields}
        requests = {
            node: JoinRequest(
                **run,
                attempt=self._attempt,
                number=node,
                largest_share=self._largest_share,
                l2=l2,
            ).write()
            for node in nodes
        }
        keys = self._messenger.keys() if self.secure and nodes else {}
        outcomes: dict[int, int | JoinRefusal | None] = {}
        for node, reply in self._exchange(requests, 0, patience).items():
            values = {} if reply.parcel is None else reply.parcel.values
            size, batches = values.get("size"), values.get("batches")
            if reply.silent:
                outcomes[node] = None
            elif reply.parcel is None:
                outcomes[node] = JoinRefusal(reply.fault or "no answer")
            elif values.get("name") != self.names[node] or type(batches) is not int:
                outcomes[node] = JoinRefusal("it answers under another name than before")
            elif size != self.objective.size:
                outcomes[node] = JoinRefusal(
                    f"its data need a model of {size} parameters, but the center's model has "
                    f"{self.objective.size}"
                )
            elif self.secure and (reason := self._check_card(node, values.get(CARD), keys)):
                outcomes[node] = JoinRefusal(reason)
            else:
                outcomes[node] = batches
                self._cards[node] = str(values.get(CARD))
                self._known_cards.pop(node, None)
                self._not_joined.discard(node)
                self._orders[node].clear()  # it remembers nothing
        return outcomes

    def _check_card(
        self, node: int, written: Value | None, keys: Mapping[int, bytes]
    ) -> str | None:
        """Say what is wrong with a node's card, or None."""
        try:
            card = KeyCard.read(written, json.dumps([self._run.run, self._attempt]))
        except CardError as error:
            return f"its key for secure sums is refused: {error}"
        if (card.name, card.number) != (self.names[node], node):
            return "its key for secure sums is that of another node"
        if not is_public_key(card.public):
            return "its key for secure sums makes every secret the same, and all others would refuse it"
        registered = keys.get(self._address(node), b"")
        if registered and card.identity != identity_of_pem(registered):
            return (
                "its key for secure sums is not signed with the key that it is registered with: its owner "
                "names that in the node's settings (key)"
            )
        return None


def _from_the_beginning(block: Block) -> Block:
    """Return what an owner asks, with everything that a node needs which remembers nothing."""

    def begun(own: Assignment) -> Assignment:
        every = np.ones(len(own.models), bool)
        begins = {
            slot.name: Beginning(every, block.trail.series.vectors(slot))
            for slot in own.request.task.slots
        }
        return replace(own, begins=begins)

    return replace(block, assignments={name: begun(own) for name, own in block.assignments.items()})
