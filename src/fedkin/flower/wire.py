"""The messages between the center and a node: records of arrays, numbers and short texts.

The message of an exchange holds several requests. `requests` has their names, and what belongs to the request
`train` is called `train.task`, `train.number.learning_rate`, and so on. An array that several requests
share is sent once: `train.vector.point` names the array. Where vectors have an axis of models, the array has
a row for each model that the node works for, and `rows-of.NAME` has their numbers.

One message may carry what several owners ask for (docs/everyone.md). `owners` then has their numbers, and
what belongs to owner 3 is called `3.…`, such as `3.key`, `3.part` and `3.train.task`. So are its arrays, and
its part of the answer. `orders` says what the node is to copy or forget of what it remembers for owners.

A request is a `ConfigRecord` named `request`, with all numbers and texts; an answer is one named `answer`:
the replies to `train` are numbers such as `train.number.loss` and arrays such as `train.vector.point`. An
error is Flower's own `Error`, with one of the codes below. Flower makes several objects of an array, so all
arrays of a message are in one value: `arrays` has their names, types and shapes, such as
`0=f4:650,1=f4:3x650`, and `content` has their numbers, one array after the other, in little-endian order.
Nothing that arrives is ever executed.
"""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ConfigRecord, RecordDict

FORMAT = 4
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

ARRAYS, CONTENT = "arrays", "content"
"""The names of the values with the names, types and shapes of all arrays, and with their numbers."""

DESCRIPTION = re.compile(r"([^,=]+)=([fiu][1248]|b1):([0-9]{1,9}(?:x[0-9]{1,9})?|)")
"""How an array is described: its name, the type of its numbers, and its shape."""

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
    """Put a parcel into a record; `kind` is `request` or `answer`."""
    values: dict[str, Any] = {"format": FORMAT, **parcel.values}
    if parcel.vectors:
        arrays = {name: np.asarray(array) for name, array in parcel.vectors.items()}
        described = [_describe(name, array) for name, array in arrays.items()]
        values[ARRAYS] = ",".join(described)
        values[CONTENT] = b"".join(_little_endian(array).tobytes() for array in arrays.values())
    return RecordDict({kind: ConfigRecord(values)})


def _describe(name: str, array: np.ndarray) -> str:
    written = f"{name}={array.dtype.str[1:]}:{'x'.join(map(str, array.shape))}"
    if DESCRIPTION.fullmatch(written) is None:
        raise ValueError(f"{written[:80]!r} cannot be sent")
    return written


def _little_endian(array: np.ndarray) -> np.ndarray:
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def unpack(kind: str, content: RecordDict, largest: int) -> Parcel:
    """Read records, which anybody may have written; refuse whatever `pack` would not produce.

    Args:
        kind: `request` or `answer`.
        content: The records.
        largest: The largest number of entries that a vector may have.

    Raises:
        RefusedError: If they are not a parcel of that kind.
    """
    if set(content) != {kind}:
        raise RefusedError(
            Refusal.INVALID, f"expected the record {kind} and no other, got {sorted(content)[:5]}"
        )
    record = content[kind]
    if not isinstance(record, ConfigRecord):
        raise RefusedError(Refusal.INVALID, f"{kind} is not a record of numbers and texts")
    numbers = record.get(CONTENT, b"")
    if not isinstance(numbers, bytes):
        raise RefusedError(Refusal.INVALID, f"{CONTENT!r} is not the content of arrays")
    values: dict[str, Value] = {}
    for name, value in record.items():
        if name == CONTENT:
            continue
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
    return Parcel(values, _read_arrays(values.pop(ARRAYS, ""), numbers, largest))


def _read_arrays(written: Value, content: bytes, largest: int) -> dict[str, np.ndarray]:
    """Read the arrays of a message, after their description has shown how much there must be."""
    described: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
    for each in read_names(written):
        found = DESCRIPTION.fullmatch(each)
        if found is None or found[1] in described:
            raise RefusedError(Refusal.INVALID, f"{each[:50]!r} does not describe an array")
        shape = tuple(int(length) for length in found[3].split("x") if length)
        if math.prod(shape) > largest:
            raise RefusedError(
                Refusal.INVALID,
                f"{found[1][:50]!r} is an array of shape {shape}: expected a vector, or one per "
                f"model, of at most {largest} numbers",
            )
        described[found[1]] = (_dtype(found[2]), shape)
    expected = sum(dtype.itemsize * math.prod(shape) for dtype, shape in described.values())
    if len(content) != expected:
        raise RefusedError(
            Refusal.INVALID,
            f"the arrays are cut off or too long: {len(content)} bytes, not {expected}",
        )
    arrays, begin = {}, 0
    for name, (dtype, shape) in described.items():
        entries = math.prod(shape)
        flat = np.frombuffer(content, dtype, entries, begin)
        arrays[name] = flat.reshape(shape).astype(dtype.newbyteorder("="))  # a copy of its own
        begin += entries * dtype.itemsize
    return arrays


def _dtype(written: str) -> np.dtype:
    try:
        return np.dtype(f"<{written}")
    except TypeError:  # such as f1
        raise RefusedError(Refusal.INVALID, f"there are no numbers of type {written!r}") from None
