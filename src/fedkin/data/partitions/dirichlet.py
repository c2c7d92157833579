"""The partition that most papers on personalized federated learning use."""

import math
from dataclasses import dataclass
from typing import ClassVar

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

MOST_DRAWS = 2000
"""After this many draws without enough rows for every node, one that has them is too rare to wait for."""

SMALLEST_ALPHA, LARGEST_ALPHA = 1e-3, 1e6
"""Beyond these, every class goes to one node, or to all in equal parts, and the draws lose precision."""


@dataclass(frozen=True)
class Dirichlet:
    r"""Every class is divided among the nodes in shares drawn from Dirichlet(α, …, α).

    The smaller α, the fewer classes a node has. The classes are divided one after the other. A node
    that already has N/K of the N rows gets nothing of the next class. All is drawn again until each of the
    K nodes has the minimum. Every row is on exactly one node.

    What the literature leaves open, and what is chosen here:

    - The order of the classes matters because of the limit N/K. It is that of the labels, as in the code
      of Yurochkin et al. (2019, arXiv:1905.12022), PFLlib and NIID-Bench.
    - The code of these sets the shares of full nodes to zero and divides the others by their sum. Here shares
      are drawn for the other nodes alone, which has the same distribution and no division by zero.
    - The minimum is 10, as in NIID-Bench (Li et al., 2022, arXiv:2102.02079). PFLlib has 1, which
      is too few to divide into training, validation and test data.

    >>> from fedkin.data.labeled import load_labeled
    >>> nodes = Dirichlet(alpha=0.1, nodes=20).draw(load_labeled("digits"), seed=0)
    >>> len(nodes), sum(len(node.rows) for node in nodes)
    (20, 1797)
    """

    alpha: float
    nodes: int
    minimum: int = 10
    """The smallest number of rows of a node."""

    kind: ClassVar[str] = "dirichlet"
    shares_rows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.alpha, int | float) or not math.isfinite(self.alpha):
            raise InputError(f"alpha must be a positive number, not {self.alpha!r}")
        if not SMALLEST_ALPHA <= self.alpha <= LARGEST_ALPHA:
            raise InputError(
                f"alpha must lie between {SMALLEST_ALPHA:g} and {LARGEST_ALPHA:,.0f}, not {self.alpha:g}"
            )
        check_whole("nodes", self.nodes, least=1)
        check_whole("minimum", self.minimum, least=1)

    @property
    def node_count(self) -> int:
        """How many nodes there are."""
        return self.nodes

    def draw(self, data: LabeledData, seed: int) -> list[NodeRows]:
        """Return the rows of every node."""
        check_enough_rows(data, self.nodes, self.minimum)
        random = random_stream(seed, 0)
        rows_of_classes = list(data.rows_of_classes().values())
        counts = self._draw_counts([len(rows) for rows in rows_of_classes], random, data.name)
        held: list[list[np.ndarray]] = [[] for _ in range(self.nodes)]
        for rows, of_nodes in zip(rows_of_classes, counts.T, strict=True):
            pieces = np.split(random.permutation(rows), np.cumsum(of_nodes)[:-1])
            for own, piece in zip(held, pieces, strict=True):
                own.append(piece)
        return numbered([np.concatenate(own) for own in held])

    def _draw_counts(
        self, class_sizes: list[int], random: np.random.Generator, name: str
    ) -> np.ndarray:
        """Return how many rows of each class (column) each node (row) gets."""
        counts = np.zeros((self.nodes, len(class_sizes)), np.int64)
        for _ in range(MOST_DRAWS):
            totals = np.zeros(self.nodes, np.int64)
            counts[:] = 0
            for label, size in enumerate(class_sizes):
                # In whole numbers, so that a node with exactly N/K rows counts as full.
                takers = np.flatnonzero(totals * self.nodes < sum(class_sizes))
                shares = random.dirichlet(np.full(len(takers), self.alpha))
                ends = np.floor(np.cumsum(shares) * size).astype(np.int64)
                ends[-1] = size
                counts[takers, label] = np.diff(ends, prepend=0)
                totals += counts[:, label]
            if totals.min() >= self.minimum:
                return counts
        raise InputError(
            f"in {MOST_DRAWS:,} draws of Dirichlet({self.alpha:g}) over {self.nodes} nodes some node always "
            f"had fewer than {self.minimum} of the {sum(class_sizes):,} rows of {name}: raise alpha, or "
            "lower minimum or nodes"
        )
