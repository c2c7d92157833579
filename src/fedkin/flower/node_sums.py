"""What a node checks, remembers and masks so that its part of a sum stays hidden.

It answers an exchange of each number once, and the same question again only with the same weight and the
same nodes, or, a few times, with some of the nodes missing: two sums that differ by one node would give that
node's vector away. What it has answered in a run is remembered on its disk.
"""

import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jax
import numpy as np
from flwr.app import ConfigRecord, RecordDict

from fedkin.errors import InputError
from fedkin.federation.owners import TRAINING
from fedkin.federation.secure.cards import CardError, KeyCard, make_card
from fedkin.federation.secure.masks import describe, pair_secret
from fedkin.federation.secure.node import mask_replies
from fedkin.federation.secure.orders import SumRow
from fedkin.flower.certificates import make_private_directory
from fedkin.flower.guard import CheckedBlock, CheckedRequest
from fedkin.flower.node_settings import NodeSettings
from fedkin.flower.wire import PEER, Refusal, RefusedError, Value, with_prefix

logger = logging.getLogger(__name__)

Replies = Mapping[str, np.ndarray]

MOST_REPEATS_OF_A_QUESTION = 2
"""How often the same question may come again with fewer nodes, or with another weight."""

SLACK = 1e-5
"""A share may exceed its limit by rounding."""

MOST_KEPT = 4
"""The number of runs whose last replies a process keeps, for a repeated exchange."""

LAST, AGAIN = "last", "again"
"""What a line begins with that has the number of an exchange, and a line for each message that repeats
questions; all others are questions."""

_KEPT: dict[bytes, dict[tuple[int, str], tuple[bytes, Replies]]] = {}
"""By the node's key in a run: the replies of the last exchange, by owner and request."""


@dataclass
class Agreement:
    """The node's key in a run, the others' cards, and the number of the last exchange that was answered."""

    run: str
    card: KeyCard
    private: bytes
    peers: dict[int, KeyCard] = field(default_factory=dict)
    last: int = 0

    @classmethod
    def begin(cls, settings: NodeSettings, joined: Mapping[str, Value]) -> "Agreement":
        """Make a key for a run that the node joins."""
        run = run_of(joined)
        card, private = make_card(settings.name, int(str(joined["number"])), run, settings.key)
        return cls(run, card, private)

    @classmethod
    def read(cls, records: RecordDict, joined: Mapping[str, Value]) -> "Agreement":
        """Read what `keep` has written."""
        record = records["sums"]
        run, last = run_of(joined), record["last"]
        cards = {
            int(name): KeyCard.read(text, run)
            for name, text in with_prefix(dict(record), PEER).items()  # pyright: ignore
        }
        own = KeyCard.read(record["card"], run)
        assert isinstance(last, int)
        return cls(run, own, bytes.fromhex(str(record["private"])), cards, last)

    @property
    def run_name(self) -> str:
        """The name of the run, which is the same when it is resumed."""
        return str(json.loads(self.run)[0])

    def keep(self, records: RecordDict) -> None:
        """Write everything down in the node's memory."""
        peers = {f"{PEER}{number}": card.write() for number, card in self.peers.items()}
        content = {"card": self.card.write(), "private": self.private.hex(), "last": self.last}
        records["sums"] = ConfigRecord({**content, **peers})

    def take_cards(self, values: Mapping[str, Value], settings: NodeSettings) -> None:
        """Take in the cards that a message brings."""
        for number, written in with_prefix(values, PEER).items():
            try:
                card = KeyCard.read(written, self.run)
            except CardError as error:
                raise RefusedError(
                    Refusal.INVALID, f"the card of node {number[:9]}: {error}"
                ) from None
            if str(card.number) != number or card.number == self.card.number:
                raise RefusedError(
                    Refusal.INVALID, f"the card of node {number[:9]} is of another node"
                )
            settings.check_peer(card.name, card.fingerprint)
            self.peers[card.number] = card

    def secrets(self, members: Sequence[int]) -> dict[int, bytes]:
        """Return the secrets that the node shares with the other members of a sum."""
        found = {}
        known = {name for name in (self.card.name, self.card.identity) if name}
        for number in members:
            if number == self.card.number:
                continue
            if number not in self.peers:
                raise RefusedError(Refusal.INVALID, f"this node has no card of node {number}")
            own = {name for name in (self.peers[number].name, self.peers[number].identity) if name}
            if known & own:
                raise RefusedError(
                    Refusal.INVALID,
                    f"the card of node {number} is of a node that has another number, too",
                )
            known |= own
            peer = self.peers[number].statement(self.run)
            own = self.card.statement(self.run)
            try:
                found[number] = pair_secret(self.private, own, peer, self.run.encode())
            except ValueError:
                raise RefusedError(
                    Refusal.INVALID, f"the card of node {number} has a key that is none"
                ) from None
        return found


