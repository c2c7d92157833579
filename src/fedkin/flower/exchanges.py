"""One exchange with one node: from what owners ask to a message, and from its answer to replies."""

from collections.abc import Collection, Mapping

import jax.numpy as jnp
import numpy as np

from fedkin.federation.attended_exchange import Answer, Assignment, Block
from fedkin.federation.base import Request, Revealed, WeightedSum, as_array
from fedkin.federation.secure.orders import SumOrder, row_length
from fedkin.flower.messenger import Response
from fedkin.flower.wire import (
    BEGIN,
    EXCHANGE,
    EXPONENT,
    MASKED,
    MEMBERS,
    NUMBER,
    NUMBERS,
    OPTION,
    ORDERS,
    OWNERS,
    PART,
    REVEALED,
    ROWS,
    SERIES,
    SUM,
    TOTALS,
    VECTOR,
    WEIGHTS,
    Order,
    Parcel,
    Value,
    with_prefix,
    write_key,
    write_members,
    write_models,
    write_orders,
)
from fedkin.types import Array


def write_exchange(
    blocks: Collection[Block],
    attempt: str,
    step: int,
    orders: Collection[Order] = (),
    more: Mapping[str, Value] | None = None,
) -> Parcel:
    """Put what owners ask of one node into one message.

    Args:
        blocks: What each of them asks for.
        attempt: The attempt at the run that the node has joined.
        step: The number of the outer step; 0 where owners are at different steps.
        orders: What the node is to copy or forget first.
        more: What belongs to masked sums, if there are any.
    """
    values: dict[str, Value] = {"kind": EXCHANGE, "attempt": attempt, "step": step, **(more or {})}
    vectors: dict[str, np.ndarray] = {}
    ordered = sorted(blocks, key=lambda block: block.trail.number)
    if [prefix_of(block) for block in ordered] != [""]:
        values[OWNERS] = write_models([block.trail.number for block in ordered])
        values |= {ORDERS: write_orders(orders)} if orders else {}
    for block in ordered:
        prefix, parcel = prefix_of(block), write_block(block)
        if prefix:
            values[f"{prefix}{PART}"] = block.part
        values |= {prefix + name: value for name, value in parcel.values.items()}
        vectors |= {prefix + name: array for name, array in parcel.vectors.items()}
    return Parcel(values, vectors)


def prefix_of(block: Block) -> str:
    """Return what the names of an owner's part of a message begin with: nothing if it is the only one."""
    return f"{block.trail.number}." if block.trail.number else ""


def write_block(block: Block) -> Parcel:
    """Write what one owner asks of one node; an array that several requests share is sent once."""
    arrays = _SharedArrays()
    assignments, series = block.assignments, block.trail.series
    values: dict[str, Value] = {"key": write_key(block.key), "requests": ",".join(assignments)}
    for name, own in assignments.items():
        request, task = own.request, own.request.task
        has_models = request.models is not None
        values |= {
            f"{name}.task": task.name,
            f"{name}.form": _form(request) if own.order is None else MASKED,
            f"{name}.models": write_models(own.models) if has_models else "",
        }
        if own.order is not None:
            values |= _write_order(name, own.order)
        values |= {f"{name}.{OPTION}{key}": value for key, value in request.options.items()}
        for slot in task.slots:
            values[f"{name}.{SERIES}{slot.name}"] = series.number(slot.name)
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


def _write_order(name: str, order: SumOrder) -> dict[str, Value]:
    """Write what a node is told of the sums that it is in."""
    return {
        f"{name}.{WEIGHTS}": [row.weight for row in order.rows],
        f"{name}.{TOTALS}": [row.total for row in order.rows],
        f"{name}.{MEMBERS}": write_members([row.members for row in order.rows]),
        **{f"{name}.{EXPONENT}{reply}": value for reply, value in order.exponents.items()},
    }


def has_masked_sums(blocks: Collection[Block]) -> bool:
    """Tell whether a node is to mask anything."""
    return any(own.order is not None for block in blocks for own in block.assignments.values())


