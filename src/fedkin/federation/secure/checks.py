"""The center's checks of masked replies: their form, and the norms that nodes report in place of vectors."""

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np

from fedkin.federation.checks import NORM_CEILING, describe_far_moves
from fedkin.federation.secure.fixed_point import NUMBER_BOUND
from fedkin.federation.secure.orders import MOVE, NORM, WORDS, measure_names, row_length
from fedkin.federation.task import Task

NORM_SLACK = 1e-4
"""Norms are reported in the model's own type."""


def masked_form_fault(
    task: Task, replies: Mapping[str, np.ndarray], rows: int, size: int
) -> str | None:
    """Say what is wrong with the names, shapes and types of one node's masked replies, or None.

    Args:
        task: The task that was asked for.
        replies: The words and norms, with a row per model.
        rows: For how many models the node was asked.
        size: The number d of parameters.
    """
    number = jnp.result_type(float)
    expected = {WORDS: ((rows, row_length(task, size)), np.dtype("<u8"))}
    expected |= dict.fromkeys(measure_names(task), ((rows,), number))
    if set(replies) != set(expected):
        return f"it answered with {sorted(replies)} instead of {sorted(expected)}"
    for name, (shape, kind) in expected.items():
        array = replies[name]
        if array.shape != shape or array.dtype != kind:
            return (
                f"its {name} has the shape {array.shape} and the type {array.dtype} instead of {shape} and "
                f"{kind}"
            )
    return None


def find_norm_faults(
    task: Task,
    replies: Sequence[Mapping[str, np.ndarray] | None],
    sent: Mapping[str, np.ndarray],
    *,
    compares_moves: bool = True,
) -> list[str | None]:
    """Say of each node's norms what is wrong with them, or None, as for plain replies (`checks`).

    If no node's numbers are finite, that is the method's fault, and they pass.

    Args:
        task: The task that was asked for.
        replies: Each node's replies of good form, or None.
        sent: The arrays of the message.
        compares_moves: Whether a node may not move a model much farther than the others.
    """
    faults: list[str | None] = [None] * len(replies)
    formed = [number for number, own in enumerate(replies) if own is not None]
    norms = {
        number: {name: array for name, array in (replies[number] or {}).items() if name != WORDS}
        for number in formed
    }
    finite = [
        number
        for number in formed
        if all(bool(np.isfinite(array).all()) for array in norms[number].values())
    ]
    if not finite and len(formed) == len(replies):
        return faults
    for number in set(formed) - set(finite):
        faults[number] = "its answer holds numbers that are not finite"
    largest_sent = max(
        (float(np.linalg.norm(array.astype(np.float64))) for array in sent.values()), default=0.0
    )
    for name in measure_names(task):
        lengths = {
            n: float(np.sqrt(np.mean(np.square(norms[n][name], dtype=float)))) for n in finite
        }
        middle = sorted(lengths.values())[(len(lengths) - 1) // 2] if len(lengths) > 1 else 0.0
        for number, length in lengths.items():
            if name.startswith(NORM) and length > NORM_CEILING * max(middle, largest_sent, 1.0):
                own = name.removeprefix(NORM)
                faults[number] = f"its {own} has the norm {length:.3g}, far out of range"
        if name.startswith(MOVE) and compares_moves:
            for number, fault in describe_far_moves(name.removeprefix(MOVE), lengths).items():
                faults[number] = faults[number] or fault
    return faults


def adds_up(
    found: Mapping[str, np.ndarray],
    exponents: Mapping[str, int],
    summands: Sequence[tuple[float, Mapping[str, np.ndarray], int]],
) -> bool:
    r"""Tell whether sums are no longer than the norms of what was summed allow: ‖Σ w v‖ ≤ Σ |w| ‖v‖.

    If a node has sent other words than it should have, masks do not cancel, and the sum is noise up to 2⁶³⁻ᵉ:
    a thousand times too long, since the scale leaves room (`HEADROOM_BITS`).

    Args:
        found: The sums.
        exponents: How finely each reply was written.
        summands: For each node its weight, what it has sent, and the row that is meant.
    """
    for name, total in found.items():
        bound = sum(
            abs(weight) * (float(own[NORM + name][row]) if NORM + name in own else NUMBER_BOUND)
            for weight, own, row in summands
        )
        rounding = len(summands) * np.sqrt(np.size(total)) * 2.0 ** -exponents[name]
        if not np.linalg.norm(total) <= bound * (1 + NORM_SLACK) + rounding:
            return False
    return True