def run_of(joined: Mapping[str, Value]) -> str:
    """Return what tells an attempt at a run from all others."""
    return json.dumps([joined["run"], joined["attempt"]])


class NodeSums:
    """A node's part of the sums of one message.

    Args:
        settings: What the node's owner has chosen.
        agreement: The keys.
        number: The number of the exchange.
        largest_share: The largest share of a sum that a node has in this run, as the center says.
    """

    def __init__(
        self, settings: NodeSettings, agreement: Agreement, number: int, largest_share: float
    ) -> None:
        self._settings, self._agreement, self._number = settings, agreement, number
        self._largest_share = largest_share
        self._secrets: dict[int, bytes] = {}
        self._replies: dict[tuple[int, str], tuple[bytes, Replies]] = {}

    def check(self, blocks: Sequence[CheckedBlock], answered: "AnsweredQuestions") -> int:
        """Refuse sums that would give this node's vectors away; return how many nodes the smallest has.

        Args:
            blocks: What each owner asks for.
            answered: What the node has answered in the run.
        """
        rows = [
            row
            for block in blocks
            for request in block.requests
            if request.order is not None
            for row in request.order.rows
        ]
        if self._number <= max(self._agreement.last, answered.last(self._agreement.card)):
            raise RefusedError(
                Refusal.ASKED_BEFORE,
                f"this node has answered exchange {self._number} or a later one, and answers each once",
            )
        for row in rows:
            self._check_row(row)
        self._secrets = self._agreement.secrets(
            sorted({member for row in rows for member in row.members})
        )
        return min(len(row.members) for row in rows)

    def _check_row(self, row: SumRow) -> None:
        own, fewest = self._agreement.card.number, self._settings.fewest_nodes
        if own not in row.members:
            raise RefusedError(Refusal.INVALID, "this node is not in a sum that it is asked for")
        if len(row.members) < fewest:
            raise RefusedError(
                Refusal.LIMIT,
                f"a sum has {len(row.members)} nodes: the owner of this node requires {fewest} "
                "(fewest-nodes)",
            )
        limit = self._settings.largest_share
        limit = self._largest_share if limit is None else limit
        allowed = max(limit, 1 / len(row.members)) * (1 + SLACK)
        if row.share > allowed:
            raise RefusedError(
                Refusal.LIMIT,
                f"this node's share of a sum is {row.share:.3g}: at most {allowed:.3g} is allowed "
                "(largest-share)",
            )

    def kept(self, block: CheckedBlock, request: CheckedRequest) -> Replies | None:
        """Return the replies to a request that is repeated, word for word; None if it is not."""
        last = _KEPT.get(self._agreement.private, {})
        asked, found = last.get((block.number, request.name), (b"", {}))
        return found if asked == _exact_digest(block, request) else None

    def mask(self, block: CheckedBlock, request: CheckedRequest, replies: Replies) -> Replies:
        """Return what leaves the node in place of replies, and keep these for a repetition."""
        assert request.order is not None
        self._replies[block.number, request.name] = _exact_digest(block, request), replies
        digests = _common_digests(request)
        common = [
            self._agreement.run,
            self._number,
            block.number,
            request.name,
            request.task.name,
            sorted(request.options.items()),
            sorted(request.series.items()),
            sorted(request.order.exponents.items()),
        ]

        def label(members: tuple[int, ...], rows: list[int]) -> bytes:
            chosen = [request.models[row] for row in rows]
            totals = [row.total for row in map(request.order.rows.__getitem__, rows)]  # pyright: ignore
            described = json.dumps([*common, members, chosen, totals]).encode()
            return describe(described, *(digests[row] for row in rows))

        sent = {name: request.message[name] for name in request.task.vectors}
        return mask_replies(
            request.task,
            request.order,
            replies,
            sent,
            self._agreement.card.number,
            self._secrets,
            label,
        )

    def finish(self, answered: "AnsweredQuestions") -> None:
        """Answer no exchange of this number again, and keep the replies of this one only.

        The number is on the disk before any words leave: the SuperNode receives the node's memory after the
        answer, and a worker that ends in between must not mask anything else with the same streams.

        Args:
            answered: What the node has answered in the run.
        """
        answered.finish(self._agreement.card, self._number)
        self._agreement.last = self._number
        _KEPT.pop(self._agreement.private, None)  # the newest is the last
        _KEPT[self._agreement.private] = self._replies
        while len(_KEPT) > MOST_KEPT * 16:
            del _KEPT[next(iter(_KEPT))]


