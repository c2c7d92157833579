"""The federation over Flower: one message to each node, which `node.answer` answers where the data are."""

import logging
import math
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedkin.data.preprocessing import Preprocessing
from fedkin.errors import InputError
from fedkin.federation.attendance import FEWEST_NODES, Answer, AttendedFederation
from fedkin.flower.guard import FORMS, NUMBER, OPTION
from fedkin.flower.messenger import Messenger, Reply
from fedkin.flower.node import write_key
from fedkin.flower.node_settings import DESCRIBE
from fedkin.flower.wire import Parcel, Refusal, Value
from fedkin.methods.tasks import TASKS
from fedkin.models.named import l2_factor
from fedkin.models.objective import Objective
from fedkin.types import Key

logger = logging.getLogger(__name__)

JOINING_PATIENCE = 300.0
"""The least number of seconds for joining: a node then loads its libraries and reads its data."""

REJOINING_PATIENCE = 30.0
"""Seconds that the beginning of an outer step waits for nodes that reconnect."""


@dataclass(frozen=True)
class NodeDescription:
    """A node's description of itself before a run."""

    name: str
    node: int
    """Flower's number of the node."""
    summary: str
    """The summary of its table, as JSON; empty if its data are images."""
    shape: tuple[int, ...]
    """The shape of one image; empty for a table."""


@dataclass(frozen=True)
class RunDescription:
    """What a node must know to take part in a run."""

    run: str
    """The name of the run, which is the same when it is resumed."""
    seed: int
    batch_size: int
    model: str
    task: str
    classes: int
    preprocessing: Preprocessing | None = None
    attempt: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Distinguishes this attempt at the run from earlier ones."""

    def request(self, number: int, l2: float) -> Parcel:
        """Return the request to join, for the node of this number.

        Args:
            number: The number of the node.
            l2: The factor of ½‖θ‖² in the loss of the center's model.
        """
        agreed = self.preprocessing
        return Parcel(
            {
                "kind": "join",
                "run": self.run,
                "attempt": self.attempt,
                "number": number,
                "seed": self.seed,
                "batch-size": self.batch_size,
                "model": self.model,
                "task": self.task,
                "classes": self.classes,
                "l2": float(l2),
                "preprocessing": "" if agreed is None else agreed.model_dump_json(),
            }
        )


ASK_AGAIN_AFTER = 5.0
"""The largest number of seconds until a node that did not describe itself is asked again."""


def describe_nodes(
    messenger: Messenger, wanted: int, patience: float, enough: int | None = None
) -> list[NodeDescription]:
    """Wait until this many nodes have connected and described themselves; return them by name.

    A node that refuses is not asked a second time; if there are too few nodes in the end, the error gives
    its reason. A node that does not answer is asked again while there is time.

    Args:
        messenger: Sends the messages.
        wanted: The number of nodes to wait for.
        patience: Seconds to wait for them.
        enough: The number of nodes that is enough when the time is over, if none has refused; None
            for all.
    """
    deadline = time.monotonic() + patience
    again: dict[int, float] = {}  # when to ask a node that has been asked before
    known: dict[str, NodeDescription] = {}
    faults: dict[int, str] = {}
    refused = False
    while len(known) < wanted:
        now = time.monotonic()
        settled = {node.node for node in known.values()}
        due = {
            node
            for node in messenger.connected() - settled
            if node not in again or again[node] <= now <= deadline
        }
        if due:
            request = Parcel({"kind": DESCRIBE})
            replies = messenger.exchange(dict.fromkeys(due, request), 0)
            for node, reply in replies.items():
                description = _read_description(node, reply)
                again[node] = time.monotonic() + min(ASK_AGAIN_AFTER, patience / 5)
                faults.pop(node, None)
                if not isinstance(description, str) and description.name not in known:
                    known[description.name] = description
                    continue
                if not isinstance(description, str):
                    description = f"two nodes are called {description.name!r}"
                faults[node] = description
                if not reply.silent:
                    again[node] = math.inf
                    refused = True
        elif now > deadline:
            break
        else:
            time.sleep(min(1.0, max(messenger.interval, 0.0)))
    if len(known) < (wanted if enough is None or refused else enough):
        names = ", ".join(sorted(known)) or "none"
        raise InputError(
            f"{len(known)} of {wanted} nodes are ready after {patience:g} s ({names}); "
            + ("start the others" if not faults else "; ".join(faults.values()))
        )
    return [known[name] for name in sorted(known)]


def _read_description(node: int, reply: Reply) -> NodeDescription | str:
    values = {} if reply.parcel is None else reply.parcel.values
    name, summary, shape = (values.get(key) for key in ("name", "summary", "shape"))
    if reply.parcel is None:
        return f"a node cannot take part: {reply.fault}"
    if not (isinstance(name, str) and isinstance(summary, str) and isinstance(shape, str)):
        return "a node does not describe itself"
    lengths = tuple(int(length) for length in shape.split(",") if length.isdigit())
    return NodeDescription(name, node, summary, lengths)


@dataclass(frozen=True)
class JoinRefusal:
    """The reason why a node cannot take part."""

    reason: str


SLOTS = ("adjoint", "inner", "linearization", "target")
"""The slots of a node's state that a series of calls begins."""


