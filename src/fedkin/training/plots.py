"""Plots of results for notebooks, on matplotlib's axes: yours, or new ones.

Reports and figures for print are drawn elsewhere (`report/`); these are to be looked at and changed.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedkin.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOR, SECOND = "#0072B2", "#C27C00"
"""Okabe and Ito's blue and a darker orange, distinct for all common kinds of color blindness."""


def axes_or_new(ax: Any) -> "Axes":
    """Return the axes given, or those of a new figure."""
    if ax is None:
        from matplotlib import pyplot  # half a second to load: only for those who plot

        return pyplot.subplots(layout="constrained")[1]
    if not callable(getattr(ax, "barh", None)):
        raise InputError(
            f"ax must be matplotlib axes, such as plt.gca(), or None for new ones, not {type(ax).__name__}"
        )
    return ax


def plot_bars(
    values: Mapping[str, float],
    ax: Any,
    title: str,
    *,
    intervals: Mapping[str, tuple[float, float]] | None = None,
    marked: Collection[str] = (),
) -> "Axes":
    """Draw a horizontal bar per name, the first at the top, with intervals if they are given."""
    ax = axes_or_new(ax)
    names = list(values)
    places = np.arange(len(names))
    colors = [SECOND if name in marked else COLOR for name in names]
    ax.barh(places, list(values.values()), color=colors)
    if intervals is not None:
        ends = np.array([intervals[name] for name in names], float)
        ax.hlines(places, ends[:, 0], ends[:, 1], color="#333333")
    ax.set_yticks(places, [as_written(name) for name in names])
    ax.invert_yaxis()
    ax.set_xlabel(title)
    return ax


def plot_lines(frame: pd.DataFrame, x: str, lines: Sequence[str], ax: Any, title: str) -> "Axes":
    """Draw columns of a table against another."""
    ax = axes_or_new(ax)
    for name in lines:
        ax.plot(frame[x], frame[name], label=as_written(name.replace("_", " ")), marker=".")
    ax.set_xlabel(x.replace("_", " "))
    ax.set_ylabel(title)
    ax.legend()
    return ax


def plot_matrix(table: pd.DataFrame, ax: Any, rows: str, columns: str) -> "Axes":
    """Draw a matrix of weights in shades, each with its number if there are few."""
    ax = axes_or_new(ax)
    values = table.to_numpy(float)
    ax.imshow(values, cmap="Blues", vmin=0.0)
    ax.set_xticks(range(values.shape[1]), [as_written(name) for name in table.columns], rotation=90)
    ax.set_yticks(range(values.shape[0]), [as_written(name) for name in table.index])
    ax.set_xlabel(columns)
    ax.set_ylabel(rows)
    if values.size <= MOST_NUMBERS:
        middle = np.nanmax(values) / 2
        for (row, column), value in np.ndenumerate(values):
            if not np.isnan(value):
                color = "white" if value > middle else "black"
                ax.text(column, row, f"{value:.2f}", ha="center", va="center", color=color)
    return ax


MOST_NUMBERS = 225
"""A matrix with more entries shows no numbers."""


def as_written(name: Any) -> str:
    """Keep matplotlib from reading dollar signs as mathematics."""
    return str(name).replace("$", r"\$")
