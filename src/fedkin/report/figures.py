"""Figures for print and slides: a grid of settings × data sets, as in the paper."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fedkin.errors import InputError
from fedkin.registry import Registry
from fedkin.report import curves
from fedkin.report.reading import Cell, Record
from fedkin.report.style import DISSIMILAR, GROUP_COLORS, SIMILAR, UNGROUPED, group

FORMATS = ("svg", "png", "pdf")
STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "axes.formatter.useoffset": False,
    "svg.hashsalt": "fedkin",
    "pdf.fonttype": 42,
}
HATCH = {SIMILAR: "", DISSIMILAR: "////", UNGROUPED: ""}
GROUP_DASHES = {SIMILAR: (), DISSIMILAR: (4, 1.5), UNGROUPED: ()}
DrawPanel = Callable[[Any, Record, Cell], list[Any]]
"""Draws a cell into axes and returns handles for the legend."""


def plan(record: Record) -> Iterator[tuple[str, Callable[[], Figure]]]:
    """Yield the name of every figure with the function that draws it.

    There is one figure per target, and for weights one per method that learned them.
    """
    targets = record.distinct("target", record.cells)
    score = curves.score_column(record).removeprefix("test_").replace("_", "-")
    several = len(curves.all_learners(record)) > 1
    for target in targets:
        cells = [cell for cell in record.cells if cell.target == target]
        ending = f"-{target}" if len(targets) > 1 else ""
        for cost in curves.shown_costs(record):
            name = f"{score}-{cost.replace('_', '-')}{ending}"
            yield name, partial(draw_scores, record, cells, cost)
        for label in curves.all_learners(record):
            learned = [cell for cell in cells if label in curves.learners(record, cell)]
            if not learned:
                continue
            title = label if several else ""
            name = f"-{_file_name(label)}{ending}" if several else ending
            for kind, panel in (("iterations", _paths_panel), ("final", _bars_panel)):
                of_label = partial(panel, label=label)
                draw = partial(draw_grid, record, learned, of_label, from_zero="y", title=title)
                yield f"weights-{kind}{name}", draw


def _file_name(label: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-")


FIGURES: Registry[Callable[[Record], Figure | None]] = Registry("figure", "fedkin.figures")
"""Further figures that users have added. They take a record, and return None if they do not suit it."""


def register_figure(name: str, draw: Callable[[Record], Figure | None]) -> None:
    """Let `fedkin report` draw a figure of your own.

    Other processes do not see it: for them, declare an entry point in the group `fedkin.figures`.
    """
    FIGURES.add(name, draw)


def draw_all(record: Record) -> Iterator[tuple[str, Figure]]:
    """Yield every figure of a record with its name."""
    for name, draw in plan(record):
        yield name, draw()
    for name in FIGURES.names():
        figure = FIGURES.get(name)(record)
        if figure is not None:
            yield name, figure


def draw_scores(record: Record, cells: list[Cell], cost: str) -> Figure:
    """Draw the score against a cost: one panel per cell, one line per method."""
    return draw_grid(record, cells, partial(_scores_panel, cost=cost), from_zero="x")


def save_figures(record: Record, directory: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write every figure, by default as SVG, PNG and PDF; equal records give equal bytes."""
    return write_figures(draw_all(record), directory, formats)


def write_figures(
    drawn: Iterable[tuple[str, Figure]], directory: Path, formats: Sequence[str] = FORMATS
) -> list[Path]:
    """Write figures under their names; return the paths."""
    written = []
    for name, figure in drawn:
        for ending in formats:
            path = directory / f"{name}.{ending}"
            dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": None}[ending]
            try:
                with mpl.rc_context(STYLE):
                    figure.savefig(path, dpi=200, facecolor="white", metadata=dates)
            except OSError as error:
                raise InputError(f"cannot write {path}: {error.strerror}") from error
            written.append(path)
    return written


