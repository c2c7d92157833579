"""What crosses the wire between the center and a node: records of arrays, numbers and short texts.

A request is a `ConfigRecord` named `request` with everything that is a number or a text, and an
`ArrayRecord` named `vectors`. An answer is the same with `answer` in place of `request`; an answer that
is an error is Flower's own `Error`, with one of the codes below. Arrays travel in NumPy's own format
with pickling switched off; nothing here is ever executed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

FORMAT = 1
"""The version of the format; a message of another version is refused."""

MESSAGE_TYPE = "train"
"""Flower's name for the kind of message; a node makes no difference between kinds."""

LARGEST_TEXT = 1_000_000
"""Characters: no description of a table is longer."""

Value = str | int | float | bool
"""What may stand in a request or an answer beside vectors."""


class Refusal(IntEnum):
    """Why a node answers with an error. The numbers stay clear of Flower's own."""

    INVALID = 1001
    """The request does not make sense."""
    FORBIDDEN = 1002
    """The owner of the node does not allow it."""
    NOT_JOINED = 1003
    """The node does not know this run: it has to join it first."""
    NOT_BEGUN = 1004
    """The node has missed the beginning of this series of calls."""
    DATA = 1005
    """The node's own data or settings cannot be used; its owner's log says why."""
    INTERNAL = 1006
    """A fault of the node's own."""


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


def pack(kind: str, parcel: Parcel) -> RecordDict:
    """Put a parcel into records; `kind` is `request` or `answer`."""
    values: dict[str, Any] = {"format": FORMAT, **parcel.values}
    return RecordDict(
        {
            kind: ConfigRecord(values),
            "vectors": ArrayRecord(
                {name: Array(np.asarray(array)) for name, array in parcel.vectors.items()}
            ),
        }
    )


def unpack(kind: str, content: RecordDict, largest: int) -> Parcel:
    """Read records that anybody may have written; refuse whatever `pack` would not have made.

    Args:
        kind: `request` or `answer`.
        content: The records.
        largest: The largest number of entries that a vector may have.

    Raises:
        RefusedError: If it is not a parcel of that kind.
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
        if not isinstance(value, (str, int, float, bool)):
            raise RefusedError(Refusal.INVALID, f"{name[:50]!r} is neither a number nor a text")
        if isinstance(value, str) and len(value) > LARGEST_TEXT:
            raise RefusedError(Refusal.INVALID, f"the text {name[:50]!r} is too long")
        values[name] = value
    if values.pop("format", None) != FORMAT:
        raise RefusedError(
            Refusal.INVALID,
            f"not a message of format {FORMAT}: is fedkin of another version there?",
        )
    return Parcel(
        values, {name: _read_array(name, array, largest) for name, array in arrays.items()}
    )


def _read_array(name: str, array: Array, largest: int) -> np.ndarray:
    """Read an array whose header says how large it is, before any memory is spent on it."""
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
    if dtype.kind not in "fiub" or len(shape) > 1 or not 0 <= entries <= largest:
        raise RefusedError(
            Refusal.INVALID,
            f"{name[:50]!r} is an array of type {dtype} and shape {shape}: expected a number or at most "
            f"{largest} of them in a row",
        )
    if len(array.data) - file.tell() != entries * dtype.itemsize:
        raise RefusedError(Refusal.INVALID, f"the array {name[:50]!r} is cut off or too long")
    file.seek(0)
    return np.load(file, allow_pickle=False)
