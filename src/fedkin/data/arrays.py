"""Checks of the arrays that a user passes in, before any work is done with them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd

from fedkin.data.frames import as_plain_array, check_has_columns, common_columns, in_order
from fedkin.errors import InputError
from fedkin.messages import check_printable, listing
from fedkin.types import LearningTask, Points

LARGEST_INPUT = 1e6
"""Inputs are to be standardized; with larger ones float32 has no digits left for the weights."""

FEWEST_ROWS = 10
"""The fewest rows that a node needs by default: fewer say next to nothing, and would reveal single ones."""


class CheckedArrays(NamedTuple):
    """Arrays that are ready for training: finite, of one shape and type, with labels 0 … classes − 1."""

    names: tuple[str, ...]
    nodes: list[Points]
    validation: Points
    test: Points | None
    classes: np.ndarray | None
    """The label that each number stands for; None for regression."""
    columns: tuple[str, ...] | None
    """The names of the features, where the inputs are DataFrames."""


def check_arrays(
    nodes: Mapping[str, Any] | Sequence[Any],
    validation: Any,
    test: Any | None,
    *,
    task: LearningTask,
    classes: int | Sequence[Any] | None = None,
    minimum_rows: int = 1,
    judge: str = "the validation data",
) -> CheckedArrays:
    """Check every array, with a message of its own for each problem, and number the classes.

    DataFrames are matched by the names of their columns, in the order of the first node's.

    >>> nodes = {"zurich": ([[1.0], [2.0]], ["no", "yes"]), "basel": ([[3.0]], ["yes"])}
    >>> owner = ([[4.0], [0.0]], ["no", "yes"])
    >>> checked = check_arrays(nodes, owner, None, task="classification")
    >>> checked.names, checked.classes.tolist(), checked.nodes[0].labels.tolist()
    (('zurich', 'basel'), ['no', 'yes'], [0, 1])

    Args:
        nodes: (X, y) of each node, by name or in a list.
        validation: (X, y) of the owner.
        test: (X, y) to report on, or None.
        task: Whether labels are classes or numbers.
        classes: All labels that may occur, or their number if they are 0, 1, …; by default the labels
            that do occur.
        minimum_rows: The fewest rows that a node may have.
        judge: What messages call the owner's data.
    """
    named = name_nodes(nodes)
    parts = {describe_node(name): points for name, points in named.items()}
    parts[judge] = validation
    if test is not None:
        parts["the test data"] = test
    parts, columns = _match_columns(parts)
    points, known = check_parts(parts, task=task, classes=classes)
    count = len(named)
    for name, node in zip(named, points[:count], strict=True):
        check_enough_rows(len(node.labels), describe_node(name), minimum_rows)
    if known is not None:
        _check_several_classes(points[count].labels, known, judge)
        _check_common_classes(points[:count], points[count].labels, known, judge)
    return CheckedArrays(
        tuple(named),
        points[:count],
        points[count],
        points[count + 1] if test is not None else None,
        known,
        columns,
    )


def name_nodes(nodes: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
    """Return what a user gives for the nodes as a dict by name."""
    if not isinstance(nodes, Mapping):
        if not isinstance(nodes, Sequence) or isinstance(nodes, str):
            raise InputError("nodes must be a dict of name: (X, y) or a list of (X, y)")
        nodes = {f"node {number}": points for number, points in enumerate(nodes, start=1)}
    if not nodes:
        raise InputError("there are no nodes: give at least one (X, y)")
    named: dict[str, Any] = {}
    for name, points in nodes.items():
        if str(name) in named:
            raise InputError(f"two nodes have the name {str(name)!r}: give each its own")
        named[check_printable(str(name), "the name of a node")] = points
    return named


def describe_node(name: str) -> str:
    """Return what messages call a node."""
    return name if name.startswith("node ") else f"node {name!r}"


def check_parts(
    parts: Mapping[str, Any], *, task: LearningTask, classes: int | Sequence[Any] | None = None
) -> tuple[list[Points], np.ndarray | None]:
    """Check the (X, y) of everybody who is named, and number the classes.

    Returns:
        The points, ready for training, and the label that each number stands for.
    """
    owners = list(parts)
    parts = _match_columns(parts)[0]
    pairs = [_pair(points, owner) for owner, points in parts.items()]
    inputs = _check_inputs([pair.inputs for pair in pairs], owners)
    raw_labels = [pair.labels for pair in pairs]
    if task == "regression":
        known = None
        labels = [_numbers(own, owner) for own, owner in zip(raw_labels, owners, strict=True)]
    else:
        labels, known = _encode(raw_labels, owners, classes)
    return [Points(*pair) for pair in zip(inputs, labels, strict=True)], known


def _match_columns(
    parts: Mapping[str, Any],
) -> tuple[dict[str, tuple[Any, Any]], tuple[str, ...] | None]:
    """Return everybody's (X, y) with columns in one order, and their names where these are known."""
    for owner, points in parts.items():
        _check_is_pair(points, owner)
    columns = common_columns([points[0] for points in parts.values()], list(parts))
    return {
        owner: (in_order(points[0], columns), points[1]) for owner, points in parts.items()
    }, columns


