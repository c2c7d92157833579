"""The messages between the center and a node: records of arrays, numbers and short texts.

The message of an exchange holds several requests. `requests` has their names, and what belongs to the request
`train` is called `train.task`, `train.number.learning_rate`, and so on. An array that several requests
share is sent once: `train.vector.point` names the array. Where vectors have an axis of models, the array has
a row for each model that the node works for, and `rows-of.NAME` has their numbers.

One message may carry what several owners ask for (docs/everyone.md). `owners` then has their numbers, and
what belongs to owner 3 is called `3.…`, such as `3.key`, `3.part` and `3.train.task`. So are its arrays, and
its part of the answer. `orders` says what the node is to copy or forget of what it remembers for owners.

A request is a `ConfigRecord` named `request`, with all numbers and texts, and an `ArrayRecord` named
`vectors`. An answer is a `ConfigRecord` named `answer` and an `ArrayRecord` named `vectors`: the replies to
`train` are numbers such as `train.number.loss` and arrays such as `train.vector.point`. An error is Flower's
own `Error`, with one of the codes below. Arrays are sent in NumPy's format without pickling: nothing that
arrives is ever executed. Flower makes several objects of every array and fetches them singly, so many
arrays are sent as one: the array `packed` has them one after the other, and the value `packed` their names
and shapes.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from io import BytesIO
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

FORMAT = 3
"""The version of the format; a message of another version is refused."""

DESCRIBE, JOIN, EXCHANGE = "describe", "join", "exchange"
"""The kinds of messages: to ask for a node's name and the summary of its table (`docs/tables.md`), to join a
run, and to ask for tasks."""

NUMBER, OPTION, VECTOR, SERIES, BEGIN = "number.", "option.", "vector.", "series.", "begin."
"""The prefixes, after the request's name, of what belongs to it: numbers, options, vectors, the series of its
slots, and the models for which a slot begins."""

ROWS = "rows-of."
"""The prefix of the models that the rows of an array are for. No request can have this name."""

SUM, NUMBERS, REVEALED, MASKED = FORMS = ("sum", "numbers", "revealed", "masked")
"""What the center makes of the replies: weighted sums, single numbers, single nodes' vectors, or sums
of which it sees nothing else."""

WEIGHTS, TOTALS, MEMBERS, EXPONENT = "weights", "totals", "nodes", "exponent."
"""What a node is told of masked sums, after the request's name: its own weight for each model, all absolute
weights together, who is in which sum, and how finely each reply is written."""

EXCHANGE_NUMBER, ANSWER_WITHIN, PEER = "exchange-number", "answer-within", "peer."
"""What a message with masked sums has: the number of the exchange, for how many seconds the center waits, and
the cards of other nodes by their numbers."""

CARD = "card"
"""The node's own card, in its answer to a request to join."""

MESSAGE_TYPE = "train"
"""Flower's kind of message; a node treats all kinds alike."""

LARGEST_TEXT = 1_000_000
"""The largest number of characters of a text; no summary of a table is longer."""

MOST_MODELS = 1_000
"""How many models there may be: their numbers are below this, and so is the length of a list of numbers.
It bounds what a center can make a node remember."""

PACKED = "packed"
"""The name of the array that has many others in it, and of the value with their names and shapes."""

MOST_SEPARATE = 8
"""More arrays than this are sent as one."""

OWNERS, PART = "owners", "part"
"""The numbers of the owners in a message, and the part of the node that an owner asks."""

ORDERS = "orders"
"""What a node is to copy or forget of what it remembers for owners, before it does what they ask."""

MOST_NODES = 1_000_001
"""The numbers of nodes are below this."""

MOST_OWNERS = 2_000
"""The numbers of owners are below this."""

T = TypeVar("T")

Value = str | int | float | bool | list[float]
"""What a request or an answer may hold in addition to vectors."""


class Refusal(IntEnum):
    """Why a node answers with an error. Flower's own codes are smaller than all of these."""

    INVALID = 1001
    """The request is not valid."""
    FORBIDDEN = 1002
    """The owner of the node does not allow it."""
    NOT_JOINED = 1003
    """The node does not know this run and has to join it first."""
    NOT_BEGUN = 1004
    """The node missed the beginning of this series of calls."""
    DATA = 1005
    """The reason may depend on the node's data: it is in the owner's log only."""
    INTERNAL = 1006
    """The node could not read or answer the message."""
    LIMIT = 1007
    """The request is above a limit of the node's owner."""
    ASKED_BEFORE = 1008
    """The node has answered this exchange, or the same question for other nodes or with other weights."""


