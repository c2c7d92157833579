"""Cells and columns: what is a number, what is missing, and which spellings mean the same.

A cell is a number, a text or missing. A column is numeric if all its cells are numbers or missing.
Otherwise it is text.
"""

import re
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

MISSING = frozenset({"", "?", "na", "n/a", "<na>", "nan", "null"})
"""Texts that mean a missing value, in any case. `none` is not among them: many tables use it as a value."""

Column: TypeAlias = np.ndarray
"""One column: `float64` with NaN for missing if it is numeric, else `object` with `str` or None."""


def is_missing(cell: str) -> bool:
    """Tell whether a cell's text means a missing value."""
    return cell.strip().casefold() in MISSING


def column_from_text(cells: Sequence[str | None]) -> Column:
    """Return a numeric column if all cells are numbers or missing, else a column of texts.

    >>> column_from_text(["1.5", "?", "2"])
    array([1.5, nan, 2. ])
    >>> column_from_text(["1.5", "high"])
    array(['1.5', 'high'], dtype=object)
    """
    kept = [None if cell is None or is_missing(cell) else cell.strip() for cell in cells]
    numbers = [np.nan if cell is None else number(cell) for cell in kept]
    if None in numbers:
        return text_column(kept)
    return np.array(numbers, dtype=np.float64)


def text_column(cells: Sequence[str | None]) -> Column:
    """Return a column of texts; None is a missing cell."""
    column = np.empty(len(cells), dtype=object)
    column[:] = cells
    return column


def number(cell: str) -> float | None:
    """Return the number in a cell, or None; Python's `1_000` does not count as one."""
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None


DATE = re.compile(
    r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2})"
    r"|\d{1,2}[-. ]?[A-Za-z]{3,9}\.?[-, ]{1,2}\d{4}"
    r"|[A-Za-z]{3,9}\.? \d{1,2}(st|nd|rd|th)?,? \d{4})([T ]\d{1,2}:\d{2}.*)?"
)


def is_date(cell: str) -> bool:
    """Tell whether a text is a date, with or without a time, in one of the usual spellings.

    >>> [is_date(cell) for cell in ("2024-03-01", "1.3.2024 08:15", "03/01/24", "1 March 2024")]
    [True, True, True, True]
    >>> is_date("March 1, 2024"), is_date("Mar. 1st 2024")
    (True, True)
    >>> [is_date(cell) for cell in ("1.3", "f", "Ward 12")]
    [False, False, False]
    """
    return DATE.fullmatch(cell) is not None


def is_numeric(column: Column) -> bool:
    """Tell whether a column holds numbers."""
    return column.dtype == np.float64


def missing_cells(column: Column) -> np.ndarray:
    """Return a mask of the missing cells."""
    if is_numeric(column):
        return np.isnan(column)
    return np.array([cell is None for cell in column], dtype=bool)


def as_text(column: Column) -> Column:
    """Return a column as texts, with one spelling per number.

    >>> as_text(np.array(["6.0", "06", "six"], dtype=object)).tolist()
    ['6', '6', 'six']
    """
    return text_column([_spell(cell) for cell in column])


def _spell(cell: str | float | None) -> str | None:
    value = number(cell) if isinstance(cell, str) else cell
    if isinstance(cell, str) and (value is None or not np.isfinite(value)):
        return cell
    # Adding 0 makes -0 a plain 0.
    return None if value is None or np.isnan(value) else f"{value + 0.0:.15g}"


def without_code(column: Column, code: float) -> Column:
    """Return the column with every cell that holds this number missing."""
    if is_numeric(column):
        return np.where(column == code, np.nan, column)
    coded = _spell(code)
    return text_column([None if _spell(cell) == coded else cell for cell in column])


def first_text(column: Column) -> int | None:
    """Return the first row of a text column whose cell is not a number, or None."""
    for row, cell in enumerate(column):
        if isinstance(cell, str) and number(cell) is None:
            return row
    return None


def mostly_numbers(column: Column) -> bool:
    """Tell whether more than half of a text column's cells are numbers, so that the others are typos."""
    present = [cell for cell in column if cell is not None]
    return sum(number(cell) is not None for cell in present) > len(present) / 2


DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+")


def decimal_comma(column: Column) -> str | None:
    """Return a cell of a text column with a comma in a number, if all cells are numbers otherwise.

    >>> decimal_comma(text_column(["24,1", "32", None]))
    '24,1'
    >>> decimal_comma(text_column(["24,1", "high"])) is None
    True
    """
    found = None
    for cell in column:
        if not isinstance(cell, str) or number(cell) is not None:
            continue
        if DECIMAL_COMMA.fullmatch(cell) is None:
            return None
        found = found or cell
    return found


def categories_in_order(categories: set[str]) -> list[str]:
    """Sort categories: numbers by size, then texts."""

    def key(category: str) -> tuple[bool, float, str]:
        try:
            return False, float(category), category
        except ValueError:
            return True, 0.0, category

    return sorted(categories, key=key)
