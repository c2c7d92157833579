"""What a node accepts: requests for known tasks, each of the form that the task declares.

A node checks every exchange here before it computes anything. It refuses what no task declares, tasks that
its owner has not allowed, and requests for its own vectors unless its owner has said yes to that.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedkin.federation.owners import ALONE, PARTS, TRAINING, VALIDATION
from fedkin.federation.questions import QUESTIONS
from fedkin.federation.secure.orders import SumOrder
from fedkin.federation.task import Task
from fedkin.flower.guard_sums import read_order
from fedkin.flower.wire import (
    BEGIN,
    EXPONENT,
    FORMS,
    MASKED,
    MEMBERS,
    NUMBER,
    NUMBERS,
    OPTION,
    OWNERS,
    PART,
    REVEALED,
    ROWS,
    SERIES,
    TOTALS,
    VECTOR,
    WEIGHTS,
    Parcel,
    Refusal,
    RefusedError,
    Value,
    read_key,
    read_models,
    read_names,
    read_owners,
    with_prefix,
)
from fedkin.methods.local_svrg.alone import TRAIN_ALONE
from fedkin.methods.registry import known_tasks
from fedkin.types import Key

MOST_REQUESTS = 16
"""The largest number of requests in one exchange."""


def remote_tasks() -> dict[str, Task]:
    """Return the tasks that a node of a real federation may be asked for, by name."""
    return {name: task for name, task in known_tasks().items() if task.remote}


def tasks_of_part(part: str) -> dict[str, Task]:
    """Return the tasks that a part of a node may be asked for, where the node is an owner itself.

    Its own personal model is trained on its training rows, where others would have the data at hand.
    """
    if part == VALIDATION:
        return dict(QUESTIONS)
    if part == ALONE:
        return known_tasks() | {TRAIN_ALONE.name: TRAIN_ALONE}
    return remote_tasks()


def all_tasks() -> dict[str, Task]:
    """Return the tasks that any part of a node may be asked for, by name."""
    return {name: task for part in PARTS for name, task in tasks_of_part(part).items()}


@dataclass(frozen=True)
class CheckedRequest:
    """A request for a task that is valid and allowed."""

    name: str
    """What the center calls the request."""
    task: Task
    models: tuple[int, ...]
    """The models to work for, by number."""
    has_models: bool
    """Whether vectors have an axis of models."""
    begins: Mapping[str, tuple[int, ...]]
    """The slots that begin a series, and for which models."""
    series: Mapping[str, int]
    """The number of the series that each slot has to belong to."""
    message: Mapping[str, np.ndarray]
    """Vectors and numbers. Vectors of two axes have a row per model; those that only the beginning reads
    are zero for models that do not begin."""
    options: Mapping[str, Any]
    order: SumOrder | None = None
    """What the node is told of the sums that its replies are for, if it is to mask them."""

    @property
    def shows_vectors(self) -> bool:
        """Whether the center would see this node's own vectors."""
        return self.order is None and bool(self.task.vector_replies)


@dataclass(frozen=True)
class CheckedBlock:
    """What one owner asks of this node."""

    number: int
    """Tells owners apart; 0 for the only one."""
    part: str
    """The part of the node that is asked."""
    key: Key
    requests: list[CheckedRequest]

    @property
    def prefix(self) -> str:
        """What the names of its part of the answer begin with."""
        return f"{self.number}." if self.number else ""


def check_message(
    values: Mapping[str, Value],
    parcel: Parcel,
    size: int,
    allowed: Collection[str],
    *,
    reveal: bool,
    holds_out: bool,
) -> list[CheckedBlock]:
    """Check what one owner asks for, or several. For the other arguments see `check_exchange`.

    Args:
        values: The values of the message, without what is common to all owners.
        parcel: The message, for its vectors.
        size: The number d of the model's parameters.
        allowed: The tasks that the node's owner allows.
        reveal: Whether the owner allows requests for the node's own vectors.
        holds_out: Whether the node is an owner itself, and has held rows out for its own question.
    """
    if OWNERS not in values:
        plain = {name: value for name, value in values.items() if name != "key"}
        requests = check_exchange(plain, parcel, size, allowed, reveal=reveal)
        return [CheckedBlock(0, TRAINING, read_key(values.get("key")), requests)]
    numbers = read_owners(values[OWNERS])
    prefixes = tuple(f"{number}." for number in numbers)
    known = {OWNERS, *(name for name in values if name.startswith(prefixes))}
    unknown = {*set(values) - known, *(n for n in parcel.vectors if not n.startswith(prefixes))}
    if unknown or 0 in numbers or not numbers:
        what = f"no {min(unknown)[:50]!r}" if unknown else "one or more owners, from number 1 on"
        raise RefusedError(Refusal.INVALID, f"an exchange of several owners has {what}")
    blocks = []
    for number, prefix in zip(numbers, prefixes, strict=True):
        own = with_prefix(values, prefix)
        part, key = own.pop(PART, None), read_key(own.pop("key", None))
        if part not in PARTS:
            raise RefusedError(Refusal.INVALID, f"there is no part {str(part)[:50]!r} of a node")
        if part != TRAINING and not holds_out:
            raise RefusedError(
                Refusal.FORBIDDEN,
                "this node holds no rows out, so it cannot be an owner (validation-fraction)",
            )
        vectors = Parcel({}, with_prefix(parcel.vectors, prefix))
        tasks = tasks_of_part(str(part))
        requests = check_exchange(own, vectors, size, allowed, reveal=reveal, tasks=tasks)
        blocks.append(CheckedBlock(number, str(part), key, requests))
    return blocks