class RefusedError(Exception):
    """A request that is answered with an error."""

    def __init__(self, refusal: Refusal, reason: str) -> None:
        super().__init__(reason)
        self.refusal = refusal


@dataclass(frozen=True)
class Parcel:
    """A request or an answer: named values and named vectors."""

    values: Mapping[str, Value] = field(default_factory=dict)
    vectors: Mapping[str, np.ndarray] = field(default_factory=dict)


def read_names(written: Value | None) -> tuple[str, ...]:
    """Read names that are separated by commas."""
    if not isinstance(written, str):
        raise RefusedError(Refusal.INVALID, f"names are missing, got {str(written)[:50]!r}")
    return tuple(written.split(",")) if written else ()


def write_models(models: Collection[int]) -> str:
    """Write the numbers of models."""
    return ",".join(map(str, models))


def read_models(written: Value | None) -> tuple[int, ...]:
    """Read the numbers of models, which are in order."""
    return _read_numbers("models", written, MOST_MODELS)


def read_owners(written: Value | None) -> tuple[int, ...]:
    """Read the numbers of owners, which are in order."""
    return _read_numbers("owners", written, MOST_OWNERS)


def write_members(members: Collection[tuple[int, ...]]) -> str:
    """Write who is in which sum; once, if all sums have the same members."""
    written = [write_models(own) for own in members]
    return written[0] if len(set(written)) == 1 else ";".join(written)


def read_members(written: Value | None, rows: int) -> list[tuple[int, ...]]:
    """Read who is in which of some sums."""
    parts = written.split(";") if isinstance(written, str) else []
    if len(parts) == 1:
        return [_read_numbers(MEMBERS, parts[0], MOST_NODES)] * rows
    if len(parts) != rows:
        raise RefusedError(Refusal.INVALID, "it must be said for each model who is in the sum")
    return [_read_numbers(MEMBERS, part, MOST_NODES) for part in parts]


class Order(NamedTuple):
    """What a node is to do with what it remembers for an owner, given by its number."""

    owner: int
    copy: int | None
    """Another owner who begins with the same; None if it is to be forgotten."""


def write_orders(orders: Iterable[Order]) -> str:
    """Write orders: `3` forgets what is remembered for owner 3, `3-7` copies it for owner 7."""
    return ",".join(
        str(order.owner) if order.copy is None else f"{order.owner}-{order.copy}"
        for order in orders
    )


def read_orders(written: Value | None) -> list[Order]:
    """Read what `write_orders` has written."""
    orders = []
    for each in read_names(written):
        numbers = [_read_numbers(ORDERS, part, MOST_OWNERS) for part in each.split("-")]
        if not all(len(own) == 1 and own[0] > 0 for own in numbers) or len(numbers) > 2:
            raise RefusedError(Refusal.INVALID, f"{each[:50]!r} is not an order")
        orders.append(Order(numbers[0][0], numbers[1][0] if len(numbers) == 2 else None))
    return orders


def _read_numbers(what: str, written: Value | None, end: int) -> tuple[int, ...]:
    names = read_names(written)
    numbers = tuple(int(each) for each in names if each.isdecimal() and len(each) < 10)
    if len(numbers) < len(names) or list(numbers) != sorted(set(numbers)):
        raise RefusedError(Refusal.INVALID, f"{what} must be whole numbers in increasing order")
    if any(number >= end for number in numbers):
        raise RefusedError(Refusal.INVALID, f"the numbers of {what} are below {end}")
    return numbers


def with_prefix(values: Mapping[str, T], prefix: str) -> dict[str, T]:
    """Return what has names of a prefix, by the rest of the names."""
    return {name[len(prefix) :]: value for name, value in values.items() if name.startswith(prefix)}


def write_key(key: jax.Array) -> str:
    """Write a random key as hexadecimal digits."""
    return np.asarray(jax.random.key_data(key)).astype(">u4").tobytes().hex()


def read_key(written: Value | None) -> jax.Array:
    """Read a random key, written as hexadecimal digits."""
    try:
        data = np.frombuffer(bytes.fromhex(str(written)), ">u4").astype(np.uint32)
        return jax.random.wrap_key_data(jnp.asarray(data))
    except (TypeError, ValueError):
        raise RefusedError(Refusal.INVALID, "key is not a random key") from None


