"""The federation over Flower: one message to each node, which `node.answer` answers where the data are."""

import logging
import math
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import jax.numpy as jnp
import numpy as np

from fedkin.data.preprocessing import Preprocessing
from fedkin.errors import InputError
from fedkin.federation.attendance import (
    FEWEST_NODES,
    Answer,
    Assignment,
    AttendedFederation,
)
from fedkin.federation.base import Request, Revealed, WeightedSum, as_array
from fedkin.federation.series import Beginning
from fedkin.federation.task import Slot
from fedkin.flower.messenger import Messenger, Reply
from fedkin.flower.node import write_key
from fedkin.flower.node_settings import DESCRIBE
from fedkin.flower.wire import (
    BEGIN,
    NUMBER,
    NUMBERS,
    OPTION,
    REVEALED,
    ROWS,
    SERIES,
    SUM,
    VECTOR,
    Parcel,
    Refusal,
    Value,
    write_models,
)
from fedkin.models.named import l2_factor, takes_l2
from fedkin.models.objective import Objective
from fedkin.types import Array, Key

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

    def request(self, number: int, l2: float | None) -> Parcel:
        """Return the request to join, for the node of this number.

        Args:
            number: The number of the node.
            l2: The factor of ½‖θ‖² in the loss of the center's model; None if the model has no such
                setting.
        """
        agreed = self.preprocessing
        penalty: dict[str, Value] = {} if l2 is None else {"l2": float(l2)}
        return Parcel(
            {
                **penalty,
                "kind": "join",
                "run": self.run,
                "attempt": self.attempt,
                "number": number,
                "seed": self.seed,
                "batch-size": self.batch_size,
                "model": self.model,
                "task": self.task,
                "classes": self.classes,
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
            self.note(f"{names[number]} is missing: the others begin without it")
        self.batches = max([batches, *sizes.values()])

    def ask(
        self, assignments: Mapping[int, Mapping[str, Assignment]], key: Key
    ) -> dict[int, Answer]:
        """Send one message to each node. See `AttendedFederation.ask`.

        A node that missed the beginning of a series (it was away, or has lost its memory) says so. It
        is asked a second time, with everything that the beginning needs.
        """
        parcels = {node: self._parcel(own, key) for node, own in assignments.items()}
        bytes_down = {node: sent_bytes(parcel) for node, parcel in parcels.items()}
        rows = max(len(each.models) for own in assignments.values() for each in own.values())
        largest = rows * self.objective.size
        replies = self._exchange(parcels, largest)
        late = [node for node in assignments if replies[node].refusal == Refusal.NOT_BEGUN]
        if late:
            names = ", ".join(self.names[node] for node in late)
            logger.info("%s begins again: it missed the beginning", names)
            again = {
                node: self._parcel(
                    {
                        name: self._from_the_beginning(own)
                        for name, own in assignments[node].items()
                    },
                    key,
                )
                for node in late
            }
            replies |= self._exchange(again, largest)
            for node, parcel in again.items():
                bytes_down[node] += sent_bytes(parcel)
        self._not_joined |= {
            node for node in assignments if replies[node].refusal == Refusal.NOT_JOINED
        }
        return {
            node: _to_answer(replies[node], own, bytes_down[node])
            for node, own in assignments.items()
        }

    def begin_step(self, step: int) -> None:
        """Let nodes join again that have lost their memory or are back."""
        self._step = step
        forgetful = sorted(node for node in self._not_joined if self.present[node])
        if forgetful:
            self._join(forgetful, min(self._messenger.patience, REJOINING_PATIENCE))
        super().begin_step(step)

    def find_returned(self, absent: Sequence[int]) -> list[int]:
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
        for node, reply in self._exchange(dict.fromkeys(nodes, request), 0, patience).items():
            found = _read_description(self._address(node), reply)
            if isinstance(found, str):
                continue  # it does not answer: it is asked again at the next step
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

    def _from_the_beginning(self, assignment: Assignment) -> Assignment:
        every = np.ones(len(assignment.models), bool)
        begins = {
            slot.name: Beginning(every, self.series.vectors(slot))
            for slot in assignment.request.task.slots
        }
        return replace(assignment, begins=begins)

    def _parcel(self, assignments: Mapping[str, Assignment], key: Key) -> Parcel:
        """Put the requests to one node into one message; an array that several share is sent once."""
        arrays = _SharedArrays()
        values: dict[str, Value] = {
            "kind": "exchange",
            "attempt": self._run.attempt,
            "step": self._step,
            "key": write_key(key),
            "requests": ",".join(assignments),
        }
        for name, own in assignments.items():
            request, task = own.request, own.request.task
            has_models = request.models is not None
            values |= {
                f"{name}.task": task.name,
                f"{name}.form": _form(request),
                f"{name}.models": write_models(own.models) if has_models else "",
            }
            values |= {f"{name}.{OPTION}{key}": value for key, value in request.options.items()}
            for slot in task.slots:
                values[f"{name}.{SERIES}{slot.name}"] = self.series.number(slot.name)
            for number in task.numbers:
                values[f"{name}.{NUMBER}{number}"] = float(as_array(request.message[number]))
            for label in task.vectors:
                place = arrays.add(request.message[label], own.models)
                values[f"{name}.{VECTOR}{label}"] = place
            for slot, beginning in own.begins.items():
                models = np.array(own.models)[beginning.items].tolist()
                values[f"{name}.{BEGIN}{slot}"] = write_models(models) if has_models else ""
                for label, vector in beginning.vectors.items():
                    values[f"{name}.{VECTOR}{label}"] = arrays.add(vector, models)
        return Parcel(values | arrays.values(), arrays.vectors())

    def _exchange(
        self, requests: Mapping[int, Parcel], largest: int, patience: float | None = None
    ) -> dict[int, Reply]:
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
        requests = {node: self._run.request(node, l2) for node in nodes}
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
            else:
                outcomes[node] = batches
                self._not_joined.discard(node)
        return outcomes


class _SharedArrays:
    """The arrays of one message: each once, with the rows of all models that some request needs."""

    def __init__(self) -> None:
        self._arrays: dict[int, tuple[str, Array | float, set[int]]] = {}

    def add(self, vector: Array | float, models: Collection[int]) -> str:
        """Add an array, or more rows of it; return what it is called in the message."""
        place, _, rows = self._arrays.setdefault(
            id(vector), (str(len(self._arrays)), vector, set())
        )
        rows.update(models)
        return place

    def values(self) -> dict[str, Value]:
        """Return which models the rows of arrays are for, where there is an axis of models."""
        return {
            ROWS + place: write_models(sorted(rows))
            for place, vector, rows in self._arrays.values()
            if np.ndim(vector) == 2
        }

    def vectors(self) -> dict[str, np.ndarray]:
        """Return the arrays."""
        found = {}
        for place, vector, rows in self._arrays.values():
            array = np.asarray(as_array(vector))
            found[place] = array[sorted(rows)] if array.ndim == 2 else array
        return found


def _form(request: Request) -> str:
    if isinstance(request, WeightedSum):
        return SUM
    return REVEALED if isinstance(request, Revealed) else NUMBERS


def sent_bytes(parcel: Parcel) -> int:
    """Count the bytes of a request's arrays and numbers, as the simulation does."""
    width = jnp.dtype(jnp.result_type(float)).itemsize
    numbers = {
        (name.split(f".{NUMBER}")[1], value)
        for name, value in parcel.values.items()
        if f".{NUMBER}" in name
    }
    return sum(array.nbytes for array in parcel.vectors.values()) + width * len(numbers)


def _to_answer(reply: Reply, assignments: Mapping[str, Assignment], bytes_down: int) -> Answer:
    if reply.parcel is None:
        return Answer(None, reply.fault, bytes_down=bytes_down)
    values = dict(reply.parcel.values)
    evaluations = values.pop("evaluations", None)
    if type(evaluations) is not int or not 0 <= evaluations < 2**53:
        return Answer(None, "it does not say how much it computed", bytes_down=bytes_down)
    arrays = dict(reply.parcel.vectors)
    for name, value in values.items():
        if not name.startswith(NUMBER) or isinstance(value, (str, bool)):
            return Answer(None, f"its answer holds {name[:50]!r}", bytes_down=bytes_down)
        with np.errstate(over="ignore"):
            arrays[name.removeprefix(NUMBER)] = np.asarray(value, jnp.result_type(float))
    replies: dict[str, dict[str, np.ndarray]] = {name: {} for name in assignments}
    for label, array in arrays.items():
        name, _, part = label.partition(".")
        if name not in assignments:
            return Answer(None, f"its answer holds {label[:50]!r}", bytes_down=bytes_down)
        has_models = assignments[name].request.models is not None
        replies[name][part] = array if has_models else array[None]
    bytes_up = sum(array.nbytes for array in arrays.values())
    return Answer(replies, None, evaluations, bytes_up, bytes_down)
