"""What a node may be asked: every task, its vectors, its numbers with their ranges, its options.

A node checks every request against this table before it computes anything. It refuses what is not in the
table, and tasks that its owner has not allowed.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedkin.flower.wire import Parcel, Refusal, RefusedError, Value

MOST_STEPS = 10_000
"""The largest number of local steps, or of iterations, in one request."""

NUMBER = "number."
OPTION = "option."
"""The prefixes of the names of a task's numbers and options in a request."""


@dataclass(frozen=True)
class Form:
    """The form of a task's request."""

    vectors: tuple[str, ...] = ()
    """Vectors as long as the model has parameters."""
    begin_vectors: tuple[str, ...] = ()
    """Further vectors, at the beginning of a series."""
    numbers: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Numbers, with the smallest and the largest value allowed."""
    options: Mapping[str, tuple[int, int] | tuple[str, ...]] = field(default_factory=dict)
    """Whole numbers with their range, or texts with all allowed values."""
    begins: bool = False
    """Whether the task can begin a series."""


_STEPS = (1, MOST_STEPS)
_RATE = (0.0, 1e3)
_SHARE = (0.0, 1.0)
_SVRG_NUMBERS = {"learning_rate": _RATE, "refresh_probability": _SHARE, "averaging_rate": _SHARE}
_SVRG_OPTIONS = {"steps": _STEPS, "reply": ("point", "average")}

FORMS: Mapping[str, Form] = {
    "inner_svrg_round": Form(("point",), (), _SVRG_NUMBERS, _SVRG_OPTIONS, begins=True),
    "adjoint_svrg_round": Form(
        ("point",), ("theta", "target"), _SVRG_NUMBERS, _SVRG_OPTIONS, begins=True
    ),
    "ditto_shared_round": Form(("shared",), (), {"learning_rate": _RATE}, {"steps": _STEPS}),
    "pfedme_round": Form(
        ("shared",),
        (),
        {"learning_rate": _RATE, "proximal": (0.0, 1e6), "tolerance": (0.0, 1e6)},
        # A node keeps its personal model to itself.
        {"steps": _STEPS, "iterations": _STEPS, "reply": ("shared",)},
    ),
    "hessian_product": Form(("vector",), ("theta",), begins=True),
    "slope": Form(("vector",)),
    "loss": Form(("theta",)),
    "smoothness": Form(),
}
"""Every task that a node can be asked to do."""


@dataclass(frozen=True)
class CheckedRequest:
    """A request for a task that is valid and allowed."""

    task: str
    message: dict[str, np.ndarray]
    options: dict[str, Any]
    begin: bool


def check_task(
    values: Mapping[str, Value], parcel: Parcel, size: int, allowed: Collection[str]
) -> CheckedRequest:
    """Check a request for a task.

    Args:
        values: The values of the request that belong to the task: `task`, `begin`, `number.…`, `option.…`.
        parcel: The request, for its vectors.
        size: The number d of the model's parameters.
        allowed: The tasks that the node's owner allows.
    """
    task = values.get("task")
    if not isinstance(task, str) or task not in FORMS:
        raise RefusedError(Refusal.INVALID, f"there is no task {str(task)[:50]!r}")
    if task not in allowed:
        raise RefusedError(Refusal.FORBIDDEN, f"the owner of this node does not allow {task}")
    form = FORMS[task]
    begin = values.get("begin")
    if not isinstance(begin, bool) or (begin and not form.begins):
        raise RefusedError(Refusal.INVALID, f"{task} cannot begin with {begin!r}")
    expected = form.vectors + (form.begin_vectors if begin else ())
    _same_names("vectors", task, parcel.vectors, expected)
    message = {name: _vector(name, parcel.vectors[name], size) for name in expected}
    numbers = _with_prefix(values, NUMBER)
    options = _with_prefix(values, OPTION)
    _same_names("numbers", task, numbers, form.numbers)
    _same_names("options", task, options, form.options)
    unknown = set(values) - {"task", "begin"}
    unknown -= {NUMBER + name for name in numbers} | {OPTION + name for name in options}
    if unknown:
        raise RefusedError(Refusal.INVALID, f"{task} has no {min(unknown)[:50]!r}")
    for name, (least, largest) in form.numbers.items():
        message[name] = _number(name, numbers[name], least, largest)
    checked = {name: _option(name, options[name], allow) for name, allow in form.options.items()}
    return CheckedRequest(task, message, checked, begin)


def _with_prefix(values: Mapping[str, Value], prefix: str) -> dict[str, Value]:
    return {name[len(prefix) :]: value for name, value in values.items() if name.startswith(prefix)}


def _same_names(what: str, task: str, given: Collection[str], expected: Collection[str]) -> None:
    if set(given) != set(expected):
        raise RefusedError(
            Refusal.INVALID,
            f"{task} needs the {what} {sorted(expected)}, got {[name[:50] for name in sorted(given)][:9]}",
        )


def _vector(name: str, array: np.ndarray, size: int) -> np.ndarray:
    if array.shape != (size,) or array.dtype != jnp.result_type(float):
        raise RefusedError(
            Refusal.INVALID,
            f"{name} is of type {array.dtype} and shape {array.shape}: expected {size} numbers of type "
            f"{jnp.result_type(float)}",
        )
    if not np.isfinite(array).all():
        raise RefusedError(Refusal.INVALID, f"{name} has numbers that are not finite")
    return array


def _number(name: str, value: Value, least: float, largest: float) -> np.ndarray:
    if isinstance(value, (str, bool)) or not (math.isfinite(value) and least <= value <= largest):
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
