"""A picture of a federation before training: what each node holds, and sample images."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fedkin.data.federated import FederatedData, class_shares
from fedkin.errors import InputError
from fedkin.report.style import GROUP_COLORS, group
from fedkin.types import Points

# Its lightness falls steadily, so it is readable in gray too.
HEAT_MAP = "viridis_r"

MOST_SAMPLE_COLUMNS = 12
SAMPLES_PER_CLASS = 2


def draw_federation(federation: FederatedData, merged_classes: Sequence[Sequence[int]]) -> Figure:
    """Draw nodes × classes as a heat map, above sample images per label from a node of each group.

    `merged_classes` orders the columns, so that classes that are drawn together are neighbors.
    """
    order = [label for merged in merged_classes for label in merged]
    order += [label for label in range(len(federation.classes)) if label not in order]
    shown = _sample_columns(federation, order)
    rows = len(federation.nodes) + 2
    examples = _groups(federation)
    width = 11.0
    heat_height = 0.24 * rows + 0.5
    cell = 8.4 / max(len(shown), 8)
    strip_height = cell * SAMPLES_PER_CLASS * len(examples) + 0.5
    figure = Figure(figsize=(width, heat_height + strip_height + 2.6), layout="constrained")
    FigureCanvasAgg(figure)
    heights = [heat_height + 1.5, strip_height + 1.1]
    parts = figure.subfigures(2, 1, squeeze=False, height_ratios=heights, hspace=0.03)
    top, bottom = parts[:, 0]
    _draw_heat_map(top, federation, merged_classes, order)
    _draw_samples(bottom, federation, examples, shown)
    return figure


def save_figure(figure: Figure, stem: Path) -> tuple[Path, Path]:
    """Write `stem.png` for slides and `stem.svg` for print; equal figures give equal bytes."""
    png, svg = stem.with_suffix(".png"), stem.with_suffix(".svg")
    try:
        figure.savefig(png, dpi=200, facecolor="white")
        with mpl.rc_context({"svg.hashsalt": "fedkin"}):
            figure.savefig(svg, facecolor="white", metadata={"Date": None})
    except OSError as error:
        raise InputError(f"cannot write {error.filename or png}: {error.strerror}") from error
    return png, svg


def _groups(federation: FederatedData) -> dict[str, int]:
    """Return the first node of each group."""
    first: dict[str, int] = {}
    for i, node in enumerate(federation.description.nodes):
        first.setdefault(node.group, i)
    return first


def _sample_columns(federation: FederatedData, order: Sequence[int]) -> list[int]:
    """Return the labels whose images are shown: all, or if there are many, the permuted ones first."""
    if len(order) <= MOST_SAMPLE_COLUMNS:
        return list(order)
    permutation = federation.description.permutation
    moved = [label for label in order if permutation[label] != label]
    others = [label for label in order if permutation[label] == label]
    # Evenly spaced, so that every merged class is shown.
    spaced = [others[i * len(others) // MOST_SAMPLE_COLUMNS] for i in range(MOST_SAMPLE_COLUMNS)]
    chosen = set([*moved, *spaced][:MOST_SAMPLE_COLUMNS])
    return [label for label in order if label in chosen]


def _draw_heat_map(
    figure: Any, federation: FederatedData, merged: Sequence[Sequence[int]], order: Sequence[int]
) -> None:
    description = federation.description
    shares = class_shares(federation)[:, order]
    # A gap separates the center's data from the nodes.
    gap = np.full((1, len(order)), np.nan)
    grid = np.vstack([shares[:-2], gap, shares[-2:]])
    names = [*federation.names, None, "validation", "test"]
    groups = [*(node.group for node in description.nodes), "", *[description.target] * 2]
    axes = figure.subplots()
    picture = axes.imshow(100 * grid, cmap=HEAT_MAP, vmin=0, aspect="auto", interpolation="none")
    held = [row for row, name in enumerate(names) if name is not None]
    axes.set_yticks(held, [names[row] for row in held], fontsize=9)
    axes.tick_params(length=0)
    axes.tick_params(axis="y", pad=12)
    for row, tick in zip(held, axes.get_yticklabels(), strict=True):
        color = _group_color(federation, groups[row])
        tick.set_color(color)
        mark_row(axes, row, color)
    for row in range(len(names) - 1):
        axes.axhline(row + 0.5, color="white", linewidth=1.2)
    labels = [_class_title(federation, label, numbered=True) for label in order]
    name_classes(axes, labels)
    ends = np.cumsum([len(each) for each in merged])
    for number, (end, each) in enumerate(zip(ends, merged, strict=True), start=1):
        if end < len(order):
            axes.axvline(end - 0.5, color="white", linewidth=5)
        axes.text(
            end - len(each) / 2 - 0.5, -0.75, f"C{number}", ha="center", va="bottom", fontsize=9
        )
    for edge in axes.spines.values():
        edge.set_visible(False)
    bar = figure.colorbar(picture, ax=axes, pad=0.01, fraction=0.03)
    bar.set_label("share of the images, %", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)
    figure.suptitle(
        f"Who holds what: {description.setting}, target {description.target}, "
        f"seed {description.seed}",
        fontsize=13,
        fontweight="bold",
    )


def mark_row(axes: Any, row: int, color: str) -> None:
    """Draw a bar in the color of the node's group between its name and its row."""
    axes.add_patch(
        Rectangle(
            (-0.010, row - 0.46),
            0.006,
            0.92,
            color=color,
            transform=axes.get_yaxis_transform(),
            clip_on=False,
        )
    )


