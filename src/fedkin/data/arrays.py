"""Checks of the arrays that a user passes in, before any work is done with them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedkin.errors import InputError
from fedkin.types import LearningTask, Points


class CheckedArrays(NamedTuple):
    """Arrays that are ready for training: finite, of one shape and type, with labels 0 … classes − 1."""

    names: tuple[str, ...]
    nodes: list[Points]
    validation: Points
    test: Points | None
    classes: np.ndarray | None
    """The label that each number stands for; None for regression."""


def check_arrays(
    nodes: Mapping[str, Any] | Sequence[Any],
    validation: Any,
    test: Any | None,
    *,
    task: LearningTask,
    classes: int | Sequence[Any] | None = None,
) -> CheckedArrays:
    """Check every array, with a message of its own for each problem, and number the classes.

    >>> nodes = {"zurich": ([[1.0], [2.0]], ["no", "yes"]), "basel": ([[3.0]], ["yes"])}
    >>> checked = check_arrays(nodes, ([[4.0]], ["no"]), None, task="classification")
    >>> checked.names, checked.classes.tolist(), checked.nodes[0].labels.tolist()
    (('zurich', 'basel'), ['no', 'yes'], [0, 1])

    Args:
        nodes: (X, y) of each node, by name or in a list.
        validation: (X, y) of the owner.
        test: (X, y) to report on, or None.
        task: Whether labels are classes or numbers.
        classes: All labels that may occur, or their number if they are 0, 1, …; by default the labels
            that do occur.
    """
    if not isinstance(nodes, Mapping):
        if not isinstance(nodes, Sequence):
            raise InputError("nodes must be a dict of name: (X, y) or a list of (X, y)")
        nodes = {f"node {number}": points for number, points in enumerate(nodes, start=1)}
    if not nodes:
        raise InputError("there are no nodes: give at least one (X, y)")
    names = tuple(str(name) for name in nodes)
    owners = [f"node {name!r}" if not name.startswith("node ") else name for name in names]
    pairs = [_pair(points, owner) for points, owner in zip(nodes.values(), owners, strict=True)]
    owners.append("the validation data")
    pairs.append(_pair(validation, owners[-1]))
    if test is not None:
        owners.append("the test data")
        pairs.append(_pair(test, owners[-1]))
    inputs = _check_inputs([pair.inputs for pair in pairs], owners)
    raw_labels = [pair.labels for pair in pairs]
    if task == "regression":
        labels, known = (
            [_numbers(own, owner) for own, owner in zip(raw_labels, owners, strict=True)],
            None,
        )
    else:
        labels, known = _encode(raw_labels, owners, classes)
    points = [Points(*pair) for pair in zip(inputs, labels, strict=True)]
    count = len(names)
    return CheckedArrays(
        names, points[:count], points[count], points[count + 1] if test is not None else None, known
    )


def check_inputs_like(inputs: Any, point_shape: tuple[int, ...]) -> np.ndarray:
    """Return the inputs as an array, if a model trained on points of this shape can use them."""
    array = _to_float(_as_array(inputs, "the input"), "the input")
    if array.shape[1:] != point_shape:
        raise InputError(
            f"the model was trained on points of shape {point_shape}, "
            f"but these have shape {array.shape[1:]}"
        )
    return array


def _pair(points: Any, owner: str) -> Points:
    if not isinstance(points, (tuple, list)) or len(points) != 2:
        raise InputError(f"{owner}: expected a pair (X, y), got {type(points).__name__}")
    inputs, labels = _as_array(points[0], owner), _from_tensor(points[1], owner)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise InputError(
            f"{owner}: the labels must be one per point, not an array of shape {labels.shape}"
        )
    if len(inputs) != len(labels):
        raise InputError(f"{owner}: {len(inputs)} points but {len(labels)} labels")
    if len(inputs) == 0:
        raise InputError(f"{owner} is empty: leave it out or give it at least one point")
    return Points(inputs, labels)


def _as_array(inputs: Any, owner: str) -> np.ndarray:
    array = _from_tensor(inputs, owner)
    if array.ndim < 2:
        raise InputError(
            f"{owner}: the points must be rows of features or images, not an array of shape {array.shape}"
        )
    if array.dtype.kind not in "buif":
        raise InputError(
            f"{owner}: the points are of type {array.dtype}, not numbers; encode text columns first "
            "(the command `fedkin fit` does that for tables)"
        )
    return array


def _from_tensor(values: Any, owner: str) -> np.ndarray:
    """Return values as an array, also those of a PyTorch tensor on any device."""
    if hasattr(values, "detach") and hasattr(values, "cpu"):
        try:
            return np.asarray(values.detach().cpu())
        except (NotImplementedError, TypeError, RuntimeError) as error:
            raise InputError(
                f"{owner}: a tensor of type {values.dtype} on the device {values.device} has no numbers that "
                f"fedkin can read ({error}): convert it, for example with .float()"
            ) from error
    return np.asarray(values)


def _check_inputs(inputs: list[np.ndarray], owners: list[str]) -> list[np.ndarray]:
    first = inputs[0].shape[1:]
    for array, owner in zip(inputs, owners, strict=True):
        if array.shape[1:] != first:
            raise InputError(
                f"{owner} has points of shape {array.shape[1:]} but {owners[0]} has {first}: "
                "all must have the same features"
            )
    bytes_only = [array.dtype == np.uint8 for array in inputs]
    if any(bytes_only) and not all(bytes_only):
        odd = owners[bytes_only.index(not bytes_only[0])]
        raise InputError(
            f"some points are bytes (uint8 images, scaled to 0 … 1) and some are not: see {odd}; "
            "convert all to one type"
        )
    return [_to_float(array, owner) for array, owner in zip(inputs, owners, strict=True)]


def _to_float(array: np.ndarray, owner: str) -> np.ndarray:
    if array.dtype == np.uint8:
        return array
    with np.errstate(over="ignore"):
        converted = array.astype(jax.dtypes.canonicalize_dtype(float))
    bad = np.atleast_1d(~np.isfinite(converted).reshape(len(array), -1).all(axis=1))
    if bad.any():
        raise InputError(
            f"{owner} has NaN or infinite values in {int(bad.sum())} of {len(bad)} points (first: "
            f"point {int(bad.argmax())}): fill them in or leave these points out"
        )
    return converted


def _numbers(labels: np.ndarray, owner: str) -> np.ndarray:
    if labels.dtype.kind not in "buif":
        raise InputError(f"{owner}: regression needs numbers as labels, not {labels.dtype}")
    converted = labels.astype(jax.dtypes.canonicalize_dtype(float))
    if not np.isfinite(converted).all():
        raise InputError(f"{owner}: some labels are NaN or infinite")
    return converted


def _encode(
    labels: list[np.ndarray], owners: list[str], classes: int | Sequence[Any] | None
) -> tuple[list[np.ndarray], np.ndarray]:
    labels = [_discrete(own, owner) for own, owner in zip(labels, owners, strict=True)]
    kinds = {own.dtype.kind in "US" for own in labels}
    if len(kinds) > 1:
        odd = next(i for i, own in enumerate(labels) if own.dtype.kind in "US")
        raise InputError(f"{owners[odd]}: labels are text here but numbers elsewhere")
    if classes is None:
        known = np.unique(np.concatenate(labels))
    else:
        known = np.arange(classes) if isinstance(classes, int) else np.unique(np.asarray(classes))
    if len(known) < 2 or len(np.unique(np.concatenate(labels))) < 2:
        raise InputError(
            "all labels are the same: there is only a single class and nothing to learn"
        )
    encoded = []
    for own, owner in zip(labels, owners, strict=True):
        out_of_range = ~np.isin(own, known)
        if out_of_range.any():
            raise InputError(
                f"{owner}: label {own[out_of_range][0]!s} is out of range; the classes are "
                f"{', '.join(str(label) for label in known[:10])}{' …' if len(known) > 10 else ''}"
            )
        encoded.append(np.searchsorted(known, own).astype(np.int32))
    return encoded, known


def _discrete(labels: np.ndarray, owner: str) -> np.ndarray:
    if labels.dtype.kind == "f":
        if not np.isfinite(labels).all():
            raise InputError(f"{owner}: some labels are NaN or infinite")
        if not (labels == np.round(labels)).all():
            raise InputError(
                f"{owner}: the labels are fractions such as {labels[labels != np.round(labels)][0]:g}; "
                "to predict numbers, choose the model 'ridge'"
            )
        return labels.astype(np.int64)
    if labels.dtype.kind == "O":
        return labels.astype(str)
    if labels.dtype.kind not in "buiUS":
        raise InputError(
            f"{owner}: labels of type {labels.dtype} are neither whole numbers nor text"
        )
    return labels