def _exact_digest(block: CheckedBlock, request: CheckedRequest) -> bytes:
    """Return a digest of everything that decides what a node replies."""
    described = json.dumps(
        [
            request.task.name,
            sorted(request.options.items()),
            request.models,
            sorted(request.series.items()),
            sorted(request.begins.items()),
        ]
    )
    arrays = [array.tobytes() for _, array in sorted(request.message.items())]
    key = np.asarray(jax.random.key_data(block.key)).tobytes()
    return describe(described.encode(), key, *arrays)


def _common_digests(request: CheckedRequest) -> list[bytes]:
    """Return for each model of a request a digest of the vectors and numbers that all nodes are sent.

    What only the beginning of a series needs is sent to those nodes alone that have missed it.
    """
    arrays = {
        name: request.message[name] for name in (*request.task.vectors, *request.task.numbers)
    }
    return [
        describe(
            *(
                name.encode() + (array[row] if array.ndim == 2 else array).tobytes()
                for name, array in sorted(arrays.items())
            )
        )
        for row in range(len(request.models))
    ]


def question_digests(block: CheckedBlock, request: CheckedRequest) -> list[bytes]:
    """Return for each model of a request a digest of what is asked: not who is asked, and how it is weighed.

    The random key is not part of it: other mini-batches give nearly the same answer. Where a series has
    begun earlier, its number stands for the vectors that it began with.
    """
    common = [request.task.name, sorted(request.options.items())]
    shared = [
        name.encode() + array.tobytes()
        for name, array in sorted(request.message.items())
        if array.ndim < 2
    ]
    found = []
    for row, model in enumerate(request.models):
        series = [
            [slot, block.number, model, number]
            for slot, number in sorted(request.series.items())
            if model not in request.begins.get(slot, ())
        ]
        own = [
            name.encode() + array[row].tobytes()
            for name, array in sorted(request.message.items())
            if array.ndim == 2
        ]
        found.append(describe(json.dumps([common, series]).encode(), *shared, *own))
    return found