def pack(kind: str, parcel: Parcel) -> RecordDict:
    """Put a parcel into records; `kind` is `request` or `answer`."""
    values: dict[str, Any] = {"format": FORMAT, **parcel.values}
    vectors = {name: np.asarray(array) for name, array in parcel.vectors.items()}
    if len(vectors) > MOST_SEPARATE and len({array.dtype for array in vectors.values()}) == 1:
        values[PACKED] = ",".join(f"{name}={_shape(array)}" for name, array in vectors.items())
        vectors = {PACKED: np.concatenate([array.ravel() for array in vectors.values()])}
    return RecordDict(
        {
            kind: ConfigRecord(values),
            "vectors": ArrayRecord({name: Array(array) for name, array in vectors.items()}),
        }
    )


def _shape(array: np.ndarray) -> str:
    return "x".join(map(str, array.shape))


def unpack(kind: str, content: RecordDict, largest: int) -> Parcel:
    """Read records, which anybody may have written; refuse whatever `pack` would not produce.

    Args:
        kind: `request` or `answer`.
        content: The records.
        largest: The largest number of entries that a vector may have.

    Raises:
        RefusedError: If they are not a parcel of that kind.
    """
    if set(content) != {kind, "vectors"}:
        raise RefusedError(
            Refusal.INVALID, f"expected the records {kind} and vectors, got {sorted(content)[:5]}"
        )
    record, arrays = content[kind], content["vectors"]
    if not isinstance(record, ConfigRecord) or not isinstance(arrays, ArrayRecord):
        raise RefusedError(Refusal.INVALID, f"{kind} and vectors are not records of that kind")
    values: dict[str, Value] = {}
    for name, value in record.items():
        if isinstance(value, list):
            if len(value) > MOST_MODELS or not all(type(each) is float for each in value):
                raise RefusedError(Refusal.INVALID, f"{name[:50]!r} is not a list of numbers")
        elif not isinstance(value, (str, int, float, bool)):
            raise RefusedError(Refusal.INVALID, f"{name[:50]!r} is neither a number nor a text")
        if isinstance(value, str) and len(value) > LARGEST_TEXT:
            raise RefusedError(Refusal.INVALID, f"the text {name[:50]!r} is too long")
        values[name] = value  # pyright: ignore[reportArgumentType]
    if values.pop("format", None) != FORMAT:
        raise RefusedError(
            Refusal.INVALID,
            f"not a message of format {FORMAT}: do both sides run the same version of fedkin?",
        )
    if PACKED in values:
        return Parcel(values, _read_packed(values.pop(PACKED), arrays, largest))
    return Parcel(
        values, {name: _read_array(name, array, largest) for name, array in arrays.items()}
    )


def _read_packed(written: Value, arrays: ArrayRecord, largest: int) -> dict[str, np.ndarray]:
    """Divide an array into those that it was made of."""
    shapes: dict[str, tuple[int, ...]] = {}
    for each in read_names(written):
        name, _, shape = each.partition("=")
        lengths = shape.split("x")
        if name in shapes or not all(part.isdecimal() and len(part) < 10 for part in lengths):
            raise RefusedError(Refusal.INVALID, f"{each[:50]!r} is not the shape of an array")
        shapes[name] = tuple(map(int, lengths))
        if len(lengths) > 2 or math.prod(shapes[name]) > largest:
            raise RefusedError(Refusal.INVALID, f"the array {name[:50]!r} is too large")
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()], dtype=np.int64)
    if list(arrays) != [PACKED] or not shapes:
        raise RefusedError(Refusal.INVALID, f"expected the array {PACKED}, and nothing else")
    whole = _read_array(PACKED, arrays[PACKED], int(ends[-1]))
    if whole.shape != (ends[-1],):
        raise RefusedError(Refusal.INVALID, "packed arrays are cut off or too long")
    parts = np.split(whole, ends[:-1])
    return {
        name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }


def _read_array(name: str, array: Array, largest: int) -> np.ndarray:
    """Read an array, after its header has shown that it is not too large."""
    try:
        file = BytesIO(array.data)
        version = np.lib.format.read_magic(file)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, _, dtype = read(file)
    except Exception:
        raise RefusedError(Refusal.INVALID, f"{name[:50]!r} is not an array") from None
    entries = math.prod(shape)
    if dtype.kind not in "fiub" or len(shape) > 2 or not 0 <= entries <= largest:
        raise RefusedError(
            Refusal.INVALID,
            f"{name[:50]!r} is an array of type {dtype} and shape {shape}: expected a vector, or one per "
            f"model, of at most {largest} numbers",
        )
    if len(array.data) - file.tell() != entries * dtype.itemsize:
        raise RefusedError(Refusal.INVALID, f"the array {name[:50]!r} is cut off or too long")
    file.seek(0)
    return np.load(file, allow_pickle=False)
