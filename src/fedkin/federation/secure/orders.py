"""One sum that hides its summands: what each node is told of it, what it sends, and what the center reads.

A node replies to a request for a sum with words in place of vectors and numbers: `WORDS`, a row per model,
with the vectors of the task one after the other and then its numbers, each times the node's weight. It also
says, as plain numbers, how long its vectors are (`norm.NAME`) and how far it has moved those that it was
sent (`move.NAME`): nobody but the node can check that any more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from fedkin.federation.secure.fixed_point import (
    FIRST_BOUND,
    HEADROOM_BITS,
    NUMBER_BOUND,
    choose_exponent,
    decode,
    encode,
    largest_summand,
)
from fedkin.federation.task import Task

WORDS, NORM, MOVE = "words", "norm.", "move."

FEWEST_SUMMED = 3
"""A sum over fewer nodes would tell each of two what the other one sent, and the center even more."""


@dataclass(frozen=True)
class SumRow:
    """The sum of one model, as one of its members is told of it."""

    members: tuple[int, ...]
    """The numbers of the nodes in the sum, in order."""
    weight: float
    """This node's weight."""
    total: float
    """The absolute weights of all nodes that were asked for, also of those that are missing."""

    @property
    def share(self) -> float:
        """The share of this node in the sum, by weight."""
        return abs(self.weight) / self.total if self.total > 0 else 1.0


@dataclass(frozen=True)
class SumOrder:
    """What a node is told of the sums that one request is for."""

    rows: tuple[SumRow, ...]
    """One for each model that the node works for."""
    exponents: Mapping[str, int]
    """How finely each reply is written, by its name (`fixed_point`)."""


def reply_slices(task: Task, size: int) -> dict[str, slice]:
    """Return where each reply of a task stands in a row of words.

    Args:
        task: The task.
        size: The number d of parameters.
    """
    found: dict[str, slice] = {}
    begin = 0
    for names, length in ((task.vector_replies, size), (task.number_replies, 1)):
        for name in names:
            found[name] = slice(begin, begin + length)
            begin += length
    return found


def row_length(task: Task, size: int) -> int:
    """Return the number of words that a node sends for one model."""
    return len(task.vector_replies) * size + len(task.number_replies)


def choose_exponents(
    task: Task, seen: Mapping[str, float], nodes: int, largest_weight: float
) -> dict[str, int]:
    """Return an exponent for each reply.

    Args:
        task: The task.
        seen: The largest weighted norms of the last time, by the names of the replies, as far as known.
        nodes: How many nodes there are in the sum, at most.
        largest_weight: The largest absolute weight.
    """
    number_bound = NUMBER_BOUND * max(1.0, largest_weight)
    found = {name: choose_exponent(number_bound, nodes) for name in task.number_replies}
    for name in task.vector_replies:
        bound = seen[name] * 2.0**HEADROOM_BITS if seen.get(name) else FIRST_BOUND
        found[name] = choose_exponent(bound, nodes)
    return found


def measure(
    task: Task, replies: Mapping[str, np.ndarray], sent: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the norms of a node's vectors, and how far it has moved those that it was sent.

    A row with anything that is not finite, or with a number that is too large for any sum, has the norm NaN.

    Args:
        task: The task.
        replies: The replies, with a row per model.
        sent: The vectors of the message, each for all models or with a row per model.
    """
    useful = np.ones(len(next(iter(replies.values()))), bool)
    for array in replies.values():
        useful &= np.isfinite(array).reshape(len(array), -1).all(axis=1)
    for name in task.number_replies:
        useful &= np.abs(np.where(useful, replies[name], 0.0)) < NUMBER_BOUND
    found: dict[str, np.ndarray] = {}
    for name in task.vector_replies:
        found[NORM + name] = np.where(useful, _lengths(replies[name]), np.nan)
        if name in task.vectors:
            moved = np.where(useful[:, None], replies[name], 0.0) - sent[name]
            found[MOVE + name] = np.where(useful, _lengths(moved), np.nan)
    if not found:
        found[NORM] = np.where(useful, 0.0, np.nan)
    # The center gets them in this type, and has to come to the same conclusions.
    return {name: np.asarray(array, jnp.result_type(float)) for name, array in found.items()}


def measure_names(task: Task) -> tuple[str, ...]:
    """Return the names of the numbers that `measure` finds."""
    moved = [MOVE + name for name in task.vector_replies if name in task.vectors]
    return (*(NORM + name for name in task.vector_replies), *moved) or (NORM,)


def is_useful(measured: Mapping[str, np.ndarray], row: int) -> bool:
    """Tell whether all numbers of a node's reply are finite, as its norms say."""
    return all(bool(np.isfinite(own[row])) for name, own in measured.items() if name != WORDS)


def fits(order: SumOrder, task: Task, measured: Mapping[str, np.ndarray], row: int) -> bool:
    """Tell whether a node's numbers fit the words of a sum, by their norms: both ends see the same."""
    own = order.rows[row]
    bounds = dict.fromkeys(task.number_replies, NUMBER_BOUND)
    bounds |= {name: float(measured[NORM + name][row]) for name in task.vector_replies}
    return is_useful(measured, row) and all(
        abs(own.weight) * bound <= largest_summand(order.exponents[name], len(own.members))
        for name, bound in bounds.items()
    )


def weighted_norms(
    task: Task, orders: Mapping[int, SumOrder], sent: Mapping[int, Mapping[str, np.ndarray]]
) -> dict[str, float]:
    """Return the largest weighted norm that any node has reported, for each vector reply.

    Args:
        task: The task.
        orders: What each node was told.
        sent: What each node has sent, its norms among it.
    """
    return {
        name: max(
            (
                abs(own.weight) * float(sent[node][NORM + name][row])
                for node, order in orders.items()
                for row, own in enumerate(order.rows)
                if node in sent and is_useful(sent[node], row)
            ),
            default=0.0,
        )
        for name in task.vector_replies
    }


def write_words(
    order: SumOrder,
    task: Task,
    replies: Mapping[str, np.ndarray],
    measured: Mapping[str, np.ndarray],
) -> np.ndarray:
    """Return what a node adds to each sum, not masked yet: zeros where its numbers do not fit."""
    size = replies[task.vector_replies[0]].shape[1] if task.vector_replies else 0
    words = np.zeros((len(order.rows), row_length(task, size)), "<u8")
    places = reply_slices(task, size)
    fitting = [row for row in range(len(order.rows)) if fits(order, task, measured, row)]
    weights = np.array([order.rows[row].weight for row in fitting]).reshape(-1, 1)
    for name, place in places.items():
        array = np.asarray(replies[name])
        values = weights * (array if array.ndim == 2 else array[:, None])[fitting]
        words[fitting, place] = encode(values, order.exponents[name])
    return words


def read_sum(
    words: Sequence[np.ndarray], task: Task, size: int, exponents: Mapping[str, int]
) -> dict[str, np.ndarray]:
    """Add up the words of all members, and return the sums of vectors and numbers."""
    total = np.zeros(row_length(task, size), "<u8")
    for own in words:
        total += own
    found = {
        name: decode(total[place], exponents[name])
        for name, place in reply_slices(task, size).items()
    }
    return {
        name: array if name in task.vector_replies else array[0] for name, array in found.items()
    }


def _lengths(rows: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.linalg.norm(np.asarray(rows, np.float64), axis=1)
