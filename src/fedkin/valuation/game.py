r"""Leave-one-out and Shapley values of a game: of players, and what every group of them is worth.

The Shapley value of player k is the mean, over all orders in which players may come, of what k adds to those
who came before:

.. math:: \varphi_k = \sum_{S \not\ni k} \frac{|S|!\,(K-|S|-1)!}{K!}\,[v(S \cup k) - v(S)].

The worth of a group is a number for each of the owner's rows, and so are all values; their means are the
values of the mean game, and their spread over rows tells how sure these are.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

Group = frozenset[int]
"""Some of the players, by their numbers."""

BLOCKS = 4
"""A chain of growing groups is trained in this many parts: after each it may end early."""

SHRINKAGE = 0.5
"""How far the variance of a player's value is drawn toward the mean over players: groups whose worth is far
from all others' are rare, and a player whose orders had none of them would seem surer than it is."""


class Game:
    """What every group of players is worth; each group is asked for once.

    Args:
        players: The number of players.
        nobody: The worth of the empty group, row by row.
        evaluate: Returns the worth of some groups, a row of numbers each.
    """

    def __init__(
        self,
        players: int,
        nobody: np.ndarray,
        evaluate: Callable[[Sequence[Group]], Iterable[np.ndarray]],
    ) -> None:
        self.players = players
        self.everyone: Group = frozenset(range(players))
        self._evaluate = evaluate
        self._known: dict[Group, np.ndarray] = {frozenset(): np.asarray(nobody, np.float64)}

    @property
    def groups(self) -> int:
        """How many groups were evaluated."""
        return len(self._known) - 1

    def ask(self, groups: Iterable[Group]) -> None:
        """Evaluate those of some groups that are not known yet, all at once."""
        new = [group for group in dict.fromkeys(groups) if group not in self._known]
        if new:
            found = [np.asarray(worth, np.float64) for worth in self._evaluate(new)]
            self._known |= dict(zip(new, found, strict=True))

    def worth(self, group: Iterable[int]) -> np.ndarray:
        """Return the worth of a group, row by row."""
        chosen = frozenset(group)
        self.ask([chosen])
        return self._known[chosen]


def leave_one_out(game: Game) -> np.ndarray:
    """Return what everyone together loses without each player: (players, rows).

    >>> weights = np.array([1.0, 2.0])
    >>> game = Game(2, np.zeros(1), lambda groups: [weights[[*group]].sum(keepdims=True) for group in groups])
    >>> leave_one_out(game).ravel().tolist()
    [1.0, 2.0]
    """
    without = [game.everyone - {player} for player in range(game.players)]
    game.ask([game.everyone, *without])
    return np.stack([game.worth(game.everyone) - game.worth(group) for group in without])


def exact_shapley(game: Game) -> np.ndarray:
    """Return the Shapley values from all groups: (players, rows).

    >>> pair = lambda groups: [np.array([float(len(group) == 2)]) for group in groups]
    >>> exact_shapley(Game(2, np.zeros(1), pair)).ravel().tolist()
    [0.5, 0.5]
    """
    players = range(game.players)
    every = [frozenset(group) for size in (0, *players) for group in combinations(players, size)]
    every = list(dict.fromkeys([*every, game.everyone]))
    game.ask(every)
    values = np.zeros((game.players, len(game.worth(()))))
    total = math.factorial(game.players)
    for group in every:
        size, worth = len(group), game.worth(group)
        joining = math.factorial(max(size - 1, 0)) * math.factorial(game.players - size) / total
        staying = math.factorial(size) * math.factorial(max(game.players - size - 1, 0)) / total
        member = np.isin(np.arange(game.players), list(group))
        values[member] += joining * worth
        values[~member] -= staying * worth
    return values


def row_error(values: np.ndarray) -> np.ndarray:
    """Return the standard error of the mean over rows, which come last."""
    return values.std(axis=-1, ddof=1) / np.sqrt(values.shape[-1])


class Sampled(NamedTuple):
    """Shapley values from some orders of the players."""

    values: np.ndarray
    """(players, rows)."""
    error: np.ndarray
    """The standard error of each player's mean value, over the draw of orders (see `SHRINKAGE`)."""
    ended_early: int
    """How many chains were not followed to their end."""


