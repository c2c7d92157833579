"""How the items of messages (models and the nodes that work for them) are divided into shares.

A share is one call of compiled code, and threads run the shares. Where one owner has many models, the items
of a node and an owner form teams: their models pass the node's data together, as one larger product.
"""

from typing import NamedTuple

import numpy as np

SHARES_AIMED_FOR = 4
"""So that two cores have work however small the data are (five, six and nine nodes make three shares);
more nodes or larger data make more shares."""

SMALLEST_SHARE = 4
"""Shares are not made smaller than this for the sake of a few nodes."""

MANY = 16
"""Where there are many more items than nodes (several models, several owners), shares may be this many times
larger: starting a computation takes as long as a small one."""

TEAM = 8
"""How many models of one owner a node computes at once. Teams are never of several owners, so that each gets
what it would get alone, to the last bit."""

MOST_FILLING = 1.25
"""Teams are filled up by repetition. They are not formed where that makes more than this many times the
work."""


class Shares(NamedTuple):
    """Items by their places in a message, share by share."""

    places: list[np.ndarray]
    """The items of each share; what fills it up repeats an item."""
    team: int
    """How many items in a row are of the same node and owner; 1 if there are no teams."""


class Division:
    """Divides items into shares of few sizes, since each size needs its own code.

    Args:
        nodes: The number of nodes.
        at_once: How many nodes may be computed together.
    """

    def __init__(self, nodes: int, at_once: int) -> None:
        self._teams = at_once > 1
        sizes = share_sizes(nodes, at_once)
        # Single items are computed without `vmap`, which may differ in the last bit: few of them stay single.
        factors = (MANY, MANY // 4) if sizes[0] > 1 else (MANY,)
        crowds = [min(factor * sizes[0], at_once) for factor in factors]
        larger = [crowd for crowd in dict.fromkeys(crowds) if crowd > sizes[0]]
        self._sizes = (*larger, *sizes)

    def divide(self, places: np.ndarray, owners: np.ndarray, nodes: np.ndarray) -> Shares:
        """Divide some items.

        Args:
            places: Which of all items.
            owners: The owner of each of all items.
            nodes: The node of each of all items.
        """
        teams = _teams(places, owners, nodes) if self._teams else None
        units = places[:, None] if teams is None else teams
        # Few units get small shares: a large one would mostly repeat one of them.
        enough = (size for size in self._sizes if len(units) > (SHARES_AIMED_FOR - 1) * size)
        size = next(enough, self._sizes[-1])
        shares = [
            units[np.minimum(np.arange(begin, begin + size), len(units) - 1)].ravel()
            for begin in range(0, len(units), size)
        ]
        return Shares(shares, units.shape[1])


def share_sizes(nodes: int, at_once: int) -> tuple[int, ...]:
    """Return the sizes that shares may have for one model and owner, from the largest.

    No share has more nodes than may be computed at once. A federation of the paper's size has one size.

    >>> share_sizes(15, 100), share_sizes(1500, 100), share_sizes(1500, 2)
    ((4,), (100, 25, 6), (2,))
    """
    sizes = [min(-(-nodes // SHARES_AIMED_FOR), at_once)]
    while sizes[-1] >= 4 * SMALLEST_SHARE:
        sizes.append(sizes[-1] // 4)
    return tuple(sizes)


def _teams(places: np.ndarray, owners: np.ndarray, nodes: np.ndarray) -> np.ndarray | None:
    """Return items of the same owner and node, a team per row; None where most teams would be small.

    >>> _teams(np.arange(14), np.zeros(14, int), np.arange(14) % 2).tolist()
    [[0, 2, 4, 6, 8, 10, 12, 12], [1, 3, 5, 7, 9, 11, 13, 13]]
    """
    order = places[np.lexsort((nodes[places], owners[places]))]
    pairs = np.stack([owners[order], nodes[order]])
    starts = np.flatnonzero(np.append(True, (pairs[:, 1:] != pairs[:, :-1]).any(axis=0)))
    counts = np.diff(np.append(starts, len(order)))
    needed = -(-counts // TEAM)
    if needed.sum() * TEAM > MOST_FILLING * len(order):
        return None
    pair = np.repeat(np.arange(len(starts)), needed)
    within = np.arange(len(pair)) - np.repeat(np.cumsum(needed) - needed, needed)
    places_in_pair = np.minimum(within[:, None] * TEAM + np.arange(TEAM), counts[pair, None] - 1)
    return order[starts[pair, None] + places_in_pair]
