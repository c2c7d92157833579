"""The numbers of the leaderboard, made of the rows in `results/`: means, ranks, what bad nodes cost."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fedkin.report.reading import Cell as StudyCell
from reproduction.leaderboard import hospitals, plan
from reproduction.leaderboard.index import read_rows

OURS = "bilevel"
ABSENT = "absent"
CLAIMED_KINDS = ("flipped-labels", "noise-labels")
"""The kinds of bad nodes that Bi-level has to withstand, where at least half of their labels are wrong."""
CLAIMED_SHARE, MOST_WEIGHT, MOST_LOSS = 0.5, 0.02, 0.01


@dataclass(frozen=True)
class Cell:
    """A federation in which all methods are compared."""

    block: str
    study: str
    key: str
    """What rows call it."""
    title: str
    kind: str | None = None
    """What is wrong with its bad nodes."""
    claimed: bool = False
    """Whether Bi-level has to withstand them."""

    @property
    def is_reference(self) -> bool:
        """Whether it is there to compare others with: methods are not ranked in it."""
        return self.kind == ABSENT


def all_cells() -> list[Cell]:
    """Return every cell, in the order of blocks."""
    found = []
    for name in sorted(plan.ORDER):
        if name == hospitals.NAME:
            found.append(Cell(name[0], name, hospitals.CELL, hospitals.CELL))
            continue
        for run in plan.cells_of(name):
            title = StudyCell(run.dataset, run.setting_title, run.target).short_title
            bad = run.bad
            kind = None if bad is None else bad.kind
            claimed = (
                bad is not None and kind in CLAIMED_KINDS and bad.changed_share >= CLAIMED_SHARE
            )
            found.append(Cell(name[0], name, run.cell, title, kind, claimed))
    return found


class Board:
    """All rows, and what follows from them.

    Args:
        rows: The rows of every study by its name; those of `results/` if they are not given.
    """

    def __init__(self, rows: dict[str, pd.DataFrame] | None = None) -> None:
        found = {name: read_rows(name) for name in plan.ORDER} if rows is None else rows
        self.methods = plan.method_names()
        self.cells = all_cells()
        self.seeds = len(plan.SEEDS)
        self._rows: dict[tuple[str, str, str], Any] = {}
        for study, table in found.items():
            groups: Any = table.groupby(["cell", "method"], sort=False)
            for (cell, method), own in groups:
                self._rows[study, str(cell), str(method)] = own.sort_values("seed")

    def of(self, cell: Cell, method: str) -> Any:
        """Return the rows of a method in a cell, one per seed."""
        return self._rows.get((cell.study, cell.key, method), pd.DataFrame())

    def count(self, cell: Cell, method: str) -> int:
        """Return how many seeds of a method are finished in a cell."""
        return len(self.of(cell, method))

    def mean(self, cell: Cell, method: str, column: str = "accuracy") -> float:
        """Return a mean over seeds; NaN if there are none, or if a run diverged."""
        own = self.of(cell, method)
        return float(own[column].mean(skipna=False)) if len(own) else float("nan")

    def diverged(self, cell: Cell, method: str) -> int:
        """Return how many seeds of a method diverged in a cell."""
        own = self.of(cell, method)
        return int(own["accuracy"].isna().sum()) if len(own) else 0

    def deviation(self, cell: Cell, method: str) -> float:
        """Return the standard deviation of the accuracy over seeds; NaN if there are fewer than two."""
        own = self.of(cell, method)
        return float(own["accuracy"].std(ddof=1)) if len(own) > 1 else float("nan")

    def is_complete(self, cell: Cell) -> bool:
        """Whether all methods have all seeds in a cell."""
        return all(self.count(cell, method) == self.seeds for method in self.methods)

    def ranked(self, block: str | None = None) -> list[Cell]:
        """Return the complete cells in which methods are ranked, of one block or of all."""
        return [
            cell
            for cell in self.cells
            if not cell.is_reference and block in (None, cell.block) and self.is_complete(cell)
        ]

    def contested(self, block: str) -> list[Cell]:
        """Return the cells of a block in which methods are to be ranked, complete or not."""
        return [cell for cell in self.cells if cell.block == block and not cell.is_reference]

    def ranks(self, cell: Cell) -> Any:
        """Return the rank of every method in a cell by its mean accuracy; equal ones share a rank.

        Methods of which a run diverged come last.
        """
        means: Any = pd.Series(
            {method: round(self.mean(cell, method), 4) for method in self.methods}
        )
        return means.rank(ascending=False, method="average", na_option="bottom")

    def mean_ranks(self) -> Any:
        """Return mean ranks: a row per method, a column per block with complete cells, and `all`.

        `all` is the mean over blocks, so that a block with many cells counts no more than another.
        """
        blocks = {
            block: pd.concat([self.ranks(cell) for cell in cells], axis=1).mean(axis=1)
            for block in plan.BLOCKS
            if (cells := self.ranked(block))
        }
        table = pd.DataFrame(blocks, index=pd.Index(self.methods))
        return table.assign(all=table.mean(axis=1)).sort_values("all", kind="stable")

    def firsts(self, block: str | None = None) -> Any:
        """Return in how many complete cells each method has the best mean accuracy."""
        counts: Any = pd.Series(0, index=pd.Index(self.methods))
        for cell in self.ranked(block):
            ranks = self.ranks(cell)
            counts[ranks[ranks == ranks.min()].index] += 1
        return counts

    def lead(self, cell: Cell) -> tuple[float, str]:
        """Return how far Bi-level is ahead of the best other method (or behind), and which that is."""
        others = {
            method: self.mean(cell, method)
            for method in self.methods
            if method != OURS and self.count(cell, method) and not self.diverged(cell, method)
        }
        best = max(others, key=lambda method: others[method])
        return self.mean(cell, OURS) - others[best], best

    def paired(self, cells: list[Cell], method: str) -> tuple[float, float]:
        """Return how far Bi-level is ahead of a method on the same cells and seeds, and the standard error.

        Runs that diverged, of either, are left out.
        """
        differences = []
        for cell in cells:
            mine, theirs = (
                self.of(cell, each).set_index("seed")["accuracy"] for each in (OURS, method)
            )
            differences += (mine - theirs).dropna().tolist()
        if len(differences) < 2:
            return float("nan"), float("nan")
        error = np.std(differences, ddof=1) / np.sqrt(len(differences))
        return float(np.mean(differences)), float(error)

    def reference(self, cell: Cell) -> Cell:
        """Return the federation without the bad nodes of a cell."""
        return next(each for each in self.cells if each.study == cell.study and each.is_reference)

    def losses(self, cell: Cell, method: str) -> Any:
        """Return, for each seed, what a method loses against the federation without the bad nodes."""
        own, other = self.of(cell, method), self.of(self.reference(cell), method)
        if not len(own) or not len(other):
            return pd.Series(dtype=float)
        accuracies = (each.set_index("seed")["accuracy"] for each in (other, own))
        without, among = accuracies
        return (without - among).dropna()

    def missing(self) -> list[dict[str, Any]]:
        """Return what is missing: for each study and method, how many runs in how many cells."""
        found = []
        for study in sorted(plan.ORDER):
            cells = [cell for cell in self.cells if cell.study == study]
            for method in self.methods:
                lacking = {cell.title: self.seeds - self.count(cell, method) for cell in cells}
                lacking = {title: runs for title, runs in lacking.items() if runs > 0}
                if lacking:
                    found.append(
                        {
                            "study": study,
                            "method": method,
                            "runs": sum(lacking.values()),
                            "cells": len(lacking),
                            "of": len(cells),
                        }
                    )
        return found

    def costs(self, study: str, method: str) -> dict[str, float]:
        """Return the mean cost of a run of a method in a study."""
        own = [self.of(cell, method) for cell in self.cells if cell.study == study]
        rows: Any = pd.concat(own) if any(len(each) for each in own) else None
        names = ("synchronizations", "bytes", "seconds")
        return {name: np.nan if rows is None else float(rows[name].mean()) for name in names}