def check_exchange(
    values: Mapping[str, Value],
    parcel: Parcel,
    size: int,
    allowed: Collection[str],
    *,
    reveal: bool,
    tasks: Mapping[str, Task] | None = None,
) -> list[CheckedRequest]:
    """Check what one owner asks for in an exchange.

    Args:
        values: The values of the requests: `requests`, `NAME.…` for each, and the rows of arrays.
        parcel: The exchange, for its vectors.
        size: The number d of the model's parameters.
        allowed: The tasks that the node's owner allows.
        reveal: Whether the owner allows requests for the node's own vectors.
        tasks: The tasks that there are, by name; by default those of a node's training rows.
    """
    tasks = remote_tasks() if tasks is None else tasks
    names = read_names(values.get("requests"))
    if not 1 <= len(names) <= MOST_REQUESTS or len(set(names)) < len(names):
        raise RefusedError(
            Refusal.INVALID, f"an exchange has 1 to {MOST_REQUESTS} requests of different names"
        )
    own = {name: with_prefix(values, f"{name}.") for name in names}
    rows = with_prefix(values, ROWS)
    known = {"requests", *(f"{name}.{key}" for name, keys in own.items() for key in keys)}
    known |= {ROWS + place for place in rows if place in parcel.vectors}
    if unknown := set(values) - known:
        raise RefusedError(Refusal.INVALID, f"an exchange has no {min(unknown)[:50]!r}")
    arrays = {
        place: _SentArray.check(place, array, size, rows.get(place))
        for place, array in parcel.vectors.items()
    }
    checked = [
        _check_request(name, own[name], arrays, tasks, allowed, reveal=reveal) for name in names
    ]
    used = [place for values in own.values() for place in with_prefix(values, VECTOR).values()]
    if unused := {place for place in arrays if place not in used}:
        raise RefusedError(Refusal.INVALID, f"no request uses the vector {min(unused)[:50]!r}")
    return checked


@dataclass(frozen=True)
class _SentArray:
    """A vector, or one for each of some models."""

    array: np.ndarray
    models: tuple[int, ...] | None
    """The models that the rows are for; None if the array is one vector."""

    @classmethod
    def check(cls, place: str, array: np.ndarray, size: int, written: Value | None) -> "_SentArray":
        models = None if written is None else read_models(written)
        shape = (size,) if models is None else (len(models), size)
        if array.shape != shape or array.dtype != jnp.result_type(float):
            raise RefusedError(
                Refusal.INVALID,
                f"the vector {place[:50]!r} is of type {array.dtype} and shape {array.shape}: expected "
                f"the shape {shape} and the type {jnp.result_type(float)}",
            )
        if not np.isfinite(array).all():
            raise RefusedError(
                Refusal.INVALID, f"the vector {place[:50]!r} holds numbers that are not finite"
            )
        return cls(array, models)

    def rows(
        self,
        name: str,
        models: tuple[int, ...] | None,
        needed: Collection[int],
        *,
        common: bool,
    ) -> np.ndarray:
        """Return the vector, or a row for each of some models; those that are not needed are zero.

        Args:
            name: What a request calls the vector.
            models: The models of the request; None if it has no axis of models.
            needed: Those whose vectors the request needs.
            common: Whether one vector may be for all models.
        """
        if self.models is None and (models is None or common):
            return self.array
        if self.models is None or models is None or not set(needed) <= set(self.models):
            raise RefusedError(
                Refusal.INVALID, f"{name[:50]!r} is not for the same models as the request"
            )
        found = np.zeros((len(models), self.array.shape[1]), self.array.dtype)
        for row, model in enumerate(models):
            if model in needed:
                found[row] = self.array[self.models.index(model)]
        return found


