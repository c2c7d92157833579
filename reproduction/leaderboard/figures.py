"""The figures of the leaderboard: ranks, Bi-level's lead in every cell, and what bad nodes cost."""

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedkin.errors import InputError
from fedkin.report.style import appearance, method_title
from reproduction.leaderboard.board import OURS, Board
from reproduction.leaderboard.page import COMPARED_UNDER_ATTACK

MARKERS = {"a": "o", "b": "s", "c": "^", "d": "D", "e": "v"}
GRAY = "#999999"


def write_figures(board: Board, directory: Path) -> list[Path]:
    """Write the figures that there are rows for."""
    drawn = {"ranks.svg": _ranks(board), "leads.svg": _leads(board), "bad-nodes.svg": _bad(board)}
    written = []
    for name, figure in drawn.items():
        if figure is None:
            continue
        path = directory / "figures" / name
        try:
            path.parent.mkdir(exist_ok=True)
            with mpl.rc_context({"svg.hashsalt": "fedkin", "svg.fonttype": "none"}):
                figure.savefig(path, facecolor="white", metadata={"Date": None})
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror}") from error
        written.append(path)
    return written


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _ranks(board: Board) -> Figure | None:
    """Draw every method's mean rank in each block, and over all, which orders them."""
    ranks = board.mean_ranks()
    if set(ranks) == {"all"}:
        return None
    figure = _figure(8, 0.3 * len(ranks) + 1.2)
    axes = figure.add_subplot()
    places = np.arange(len(ranks))
    for block, marker in MARKERS.items():
        if block in ranks:
            axes.plot(
                ranks[block], places, marker, color=GRAY, markersize=5, label=f"block {block}"
            )
    colors = [appearance(str(method)).color for method in ranks.index]
    axes.scatter(ranks["all"], places, c=colors, s=70, zorder=3, label="mean over blocks")
    axes.set_yticks(places, [method_title(str(method)) for method in ranks.index])
    axes.invert_yaxis()
    axes.set_xlabel("mean rank (1 is best)")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(loc="best", fontsize=8)
    return figure


def _leads(board: Board) -> Figure | None:
    """Draw by how much Bi-level is ahead of the best other method in every cell, or behind it."""
    cells = board.ranked()
    if not cells:
        return None
    leads = [board.lead(cell) for cell in cells]
    figure = _figure(9, 0.3 * len(cells) + 1.2)
    axes = figure.add_subplot()
    places = np.arange(len(cells))
    values = np.array([lead for lead, _ in leads])
    ours = appearance(OURS).color
    axes.barh(places, values, color=[ours if value >= 0 else GRAY for value in values])
    labels = [
        f"{cell.block}: {cell.title} (best other: {method_title(other)})"
        for cell, (_, other) in zip(cells, leads, strict=True)
    ]
    axes.set_yticks(places, labels, fontsize=8)
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel("accuracy of Bi-level less that of the best other method")
    axes.grid(axis="x", alpha=0.3)
    return figure


def _bad(board: Board) -> Figure | None:
    """Draw what methods lose to bad nodes, a panel per data set."""
    studies = sorted({cell.study for cell in board.cells if cell.kind is not None})
    panels = {
        study: [
            cell
            for cell in board.cells
            if cell.study == study
            and not cell.is_reference
            and any(len(board.losses(cell, method)) for method in COMPARED_UNDER_ATTACK)
        ]
        for study in studies
    }
    panels = {study: cells for study, cells in panels.items() if cells}
    if not panels:
        return None
    figure = _figure(10, 3.6 * len(panels))
    for number, (study, cells) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(len(panels), 1, number)
        width = 0.8 / len(COMPARED_UNDER_ATTACK)
        for place, method in enumerate(COMPARED_UNDER_ATTACK):
            losses = [board.losses(cell, method).mean() for cell in cells]
            at = np.arange(len(cells)) + (place - len(COMPARED_UNDER_ATTACK) / 2 + 0.5) * width
            color = appearance(method).color
            axes.bar(at, losses, width, color=color, label=method_title(method))
        names = [cell.title.split(" nodes with ")[-1].replace(" (", "\n(") for cell in cells]
        axes.set_xticks(np.arange(len(cells)), names, fontsize=8)
        axes.set_title(study.removeprefix("e-"), fontsize=10)
        axes.set_ylabel("accuracy lost")
        axes.axhline(0, color="black", linewidth=0.8)
        axes.grid(axis="y", alpha=0.3)
        if number == 1:
            axes.legend(fontsize=8, ncols=3)
    return figure
