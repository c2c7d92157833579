"""The seam over Flower: one message to each node, answered by `node.answer` where the data are."""

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
"""Seconds, at least, for joining: a node then starts its worker's libraries and reads its data."""

REJOINING_PATIENCE = 30.0
"""Seconds that the beginning of an outer step waits for nodes that have come back."""


@dataclass(frozen=True)
class Description:
    """What a node says of itself before a run."""

    name: str
    node: int
    """Flower's number of it."""
    summary: str
    """The summary of its table, as JSON; empty where its data are images."""
    shape: tuple[int, ...]
    """The shape of one image; empty for a table."""


@dataclass(frozen=True)
class RunDescription:
    """What a node has to know to take part in a run."""

    run: str
    """The run's own name: the same when it is resumed."""
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


AGAIN = 5.0
"""Seconds, at most, after which a node that did not say who it is is asked again."""


def describe_nodes(
    messenger: Messenger, wanted: int, patience: float, enough: int | None = None
) -> list[Description]:
    """Wait until so many nodes are connected and have said who they are; return them by name.

    A node that refuses is not asked a second time, but named if there are too few in the end; one that
    does not answer is asked again while there is time.

    Args:
        messenger: How messages travel.
        wanted: How many nodes are waited for.
        patience: Seconds to wait for them.
        enough: With so many of them go on when the time is over, if none has refused; None for all.
    """
    deadline = time.monotonic() + patience
    again: dict[int, float] = {}  # when to ask nodes that have been asked
    known: dict[str, Description] = {}
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
                description = _description(node, reply)
                again[node] = time.monotonic() + min(AGAIN, patience / 5)
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
            f"{len(known)} of {wanted} nodes are there after {patience:g} s ({names}); "
            + ("start the others" if not faults else "; ".join(faults.values()))
        )
    return [known[name] for name in sorted(known)]


def _description(node: int, reply: Reply) -> Description | str:
    values = {} if reply.parcel is None else reply.parcel.values
    name, summary, shape = (values.get(key) for key in ("name", "summary", "shape"))
    if reply.parcel is None:
        return f"a node cannot take part: {reply.fault}"
    if not (isinstance(name, str) and isinstance(summary, str) and isinstance(shape, str)):
        return "a node does not say who it is"
    lengths = tuple(int(length) for length in shape.split(",") if length.isdigit())
    return Description(name, node, summary, lengths)


@dataclass(frozen=True)
class Refused:
    """Why a node cannot take part."""

    reason: str


SLOTS = ("adjoint", "inner", "linearization", "target")
"""The slots of a node's state that are begun by a series of calls."""


