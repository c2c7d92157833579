"""A picture of a partition: what share of each node's points has which label, and how many it has."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedkin.data.partitions import NodeSplit
from fedkin.report.federation_figure import (
    HEAT_MAP,
    MOST_SAMPLE_COLUMNS,
    SAMPLES_PER_CLASS,
    Example,
    draw_samples,
    mark_row,
    name_classes,
)
from fedkin.report.style import DISSIMILAR, GROUP_COLORS, SIMILAR
from fedkin.types import Points

MOST_ROOMY_NODES = 40
"""With more nodes, rows are lower and names smaller."""
MOST_NAMED_NODES = 130
"""With more nodes, only some of them have their names written."""
MOST_EXAMPLES = 4
"""Of how many groups a node's images are shown."""

LONGEST_LARGE_TITLE = 65

NOTHING = "#F0F0F0"
"""The color of a class that a node lacks."""

PARTS = {"train": "#4D4D4D", "validation": "#8C8C8C", "test": "#C8C8C8"}
"""Grays, because colors mean groups and shares here."""


def draw_partition(nodes: Sequence[NodeSplit], classes: Sequence[str], title: str) -> Figure:
    """Draw nodes × labels as a heat map beside the nodes' sizes, above images of groups that differ."""
    examples = _examples(nodes)
    moved = {
        label
        for node in nodes
        if node.permutation is not None
        for label, to in enumerate(node.permutation)
        if to != label
    }
    names = [f"{name}{' *' if label in moved else ''}" for label, name in enumerate(classes)]
    row = 0.24 if len(nodes) <= MOST_ROOMY_NODES else 0.125
    heat_height = row * len(nodes) + 2.0
    if not examples:
        figure = Figure(figsize=(11.0, heat_height), layout="constrained")
        FigureCanvasAgg(figure)
        _draw_heat_map(figure, nodes, names, title)
        return figure
    shown = _shown_labels(len(classes), moved)
    cell = 8.4 / max(len(shown), 8)
    strip_height = cell * SAMPLES_PER_CLASS * len(examples) + 1.6
    figure = Figure(figsize=(11.0, heat_height + strip_height), layout="constrained")
    FigureCanvasAgg(figure)
    heights = [heat_height, strip_height]
    parts = figure.subfigures(2, 1, squeeze=False, height_ratios=heights, hspace=0.03)
    _draw_heat_map(parts[0, 0], nodes, names, title)
    note = "; labels with * mean something else in some groups" if moved else ""
    draw_samples(
        parts[1, 0],
        [Example(_with_turn(node), color, _each_row_once(node)) for node, color in examples],
        {label: names[label] for label in shown},
        f"Images that a node of a group has under each label{note}",
    )
    return figure


def class_share_rows(nodes: Sequence[NodeSplit], classes: int) -> np.ndarray:
    """Return the share of every label (column) among the points of every node (row)."""
    counts = np.array([node.class_counts(classes) for node in nodes])
    return counts / counts.sum(axis=1, keepdims=True)


def _draw_heat_map(
    figure: Any, nodes: Sequence[NodeSplit], names: Sequence[str], title: str
) -> None:
    axes, sizes = figure.subplots(1, 2, sharey=True, gridspec_kw={"width_ratios": [5, 1.3]})
    shares = class_share_rows(nodes, len(names))
    # A class that a node lacks is left blank: that is what partitions are about.
    held = np.ma.masked_equal(100 * shares, 0)
    picture = axes.imshow(held, cmap=HEAT_MAP, vmin=0, aspect="auto", interpolation="none")
    axes.set_facecolor(NOTHING)
    every = -(-len(nodes) // MOST_NAMED_NODES)
    rows = range(0, len(nodes), every)
    font = 9 if len(nodes) <= MOST_ROOMY_NODES else 6.5
    axes.set_yticks(rows, [nodes[row].name for row in rows], fontsize=font)
    axes.tick_params(length=0)
    if nodes[0].group is not None:
        axes.tick_params(axis="y", pad=12)
        colors = _group_colors(nodes)
        for row, tick in zip(rows, axes.get_yticklabels(), strict=True):
            tick.set_color(colors[row])
        for row, color in enumerate(colors):
            mark_row(axes, row, color)
    for row in range(len(nodes) - 1):
        between_groups = nodes[row].group != nodes[row + 1].group
        plain = 1.2 if len(nodes) <= MOST_ROOMY_NODES else 0.4
        axes.axhline(row + 0.5, color="white", linewidth=4 if between_groups else plain)
    name_classes(
        axes, [name if name.split()[0] == str(i) else f"{i} {name}" for i, name in enumerate(names)]
    )
    _draw_sizes(sizes, nodes)
    for each in (axes, sizes):
        for edge in each.spines.values():
            edge.set_visible(False)
    bar = figure.colorbar(picture, ax=[axes, sizes], pad=0.01, fraction=0.02, shrink=0.6)
    bar.set_label("share of the node's points, %", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)
    font = 13 if len(title) <= LONGEST_LARGE_TITLE else 9.5
    figure.suptitle(f"Who holds what: {title}", fontsize=font, fontweight="bold")


def _draw_sizes(axes: Any, nodes: Sequence[NodeSplit]) -> None:
    left = np.zeros(len(nodes))
    for part, color in PARTS.items():
        width = np.array([len(getattr(node, part).labels) for node in nodes])
        axes.barh(range(len(nodes)), width, left=left, height=0.8, color=color, label=part)
        left += width
    axes.tick_params(axis="both", length=0, labelleft=False, labelsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes.grid(axis="x", color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel("points", fontsize=9)
    axes.legend(
        fontsize=8,
        frameon=False,
        loc="lower center",
        bbox_to_anchor=(0.5, 1),
        ncols=3,
        handlelength=0.8,
        columnspacing=0.8,
        handletextpad=0.4,
    )


def _group_colors(nodes: Sequence[NodeSplit]) -> list[str]:
    """Return a color for every node: neighboring groups have different ones."""
    order = list(dict.fromkeys(node.group for node in nodes))
    two = (GROUP_COLORS[SIMILAR], GROUP_COLORS[DISSIMILAR])
    return [two[order.index(node.group) % 2] for node in nodes]


def _examples(nodes: Sequence[NodeSplit]) -> list[tuple[NodeSplit, str]]:
    """Return the first node of each group, if some group changes labels or turns images."""
    if not any(node.rotation or node.permutation for node in nodes):
        return []
    if nodes[0].train.inputs.ndim != 4:
        return []
    first: dict[str | None, tuple[NodeSplit, str]] = {}
    for node, color in zip(nodes, _group_colors(nodes), strict=True):
        first.setdefault(node.group, (node, color))
    return list(first.values())[:MOST_EXAMPLES]


def _shown_labels(classes: int, moved: set[int]) -> list[int]:
    """Return the labels whose images are shown: all, or if there are many, those that are moved first."""
    others = [label for label in range(classes) if label not in moved]
    return sorted([*sorted(moved), *others][:MOST_SAMPLE_COLUMNS])


def _each_row_once(node: NodeSplit) -> Points:
    """Return the training points without those that were drawn again."""
    first = np.unique(node.rows.train, return_index=True)[1]
    return Points(node.train.inputs[first], node.train.labels[first])


def _with_turn(node: NodeSplit) -> str:
    return f"{node.name}\nturned {node.rotation}°" if node.rotation else node.name
