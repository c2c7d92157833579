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

from fedkin.federation.task import Task
from fedkin.flower.wire import (
    FORMS,
    NUMBER,
    NUMBERS,
    OPTION,
    REVEALED,
    SERIES,
    VECTOR,
    Parcel,
    Refusal,
    RefusedError,
    Value,
    read_names,
)
from fedkin.methods.registry import known_tasks

MOST_REQUESTS = 16
"""The largest number of requests in one exchange."""

MOST_MODELS = 10_000
"""The largest number of models that one request may be about."""


def remote_tasks() -> dict[str, Task]:
    """Return the tasks that a node of a real federation may be asked for, by name."""
    return {name: task for name, task in known_tasks().items() if task.remote}


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
    begins: tuple[str, ...]
    """The slots that begin a series."""
    series: Mapping[str, int]
    """The number of the series that each slot has to belong to."""
    message: Mapping[str, np.ndarray]
    """Vectors, those of the beginning included, and numbers."""
    options: Mapping[str, Any]


def check_exchange(
    values: Mapping[str, Value],
    parcel: Parcel,
    size: int,
    allowed: Collection[str],
    *,
    reveal: bool,
) -> list[CheckedRequest]:
    """Check an exchange.

    Args:
        values: The values of the requests: `requests`, and `NAME.…` for each.
        parcel: The exchange, for its vectors.
        size: The number d of the model's parameters.
        allowed: The tasks that the node's owner allows.
        reveal: Whether the owner allows requests for the node's own vectors.
    """
    names = read_names(values.get("requests"))
    if not 1 <= len(names) <= MOST_REQUESTS or len(set(names)) < len(names):
        raise RefusedError(
            Refusal.INVALID, f"an exchange has 1 to {MOST_REQUESTS} requests of different names"
        )
    own = {name: _with_prefix(values, f"{name}.") for name in names}
    known = {"requests", *(f"{name}.{key}" for name, keys in own.items() for key in keys)}
    if unknown := set(values) - known:
        raise RefusedError(Refusal.INVALID, f"an exchange has no {min(unknown)[:50]!r}")
    used: set[str] = set()
    checked = [
        _check_request(name, own[name], parcel, size, allowed, used, reveal=reveal)
        for name in names
    ]
    if unused := set(parcel.vectors) - used:
        raise RefusedError(Refusal.INVALID, f"no request uses the vector {min(unused)[:50]!r}")
    return checked


def _check_request(
    name: str,
    values: Mapping[str, Value],
    parcel: Parcel,
    size: int,
    allowed: Collection[str],
    used: set[str],
    *,
    reveal: bool,
) -> CheckedRequest:
    task = _task(values.get("task"), allowed)
    _check_form(task, values.get("form"), reveal=reveal)
    models = _models(values.get("models"))
    begins = read_names(values.get("begin"))
    slots = {slot.name: slot for slot in task.slots}
    if not set(begins) <= set(slots):
        raise RefusedError(Refusal.INVALID, f"{task.name} cannot begin {begins[:9]!r}")
    begin_vectors = {vector for slot in begins for vector in slots[slot].vectors}
    vectors = _with_prefix(values, VECTOR)
    numbers = _with_prefix(values, NUMBER)
    options = _with_prefix(values, OPTION)
    series = _with_prefix(values, SERIES)
    _same_names("vectors", task, vectors, {*task.vectors, *begin_vectors})
    _same_names("numbers", task, numbers, task.numbers)
    _same_names("options", task, options, task.options)
    _same_names("series", task, series, slots)
    known = {"task", "form", "models", "begin"}
    for prefix, group in (
        (VECTOR, vectors),
        (NUMBER, numbers),
        (OPTION, options),
        (SERIES, series),
    ):
        known |= {prefix + each for each in group}
    if unknown := set(values) - known:
        raise RefusedError(Refusal.INVALID, f"{task.name} has no {min(unknown)[:50]!r}")
    shape = (size,) if models is None else (len(models), size)
    message: dict[str, np.ndarray] = {}
    for each, place in vectors.items():
        if not isinstance(place, str) or place not in parcel.vectors:
            raise RefusedError(Refusal.INVALID, f"the vector {each[:50]!r} is missing")
        message[each] = _vector(each, parcel.vectors[place], shape)
        used.add(place)
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
    )


def _task(name: Value | None, allowed: Collection[str]) -> Task:
    tasks = remote_tasks()
    if not isinstance(name, str) or name not in tasks:
        raise RefusedError(Refusal.INVALID, f"there is no task {str(name)[:50]!r}")
    if name not in allowed:
        raise RefusedError(Refusal.FORBIDDEN, f"the owner of this node does not allow {name}")
    return tasks[name]


def _check_form(task: Task, form: Value | None, *, reveal: bool) -> None:
    if form not in FORMS:
        raise RefusedError(Refusal.INVALID, f"there is no form {str(form)[:50]!r} of a request")
    if form == NUMBERS and task.vector_replies:
        raise RefusedError(Refusal.INVALID, f"{task.name} does not reply with numbers alone")
    if form == REVEALED and not reveal:
        raise RefusedError(
            Refusal.FORBIDDEN,
            "the owner of this node does not allow requests for its own vectors (reveal)",
        )


def _models(written: Value | None) -> tuple[int, ...] | None:
    names = read_names(written)
    if not names:
        return None
    numbers = tuple(int(each) for each in names if each.isdecimal() and len(each) < 10)
    if len(set(numbers)) < len(names) or len(names) > MOST_MODELS:
        raise RefusedError(Refusal.INVALID, "models must be different whole numbers")
    return numbers


def _with_prefix(values: Mapping[str, Value], prefix: str) -> dict[str, Value]:
    return {name[len(prefix) :]: value for name, value in values.items() if name.startswith(prefix)}


def _same_names(what: str, task: Task, given: Collection[str], expected: Collection[str]) -> None:
    if set(given) != set(expected):
        raise RefusedError(
            Refusal.INVALID,
            f"{task.name} needs the {what} {sorted(expected)}, got "
            f"{[name[:50] for name in sorted(given)][:9]}",
        )


def _vector(name: str, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if array.shape != shape or array.dtype != jnp.result_type(float):
        raise RefusedError(
            Refusal.INVALID,
            f"{name} is of type {array.dtype} and shape {array.shape}: expected the shape {shape} and the "
            f"type {jnp.result_type(float)}",
        )
    if not np.isfinite(array).all():
        raise RefusedError(Refusal.INVALID, f"{name} holds numbers that are not finite")
    return array


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