class FlowerFederation(AttendedFederation):
    """The nodes of a run, each a process with its own data.

    Every node joins the run first; this costs one synchronization. One that is not there, or does not
    answer, is taken in when it is back.

    Args:
        messenger: How messages travel.
        objective: The model that the nodes train.
        names: The names of the run's nodes, in the order of their numbers.
        nodes: Those of them that are there.
        run: What the nodes have to know.
        batches: The largest number of mini-batches of a node, where it is known without asking.
        summaries: The summaries of the nodes' tables that the run was agreed on with, as JSON by name; a
            node that comes back with another table is not taken in. None where data are images.
    """

    def __init__(
        self,
        messenger: Messenger,
        objective: Objective,
        names: Sequence[str],
        nodes: Sequence[Description],
        run: RunDescription,
        batches: int = 0,
        summaries: Mapping[str, str] | None = None,
    ) -> None:
        self._messenger = messenger
        self._summaries = summaries
        self._run = run
        there = {node.name: node.node for node in nodes}
        self._addresses = [there.get(name) for name in names]
        self._strangers: set[int] = set()  # connected, but not of this run
        self._not_joined: set[int] = set()
        self._begun = 0  # series of calls that have begun so far
        self._series: dict[str, int] = dict.fromkeys(
            SLOTS, 0
        )  # for each slot, the series it belongs to
        self._begin_vectors: dict[str, dict[str, np.ndarray]] = {}
        self._step = 0
        super().__init__(objective, names, batches)
        asked = [number for number, name in enumerate(names) if name in there]
        joined = self._join(asked, max(messenger.patience, JOINING_PATIENCE))
        for number, outcome in joined.items():
            if isinstance(outcome, Refused):
                raise InputError(f"{names[number]} cannot take part: {outcome.reason}")
        sizes = {number: size for number, size in joined.items() if isinstance(size, int)}
        if len(sizes) < min(FEWEST_NODES, len(names)):
            present = ", ".join(names[number] for number in sizes) or "none"
            raise InputError(
                f"only {len(sizes)} of the nodes {', '.join(names)} answer ({present}): start the others"
            )
        for number in sorted(set(range(len(names))) - set(sizes)):
            self.present[number] = False
            self._note(f"{names[number]} is not there: the others begin without it")
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

        A node that has missed the beginning of the series (it was away, or has lost its memory) says so,
        and is asked a second time, with what the beginning needs.
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
            logger.info("%s begins anew at %s: it has missed the beginning", names, task)
            whole = {**message, **self._begin_vectors.get(task, {})}
            again = self._request(task, whole, key, True, options)
            replies |= self._exchange(dict.fromkeys(late, again))
            for node in late:
                bytes_down[node] += sum(array.nbytes for array in whole.values())
        self._not_joined |= {node for node in nodes if replies[node].refusal == Refusal.NOT_JOINED}
        return [_answer(replies[node], bytes_down[node]) for node in nodes]

    def begin_step(self, step: int) -> None:
        """Let nodes that have lost their memory join again, and take in those that are back."""
        self._step = step
        forgetful = sorted(node for node in self._not_joined if self.present[node])
        if forgetful:
            self._join(forgetful, min(self._messenger.patience, REJOINING_PATIENCE))
        super().begin_step(step)

    def seek(self, absent: Sequence[int]) -> list[int]:
        """Let the absent nodes that are connected again join; without keys they have new addresses."""
        connected = self._messenger.connected()
        patience = min(self._messenger.patience, REJOINING_PATIENCE)
        gone = {self.names[node]: node for node in absent if self._addresses[node] not in connected}
        known = {address for address in self._addresses if address is not None}
        unknown = connected - known - self._strangers
        if gone and unknown:
            request = Parcel({"kind": DESCRIBE})
            replies = self._messenger.exchange(dict.fromkeys(unknown, request), 0, patience)
            for address, reply in replies.items():
                found = _description(address, reply)
                if reply.silent:
                    continue  # it is asked again when the next step begins
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
        """Return those of some nodes whose tables are what they were."""
        request = Parcel({"kind": DESCRIBE})
        unchanged = []
        for node, reply in self._exchange(dict.fromkeys(nodes, request), patience).items():
            found = _description(self._address(node), reply)
            if isinstance(found, str):
                continue  # it does not answer: it is asked again when the next step begins
            if found.summary == summaries[self.names[node]]:
                unchanged.append(node)
            else:
                self._note(f"{self.names[node]} is back with another table: it is not taken in")
        return unchanged

    def export_state(self) -> dict[str, Any]:
        """Return the numbers of the series and who takes part; what nodes remember stays with them."""
        return {
            "series": np.array([self._begun, *self._series.values()], np.int32),
            "present": self.present.copy(),
        }

    def import_state(self, state: Mapping[str, Any]) -> None:
        """Go on where `export_state` was; who was dropped then is taken in by the next step, if there."""
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
        """Exchange by the nodes' numbers in this run."""
        addresses = {node: self._address(node) for node in requests}
        by_address = {addresses[node]: parcel for node, parcel in requests.items()}
        replies = self._messenger.exchange(by_address, self.objective.size, patience)
        return {node: replies[addresses[node]] for node in requests}

    def _address(self, node: int) -> int:
        address = self._addresses[node]
        assert address is not None  # a node is asked only where it has been found
        return address

    def _join(self, nodes: Sequence[int], patience: float) -> dict[int, "int | Refused | None"]:
        """Ask nodes to join; return how many mini-batches each has, or None if it does not answer."""
        l2 = l2_factor(self.objective.model)
        requests = {node: self._run.request(node, l2) for node in nodes}
        outcomes: dict[int, int | Refused | None] = {}
        for node, reply in self._exchange(requests, patience).items():
            values = {} if reply.parcel is None else reply.parcel.values
            size, batches = values.get("size"), values.get("batches")
            if reply.silent:
                outcomes[node] = None
            elif reply.parcel is None:
                outcomes[node] = Refused(reply.fault or "no answer")
            elif values.get("name") != self.names[node] or type(batches) is not int:
                outcomes[node] = Refused("it is not who it was")
            elif size != self.objective.size:
                outcomes[node] = Refused(
                    f"its data make a model of {size} parameters, the center's one of "
                    f"{self.objective.size}"
                )
            else:
                outcomes[node] = batches
                self._not_joined.discard(node)
        return outcomes


def _answer(reply: Reply, bytes_down: int) -> Answer:
    if reply.parcel is None:
        return Answer(None, reply.fault, bytes_down=bytes_down)
    values = dict(reply.parcel.values)
    evaluations = values.pop("evaluations", None)
    if type(evaluations) is not int or not 0 <= evaluations < 2**53:
        return Answer(None, "it does not say what it has computed", bytes_down=bytes_down)
    replies = dict(reply.parcel.vectors)
    for name, value in values.items():
        if not name.startswith(NUMBER) or isinstance(value, (str, bool)):
            return Answer(None, f"its answer holds {name[:50]!r}", bytes_down=bytes_down)
        with np.errstate(over="ignore"):
            replies[name.removeprefix(NUMBER)] = np.asarray(value, jnp.result_type(float))
    bytes_up = sum(array.nbytes for array in replies.values())
    return Answer(replies, None, evaluations, bytes_up, bytes_down)
