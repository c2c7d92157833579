"""Small helpers for the tables that the studies return."""

from typing import Any

import numpy as np
import pandas as pd


def select(table: pd.DataFrame, **values: Any) -> pd.DataFrame:
    """Return the rows whose columns have these values."""
    keep = np.ones(len(table), dtype=bool)
    for column, value in values.items():
        keep &= np.asarray(table[column] == value)
    return pd.DataFrame(table[keep])


def numbers(table: pd.DataFrame, column: str) -> np.ndarray:
    """Return a column as floating-point numbers."""
    return np.asarray(table[column], dtype=np.float64)


def values(table: pd.DataFrame, column: str) -> list[float]:
    """Return the different numbers of a column in rising order."""
    return [float(value) for value in np.unique(numbers(table, column))]