def _check_request(
    name: str,
    values: Mapping[str, Value],
    arrays: Mapping[str, _SentArray],
    tasks: Mapping[str, Task],
    allowed: Collection[str],
    *,
    reveal: bool,
) -> CheckedRequest:
    task = _task(values.get("task"), tasks, allowed)
    _check_form(task, values.get("form"), reveal=reveal)
    models = read_models(values.get("models")) or None
    slots = {slot.name: slot for slot in task.slots}
    begins = {
        slot: _beginning(task, slot, written, models)
        for slot, written in with_prefix(values, BEGIN).items()
    }
    needed: dict[str, set[int]] = {vector: set(models or ()) for vector in task.vectors}
    for slot, own in begins.items():
        for vector in slots[slot].vectors:
            needed.setdefault(vector, set()).update(own)
    vectors = with_prefix(values, VECTOR)
    numbers = with_prefix(values, NUMBER)
    options = with_prefix(values, OPTION)
    series = with_prefix(values, SERIES)
    _same_names("vectors", task, vectors, needed)
    _same_names("numbers", task, numbers, task.numbers)
    _same_names("options", task, options, task.options)
    _same_names("series", task, series, slots)
    known = {"task", "form", "models"}
    order = None
    if values.get("form") == MASKED:
        order = read_order(task, values, models)
        known |= {WEIGHTS, TOTALS, MEMBERS, *(EXPONENT + reply for reply in order.exponents)}
    for prefix, group in (
        (BEGIN, begins),
        (VECTOR, vectors),
        (NUMBER, numbers),
        (OPTION, options),
        (SERIES, series),
    ):
        known |= {prefix + each for each in group}
    if unknown := set(values) - known:
        raise RefusedError(Refusal.INVALID, f"{task.name} has no {min(unknown)[:50]!r}")
    message: dict[str, np.ndarray] = {}
    for each, place in vectors.items():
        if not isinstance(place, str) or place not in arrays:
            raise RefusedError(Refusal.INVALID, f"the vector {each[:50]!r} is missing")
        # What only the beginning reads may be the same for all models.
        common = each not in task.vectors
        message[each] = arrays[place].rows(each, models, needed[each], common=common)
    for each, (least, largest) in task.numbers.items():
        message[each] = _number(each, numbers[each], least, largest)
    return CheckedRequest(
        name=name,
        task=task,
        models=(0,) if models is None else models,
        has_models=models is not None,
        begins=begins,
        series={
            slot: natural_number(f"series of {slot}", number) for slot, number in series.items()
        },
        message=message,
        options={each: _option(each, options[each], fit) for each, fit in task.options.items()},
        order=order,
    )


def _task(name: Value | None, tasks: Mapping[str, Task], allowed: Collection[str]) -> Task:
    if not isinstance(name, str) or name not in tasks:
        raise RefusedError(Refusal.INVALID, f"there is no task {str(name)[:50]!r}")
    if name not in allowed:
        raise RefusedError(Refusal.FORBIDDEN, f"the owner of this node does not allow {name}")
    return tasks[name]


def _check_form(task: Task, form: Value | None, *, reveal: bool) -> None:
    if form not in FORMS:
        raise RefusedError(Refusal.INVALID, f"there is no form {str(form)[:50]!r} of a request")
    if form == MASKED and not task.vector_replies:
        raise RefusedError(Refusal.INVALID, f"{task.name} replies with no vectors to be masked")
    if form == NUMBERS and task.vector_replies:
        raise RefusedError(Refusal.INVALID, f"{task.name} does not reply with numbers alone")
    if form == REVEALED and not reveal:
        raise RefusedError(
            Refusal.FORBIDDEN,
            "the owner of this node does not allow requests for its own vectors (reveal)",
        )


def _beginning(
    task: Task, slot: str, written: Value, models: tuple[int, ...] | None
) -> tuple[int, ...]:
    """Return the models for which a slot begins: some of those of the request."""
    if slot not in [own.name for own in task.slots]:
        raise RefusedError(Refusal.INVALID, f"{task.name} cannot begin {slot[:50]!r}")
    own = read_models(written)
    if models is None and not own:
        return (0,)
    if not own or not set(own) <= set(models or ()):
        raise RefusedError(
            Refusal.INVALID, f"{slot} begins for some of the models of the request, not for others"
        )
    return own


def _same_names(what: str, task: Task, given: Collection[str], expected: Collection[str]) -> None:
    if set(given) != set(expected):
        raise RefusedError(
            Refusal.INVALID,
            f"{task.name} needs the {what} {sorted(expected)}, got "
            f"{[name[:50] for name in sorted(given)][:9]}",
        )


def _number(name: str, value: Value, least: float, largest: float) -> np.ndarray:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise RefusedError(Refusal.INVALID, f"{name} must be a number, not {str(value)[:50]!r}")
    if not (math.isfinite(value) and least <= value <= largest):
        raise RefusedError(
            Refusal.INVALID, f"{name} must be from {least:g} to {largest:g}, not {str(value)[:50]}"
        )
    return np.asarray(value, jnp.result_type(float))


def _option(name: str, value: Value, allowed: tuple[int, int] | tuple[str, ...]) -> Value:
    if isinstance(allowed[0], str):
        fits = isinstance(value, str) and value in allowed
    else:
        least, largest = allowed
        fits = type(value) is int and int(least) <= value <= int(largest)
    if not fits:
        raise RefusedError(Refusal.INVALID, f"{name} must be of {allowed}, not {str(value)[:50]!r}")
    return value


def natural_number(name: str, value: Value | None) -> int:
    """Return a value that is a whole number from 0 on."""
    if type(value) is not int or value < 0:
        raise RefusedError(
            Refusal.INVALID, f"{name} must be a whole number, not {str(value)[:50]!r}"
        )
    return value
