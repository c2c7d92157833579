"""Read a table from a CSV or Parquet file, with a message for everything that can be wrong.

The same rules apply to CSV and Parquet (see `columns.py`), so that nodes may use different formats.
"""

import csv
import io
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TextIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedkin.data.columns import (
    Column,
    column_from_text,
    is_missing,
    is_numeric,
    number,
    text_column,
    without_code,
)
from fedkin.errors import InputError
from fedkin.messages import check_printable, did_you_mean, listing, shorten

PARQUET_MAGIC = b"PAR1"
SEPARATORS = ";\t|,"
"""What usually separates the cells of a CSV file."""
LARGEST = 1e100
"""Larger numbers cannot be squared and summed, and are no measurements."""


@dataclass(frozen=True)
class Table:
    """The rows of one file, by column. `owner` names the table in messages: `node 'zurich'`."""

    owner: str
    columns: Mapping[str, Column]
    positions: np.ndarray
    """The position of each row in its file, for messages."""
    unit: str
    """What `positions` count: `line` or `row`."""
    dropped: frozenset[str] = frozenset()
    """The columns of the file that were not read."""

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.positions)

    def take(self, indices: np.ndarray, owner: str | None = None) -> "Table":
        """Return a table with these rows only."""
        return Table(
            owner=owner or self.owner,
            columns={name: values[indices] for name, values in self.columns.items()},
            positions=self.positions[indices],
            unit=self.unit,
            dropped=self.dropped,
        )

    def with_column(self, name: str, values: Column) -> "Table":
        """Return the table with one column replaced."""
        return replace(self, columns={**self.columns, name: values})

    def column(self, name: str) -> Column:
        """Return a column; if there is none with that name, suggest a close one."""
        if name not in self.columns:
            names = [*self.columns, *sorted(self.dropped)]
            raise InputError(f"{self.owner} has no column '{name}'{did_you_mean(name, names)}")
        return self.columns[name]

    def with_missing_codes(self, codes: Mapping[str, float]) -> "Table":
        """Return the table with these numbers, by column, replaced by missing values."""
        return replace(
            self,
            columns={
                name: without_code(values, codes[name]) if name in codes else values
                for name, values in self.columns.items()
            },
        )

    def where(self, row: int) -> str:
        """Say where a row is in its file."""
        return f"{self.unit} {self.positions[row]}"


@dataclass(frozen=True)
class TableFormat:
    """The format of the files, which is the same for all tables of a federation."""

    separator: str = ","
    """What separates cells; a file whose header line has another one of the usual ones is read with that."""
    header: bool = True
    """Whether CSV files begin with the columns' names; if not, columns are numbered."""
    names: tuple[str, ...] | None = None
    """The columns' names, for CSV files without a header line."""
    drop: tuple[str, ...] = ()
    """Columns to leave out, in any table that has them."""
    only: tuple[str, ...] | None = None
    """The columns to read; None for all."""

    def __post_init__(self) -> None:
        if len(self.separator) != 1 or self.separator in '"\r\n\0 ':
            raise InputError(
                f"the separator must be one character (',' ';' or a tab), not {self.separator!r}"
            )
        if self.names is not None:
            _check_names(self.names, "the list of column names")

    def wants(self, column: str) -> bool:
        """Tell whether to read a column."""
        return column not in self.drop and (self.only is None or column in self.only)


def read_table(path: str | Path, owner: str, table_format: TableFormat | None = None) -> Table:
    """Read a CSV or Parquet file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = Path(directory) / "zurich.csv"
    ...     _ = path.write_text("age,sex\\n51,f\\n?,m\\n")
    ...     table = read_table(path, "node 'zurich'")
    >>> table.rows, table.column("age"), table.column("sex").tolist()
    (2, array([51., nan]), ['f', 'm'])
    """
    table_format = table_format or TableFormat()
    path = Path(path)
    content = _read_bytes(path, owner)
    if _has_parquet(path, content):
        table = _parse_parquet(content, f"{owner} ({path})", table_format)
    else:
        table = _parse_csv(content, f"{owner} ({path})", table_format)
    if table.rows == 0:
        raise InputError(
            f"{owner} ({path}) has column names but no rows: add rows, or leave it out"
        )
    for name in table.columns:
        check_printable(name, f"{owner} ({path}): the name of a column")
    return replace(table, owner=owner)


def is_parquet(path: Path) -> bool:
    """Tell whether a file is read as Parquet: by its name, or by its first bytes."""
    if not path.is_file():  # what is read from a pipe is gone
        return False
    with path.open("rb") as file:
        return _has_parquet(path, file.read(len(PARQUET_MAGIC)))


