"""Inputs as users have them: arrays, or DataFrames whose columns are matched by name."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedkin.errors import InputError
from fedkin.messages import join_names, listing, shorten


def column_names(inputs: Any) -> tuple[str, ...] | None:
    """Return the names of a DataFrame's columns; None for anything else.

    >>> column_names(pd.DataFrame({"age": [51], "sex": [0]})), column_names([[51, 0]])
    (('age', 'sex'), None)
    """
    if not isinstance(inputs, pd.DataFrame):
        return None
    return tuple(str(name) for name in inputs.columns)


def common_columns(inputs: Sequence[Any], owners: Sequence[str]) -> tuple[str, ...] | None:
    """Return the columns that all DataFrames have, in the order of the first; None for arrays.

    Args:
        inputs: The inputs of all nodes and of the owner.
        owners: Whose they are, for messages.
    """
    named = [column_names(each) for each in inputs]
    if all(names is None for names in named):
        return None
    first = next(names for names in named if names is not None)
    for names, owner in zip(named, owners, strict=True):
        if names is None:
            framed = owners[next(i for i, each in enumerate(named) if each is not None)]
            raise InputError(
                f"{owner} is an array but {framed} is a DataFrame, so columns cannot be matched by name: "
                "give all as DataFrames, or all as arrays"
            )
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(f"{owner} has two columns called '{shorten(twice)}'; rename one")
        missing = [name for name in first if name not in names]
        extra = [name for name in names if name not in first]
        if missing or extra:
            lacks = f"has no column {listing(missing)}" if missing else ""
            has = f"has {listing(extra)}, which {owners[0]} has not" if extra else ""
            raise InputError(
                f"{owner} {join_names([part for part in (lacks, has) if part])}: all must have the same "
                "columns, in any order"
            )
    return first


def in_order(inputs: Any, columns: Sequence[str] | None) -> Any:
    """Return a DataFrame with these columns in this order; anything else as it is."""
    if columns is None or not isinstance(inputs, pd.DataFrame):
        return inputs
    renamed = inputs.set_axis([str(name) for name in inputs.columns], axis=1)
    return renamed.loc[:, list(columns)]


def check_has_columns(inputs: Any, columns: Sequence[str] | None) -> None:
    """Refuse a DataFrame without the columns that a model was trained on; it may have others besides."""
    names = column_names(inputs)
    if columns is None or names is None:
        return
    missing = [name for name in columns if name not in names]
    if missing:
        raise InputError(
            f"the input has no column {listing(missing)}; the model was trained on {listing(columns)}"
        )


def as_plain_array(inputs: Any, owner: str) -> np.ndarray:
    """Return inputs as an array of numbers; what is missing is NaN."""
    if hasattr(inputs, "toarray") and hasattr(inputs, "nnz"):
        raise InputError(
            f"{owner}: the points are a sparse matrix; give them as a full one (X.toarray())"
        )
    if isinstance(inputs, pd.DataFrame):
        return _numbers_of_frame(inputs, owner)
    array = np.asarray(inputs)
    if np.iscomplexobj(array):
        raise InputError(f"{owner} has complex numbers; give real ones")
    if array.dtype == object and array.ndim == 2:
        # pandas' own mark for a missing value makes an array of objects.
        filled = np.where(pd.isna(array), np.nan, array)
        try:
            return filled.astype(np.float64)
        except (TypeError, ValueError):
            return array
    return array


def _numbers_of_frame(frame: pd.DataFrame, owner: str) -> np.ndarray:
    columns = []
    for position, name in enumerate(frame.columns):
        values = frame.iloc[:, position]
        try:
            if (
                values.dtype.kind in "cmM"
            ):  # complex numbers, durations and dates would become real ones
                raise TypeError
            columns.append(values.to_numpy(dtype=np.float64, na_value=np.nan))
        except (TypeError, ValueError):
            raise InputError(
                f"{owner}: column '{shorten(str(name))}' has {values.dtype} values, not numbers; encode it "
                "first (the command `fedkin fit` does that for tables)"
            ) from None
    missing = [
        str(name)
        for name, values in zip(frame.columns, columns, strict=True)
        if np.isnan(values).any()
    ]
    if missing:
        empty = [
            str(name)
            for name, values in zip(frame.columns, columns, strict=True)
            if len(values) and np.isnan(values).all()
        ]
        if empty:
            raise InputError(
                f"{owner}: {_columns(empty)} no value at all; fill it in, or leave it out everywhere"
            )
        raise InputError(
            f"{owner}: {_columns(missing)} missing values; fill them in or leave these rows out"
        )
    return np.stack(columns, axis=1) if columns else np.zeros((len(frame), 0))


def _columns(names: Sequence[str]) -> str:
    return f"column {listing(names)} has" if len(names) == 1 else f"columns {listing(names)} have"