def largest_reply(blocks: Collection[Block], size: int) -> int:
    """Return the largest number of entries of an array in an answer.

    Args:
        blocks: What owners ask of one node.
        size: The number d of parameters.
    """
    lengths = [
        len(own.models) * (size if own.order is None else row_length(own.request.task, size))
        for block in blocks
        for own in block.assignments.values()
    ]
    return max(lengths, default=0)


class _SharedArrays:
    """The arrays of one message: each once, with the rows of all models that some request needs.

    Arrays are the same if their content is, as where the simulation counts bytes.
    """

    def __init__(self) -> None:
        self._arrays: dict[object, tuple[str, np.ndarray, set[int]]] = {}

    def add(self, vector: Array | float, models: Collection[int]) -> str:
        """Add an array, or more rows of it; return what it is called in the message."""
        array = np.asarray(as_array(vector))
        content = (array.shape, array.dtype, array.tobytes())
        place, _, rows = self._arrays.setdefault(content, (str(len(self._arrays)), array, set()))
        rows.update(models)
        return place

    def values(self) -> dict[str, Value]:
        """Return which models the rows of arrays are for, where there is an axis of models."""
        return {
            ROWS + place: write_models(sorted(rows))
            for place, array, rows in self._arrays.values()
            if array.ndim == 2
        }

    def vectors(self) -> dict[str, np.ndarray]:
        """Return the arrays."""
        return {
            place: array[sorted(rows)] if array.ndim == 2 else array
            for place, array, rows in self._arrays.values()
        }


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


def read_answers(
    reply: Response, blocks: Mapping[int, Block], bytes_down: Mapping[int, int]
) -> dict[int, Answer]:
    """Return what became of what owners have asked of one node, by the owners' numbers in the exchange.

    Args:
        reply: What the node sent back.
        blocks: What each owner asked for.
        bytes_down: The bytes that were sent for each owner.
    """
    parcel, fault = reply.parcel, reply.fault
    prefixes = {place: prefix_of(block) for place, block in blocks.items()}
    if parcel is not None:
        every = [*parcel.values, *parcel.vectors]
        unknown = [name for name in every if not name.startswith(tuple(prefixes.values()))]
        if unknown:
            parcel, fault = None, f"its answer holds {unknown[0][:50]!r}"
    return {
        place: Answer(None, fault, bytes_down=bytes_down[place])
        if parcel is None
        else _read_answer(
            with_prefix(parcel.values, prefixes[place]),
            with_prefix(parcel.vectors, prefixes[place]),
            block.assignments,
            bytes_down[place],
        )
        for place, block in blocks.items()
    }


def _read_answer(
    values: dict[str, Value],
    vectors: Mapping[str, np.ndarray],
    assignments: Mapping[str, Assignment],
    bytes_down: int,
) -> Answer:
    """Return what became of one owner's requests to one node."""
    evaluations = values.pop("evaluations", None)
    if type(evaluations) is not int or not 0 <= evaluations < 2**53:
        return Answer(None, "it does not say how much it computed", bytes_down=bytes_down)
    for label, value in values.items():
        if f".{NUMBER}" not in label or isinstance(value, (str, bool)):
            return Answer(None, f"its answer holds {label[:50]!r}", bytes_down=bytes_down)
    with np.errstate(over="ignore"):
        numbers = {
            label: np.asarray(value, jnp.result_type(float)) for label, value in values.items()
        }
    replies: dict[str, dict[str, np.ndarray]] = {name: {} for name in assignments}
    for kind, arrays in ((NUMBER, numbers), (VECTOR, vectors)):
        for label, array in arrays.items():
            name, _, part = label.partition(f".{kind}")
            if name not in assignments or not part:
                return Answer(None, f"its answer holds {label[:50]!r}", bytes_down=bytes_down)
            has_models = assignments[name].request.models is not None
            replies[name][part] = array if has_models else array[None]
    bytes_up = sum(array.nbytes for own in replies.values() for array in own.values())
    return Answer(replies, None, evaluations, bytes_up, bytes_down)