def draw_grid(
    record: Record, cells: list[Cell], panel: DrawPanel, *, from_zero: str = "", title: str = ""
) -> Figure:
    """Draw one row of panels per data set and one column per setting.

    The axes named in `from_zero` begin at zero. The `title`, if any, is above the legend.
    """
    datasets, settings = record.distinct("dataset", cells), record.distinct("setting", cells)
    places = {(cell.dataset, cell.setting): cell for cell in cells}
    shape = len(datasets), len(settings)
    with mpl.rc_context(STYLE):
        figure = Figure()
        FigureCanvasAgg(figure)
        grid = figure.subplots(*shape, squeeze=False, sharey="row", sharex="col")
        handles: dict[str, Any] = {}
        for row, dataset in enumerate(datasets):
            for column, setting in enumerate(settings):
                axes = grid[row, column]
                cell = places.get((dataset, setting))
                if cell is None:
                    axes.set_visible(False)
                    continue
                handles |= {each.get_label(): each for each in panel(axes, record, cell)}
                axes.set_title(_plain(cell.short_title), loc="left")
        _label_outer(grid)
        # Panels share axes: a limit set before all of them are drawn would cut the others off.
        for axes in grid.flat:
            if "x" in from_zero:
                axes.set_xlim(left=0)
            if "y" in from_zero:
                axes.set_ylim(bottom=0)
        _arrange(figure, grid, list(handles.values()), _plain(title))
    return figure


def _label_outer(grid: np.ndarray) -> None:
    """Keep tick labels and titles only at the lowest panel of a column and the first of a row.

    Matplotlib's own `label_outer` follows the grid: if the study has no cell in the last row or first
    column, no labels would be left.
    """
    for column in grid.T:
        *upper, lowest = [axes for axes in column if axes.get_visible()]
        lowest.tick_params(axis="x", labelbottom=True)
        for axes in upper:
            axes.tick_params(axis="x", labelbottom=False)
            axes.set_xlabel("")
    for row in grid:
        first, *others = [axes for axes in row if axes.get_visible()]
        first.tick_params(axis="y", labelleft=True)
        for axes in others:
            axes.tick_params(axis="y", labelleft=False)
            axes.set_ylabel("")


