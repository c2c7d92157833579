"""What the center believes of a reply: its names, shapes and types, and numbers that are to scale."""

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np

from fedkin.errors import DivergedError, FedkinError, InputError
from fedkin.federation.base import Request, as_array
from fedkin.federation.task import Task

NORM_CEILING = 1e4
"""How many times larger a reply may be than what was sent, than the reply in the middle, and than 1.
Nodes differ, but a node whose numbers are four orders of magnitude off is broken, or lies."""

FARTHEST_MOVE = 20.0
"""How many times farther than the node in the middle a node may move a vector that all begin with."""

FEWEST_COMPARED = 3
"""With fewer nodes nobody is in the middle."""


def request_fault(request: Request) -> FedkinError | None:
    """Say why no node would accept the numbers of a request, or None."""
    task = request.task
    for name, value in request.message.items():
        array = np.asarray(as_array(value))
        if not np.isfinite(array).all():
            return DivergedError(
                f"training diverged: {name} of {task.name} is not finite; try a smaller learning_rate, or "
                "scale the columns"
            )
        if name in task.numbers:
            least, largest = task.numbers[name]
            if not least <= float(array) <= largest:
                return InputError(
                    f"{name} is {float(array):g}; nodes accept {least:g} to {largest:g}"
                )
    return None


def find_faults(
    task: Task,
    replies: Sequence[Mapping[str, np.ndarray] | None],
    models: Sequence[int],
    sent: Mapping[str, np.ndarray],
    size: int,
) -> list[str | None]:
    """Say of each node's replies what is wrong with them, or None; missing replies have no fault here.

    If all nodes replied and *no* reply's numbers are finite, that is not the nodes' fault but the method's (a
    learning rate that is too large, say): those replies pass, and the algorithm sees that it has diverged.
    So does the reply of a node that was asked alone, because there is nobody to compare it with.

    Args:
        task: The task that was asked for.
        replies: Each node's replies, with a row per model, or None.
        models: For how many models each node was asked.
        sent: The arrays of the message.
        size: The number d of parameters.
    """
    faults = [
        None if own is None else form_fault(task, own, rows, size)
        for own, rows in zip(replies, models, strict=True)
    ]
    formed = [
        number for number, own in enumerate(replies) if own is not None and faults[number] is None
    ]
    finite = [number for number in formed if _is_finite(replies[number] or {})]
    if not finite and len(formed) == len(replies):
        return faults
    for number in set(formed) - set(finite):
        faults[number] = "its answer holds numbers that are not finite"
    largest_sent = max((_norm(array) for array in sent.values()), default=0.0)
    for name in (replies[finite[0]] or {}) if finite else ():
        norms = {number: _norm((replies[number] or {})[name]) for number in finite}
        # A single reply is no measure of itself.
        middle = sorted(norms.values())[(len(norms) - 1) // 2] if len(norms) > 1 else 0.0
        ceiling = NORM_CEILING * max(middle, largest_sent, 1.0)
        for number, norm in norms.items():
            if not norm <= ceiling and faults[number] is None:
                faults[number] = f"its {name} has the norm {norm:.3g}, far out of range"
    return faults


def find_far_moves(
    task: Task,
    replies: Sequence[Mapping[str, np.ndarray] | None],
    models: Sequence[Sequence[int]],
    sent: Mapping[str, np.ndarray],
) -> list[str | None]:
    """Say of each node whether it has moved what it was sent much farther than the others have, or None.

    Args:
        task: The task that was asked for.
        replies: Each node's replies, with a row per model, or None.
        models: The models that each node was asked for, by number.
        sent: The arrays of the message.
    """
    faults: list[str | None] = [None] * len(replies)
    for name in set(task.vectors) & set(task.vector_replies):
        lengths = {}
        for number, (own, asked) in enumerate(zip(replies, models, strict=True)):
            if own is not None:
                begun = sent[name] if sent[name].ndim < 2 else sent[name][list(asked)]
                lengths[number] = _norm(own[name] - begun) / np.sqrt(len(asked))
        for number, fault in describe_far_moves(name, lengths).items():
            faults[number] = fault
    return faults


def describe_far_moves(name: str, lengths: Mapping[int, float]) -> dict[int, str]:
    """Say which nodes have moved a vector much farther than the others have.

    Args:
        name: What the vector is called.
        lengths: How far each node has moved it.
    """
    if len(lengths) < FEWEST_COMPARED:
        return {}
    middle = sorted(lengths.values())[(len(lengths) - 1) // 2]
    return {
        number: f"it moves the {name} {length / middle:.0f} times as far as the node in the middle"
        for number, length in lengths.items()
        if middle > 0 and length > FARTHEST_MOVE * middle
    }


def form_fault(task: Task, replies: Mapping[str, np.ndarray], rows: int, size: int) -> str | None:
    """Say what is wrong with the names, shapes and types of one node's replies, or None.

    Args:
        task: The task that was asked for.
        replies: The replies, with a row per model.
        rows: For how many models the node was asked.
        size: The number d of parameters.
    """
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(task.vector_replies, (rows, size))
    shapes |= dict.fromkeys(task.number_replies, (rows,))
    if set(replies) != set(shapes):
        return f"it answered with {sorted(replies)} instead of {sorted(shapes)}"
    for name, shape in shapes.items():
        array = replies[name]
        if array.shape != shape:
            return f"its {name} has the shape {array.shape} instead of {shape}"
        if array.dtype != jnp.result_type(float):
            return f"its {name} has the type {array.dtype} instead of {jnp.result_type(float)}"
    return None


def _norm(array: np.ndarray) -> float:
    with np.errstate(over="ignore"):
        return float(np.linalg.norm(array.astype(np.float64)))


def _is_finite(replies: Mapping[str, np.ndarray]) -> bool:
    return all(bool(np.isfinite(array).all()) for array in replies.values())
