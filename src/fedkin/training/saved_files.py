"""Reading files that somebody else may have made.

Nothing in them is executed, and sizes are checked before memory is taken. Everything here raises `ValueError`
or another ordinary exception for a damaged or hostile file; `describing_damage` makes one sentence of it.
"""

import io
import math
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, TypeVar

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from fedkin.errors import InputError
from fedkin.messages import check_printable, printable, shorten

SMALL = 256_000_000
"""A file may always expand to this many bytes."""
MOST_EXPANSION = 20
"""A larger one may expand to this many times its size: parameters hardly compress at all."""
MOST_CELLS = 50_000_000
"""The largest number of cells in a table of the course of training."""
MOST_DIMENSIONS = 32

_READING = threading.Lock()
"""Owners resume in threads, and NumPy parses headers with `ast`, which CPython 3.11 cannot do in two at once
("AST constructor recursion depth mismatch")."""

Name = Annotated[str, AfterValidator(check_printable)]
Text = Annotated[str, AfterValidator(printable)]
FiniteNumber = Annotated[float, Field(allow_inf_nan=False)]


class Record(BaseModel):
    """What a file says, in the types that it must have; fields that are not known here are left out."""

    model_config = ConfigDict(frozen=True, strict=True)


Kind = TypeVar("Kind", bound=Record)


class Archive:
    """The members of a zip file in memory."""

    def __init__(self, content: bytes) -> None:
        self._archive = zipfile.ZipFile(io.BytesIO(content))
        limit = max(SMALL, MOST_EXPANSION * len(content))
        expanded = sum(member.file_size for member in self._archive.infolist())
        if expanded > limit:
            raise ValueError(f"it expands from {len(content)} to {expanded} bytes")

    @property
    def names(self) -> list[str]:
        """The names of the members."""
        return self._archive.namelist()

    def read(self, name: str) -> bytes:
        """Return a member. It is not larger than it says, so it is within the limit."""
        return self._archive.read(name)


def read_arrays(content: bytes) -> dict[str, np.ndarray]:
    """Return the arrays of an `.npz` file: numbers and truth values, and nothing else."""
    archive = Archive(content)
    return {name.removesuffix(".npy"): read_array(archive.read(name)) for name in archive.names}


def read_array(content: bytes) -> np.ndarray:
    """Return the array of an `.npy` file, whose header must say exactly how long the rest is."""
    file = io.BytesIO(content)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    with _READING:
        shape, in_columns, dtype = readers[np.lib.format.read_magic(file)](file)
    if dtype.kind not in "biuf":
        raise ValueError(f"an array of type {dtype}")
    if len(shape) > MOST_DIMENSIONS or any(length < 0 for length in shape):
        raise ValueError("an array of an impossible shape")
    count = math.prod(shape)
    if count * dtype.itemsize != len(content) - file.tell():
        raise ValueError(f"an array of {count} entries in {len(content) - file.tell()} bytes")
    array = np.frombuffer(content, dtype, count, file.tell())
    return array.reshape(shape, order="F" if in_columns else "C").copy()


def read_record(content: bytes, kind: type[Kind]) -> Kind:
    """Return what a JSON file says."""
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{shorten(place)}: {first['msg']}") from None


def read_table(content: bytes, *texts: str) -> pd.DataFrame:
    """Return the table of a Parquet file: numbers, but for the columns that are texts."""
    described = pq.ParquetFile(io.BytesIO(content))
    if described.metadata.num_rows * max(1, described.metadata.num_columns) > MOST_CELLS:
        raise ValueError(f"a table of {described.metadata.num_rows} rows")
    table = pd.read_parquet(io.BytesIO(content))
    for name in table.columns:
        check_printable(str(name))
        if name in texts:
            for cell in table[name]:
                check_printable(cell)
        elif not pd.api.types.is_numeric_dtype(table[name]):
            raise ValueError(f"the column {name!r} does not hold numbers")
    return table


@contextmanager
def describing_damage(path: str, what: str) -> Iterator[None]:
    """Say in one sentence what is wrong with a file, whatever it is: anybody may have made it."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # a parser's, or that of a library that was given nonsense
        reason = printable(" ".join(str(error).split())) or type(error).__name__
        raise InputError(
            f"{path} is not {what}, or it is damaged: {shorten(reason, 200)}"
        ) from error


def as_sizes(lengths: tuple[int, ...], most: int) -> tuple[int, ...]:
    """Return a shape that is not too large to make an array of."""
    if any(length < 0 for length in lengths) or math.prod(lengths) > most:
        raise ValueError(f"the shape {lengths} is impossible")
    return lengths