class AnsweredQuestions:
    """What a node has answered in a run: each question with its own weight, and the nodes in the sum.

    Args:
        directory: The node's `state` directory; None to remember nothing beyond this process.
        run: The name of the run.
    """

    def __init__(self, directory: Path | None, run: str) -> None:
        name = hashlib.sha256(run.encode()).hexdigest()[:16]
        self._path = None if directory is None else directory / f"run-{name}.sums"
        self._answered: dict[str, tuple[str, tuple[int, ...], int]] = {}
        self._last: dict[str, int] = {}
        """The number of the last exchange that was answered, by the node's key in it."""
        self.repeats = 0
        """How many messages had questions that came again with fewer nodes or another weight."""
        if self._path is not None and self._path.exists():
            try:
                for line in _whole_lines(self._path):
                    if line.startswith(f"{LAST} "):
                        _, key, number = line.split(" ")
                        self._last[key] = int(number)
                        continue
                    if line == AGAIN:
                        self.repeats += 1
                        continue
                    question, weight, members, repeats = line.split(" ")
                    numbers = tuple(map(int, members.split(",")))
                    self._answered[question] = weight, numbers, int(repeats)
            except (OSError, ValueError) as error:
                raise InputError(
                    f"{self._path} cannot be read, and has what this node has answered in the run: the run "
                    "cannot be continued with this node"
                ) from error

    def last(self, card: KeyCard) -> int:
        """Return the number of the last exchange that was answered with a key; 0 if there is none."""
        return self._last.get(card.public.hex(), 0)

    def finish(self, card: KeyCard, number: int) -> None:
        """Write down that an exchange is answered, before it is."""
        self._append([f"{LAST} {card.public.hex()} {number}\n"])
        self._last[card.public.hex()] = number

    def take(self, blocks: Sequence[CheckedBlock], most_repeats: int) -> None:
        """Note what is asked, or refuse it.

        Args:
            blocks: What each owner asks for.
            most_repeats: How many messages may have questions again with fewer nodes or another weight: a
                node that fails makes all questions of a message come again.
        """
        new: dict[str, tuple[str, tuple[int, ...], int]] = {}
        repeats = self.repeats
        for block in blocks:
            for request in block.requests:
                if request.order is None or block.part != TRAINING:
                    continue
                digests = question_digests(block, request)
                for digest, row in zip(digests, request.order.rows, strict=True):
                    if row.weight == 0:
                        continue  # nothing of this node is in the sum
                    question, weight = digest[:16].hex(), repr(row.weight)
                    before = new.get(question) or self._answered.get(question)
                    if before is None:
                        new[question] = weight, row.members, 0
                    elif before[:2] != (weight, row.members):
                        repeats = self.repeats + 1
                        self._check_again(row, before, repeats, most_repeats)
                        new[question] = weight, row.members, before[2] + 1
        self._append(
            [f"{AGAIN}\n"] * (repeats - self.repeats)
            + [
                f"{question} {weight} {','.join(map(str, members))} {repeats}\n"
                for question, (weight, members, repeats) in new.items()
            ]
        )
        for question, own in new.items():
            self._answered[question] = own
        self.repeats = repeats

    def _check_again(
        self, row: SumRow, before: tuple[str, tuple[int, ...], int], repeats: int, most: int
    ) -> None:
        if not set(row.members) <= set(before[1]):
            raise RefusedError(
                Refusal.ASKED_BEFORE,
                "this node has answered the same question for fewer nodes: the two sums would differ by what "
                "the others send",
            )
        if before[2] >= MOST_REPEATS_OF_A_QUESTION or repeats > most:
            raise RefusedError(
                Refusal.ASKED_BEFORE,
                "this node has answered the same question with other weights or nodes too often "
                f"(repeats-per-run is {most})",
            )

    def _append(self, lines: Sequence[str]) -> None:
        if self._path is None or not lines:
            return
        try:
            make_private_directory(self._path.parent)
            opened = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(opened, "w", encoding="ascii") as file:
                file.writelines(lines)
        except OSError as error:
            raise InputError(f"cannot write {self._path}: {error.strerror}") from error


def _whole_lines(path: Path) -> list[str]:
    """Return the lines of a file, without one that was being written when the worker was ended.

    Nothing was answered before its line was whole, so such a line is cut off.
    """
    content = path.read_bytes()
    whole = content.rpartition(b"\n")[0] + b"\n" if b"\n" in content else b""
    if len(whole) < len(content):
        os.truncate(path, len(whole))
    return whole.decode("ascii").splitlines()
