"""Our results against the paper's, cell by cell, and the claims they must support, counted."""

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from fedkin.report.reading import Cell, Record, Run
from fedkin.report.style import method_title
from fedkin.report.tables import summary
from reproduction.page.paper import METHODS
from reproduction.page.paper import SEEDS as PAPER_SEEDS

FAR = 3.0
"""An entry more than this many standard deviations from the paper's needs an investigation."""

CLOSE = 0.02
"""A mean within this of the paper's counts as the same."""

ENOUGH_WEIGHT = 0.95
"""The share of the weight that the similar nodes must end with."""

MAIN_CELLS = tuple(
    Cell(*parts)
    for parts in itertools.product(
        ("fashion-mnist", "mnist", "cifar10-jpeg"),
        ("1", "2", "3", "4"),
        ("minority", "majority"),
    )
)
"""The 24 cells that the counts are about."""

GRAY_CELLS = tuple(cell for cell in MAIN_CELLS if cell.dataset != "cifar10-jpeg")
"""The 16 cells with gray images."""

WEIGHT_CELLS = tuple(cell for cell in MAIN_CELLS if cell.setting != "1")
"""The cells in which the similar nodes must get the weight."""


def pooled_deviation(deviation: float, seeds: int, paper: float) -> float:
    r"""Combine our standard deviation of a run with the paper's, by their degrees of freedom.

    .. math:: s^2 = \frac{(n-1)\,s_\text{ours}^2 + (5-1)\,s_\text{paper}^2}{(n-1) + (5-1)}

    One seed has no deviation; the result is then the paper's.
    """
    ours = 0.0 if seeds < 2 else (seeds - 1) * deviation**2
    others = PAPER_SEEDS - 1
    return math.sqrt((ours + others * paper**2) / (max(seeds, 1) - 1 + others))


def compare(record: Record) -> pd.DataFrame:
    """Return one row per cell and method: ours, the paper's, and how far apart they are.

    `deviations` is the difference in pooled standard deviations of a run; `errors` is the same in
    standard errors of the difference of the two means (Student's t), which are smaller from two seeds on.
    """
    table = summary(record)
    table["method"] = [record.labels[str(label)] for label in table.method]
    rows: Iterable[Any] = table.itertuples()
    pooled = np.array(
        [np.nan if np.isnan(row.paper) else pooled_deviation(*_spread(row)) for row in rows]
    )
    table["pooled"] = pooled
    with np.errstate(divide="ignore", invalid="ignore"):
        table["deviations"] = table.difference / pooled
        table["errors"] = table.deviations / np.sqrt(1 / table.seeds + 1 / PAPER_SEEDS)
    best = table.groupby(["dataset", "setting", "target"]).paper.transform("max")
    table["paper_best"] = table.paper == best
    return table


def _spread(row: Any) -> tuple[float, int, float]:
    return row.deviation, row.seeds, row.paper_spread


def far_entries(table: pd.DataFrame) -> list[Any]:
    """Return the entries that are more than three standard deviations from the paper's."""
    return list(table[table.deviations.abs() > FAR].itertuples())


def entry_key(row: Any) -> str:
    """Name an entry of the table; an investigation is found by this name."""
    return f"{row.dataset} {row.setting} {row.target} {row.method}"


@dataclass(frozen=True)
class Count:
    """How many cells support a claim, of those that can be judged already."""

    claim: str
    needed: int
    expected: int
    """How many cells there are in all."""
    shown: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    """The cells that were judged and do not support it, with the reason."""

    @property
    def judged(self) -> int:
        """How many cells have the runs that it takes to decide."""
        return len(self.shown) + len(self.others)

    @property
    def verdict(self) -> str:
        """`yes`, `no`, or `open` while cells that are missing can still decide."""
        if len(self.shown) >= self.needed:
            return "yes"
        return "open" if len(self.shown) + self.expected - self.judged >= self.needed else "no"