def _arrange(figure: Figure, grid: np.ndarray, handles: list[Any], title: str) -> None:
    """Place panels, margins and the legend, in inches.

    Matplotlib's own layout engines would take several seconds for a study's grid.
    """
    rows, columns = grid.shape
    panel_width, panel_height = (4.8, 2.9) if grid.shape == (1, 1) else (2.45, 1.65)
    right, gap, gap_height = 0.15, 0.18, 0.42

    def place(left: float, above: float, below: float) -> float:
        width = left + right + columns * panel_width + (columns - 1) * gap
        height = above + below + rows * panel_height + (rows - 1) * gap_height
        figure.set_size_inches(width, height)
        figure.subplots_adjust(
            left=left / width,
            right=1 - right / width,
            bottom=below / height,
            top=1 - above / height,
            wspace=gap / panel_width,
            hspace=gap_height / panel_height,
        )
        return width

    # First with any margins, to measure the labels left of and below the panels; then with room for them.
    place(1.0, 1.0, 1.0)
    left, below = _room(grid[:, 0]), _room(grid[-1], below=True)
    width = place(left, 1.0, below)
    longest = max((len(handle.get_label()) for handle in handles), default=0)
    legend_columns = max(1, min(len(handles), int(width / (0.42 + 0.06 * longest))))
    above = 0.38 + 0.18 * (-(-len(handles) // legend_columns) + bool(title))
    place(left, above, below)
    figure.legend(
        handles=handles,
        title=title or None,
        loc="upper center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=legend_columns,
        handlelength=2.4,
        columnspacing=1.2,
        fontsize=8.5,
    )


def _room(edge: np.ndarray, *, below: bool = False) -> float:
    """Return the room that tick labels and titles of panels need, in inches."""
    needed = [0.3]
    for axes in edge:
        if axes.get_visible():
            canvas = axes.figure.canvas
            box = axes.get_window_extent()
            axis = axes.xaxis if below else axes.yaxis
            written = axis.get_tightbbox(canvas.get_renderer())
            outside = box.y0 - written.y0 if below else box.x0 - written.x0
            needed.append(outside / axes.figure.dpi + 0.06)
    return max(needed)


def _plain(text: str) -> str:
    """Keep matplotlib from reading dollar signs as mathematics."""
    return text.replace("$", r"\$")


def _scores_panel(axes: Any, record: Record, cell: Cell, cost: str) -> list[Any]:
    title, unit = curves.COSTS[cost]
    handles = []
    found = curves.score_curves(record, cell, cost)
    for label, curve in found.items():
        appearance = record.appearance(label)
        band = curve.band
        dashes = (0, appearance.dashes) if appearance.dashes else "-"
        name = _plain(label)
        if curve.level:
            line = axes.axhline(
                float(band.mean),
                color=appearance.color,
                linestyle=dashes,
                linewidth=1.4,
                label=name,
            )
            if band.low is not None and band.high is not None:
                axes.axhspan(
                    float(band.low),
                    float(band.high),
                    color=appearance.color,
                    alpha=0.10,
                    linewidth=0,
                )
        else:
            x = curve.x / unit
            (line,) = axes.plot(
                x,
                band.mean,
                color=appearance.color,
                linestyle=dashes,
                linewidth=1.7,
                marker=appearance.marker,
                markersize=4,
                markevery=_spread(len(x), appearance.place),
                label=name,
            )
            if band.low is not None and band.high is not None:
                axes.fill_between(
                    x, band.low, band.high, color=appearance.color, alpha=0.18, linewidth=0
                )
        handles.append(line)
    axes.set_xlabel(title)
    axes.set_ylabel(curves.SCORES[curves.score_column(record)])
    return handles


def _spread(points: int, number: int) -> list[int]:
    """Put a few markers on a line, at different places on each line, so that all are visible."""
    if points <= 6:
        return list(range(points))
    return sorted({(number % 6 + 1 + 6 * turn) * (points - 1) // 30 for turn in range(5)})


def _paths_panel(axes: Any, record: Record, cell: Cell, label: str) -> list[Any]:
    paths = curves.weight_paths(record, cell, label)
    for weights, similar in zip(paths.weights, paths.similar, strict=True):
        name = group(similar)
        dashes = (0, GROUP_DASHES[name]) if GROUP_DASHES[name] else "-"
        axes.plot(
            paths.steps,
            weights,
            color=GROUP_COLORS[name],
            linestyle=dashes,
            linewidth=1.2,
            marker="." if len(paths.steps) == 1 else None,
        )
    equal = axes.axhline(
        1 / len(paths.names), color="#3A3A3A", linestyle=":", linewidth=1, label="equal weights"
    )
    axes.set_xlabel("outer iteration")
    axes.set_ylabel("weight of a node")
    axes.xaxis.get_major_locator().set_params(integer=True)
    return [*_group_handles(paths.similar, lines=True), equal]


def _bars_panel(axes: Any, record: Record, cell: Cell, label: str) -> list[Any]:
    final = curves.final_weights(record, cell, label)
    groups = [group(similar) for similar in final.similar]
    places = np.arange(len(final.names))
    for place, weight, name in zip(places, final.mean, groups, strict=True):
        axes.bar(
            place,
            weight,
            color=GROUP_COLORS[name],
            hatch=HATCH[name],
            edgecolor="white",
            linewidth=0,
            width=0.78,
        )
    if final.deviation is not None:
        low = np.minimum(final.deviation, final.mean)
        axes.errorbar(
            places,
            final.mean,
            yerr=[low, final.deviation],
            linestyle="",
            color="#3A3A3A",
            linewidth=0.9,
            capsize=1.5,
        )
    equal = axes.axhline(
        1 / len(places), color="#3A3A3A", linestyle=":", linewidth=1, label="equal weights"
    )
    names = [_plain(name if len(name) <= 18 else name[:17] + "…") for name in final.names]
    axes.set_xticks(places, names, rotation=90, fontsize=7)
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")
    axes.set_ylabel("weight of a node")
    return [*_group_handles(final.similar, lines=False), equal]


def _group_handles(similar: list[bool | None], *, lines: bool) -> list[Any]:
    names = [name for name in (SIMILAR, DISSIMILAR) if name in {group(each) for each in similar}]
    if lines:
        return [
            Line2D(
                [],
                [],
                color=GROUP_COLORS[name],
                linestyle=(0, GROUP_DASHES[name]) if GROUP_DASHES[name] else "-",
                label=f"{name} to the owner",
            )
            for name in names
        ]
    return [
        Patch(
            facecolor=GROUP_COLORS[name],
            hatch=HATCH[name],
            edgecolor="white",
            label=f"{name} to the owner",
        )
        for name in names
    ]
