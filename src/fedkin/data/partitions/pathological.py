"""The partition in which every node knows few classes."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedkin.data.labeled import LabeledData
from fedkin.data.partitions.base import (
    NodeRows,
    check_enough_rows,
    check_whole,
    numbered,
    random_stream,
)
from fedkin.errors import InputError

SWAPS = 10
"""How many swaps to try for every class of every node: enough to forget the blocks."""


@dataclass(frozen=True)
class Pathological:
    r"""Every node has rows of exactly c classes, and every row is on exactly one node.

    The numbers of nodes that have a class differ by at most one among the classes.

    What the literature leaves open, and what is chosen here:

    - Which classes go together. `blocks`: neighbors have the same classes, so that the nodes form groups of
      which each knows its own c classes (if c divides the number of classes, and their quotient the
      number of nodes; else neighboring groups overlap). PFLlib does this with the classes in their
      order; here the seed decides which classes go together. `random`: any c classes, as with the
      shards of McMahan et al. (2017, arXiv:1602.05629), who deal out equal pieces of the rows sorted by
      label, so that a node has at most c classes.
    - How large the shares of a class are. They are even, as the shards are. With `even=False` they are
      proportional to numbers drawn uniformly from 0.1 to 1. PFLlib's shares are uneven unless it is
      asked for balance: uniform from 0.1 to 1 of an even share, and the last node takes what is left.

    >>> from fedkin.data.labeled import load_labeled
    >>> data = load_labeled("digits")
    >>> nodes = Pathological(classes_per_node=2, nodes=20).draw(data, seed=0)
    >>> {len(set(data.labels[node.rows])) for node in nodes}
    {2}
    """

    classes_per_node: int
    nodes: int
    arrangement: Literal["blocks", "random"] = "blocks"
    even: bool = True
    """Whether the nodes that have a class have equally much of it."""

    kind: ClassVar[str] = "pathological"
    shares_rows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_whole("classes_per_node", self.classes_per_node, least=1)
        check_whole("nodes", self.nodes, least=1)
        if self.arrangement not in ("blocks", "random"):
            raise InputError(f"arrangement is 'blocks' or 'random', not {self.arrangement!r}")

    @property
    def node_count(self) -> int:
        """How many nodes there are."""
        return self.nodes

    def draw(self, data: LabeledData, seed: int) -> list[NodeRows]:
        """Return the rows of every node."""
        check_enough_rows(data, self.nodes, minimum=1)
        rows_of_classes = data.rows_of_classes()
        self._check_classes(len(rows_of_classes), data.name)
        random = random_stream(seed, 0)
        has_class = self._draw_classes(len(rows_of_classes), random)
        held: list[list[np.ndarray]] = [[] for _ in range(self.nodes)]
        for (label, rows), holds in zip(rows_of_classes.items(), has_class.T, strict=True):
            holders = np.flatnonzero(holds)
            if len(rows) < len(holders):
                raise InputError(
                    f"class {label} ({data.classes[label]}) of {data.name} has {len(rows)} rows for the "
                    f"{len(holders)} nodes that should have it: lower nodes or classes_per_node"
                )
            ends = self._draw_ends(len(rows), len(holders), random)
            pieces = np.split(random.permutation(rows), ends[:-1])
            for holder, piece in zip(holders, pieces, strict=True):
                held[holder].append(piece)
        return numbered([np.concatenate(own) for own in held])

    def _check_classes(self, classes: int, name: str) -> None:
        if self.classes_per_node > classes:
            raise InputError(
                f"classes_per_node is {self.classes_per_node}, but {name} has {classes} classes: lower it"
            )
        if self.classes_per_node * self.nodes < classes:
            raise InputError(
                f"{self.nodes} nodes with {self.classes_per_node} classes each cannot have all {classes} "
                f"classes of {name}: raise nodes to {-(-classes // self.classes_per_node)} or more, or "
                "raise classes_per_node"
            )

    def _draw_classes(self, classes: int, random: np.random.Generator) -> np.ndarray:
        """Return which node (row) has which class (column)."""
        places = self.nodes * self.classes_per_node
        holders = np.full(classes, places // classes)
        holders[: places % classes] += 1
        # A class has at most as many places as there are nodes, and its places are neighbors. So a
        # node that gets every K-th place gets no class twice.
        dealt = np.repeat(random.permutation(classes), holders)
        has_class = np.zeros((self.nodes, classes), bool)
        has_class[np.arange(places) % self.nodes, dealt] = True
        if self.arrangement == "random" and self.nodes > 1:
            for _ in range(SWAPS * places):
                _swap(has_class, random)
        return has_class

    def _draw_ends(self, rows: int, holders: int, random: np.random.Generator) -> np.ndarray:
        """Return where each holder's share of a class ends."""
        sizes = np.ones(holders) if self.even else random.uniform(0.1, 1, holders)
        # Everyone gets one row, and a share of the others.
        spread = np.cumsum(sizes) / sizes.sum() * (rows - holders)
        return np.rint(spread).astype(np.int64) + np.arange(1, holders + 1)


def _swap(has_class: np.ndarray, random: np.random.Generator) -> None:
    """Let two nodes exchange classes that the other lacks, if there are such."""
    one, other = random.choice(len(has_class), 2, replace=False)
    given = np.flatnonzero(has_class[one] & ~has_class[other])
    taken = np.flatnonzero(has_class[other] & ~has_class[one])
    if given.size:
        pair = [random.choice(given), random.choice(taken)]
        has_class[np.ix_([one, other], pair)] ^= True