def count_cells(
    claim: str,
    needed: int,
    cells: Iterable[Cell],
    judge: Callable[[Cell], tuple[bool, str] | None],
) -> Count:
    """Count the cells that support a claim; `judge` returns whether one does, and why not; None if open."""
    cells = list(cells)
    count = Count(claim, needed, len(cells))
    for cell in cells:
        judgment = judge(cell)
        if judgment is None:
            continue
        shown, reason = judgment
        if shown:
            count.shown.append(cell.title)
        else:
            count.others.append(f"{cell.title} ({reason})")
    return count


def bilevel_wins(table: pd.DataFrame) -> Count:
    """Count the cells in which Bi-level has the highest mean of the paper's five methods."""

    def judge(cell: Cell) -> tuple[bool, str] | None:
        found = _of_cell(table, cell)
        if set(found) != set(METHODS):
            return None
        best = max(found.values(), key=lambda row: row.accuracy)
        lead = best.accuracy - found["bilevel"].accuracy
        return lead <= 0, f"{method_title(best.method)} is ahead by {lead:.3f}"

    return count_cells("Bi-level is the best of the paper's methods", 22, MAIN_CELLS, judge)


def bilevel_close_to_paper(table: pd.DataFrame) -> Count:
    """Count the cells in which Bi-level's mean is within 0.02 of the paper's."""

    def judge(cell: Cell) -> tuple[bool, str] | None:
        row = _of_cell(table, cell).get("bilevel")
        if row is None or np.isnan(row.difference):
            return None
        return abs(row.difference) <= CLOSE, f"{row.difference:+.3f}".replace("-", "−")

    claim = f"the mean of Bi-level is within {CLOSE} of the paper's"
    return count_cells(claim, 19, MAIN_CELLS, judge)


def fedavg_below_local(table: pd.DataFrame) -> Count:
    """Count the minority cells of settings 2-4 in which FedAvg is below Local-train."""

    def judge(cell: Cell) -> tuple[bool, str] | None:
        found = _of_cell(table, cell)
        if not {"fedavg", "local"} <= set(found):
            return None
        lead = found["fedavg"].accuracy - found["local"].accuracy
        return lead < 0, f"FedAvg is ahead by {lead:.3f}"

    cells = [cell for cell in GRAY_CELLS if cell.setting != "1" and cell.target == "minority"]
    return count_cells(
        "FedAvg is below Local-train (minority, gray images)", len(cells), cells, judge
    )


def similar_nodes_have_the_weight(shares: pd.DataFrame) -> Count:
    """Count the cells of settings 2-4 whose similar nodes end with 95% of the weight, mean over seeds.

    Args:
        shares: One row per run of Bi-level: dataset, setting, target, and the share at the end, `last`.
    """

    def judge(cell: Cell) -> tuple[bool, str] | None:
        rows: Iterable[Any] = shares.itertuples()
        ends = [row.last for row in rows if (row.dataset, row.setting, row.target) == cell]
        if not ends:
            return None
        mean = sum(ends) / len(ends)
        return mean >= ENOUGH_WEIGHT, f"{mean:.1%}"

    claim = f"the similar nodes end with at least {ENOUGH_WEIGHT:.0%} of the weight"
    return count_cells(claim, len(WEIGHT_CELLS), WEIGHT_CELLS, judge)


def weight_shares(runs: Iterable[Run]) -> pd.DataFrame:
    """Return the share of the similar nodes in each run of Bi-level: in its result, and at its end."""
    rows = [
        {
            **run.cell._asdict(),
            "seed": run.seed,
            "best": run.outcome["best_similar_weight"],
            "last": run.outcome["last_similar_weight"],
        }
        for run in runs
        if run.method == "bilevel"
    ]
    return pd.DataFrame(rows, columns=[*Cell._fields, "seed", "best", "last"])


def _of_cell(table: pd.DataFrame, cell: Cell) -> dict[str, Any]:
    """Return the rows of a cell by method."""
    rows: Iterable[Any] = table.itertuples()
    return {row.method: row for row in rows if (row.dataset, row.setting, row.target) == cell}
