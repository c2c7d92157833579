"""Training, validation and test data of every node, from the rows that a partition gives it."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedkin.data.labeled import LabeledData
from fedkin.data.labels import shuffle_by_class
from fedkin.data.partitions.base import NodeRows, Partition, random_stream
from fedkin.errors import InputError
from fedkin.messages import join_names
from fedkin.types import Points

TEST_FRACTION = 0.25
"""PFLlib's."""
VALIDATION_FRACTION = 0.2
"""PFLlib has no validation data; this is what `fit` would hold out of the rest."""

FEWEST_ROWS = 3
"""One row each for training, validation and testing."""


class SplitRows(NamedTuple):
    """The rows of one part each of a node."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray


class NodeSplit(NamedTuple):
    """The data of one node, which is a node of the federation and an owner with its own question."""

    name: str
    train: Points
    validation: Points
    test: Points
    rows: SplitRows
    """Where the points come from."""
    group: str | None = None
    """The group that the node belongs to, if the partition has groups."""
    permutation: tuple[int, ...] | None = None
    """`permutation[label]` is what the node calls a class; None if it changes nothing."""
    rotation: int = 0
    """By how many degrees the node's images are turned, clockwise."""

    def class_counts(self, classes: int) -> np.ndarray:
        """Return how many of the node's points carry each label."""
        labels = np.concatenate([self.train.labels, self.validation.labels, self.test.labels])
        return np.bincount(labels, minlength=classes)


def split_nodes(
    data: LabeledData,
    partition: Partition,
    seed: int,
    *,
    test_fraction: float = TEST_FRACTION,
    validation_fraction: float = VALIDATION_FRACTION,
) -> list[NodeSplit]:
    """Draw a partition and divide every node's rows into training, validation and test data.

    A quarter of a node's rows are for testing, as in PFLlib. Of the others, the validation fraction is
    held out. Both numbers are rounded, but each part has at least one row. Every class is divided in the same
    proportions, as far as its rows allow.

    Where nodes may share rows (groups with replacement), the rows of the data set are divided once for all
    nodes, so that what one node trains on is in no node's validation or test data. The parts of a node
    then have these fractions on average only.

    >>> from fedkin.data.labeled import load_labeled
    >>> from fedkin.data.partitions import Pathological
    >>> nodes = split_nodes(load_labeled("digits"), Pathological(2, nodes=20), seed=0)
    >>> nodes[0].name, len(nodes[0].train.labels), len(nodes[0].validation.labels)
    ('node-1', 54, 14)

    Args:
        data: What to divide.
        partition: Who gets which rows.
        seed: The same seed gives the same partition and the same parts.
        test_fraction: The share of a node's rows for testing.
        validation_fraction: The share of the others for validation.
    """
    for name, fraction in (
        ("test_fraction", test_fraction),
        ("validation_fraction", validation_fraction),
    ):
        if not 0 < fraction < 1:
            raise InputError(f"{name} must lie between 0 and 1, not {fraction!r}")
    nodes = partition.draw(data, seed)
    tiny = [f"{node.name} ({len(node.rows)})" for node in nodes if len(node.rows) < FEWEST_ROWS]
    if tiny:
        raise InputError(
            f"too few rows for training, validation and testing, which take one each: "
            f"{join_names(tiny)}; choose fewer nodes or a larger minimum"
        )
    fractions = (test_fraction, validation_fraction)
    if partition.shares_rows:
        parts = _split_by_pools(data, nodes, fractions, seed)
    else:
        parts = [
            _split(node.rows, data.labels[node.rows], fractions, random_stream(seed, 1, number))
            for number, node in enumerate(nodes)
        ]
    return [_collect(data, node, rows) for node, rows in zip(nodes, parts, strict=True)]


def one_class_nodes(nodes: Sequence[NodeSplit]) -> list[str]:
    """Return the names of the nodes all of whose points carry the same label.

    Such a node is not refused, because partitions of the literature have them, but a constant is always
    right there, and its owner has nothing to learn.
    """
    return [
        node.name
        for node in nodes
        if len(
            set().union(
                *(part.labels.tolist() for part in (node.train, node.validation, node.test))
            )
        )
        == 1
    ]


def _split(
    rows: np.ndarray,
    labels: np.ndarray,
    fractions: tuple[float, float],
    random: np.random.Generator,
) -> SplitRows:
    of_test, of_validation = fractions
    test = int(np.clip(round(of_test * len(rows)), 1, len(rows) - 2))
    left = len(rows) - test
    validation = int(np.clip(round(of_validation * left), 1, left - 1))
    order = rows[shuffle_by_class(labels, random)]
    pieces = np.split(order, [test, test + validation])
    return SplitRows(*(np.sort(pieces[place]) for place in (2, 1, 0)))


def _split_by_pools(
    data: LabeledData, nodes: Sequence[NodeRows], fractions: tuple[float, float], seed: int
) -> list[SplitRows]:
    """Divide the rows of the data set, and let the rows of every node follow."""
    pools = _split(np.arange(len(data)), data.labels, fractions, random_stream(seed, 1))
    split = [SplitRows(*(node.rows[np.isin(node.rows, pool)] for pool in pools)) for node in nodes]
    for node, parts in zip(nodes, split, strict=True):
        for what, rows in parts._asdict().items():
            if not len(rows):
                raise InputError(
                    f"{node.name} has {len(node.rows)} points, and none of them is for {what}: "
                    "raise points_per_node"
                )
    return split


def _collect(data: LabeledData, node: NodeRows, rows: SplitRows) -> NodeSplit:
    parts = {what: _points(data, node, own) for what, own in rows._asdict().items()}
    return NodeSplit(
        name=node.name,
        **parts,
        rows=rows,
        group=node.group,
        permutation=node.permutation,
        rotation=node.rotation,
    )


def _points(data: LabeledData, node: NodeRows, rows: np.ndarray) -> Points:
    inputs, labels = data.inputs[rows], data.labels[rows].astype(np.int32)
    if node.rotation:
        # `rot90` turns anticlockwise as images are drawn.
        inputs = np.ascontiguousarray(np.rot90(inputs, -(node.rotation // 90), axes=(1, 2)))
    if node.permutation is not None:
        labels = np.asarray(node.permutation, np.int32)[labels]
    return Points(inputs, labels)
