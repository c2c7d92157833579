"""The figures of `rounds.md`: accuracy and weight against what was communicated, one panel per cell."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from fedkin.report.figures import draw_grid
from fedkin.report.reading import Cell, Record, Run
from reproduction.page import rounds
from reproduction.page.collected import Reproduction
from reproduction.page.comparison import ENOUGH_WEIGHT, GRAY_CELLS
from reproduction.page.condensed import REACHED, similar_shares
from reproduction.page.rounds import CG, FEDAVG, ORACLE, PAPERS, SINGLE, Runs

MOST_POINTS = 45
"""The points of a curve, evenly spaced on the logarithmic axis."""


class Look(NamedTuple):
    """How a curve is drawn."""

    color: str
    dashes: tuple[float, ...] = ()
    width: float = 1.7


LOOKS = {
    SINGLE: Look("#0072B2", width=2.3),
    CG: Look("#B85000", (6, 2)),
    PAPERS: Look("#1F1F1F", (2, 1.2)),
    FEDAVG: Look("#A8557F", (8, 2, 2, 2)),
    ORACLE: Look("#00805D", (1, 1.2)),
}
"""Okabe and Ito's colors, darkened as in the other figures; dashes tell the curves apart in gray print."""

COSTS = {
    "synchronizations": "synchronizations",
    "bytes": "sent up and down, all nodes, MB",
}
"""What is on the horizontal axes, with its title."""

MARK = f"{REACHED:.0%} of the final accuracy of the paper's solver"


class Curve(NamedTuple):
    """A quantity against a cost: the mean of the seeds, the lowest and the highest."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def draw_all(reproduction: Reproduction) -> Iterator[tuple[str, Figure]]:
    """Yield the figures with their names: one per target; none if nothing is collected."""
    runs = rounds.runs_by_role(reproduction)
    for name, target in names(runs):
        cells = [cell for cell in GRAY_CELLS if cell.target == target]
        quantity, cost = name.removeprefix("rounds-").split("-")[:2]
        panel = partial(_panel, runs=runs, quantity=quantity, cost=cost)
        record = Record(reproduction.directory, "study", [])
        yield name, draw_grid(record, cells, panel)


def names(runs: Runs) -> list[tuple[str, str]]:
    """Return the name and the target of every figure."""
    targets = dict.fromkeys(cell.target for cell in GRAY_CELLS)
    kinds = ("accuracy-synchronizations", "accuracy-bytes", "weight-synchronizations")
    return [(f"rounds-{kind}-{target}", target) for kind in kinds for target in targets if runs]


def over_seeds(runs: Sequence[Run], quantity: str, cost: str) -> Curve:
    """Average runs at costs that are evenly spaced on a logarithmic axis.

    Between evaluations a run is interpolated; after its last it keeps its value.
    """
    costs, values = [], []
    for run in runs:
        history = run.history
        megabytes = (history.bytes_up + history.bytes_down) / 1e6
        costs.append((megabytes if cost == "bytes" else history.synchronizations).to_numpy(float))
        shares = similar_shares(run) if quantity == "weight" else history.test_accuracy
        values.append(np.asarray(shares, float))
    first, last = max(each[0] for each in costs), max(each[-1] for each in costs)
    x = np.geomspace(first, last, MOST_POINTS) if last > first else np.array([first])
    found = np.stack([np.interp(x, *each) for each in zip(costs, values, strict=True)])
    return Curve(x, found.mean(axis=0), found.min(axis=0), found.max(axis=0))


def _panel(axes: Any, record: Record, cell: Cell, *, runs: Runs, quantity: str, cost: str) -> list:
    handles = []
    for role, look in LOOKS.items():
        own = list(runs.get((cell, role), {}).values())
        # The oracle has nobody to weigh.
        if not own or (quantity == "weight" and role == ORACLE):
            continue
        curve = over_seeds(own, quantity, cost)
        style = (0, look.dashes) if look.dashes else "-"
        (line,) = axes.plot(
            curve.x,
            curve.mean,
            color=look.color,
            linestyle=style,
            linewidth=look.width,
            marker="o" if len(curve.x) == 1 else None,
            label=rounds.TITLES[role],
        )
        axes.fill_between(curve.x, curve.low, curve.high, color=look.color, alpha=0.15, linewidth=0)
        handles.append(line)
    mark, label = ENOUGH_WEIGHT, f"{ENOUGH_WEIGHT:.0%} of the weight"
    if quantity == "accuracy":
        papers = runs.get((cell, PAPERS), {}).values()
        finals = [rounds.final_accuracy(run) for run in papers]
        mark, label = (REACHED * float(np.mean(finals)), MARK) if finals else (None, "")
    if mark is not None:
        handles.append(axes.axhline(mark, color="#8A8A8A", linewidth=0.9, label=label))
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(base=10))
    axes.xaxis.set_minor_locator(LogLocator(base=10, subs=(2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(COSTS[cost])
    axes.set_ylabel("test accuracy" if quantity == "accuracy" else "weight on similar nodes")
    return handles
