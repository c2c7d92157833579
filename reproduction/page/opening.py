"""What the page says first: how much of the paper's table these runs repeat, and a figure of it."""

import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedkin.report.style import appearance, method_title
from reproduction.page.comparison import CLOSE, FAR
from reproduction.page.paper import METHODS, SEEDS

FIGURE = "paper-and-ours"

CLEAR = 2.0
"""Two of the paper's means that differ by more than this many standard errors are clearly ordered."""


class Facts(NamedTuple):
    """Counts over the entries that have a figure of the paper."""

    cells: int
    """Cells with all five methods."""
    same_winner: int
    bilevel_wins: int
    papers_bilevel_wins: int
    entries: int
    close: int
    """Means within 0.02 of the paper's."""
    far: int
    """Means more than three standard deviations from the paper's."""
    mean_difference: float
    pairs: int
    """Pairs of methods within a cell."""
    same_order: int
    clear_pairs: int
    """Those that the paper's own spread orders clearly."""
    same_clear_order: int


def facts(table: pd.DataFrame) -> Facts:
    """Count what the opening says; see `comparison.compare` for the table."""
    known = table[table.paper.notna()]
    counts = dict.fromkeys(Facts._fields, 0)
    counts |= {
        "entries": len(known),
        "close": int((known.difference.abs() <= CLOSE).sum()),
        "far": int((known.deviations.abs() > FAR).sum()),
    }
    for _, of_cell in known.groupby(["dataset", "setting", "target"], sort=False):
        rows: Iterable[Any] = of_cell.itertuples()
        found = {row.method: row for row in rows}
        if set(found) != set(METHODS):
            continue
        ours = max(found.values(), key=lambda row: row.accuracy).method
        papers = max(found.values(), key=lambda row: row.paper).method
        counts["cells"] += 1
        counts["same_winner"] += ours == papers
        counts["bilevel_wins"] += ours == "bilevel"
        counts["papers_bilevel_wins"] += papers == "bilevel"
        for one, other in itertools.combinations(found.values(), 2):
            lead = one.paper - other.paper
            same = lead * (one.accuracy - other.accuracy) > 0
            error = np.hypot(one.paper_spread, other.paper_spread) / np.sqrt(SEEDS)
            counts["pairs"] += 1
            counts["same_order"] += same
            counts["clear_pairs"] += abs(lead) > CLEAR * error
            counts["same_clear_order"] += same and abs(lead) > CLEAR * error
    difference = float(known.difference.abs().mean()) if len(known) else np.nan
    return Facts(**{**counts, "mean_difference": round(difference, 9)})


def draw(table: pd.DataFrame) -> Figure:
    """Draw every mean of ours against the paper's; there must be one."""
    known = table[table.paper.notna()]
    figure = Figure(figsize=(6.2, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    values = [*known.paper, *known.accuracy]
    low, high = min(values) - 0.02, max(values) + 0.02
    axes.fill_between(
        [low, high], [low - CLOSE, high - CLOSE], [low + CLOSE, high + CLOSE], color="#EDEDED", lw=0
    )
    axes.plot([low, high], [low, high], color="#9A9A9A", lw=0.8)
    for method in METHODS:
        of_method: pd.DataFrame = known.loc[known.method == method]
        look = appearance(method)
        axes.plot(
            of_method.paper,
            of_method.accuracy,
            look.marker,
            color=look.color,
            ms=5,
            mfc=look.color if method == "bilevel" else "none",
            label=method_title(method),
        )
    axes.set(
        xlim=(low, high),
        ylim=(low, high),
        aspect="equal",
        xlabel="test accuracy, the paper",
        ylabel="test accuracy, ours",
        title=f"{len(known)} means of the paper's table; the band is ±{CLOSE}",
    )
    axes.legend(loc="upper left")
    return figure