def _has_parquet(path: Path, content: bytes) -> bool:
    return path.suffix.lower() in {".parquet", ".pq"} or content.startswith(PARQUET_MAGIC)


def _read_bytes(path: Path, owner: str) -> bytes:
    if path.is_dir():
        raise InputError(f"{owner}: {path} is a directory; name one CSV or Parquet file in it")
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        neighbors = []
        if path.parent.is_dir():
            neighbors = [other.name for other in path.parent.iterdir() if other.is_file()]
        close = get_close_matches(path.name, neighbors, n=1, cutoff=0.8)
        hint = f"did you mean {path.parent / close[0]}?" if close else "check the path"
        raise InputError(f"{owner}: there is no file {path}; {hint}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{owner}: {path} cannot be read: {reason}") from None
    if not content.strip():
        raise InputError(
            f"{owner}: {path} is empty: it needs a line with the columns' names, and rows"
        )
    return content


# CSV


def _parse_csv(content: bytes, owner: str, table_format: TableFormat) -> Table:
    _check_text(content, owner)
    file = io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", newline="")
    separator = separator_in(file, table_format)
    table_format = replace(table_format, separator=separator)
    reader = csv.reader(file, delimiter=table_format.separator, strict=True)
    lines = array("q")
    packed = _PackedRecords()
    names: list[str] | None = None
    try:
        for record in reader:
            cells = [cell.strip() for cell in record]
            if cells in ([], [""]):
                continue
            if names is None:
                names = _column_names(cells, owner, table_format)
                if table_format.header and table_format.names is None:
                    continue
            if len(cells) != len(names):
                raise InputError(
                    f"{owner}: line {reader.line_num} has {len(cells)} cells, but there are "
                    f"{len(names)} columns{_separator_hint(record, names, table_format)}"
                )
            lines.append(reader.line_num)
            packed.append(cells)
    except csv.Error as error:
        raise InputError(
            f"{owner}: line {reader.line_num} is not valid CSV ({error}); "
            "check the quotation marks there"
        ) from None
    if names is None:
        raise InputError(f"{owner} is empty")
    columns = {
        name: column_from_text(packed.column(place))
        for place, name in enumerate(names)
        if table_format.wants(name)
    }
    dropped = frozenset(names).difference(columns)
    table = Table(owner, columns, np.array(lines, dtype=np.int64), "line", dropped)
    _refuse_huge(table)
    return table


def separator_in(file: TextIO, table_format: TableFormat) -> str:
    """Return what separates the cells of a CSV file, which is left at its beginning.

    Spreadsheets write semicolons in countries with decimal commas, so one table of many may have them.

    >>> separator_in(io.StringIO("age;sex\\n51;f\\n"), TableFormat())
    ';'
    """
    line = next((line for line in file if line.strip()), "")
    file.seek(0)
    with_header = table_format.header and table_format.names is None
    if not with_header or table_format.separator in line:
        return table_format.separator
    found = [each for each in SEPARATORS if each in line]
    return found[0] if len(found) == 1 else table_format.separator


class _PackedRecords:
    """Rows of texts, kept by column and packed: a Python text of its own takes ten times the memory."""

    BLOCK = 50_000

    def __init__(self) -> None:
        self._waiting: list[list[str]] = []
        self._columns: list[list[pa.Array]] = []

    def append(self, cells: list[str]) -> None:
        """Add a row, as long as the others."""
        self._waiting.append(cells)
        if len(self._waiting) == self.BLOCK:
            self._pack()

    def column(self, place: int) -> list[str | None]:
        """Return the texts of a column."""
        self._pack()
        return (
            [cell for block in self._columns[place] for cell in block.to_pylist()]
            if self._columns
            else []
        )

    def _pack(self) -> None:
        if not self._waiting:
            return
        by_column = list(zip(*self._waiting, strict=True))
        self._columns = self._columns or [[] for _ in by_column]
        for blocks, cells in zip(self._columns, by_column, strict=True):
            blocks.append(pa.array(cells, pa.string()))
        self._waiting.clear()


def _check_text(content: bytes, owner: str) -> None:
    """Refuse what is no text, and say what it is."""
    known = {
        b"PK\x03\x04": "is an Excel workbook or a zip archive; save the sheet as 'CSV UTF-8'",
        b"\xd0\xcf\x11\xe0": "is an old Excel workbook; save the sheet as 'CSV UTF-8'",
        b"\x1f\x8b": "is compressed; unpack it first",
        b"\xff\xfe": "is UTF-16 text; save it as 'CSV UTF-8'",
        b"\xfe\xff": "is UTF-16 text; save it as 'CSV UTF-8'",
    }
    for start, problem in known.items():
        if content.startswith(start):
            raise InputError(f"{owner} {problem}")
    try:
        content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{owner} is not UTF-8 text (line {line}); save it as 'CSV UTF-8'"
        ) from None
    if b"\0" in content:
        raise InputError(f"{owner} contains binary data; use a CSV or Parquet file")