def sampled_shapley(
    game: Game, orders: int, random: np.random.Generator, *, truncation: float = 0.0
) -> Sampled:
    r"""Estimate Shapley values from random orders of the players (Ghorbani and Zou 2019, Algorithm 1).

    Orders come in pairs, one the reverse of the other: who comes early in one comes late in the other, so the
    errors of a pair partly cancel. What a player adds as the first and as the last is known exactly, so that
    orders only have to tell what it adds in between. Values are then shifted, all alike, so that they sum to
    the worth of everyone. Pairs are independent; their spread gives the standard error.

    A chain ends when the worth of its last two groups is within a tolerance of that of everyone. The
    players who are left share what is left equally (the original counts nothing for them).

    Args:
        game: The game.
        orders: How many orders to draw: an even number, at least four.
        random: Where they come from.
        truncation: How little is left to gain where a chain ends, as a share of the standard error, over
            the owner's rows, of what everyone gains; 0 to follow each to its end.
    """
    drawn = [random.permutation(game.players) for _ in range(orders // 2)]
    chains = [_Chain(game, order) for pair in drawn for order in (pair, pair[::-1])]
    length = max(1, math.ceil(game.players / (BLOCKS if truncation > 0 else 1)))
    ends = [frozenset([player]) for player in range(game.players)]
    game.ask([game.everyone, *ends, *(game.everyone - end for end in ends)])
    everything = game.worth(game.everyone) - game.worth(())
    tolerance = truncation * float(row_error(everything)) if truncation > 0 else 0.0
    first = np.stack([game.worth([player]) - game.worth(()) for player in range(game.players)])
    last = leave_one_out(game)
    while going := [chain for chain in chains if not chain.ended]:
        game.ask([group for chain in going for group in chain.following(length)])
        for chain in going:
            chain.advance(length, tolerance)
    gains = np.stack([chain.gains for chain in chains])
    between = np.ones((orders, game.players))
    for chain, own in zip(chains, between, strict=True):
        own[[chain.first, chain.last]] = 0
    often = between.sum(axis=0)
    total = np.einsum("op,opr->pr", between, gains)
    # Of a player who was never in between, the two ends are all that is known.
    middle = np.where(often[:, None] > 0, total / np.maximum(often, 1)[:, None], (first + last) / 2)
    values = (first + last + (game.players - 2) * middle) / game.players
    values += (everything - values.sum(axis=0)) / game.players
    # How much each pair has moved the values, to first order.
    away = between * (gains - middle).mean(axis=2) * orders / np.maximum(often, 1)
    moves = (game.players - 2) / game.players * away.reshape(-1, 2, game.players).mean(axis=1)
    moves -= moves.mean(axis=1, keepdims=True)
    variance = np.sum(moves**2, axis=0) / (len(moves) * (len(moves) - 1))
    variance = (1 - SHRINKAGE) * variance + SHRINKAGE * variance.mean()
    return Sampled(values, np.sqrt(variance), sum(chain.cut for chain in chains))


class _Chain:
    """The groups that grow by one player at a time, in an order."""

    def __init__(self, game: Game, order: np.ndarray) -> None:
        self._game = game
        self._order = [int(player) for player in order]
        self._done = 0
        self.first, self.last = self._order[0], self._order[-1]
        self.cut = False
        self.gains = np.zeros((game.players, len(game.worth(()))))

    @property
    def ended(self) -> bool:
        """Whether every player has a gain."""
        return self._done == len(self._order)

    def following(self, count: int) -> list[Group]:
        """Return the next groups."""
        sizes = range(self._done + 1, min(self._done + count, len(self._order)) + 1)
        return [frozenset(self._order[:size]) for size in sizes]

    def advance(self, count: int, tolerance: float) -> None:
        """Take the gains of the next players, and end early where little is left."""
        worth = self._game.worth
        for group in self.following(count):
            before = worth(self._order[: self._done])
            self.gains[self._order[self._done]] = worth(group) - before
            self._done += 1
            left = worth(self._game.everyone) - worth(group)
            near = abs(left.mean()) <= tolerance
            was_near = abs((worth(self._game.everyone) - before).mean()) <= tolerance
            if near and was_near and not self.ended:
                others = self._order[self._done :]
                self.gains[others] = left / len(others)
                self._done, self.cut = len(self._order), True
                return