def check_enough_rows(rows: int, owner: str, minimum_rows: int) -> None:
    """Refuse a node whose rows are too few to learn from."""
    if rows < minimum_rows:
        raise InputError(
            f"{owner} has {rows} {'row' if rows == 1 else 'rows'}, fewer than the {minimum_rows} that a node "
            "needs; leave it out, join it with another, or lower the minimum (minimum_rows, --minimum-rows)"
        )


def check_several_nodes(nodes: int, otherwise: str = "") -> None:
    """Refuse to learn the weight of a single node: it is 1 whatever the data are.

    Args:
        nodes: How many there are.
        otherwise: What else a user could do.
    """
    if nodes < 2:
        raise InputError(
            "there is only one node, so its weight is 1 whatever the data are; give at least two "
            f"(one --node for each){otherwise}"
        )


def check_inputs_like(
    inputs: Any, point_shape: tuple[int, ...], columns: Sequence[str] | None = None
) -> np.ndarray:
    """Return the inputs as an array, if a model trained on points of this shape can use them.

    Args:
        inputs: An array, or a DataFrame.
        point_shape: The shape of one point.
        columns: The names of the features, to find them in a DataFrame.
    """
    check_has_columns(inputs, columns)
    array = _to_float(_as_array(in_order(inputs, columns), "the input"), "the input")
    if array.shape[1:] != point_shape:
        raise InputError(
            f"the model was trained on points of shape {point_shape}, "
            f"but these have shape {array.shape[1:]}: give the same features"
        )
    return array


def _check_is_pair(points: Any, owner: str) -> None:
    if not isinstance(points, (tuple, list)) or len(points) != 2:
        raise InputError(f"{owner}: expected a pair (X, y), got {type(points).__name__}")


def _pair(points: tuple[Any, Any], owner: str) -> Points:
    inputs, labels = _as_array(points[0], owner), _label_array(points[1], owner)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise InputError(
            f"{owner}: the labels must be one per point, not an array of shape {labels.shape}"
            + ("; for indicators of classes, give y.argmax(axis=1)" if labels.ndim == 2 else "")
        )
    if len(inputs) != len(labels):
        raise InputError(
            f"{owner}: {len(inputs)} points but {len(labels)} labels: give one label per point"
        )
    if len(inputs) == 0:
        raise InputError(f"{owner} is empty: leave it out or give it at least one point")
    return Points(inputs, labels)


def _label_array(labels: Any, owner: str) -> np.ndarray:
    array = _from_tensor(labels, owner) if _is_tensor(labels) else np.asarray(labels)
    if array.dtype == object:
        missing = np.asarray(pd.isna(array))
        if missing.any():
            raise InputError(
                f"{owner}: {int(missing.sum())} of {missing.size} labels are missing; leave these points out"
            )
        if all(isinstance(label, (int, np.integer)) for label in array.ravel().tolist()):
            return array.astype(np.int64)
    return array


def _as_array(inputs: Any, owner: str) -> np.ndarray:
    array = _from_tensor(inputs, owner) if _is_tensor(inputs) else as_plain_array(inputs, owner)
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


def _is_tensor(values: Any) -> bool:
    """Tell whether values are a PyTorch tensor, without loading PyTorch."""
    return hasattr(values, "detach") and hasattr(values, "cpu")


def _from_tensor(values: Any, owner: str) -> np.ndarray:
    """Return the numbers of a PyTorch tensor on any device."""
    try:
        return np.asarray(values.detach().cpu())
    except (NotImplementedError, TypeError, RuntimeError) as error:
        raise InputError(
            f"{owner}: a tensor of type {values.dtype} on the device {values.device} has no numbers that "
            f"fedkin can read ({error}): convert it, for example with .float()"
        ) from error


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
    bad = np.atleast_1d(~np.isfinite(converted).all(axis=tuple(range(1, converted.ndim))))
    if bad.any():
        raise InputError(
            f"{owner} has NaN or infinite values in {int(bad.sum())} of {len(bad)} points (first: "
            f"point {int(bad.argmax())}): fill them in or leave these points out"
        )
    largest = float(np.abs(converted).max(initial=0.0))
    if largest > LARGEST_INPUT:
        raise InputError(
            f"{owner} has values as large as {largest:.3g}; standardize the features first (subtract "
            "the mean, divide by the standard deviation, the same for all)"
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
        counted = isinstance(classes, (int, np.integer))
        known = np.arange(classes) if counted else np.unique(np.asarray(classes))
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


def _check_several_classes(labels: np.ndarray, known: np.ndarray, judge: str) -> None:
    if len(np.unique(labels)) == 1:
        raise InputError(
            f"{judge} have only the class '{known[labels[0]]}', so they cannot evaluate a "
            "model; add points of another class"
        )


def _check_common_classes(
    nodes: Sequence[Points], labels: np.ndarray, known: np.ndarray, judge: str
) -> None:
    if not any(np.isin(labels, node.labels).any() for node in nodes):
        own, others = (
            listing([str(known[each]) for each in np.unique(classes)], most=4)
            for classes in (labels, np.concatenate([node.labels for node in nodes]))
        )
        raise InputError(
            f"{judge} have the labels {own}, and the nodes {others}: name the classes alike everywhere"
        )


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