def _column_names(first: Sequence[str], owner: str, table_format: TableFormat) -> list[str]:
    """Return the columns' names: from the header line, from the user, or numbered."""
    if table_format.names is not None:
        names = list(table_format.names)
        if sorted(first) == sorted(names):
            raise InputError(
                f"{owner} already has a header line; leave out the list of column names"
            )
        if len(first) != len(names):
            raise InputError(
                f"{owner} has {len(first)} columns, but {len(names)} column names were given; name all "
                "of them, in their order"
            )
        return names
    if not table_format.header:
        return [f"column{position}" for position in range(1, len(first) + 1)]
    if len(first) > 1 and all(number(cell) is not None or is_missing(cell) for cell in first):
        raise InputError(
            f"{owner}: the first line has numbers ({listing(first, 3)}), not column names; "
            "if the file has no header line, name the columns (--columns a,b,c)"
        )
    if len(first) == 1:
        for other in SEPARATORS:
            if other != table_format.separator and other in first[0]:
                raise InputError(
                    f"{owner} seems to be separated by {other!r}, not {table_format.separator!r}; "
                    f"say so (--separator)"
                )
    _check_names(first, owner)
    return list(first)


def _check_names(names: Sequence[str], owner: str) -> None:
    seen: set[str] = set()
    for position, name in enumerate(names, start=1):
        if not name:
            raise InputError(
                f"{owner}: column {position} has no name; is it a row number written by pandas "
                "(save with index=False) or the end of a line with one separator too many?"
            )
        if name in seen:
            raise InputError(f"{owner} has two columns called '{shorten(name)}'; rename one")
        seen.add(name)


def _separator_hint(record: Sequence[str], names: Sequence[str], table_format: TableFormat) -> str:
    joined = table_format.separator.join(record)
    for other in SEPARATORS:
        if other != table_format.separator and joined.count(other) == len(names) - 1 > 0:
            return f"; it seems to be separated by {other!r}: say so (--separator)"
    if len(record) > len(names):
        return "; put texts that contain the separator in quotation marks"
    return "; fill the line up, with empty cells for what is missing"


def _refuse_huge(table: Table) -> None:
    for name, values in table.columns.items():
        if is_numeric(values):
            huge = np.flatnonzero(np.abs(values) > LARGEST)
            if huge.size:
                raise InputError(
                    f"{table.owner}: column '{shorten(name)}' has {values[huge[0]]:g} in "
                    f"{table.where(huge[0])}; use a finite number, or leave the cell empty"
                )


# Parquet


def _parse_parquet(content: bytes, owner: str, table_format: TableFormat) -> Table:
    try:
        file = pq.ParquetFile(pa.BufferReader(content))
        names = [
            name
            for name in file.schema_arrow.names
            # The index that pandas adds is not one of the user's columns.
            if not re.fullmatch(r"__index_level_\d+__", name)
        ]
        _check_names(names, owner)
        kept = [name for name in names if table_format.wants(name)]
        arrow = file.read(columns=kept)
        arrow.validate(full=True)
        columns = {name: _arrow_column(arrow.column(name), name, owner) for name in kept}
    except InputError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, MemoryError) as error:
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise InputError(
            f"{owner} is not a Parquet file that can be read, or it is damaged ({reason}); "
            "write or copy it again"
        ) from None
    dropped = frozenset(names).difference(columns)
    table = Table(owner, columns, np.arange(1, arrow.num_rows + 1), "row", dropped)
    _refuse_huge(table)
    return table


def _arrow_column(values: pa.ChunkedArray, name: str, owner: str) -> Column:
    kind = values.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
        values = values.cast(kind)
    if pa.types.is_null(kind):
        return np.full(len(values), np.nan)
    if pa.types.is_boolean(kind):
        return text_column([None if cell is None else str(cell) for cell in values.to_pylist()])
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        numbers = values.cast(pa.float64(), safe=False).to_numpy()
        return np.array(numbers, dtype=np.float64)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view():
        return column_from_text(values.to_pylist())
    raise InputError(
        f"{owner}: column '{shorten(name)}' has the type {kind}, not numbers or texts; "
        f"convert it, or leave it out (--drop {shorten(name)})"
    )