class FlowerFederation(AttendedFederation):
    """The nodes of a run, each a process with its own data.

    Every node joins the run first, which costs one synchronization. A node that is missing or does not
    answer joins when it is back.

    Args:
        messenger: Sends the messages.
        objective: The model that the nodes train. Its l2 is sent to them.
        names: The names of the run's nodes, in the order of their numbers.
        nodes: Those of them that are connected.
        run: What the nodes must know.
        batches: The largest number of mini-batches of a node, if it is known without asking.
        summaries: The summaries of the nodes' tables on which the run's columns were agreed, as JSON by
            name; a node that returns with another table may not join. None if the data are images.
    """

    def __init__(
        self,
        messenger: Messenger,
        objective: Objective,
        names: Sequence[str],
        nodes: Sequence[NodeDescription],
        run: RunDescription,
        batches: int = 0,
        summaries: Mapping[str, str] | None = None,
    ) -> None:
        self._messenger = messenger
        self._summaries = summaries
        self._run = run
        there = {node.name: node.node for node in nodes}
        self._addresses = [there.get(name) for name in names]
        self._strangers: set[int] = set()  # connected, but not nodes of this run
        self._not_joined: set[int] = set()
        self._begun = 0  # the number of series of calls so far
        self._series: dict[str, int] = dict.fromkeys(
            SLOTS, 0
        )  # the series that each slot belongs to
        self._begin_vectors: dict[str, dict[str, np.ndarray]] = {}
        self._step = 0
        super().__init__(objective, names, batches)
        asked = [number for number, name in enumerate(names) if name in there]
        joined = self._join(asked, max(messenger.patience, JOINING_PATIENCE))
        for number, outcome in joined.items():
            if isinstance(outcome, JoinRefusal):
                raise InputError(f"{names[number]} cannot take part: {outcome.reason}")
        sizes = {number: size for number, size in joined.items() if isinstance(size, int)}
        if len(sizes) < min(FEWEST_NODES, len(names)):
            present = ", ".join(names[number] for number in sizes) or "none"
            raise InputError(
                f"only {len(sizes)} of the nodes {', '.join(names)} answer ({present}): start the others"
            )
        for number in sorted(set(range(len(names))) - set(sizes)):
            self.present[number] = False
            self._note(f"{names[number]} is missing: the others begin without it")
        self.batches = max([batches, *sizes.values()])

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
        """Send one message to each node. See `AttendedFederation.ask`.

        A node that missed the beginning of the series (it was away, or has lost its memory) says so. It
        is asked a second time, with everything that the beginning needs.
        """
        begins = FORMS[task].begin_vectors
        if start:
            self._begun += 1
            self._series |= dict.fromkeys(TASKS[task].slots, self._begun)
            self._begin_vectors[task] = {name: message[name] for name in begins}
        request = self._request(task, message, key, start, options)
        replies = self._exchange(dict.fromkeys(nodes, request))
        bytes_down = dict.fromkeys(nodes, sum(array.nbytes for array in message.values()))
        late = [node for node in nodes if replies[node].refusal == Refusal.NOT_BEGUN]
        if late and FORMS[task].begins and (not begins or task in self._begin_vectors):
            names = ", ".join(self.names[node] for node in late)
            logger.info("%s restarts at %s: it missed the beginning", names, task)
            whole = {**message, **self._begin_vectors.get(task, {})}
            again = self._request(task, whole, key, True, options)
            replies |= self._exchange(dict.fromkeys(late, again))
            for node in late:
                bytes_down[node] += sum(array.nbytes for array in whole.values())
        self._not_joined |= {node for node in nodes if replies[node].refusal == Refusal.NOT_JOINED}
        return [_to_answer(replies[node], bytes_down[node]) for node in nodes]

    def begin_step(self, step: int) -> None:
        """Let nodes join again that have lost their memory or are back."""
        self._step = step
        forgetful = sorted(node for node in self._not_joined if self.present[node])
        if forgetful:
            self._join(forgetful, min(self._messenger.patience, REJOINING_PATIENCE))
        super().begin_step(step)

    def seek(self, absent: Sequence[int]) -> list[int]:
        """Let absent nodes that are connected again join; without keys, they have new addresses."""
        connected = self._messenger.connected()
        patience = min(self._messenger.patience, REJOINING_PATIENCE)
        gone = {self.names[node]: node for node in absent if self._addresses[node] not in connected}
        known = {address for address in self._addresses if address is not None}
        unknown = connected - known - self._strangers
        if gone and unknown:
            request = Parcel({"kind": DESCRIBE})
            replies = self._messenger.exchange(dict.fromkeys(unknown, request), 0, patience)
            for address, reply in replies.items():
                found = _read_description(address, reply)
                if reply.silent:
                    continue  # it is asked again at the next step
                if isinstance(found, str) or found.name not in gone:
                    self._strangers.add(address)
                else:
                    self._addresses[gone.pop(found.name)] = address
        there = [node for node in absent if self._addresses[node] in connected]
        if self._summaries is not None and there:
            there = self._unchanged(there, self._summaries, patience)
        joined = self._join(there, patience) if there else {}
        return [node for node, outcome in joined.items() if isinstance(outcome, int)]

    def _unchanged(
        self, nodes: Sequence[int], summaries: Mapping[str, str], patience: float
    ) -> list[int]:
        """Return the nodes whose tables have not changed."""
        request = Parcel({"kind": DESCRIBE})
        unchanged = []
        for node, reply in self._exchange(dict.fromkeys(nodes, request), patience).items():
            found = _read_description(self._address(node), reply)
            if isinstance(found, str):
                continue  # it does not answer: it is asked again at the next step
            if found.summary == summaries[self.names[node]]:
                unchanged.append(node)
            else:
                self._note(f"{self.names[node]} is back with another table and may not join")
        return unchanged

    def export_state(self) -> dict[str, Any]:
        """Return the numbers of the series and which nodes take part; the nodes' memory stays with them."""
        return {
            "series": np.array([self._begun, *self._series.values()], np.int32),
            "present": self.present.copy(),
        }

    def import_state(self, state: Mapping[str, Any]) -> None:
        """Continue from an exported state; nodes that were dropped join at the next step, if connected."""
        numbers = np.asarray(state["series"]).astype(int).tolist()
        self._begun = numbers[0]
        self._series |= zip(SLOTS, numbers[1:], strict=True)
        np.logical_and(self.present, np.asarray(state["present"]), out=self.present)

    def _request(
        self,
        task: str,
        message: Mapping[str, np.ndarray],
        key: Key,
        begin: bool,
        options: Mapping[str, Any],
    ) -> Parcel:
        slots = TASKS[task].slots
        values: dict[str, Value] = {
            "kind": "task",
            "task": task,
            "begin": begin,
            "attempt": self._run.attempt,
            "series": self._series[slots[0]] if slots else 0,
            "step": self._step,
            "key": write_key(key),
        }
        values |= {OPTION + name: value for name, value in options.items()}
        values |= {NUMBER + name: float(a) for name, a in message.items() if a.ndim == 0}
        return Parcel(values, {name: array for name, array in message.items() if array.ndim > 0})

    def _exchange(
        self, requests: Mapping[int, Parcel], patience: float | None = None
    ) -> dict[int, Reply]:
        """Exchange messages, by the nodes' numbers in this run."""
        addresses = {node: self._address(node) for node in requests}
        by_address = {addresses[node]: parcel for node, parcel in requests.items()}
        replies = self._messenger.exchange(by_address, self.objective.size, patience)
        return {node: replies[addresses[node]] for node in requests}

    def _address(self, node: int) -> int:
        address = self._addresses[node]
        assert address is not None  # only nodes that have been found are asked
        return address

    def _join(self, nodes: Sequence[int], patience: float) -> dict[int, "int | JoinRefusal | None"]:
        """Ask nodes to join; return the number of mini-batches of each, or None if it does not answer."""
        l2 = l2_factor(self.objective.model)
        requests = {node: self._run.request(node, l2) for node in nodes}
        outcomes: dict[int, int | JoinRefusal | None] = {}
        for node, reply in self._exchange(requests, patience).items():
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
            else:
                outcomes[node] = batches
                self._not_joined.discard(node)
        return outcomes


def _to_answer(reply: Reply, bytes_down: int) -> Answer:
    if reply.parcel is None:
        return Answer(None, reply.fault, bytes_down=bytes_down)
    values = dict(reply.parcel.values)
    evaluations = values.pop("evaluations", None)
    if type(evaluations) is not int or not 0 <= evaluations < 2**53:
        return Answer(None, "it does not say how much it computed", bytes_down=bytes_down)
    replies = dict(reply.parcel.vectors)
    for name, value in values.items():
        if not name.startswith(NUMBER) or isinstance(value, (str, bool)):
            return Answer(
                None, f"its answer has an unknown value {name[:50]!r}", bytes_down=bytes_down
            )
        with np.errstate(over="ignore"):
            replies[name.removeprefix(NUMBER)] = np.asarray(value, jnp.result_type(float))
    bytes_up = sum(array.nbytes for array in replies.values())
    return Answer(replies, None, evaluations, bytes_up, bytes_down)