def name_classes(axes: Any, labels: Sequence[str]) -> None:
    """Write the classes below their columns, turned where they need room."""
    axes.set_xticks(range(len(labels)), labels, fontsize=9)
    if len(labels) > 16:
        axes.tick_params(axis="x", rotation=90, labelsize=7.5)
    elif max(len(label) for label in labels) > 4:
        for tick in axes.get_xticklabels():
            tick.set(rotation=30, ha="right", rotation_mode="anchor")


def _draw_samples(
    figure: Any, federation: FederatedData, examples: dict[str, int], shown: Sequence[int]
) -> None:
    description = federation.description
    changes = []
    if any(to != label for label, to in enumerate(description.permutation)):
        changes.append("labels with * are permuted")
    if description.rotation:
        changes.append(f"images are turned {description.rotation}")
    note = f"; in the majority {' and '.join(changes)}" if changes else ""
    draw_samples(
        figure,
        [
            Example(federation.names[node], _group_color(federation, name), federation.nodes[node])
            for name, node in examples.items()
        ],
        {label: _class_title(federation, label) for label in shown},
        f"Images that a node has under each label{note}",
    )


class Example(NamedTuple):
    """A node whose images are shown, and the color of their frames."""

    name: str
    color: str
    points: Points


def draw_samples(
    figure: Any, examples: Sequence[Example], titles: Mapping[int, str], heading: str
) -> None:
    """Draw a few images of nodes under each of some labels."""
    grid = figure.subplots(len(examples) * SAMPLES_PER_CLASS, len(titles), squeeze=False)
    for axes in grid.flat:
        axes.set_xticks([])
        axes.set_yticks([])
        for edge in axes.spines.values():
            edge.set_visible(False)
    for block, example in enumerate(examples):
        chosen = _first_of_each_label(example.points, list(titles))
        for column, label in enumerate(titles):
            for row, image in enumerate(chosen[label]):
                axes = grid[block * SAMPLES_PER_CLASS + row, column]
                axes.imshow(image.squeeze(), cmap="gray", interpolation="nearest")
                for edge in axes.spines.values():
                    edge.set_visible(True)
                    edge.set_color(example.color)
                    edge.set_linewidth(1.6)
        grid[block * SAMPLES_PER_CLASS, 0].set_ylabel(
            example.name, color=example.color, fontsize=9, y=0
        )
    for axes, title in zip(grid[0], titles.values(), strict=True):
        axes.set_title(title, fontsize=8.5 if len(titles) <= 10 else 7)
    figure.suptitle(heading, fontsize=11)


def _group_color(federation: FederatedData, name: str) -> str:
    """Return the color of nodes like the owner, or of the others, as in the report's figures."""
    return GROUP_COLORS[group(name == federation.description.target)]


def _class_title(federation: FederatedData, label: int, numbered: bool = False) -> str:
    name = federation.classes[label]
    number = f"{label} " if numbered and name != str(label) else ""
    is_moved = federation.description.permutation[label] != label
    return f"{number}{name}{' *' if is_moved else ''}"


def _first_of_each_label(points: Points, labels: Sequence[int]) -> dict[int, np.ndarray]:
    images, given = points
    return {label: images[np.flatnonzero(given == label)[:SAMPLES_PER_CLASS]] for label in labels}
