r"""Groups in a matrix of who counts on whom: the partition of highest modularity, as far as it is found.

With :math:`A = (W + W^\top)/2`, :math:`m = \sum_{ij} A_{ij}` and :math:`k_i = \sum_j A_{ij}`, a partition has
the modularity :math:`\frac1m \sum_{i, j \text{ in the same group}} (A_{ij} - k_i k_j / m)`: the weight within
groups, beyond what would be there by chance (Newman 2006).
"""

import numpy as np

SMALLEST_GAIN = 1e-12
"""Moves that gain no more than rounding are not made."""

NOTICEABLE = 1e-6
"""Partitions whose modularity differs by less than this are equally good: weights have rounding errors."""

ORDERS = 20
"""How many random orders of the nodes are tried."""


def modularity(weights: np.ndarray, groups: np.ndarray) -> float:
    """Return the modularity of a partition; `groups` has a number for each node.

    >>> round(modularity(np.array([[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]),
    ...                  np.array([0, 0, 1, 1])), 3)
    0.5
    """
    excess, total = _excess(weights)
    same = groups[:, None] == groups[None, :]
    return float(excess[same].sum() / total) if total > 0 else 0.0


def find_groups(weights: np.ndarray) -> list[list[int]]:
    """Find groups of nodes that count on each other, the largest first.

    Nodes move to the group that gains most until none gains; then groups are joined in the same way, and so
    on (Blondel et al. 2008). This depends on the order of the nodes, so the best of several orders counts.
    The same matrix always gives the same groups.

    >>> find_groups(np.array([[0, 1, 0], [1, 0, 0], [0, 0, 1]]))
    [[0, 1], [2]]
    """
    excess, total = _excess(weights)
    best, highest = np.arange(len(excess)), 0.0
    if total > 0:
        best = np.zeros(len(excess), int)  # one group, whose modularity is 0
        draw = np.random.default_rng(0)
        orders = [np.arange(len(excess)), *(draw.permutation(len(excess)) for _ in range(ORDERS))]
        for order in orders:
            groups = np.empty_like(best)
            groups[order] = _join(excess[np.ix_(order, order)])
            value = float(excess[groups[:, None] == groups].sum())
            if value > highest + NOTICEABLE * total:
                best, highest = groups, value
    found = [np.flatnonzero(best == group).tolist() for group in np.unique(best)]
    return sorted(found, key=lambda group: (-len(group), group[0]))


def _join(excess: np.ndarray) -> np.ndarray:
    """Move nodes, then groups of them, until nothing gains."""
    groups = np.arange(len(excess))
    while True:
        count = int(groups.max()) + 1
        members = np.eye(count)[groups]
        moved = _move_until_none_gains(members.T @ excess @ members)
        if len(set(moved.tolist())) == count:
            break
        groups = _numbered(moved[groups])
    return _numbered(_move_until_none_gains(excess, groups))


def _excess(weights: np.ndarray) -> tuple[np.ndarray, float]:
    matrix = np.asarray(weights, np.float64)
    symmetric = (matrix + matrix.T) / 2
    total = float(symmetric.sum())
    degrees = symmetric.sum(axis=1)
    return symmetric - np.outer(degrees, degrees) / (total or 1.0), total


def _move_until_none_gains(excess: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
    """Move one node after the other to the group that gains most by it."""
    count = len(excess)
    groups = np.arange(count) if groups is None else groups.copy()
    scale = SMALLEST_GAIN * max(float(np.abs(excess).sum()), 1.0)
    moving = True
    while moving:
        moving = False
        for node in range(count):
            others = np.arange(count) != node
            links = np.bincount(groups[others], excess[node, others], minlength=count)
            best = int(np.argmax(links))
            if links[best] > links[groups[node]] + scale:
                groups[node] = best
                moving = True
    return groups


def _numbered(groups: np.ndarray) -> np.ndarray:
    return np.unique(groups, return_inverse=True)[1]
