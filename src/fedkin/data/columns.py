"""Cells and columns: what is a number, what is missing, when two spellings are the same.

A cell is a number, a text or missing. A column is numeric if all its cells that are not missing are
numbers, else it is text.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

MISSING = frozenset({"", "?", "na", "n/a", "<na>", "nan", "null"})
"""What stands for a missing value, in any case. Not `none`: that is an answer in many tables."""

Column: TypeAlias = np.ndarray
"""One column: `float64` with NaN for missing if numeric, else `object` with `str` or None."""


def is_missing(cell: str) -> bool:
    """Tell whether a cell's text stands for a missing value."""
    return cell.strip().casefold() in MISSING


def column_from_text(cells: Sequence[str | None]) -> Column:
    """Make a column of texts numeric if all its cells are numbers or missing."""
    kept = [None if cell is None or is_missing(cell) else cell.strip() for cell in cells]
    numbers = [np.nan if cell is None else number(cell) for cell in kept]
    if None in numbers:
        return text_column(kept)
    return np.array(numbers, dtype=np.float64)


def text_column(cells: Sequence[str | None]) -> Column:
    """Make a column of texts, None where missing."""
    column = np.empty(len(cells), dtype=object)
    column[:] = cells
    return column


def number(cell: str) -> float | None:
    """Return the number a cell holds; Python's `1_000` is not one."""
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None


def is_numeric(column: Column) -> bool:
    """Tell whether a column holds numbers."""
    return column.dtype == np.float64


def missing_cells(column: Column) -> np.ndarray:
    """Return a mask of the missing cells."""
    if is_numeric(column):
        return np.isnan(column)
    return np.array([cell is None for cell in column], dtype=bool)


def as_text(column: Column) -> Column:
    """Return a column as texts, numbers in one spelling: `6.0`, `6` and `06` are all `6`."""
    return text_column([_spell(cell) for cell in column])


def _spell(cell: str | float | None) -> str | None:
    value = number(cell) if isinstance(cell, str) else cell
    if isinstance(cell, str) and (value is None or not np.isfinite(value)):
        return cell
    # Adding 0 makes -0 a plain 0.
    return None if value is None or np.isnan(value) else f"{value + 0.0:.15g}"


def without_code(column: Column, code: float) -> Column:
    """Make the cells that hold this number missing."""
    if is_numeric(column):
        return np.where(column == code, np.nan, column)
    coded = _spell(code)
    return text_column([None if _spell(cell) == coded else cell for cell in column])


def first_text(column: Column) -> int | None:
    """Return the first row of a text column whose cell is no number, if there is one."""
    for row, cell in enumerate(column):
        if isinstance(cell, str) and number(cell) is None:
            return row
    return None


def mostly_numbers(column: Column) -> bool:
    """Tell whether more than half of a text column's cells are numbers: a slip of the pen."""
    present = [cell for cell in column if cell is not None]
    return sum(number(cell) is not None for cell in present) > len(present) / 2


def categories_in_order(categories: set[str]) -> list[str]:
    """Sort categories, numbers by size and before texts."""

    def key(category: str) -> tuple[bool, float, str]:
        try:
            return False, float(category), category
        except ValueError:
            return True, 0.0, category

    return sorted(categories, key=key)
