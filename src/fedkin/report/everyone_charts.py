"""The charts of everyone's question: the matrix of weights, who gains, and who learns with whom.

Every part of a chart that has something to say has it in `data-tip`; the page's script shows it under the
pointer, and row by row with the arrow keys.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from markupsafe import Markup

from fedkin.report.charts import WIDTH, element, short, ticks
from fedkin.report.everyone import NodeScores, OwnerMatrix
from fedkin.report.style import Appearance

MOST_WRITTEN = 25
"""With more nodes, cells have no room for numbers: the pointer shows them."""
GROUP_STYLES = 8
"""The number of colors for groups; further ones begin again."""
LEAST_SHOWN = 0.005
"""Weights below this are drawn as nothing."""
MOST_LINES = 600
"""The graph shows this many of the strongest links at most."""
LONGEST_NAME = 16


def _shown(name: str, longest: int = LONGEST_NAME) -> str:
    return name if len(name) <= longest else name[: longest - 1] + "…"


def _chart(
    name: str,
    *children: Markup,
    width: float,
    height: float,
    least_width: float = 0,
    most_width: float = 0,
) -> Markup:
    return element(
        "svg",
        *children,
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        role="img",
        aria_label=name,
        class_="chart tips",
        style=f"max-width: {most_width or 480:.0f}px; min-width: {least_width:.0f}px",
    )


def matrix_chart(title: str, matrix: OwnerMatrix) -> Markup:
    """Draw the weights as a heat map in the order of groups, which have a frame."""
    names, count = matrix.names, len(matrix.names)
    cell = 26.0 if count <= MOST_WRITTEN else 9.0
    font = 11.0 if count <= MOST_WRITTEN else 7.5
    longest = max(len(_shown(name)) for name in names)
    margin = 10 + 0.58 * font * longest
    width = height = margin + cell * count + 2
    top = float(np.nanmax(np.nan_to_num(matrix.weights))) or 1.0
    parts = [
        element("rect", x=margin, y=margin, width=cell * count, height=cell * count, class_="track")
    ]
    for place, name in enumerate(names):
        middle = margin + cell * (place + 0.5)
        size = f"font-size: {font}px"
        turn = f"translate({middle + font / 3:.1f} {margin - 5:.1f}) rotate(-90)"
        parts.append(element("text", _shown(name), transform=turn, style=size))
        parts.append(
            element(
                "text", _shown(name), x=margin - 5, y=middle + font / 3, class_="end", style=size
            )
        )
    for row, owner in enumerate(names):
        parts.append(_matrix_row(matrix, row, owner, cell, margin, top))
    begin = 0
    for group in matrix.groups:
        edge = margin + cell * begin
        side = cell * len(group)
        parts.append(element("rect", x=edge, y=edge, width=side, height=side, class_="frame"))
        begin += len(group)
    # Smaller than this, it could not be read; where there is no room, it is scrolled.
    least = 0.8 * width if count <= MOST_WRITTEN else width
    return _chart(
        title, *parts, width=width, height=height, least_width=least, most_width=1.3 * width
    )


def _matrix_row(
    matrix: OwnerMatrix, row: int, owner: str, cell: float, margin: float, top: float
) -> Markup:
    cells = []
    weights = matrix.weights[row]
    for column, (node, weight) in enumerate(zip(matrix.names, weights.tolist(), strict=True)):
        if math.isnan(weight) or weight < LEAST_SHOWN:
            continue
        x, y, share = margin + cell * column, margin + cell * row, weight / top
        box = element(
            "rect", x=x + 0.5, y=y + 0.5, width=cell - 1, height=cell - 1,
            class_="heat-cell", style=f"--share: {100 * share:.0f}%",
        )  # fmt: skip
        text = Markup("")
        if len(matrix.names) <= MOST_WRITTEN:
            style = "middle strong" if share > 0.55 else "middle"
            text = element(
                "text", f"{100 * weight:.0f}", x=x + cell / 2, y=y + cell / 2 + 4, class_=style
            )
        tip = f"{owner} learns with {node}: {weight:.1%}"
        cells.append(element("g", box, text, data_tip=tip))
    order = np.argsort(-np.nan_to_num(weights))
    said = ", ".join(
        f"{matrix.names[place]} {weights[place]:.0%}"
        for place in order[:8]
        if np.nan_to_num(weights[place]) >= LEAST_SHOWN
    )
    return element("g", *cells, data_row=f"{owner} learns with {said or 'nobody: learning failed'}")


def gain_chart(
    title: str,
    nodes: Sequence[NodeScores],
    labels: Sequence[str],
    appearances: Mapping[str, Appearance],
    alone: str | None,
    learner: str | None,
    measure: str,
    higher: bool,
) -> Markup:
    """Draw every node's scores on a line: a dot per method, a bar from learning alone to the learner."""
    longest = max(len(_shown(node.name)) for node in nodes)
    row, end, head = (20 if len(nodes) <= MOST_WRITTEN else 13), WIDTH - 54, 4
    start = 14 + (6.8 if len(nodes) <= MOST_WRITTEN else 5.2) * longest
    bottom = head + row * len(nodes)
    values = [score for node in nodes for score, _ in node.scores.values()]
    low, high = min(values), max(values)
    margin = 0.06 * (high - low) or 0.05
    low, high = max(low - margin, 0.0), min(high + margin, 1.0) if higher else high + margin

    def x(value: float) -> float:
        return start + (min(max(value, low), high) - low) / ((high - low) or 1) * (end - start)

    parts = []
    for value in ticks(low, high, 5):
        parts += [
            element("line", x1=x(value), x2=x(value), y1=head, y2=bottom, class_="grid"),
            element("text", short(round(value, 9)), x=x(value), y=bottom + 14, class_="middle"),
        ]
    for place, node in enumerate(nodes):
        y = head + row * (place + 0.5)
        parts.append(_gain_row(node, labels, appearances, alone, learner, higher, y, x))
    middle = (start + end) / 2
    parts.append(element("text", measure, x=middle, y=bottom + 30, class_="middle axis-title"))
    chart = _chart(title, *parts, width=WIDTH, height=bottom + 36)
    return chart if len(nodes) <= MOST_WRITTEN else element("div", chart, class_="dense")


def _gain_row(
    node: NodeScores,
    labels: Sequence[str],
    appearances: Mapping[str, Appearance],
    alone: str | None,
    learner: str | None,
    higher: bool,
    y: float,
    x: Callable[[float], float],
) -> Markup:
    parts = [element("text", _shown(node.name), x=x(-1) - 10, y=y + 4, class_="end")]
    gain = None if learner is None or alone is None else node.gain(learner, alone)
    if gain is not None and alone is not None and learner is not None:
        ends = {"x1": x(node.scores[alone][0]), "x2": x(node.scores[learner][0])}
        style = "gains" if (gain >= 0) == higher or gain == 0 else "loses"
        parts.append(element("line", **ends, y1=y, y2=y, class_=style))
        written = f"{gain:+.3f}".replace("-", "−")
        parts.append(element("text", written, x=WIDTH, y=y + 4, class_=f"end number {style}"))
    texts = []
    for label in labels:
        if label not in node.scores:
            continue
        score, deviation = node.scores[label]
        color = f"method-{appearances[label].name}"
        if deviation is not None and label in (alone, learner):
            ends = {"x1": x(score - deviation), "x2": x(score + deviation)}
            parts.append(element("line", **ends, y1=y, y2=y, class_=f"interval {color}"))
        radius = 5.5 if label == learner else 4
        parts.append(element("circle", cx=x(score), cy=y, r=radius, class_=f"dot {color}"))
        texts.append(f"{label} {score:.3f}" + ("" if deviation is None else f" ± {deviation:.3f}"))
    sentence = f"{node.name}: {', '.join(texts)}"
    return element("g", *parts, data_tip=sentence, data_row=sentence)


def graph_chart(title: str, matrix: OwnerMatrix) -> Markup:
    """Draw nodes on a circle, groups side by side; the more two count on each other, the stronger a line."""
    count = len(matrix.names)
    named = count <= 2 * MOST_WRITTEN
    size, center = float(WIDTH), WIDTH / 2
    radius = center - (74 if named else 20)
    angles = _angles(matrix)
    places = [(center + radius * math.sin(a), center - radius * math.cos(a)) for a in angles]
    group = {name: number for number, names in enumerate(matrix.groups) for name in names}
    known = np.nan_to_num(matrix.weights)
    mutual = (known + known.T) / 2
    pairs = [(i, j) for i in range(count) for j in range(i) if mutual[i, j] >= LEAST_SHOWN]
    pairs = sorted(pairs, key=lambda pair: mutual[pair])[-MOST_LINES:]
    top = max((mutual[pair] for pair in pairs), default=1.0)
    parts = []
    for i, j in pairs:
        (x1, y1), (x2, y2), share = places[i], places[j], mutual[i, j] / top
        one, other = matrix.names[i], matrix.names[j]
        same = group[one] == group[other]
        # Lines bend toward the middle, so that neighbors' lines are seen.
        inner = f"{(x1 + x2 + center) / 3:.1f} {(y1 + y2 + center) / 3:.1f}"
        bend = f"M{x1:.1f} {y1:.1f}Q{inner} {x2:.1f} {y2:.1f}"
        tip = f"{one} with {other}: {known[i, j]:.1%}; {other} with {one}: {known[j, i]:.1%}"
        color = f"group-{group[one] % GROUP_STYLES}" if same else "between"
        style = f"stroke-width: {0.4 + 3.2 * share:.2f}px; opacity: {0.2 + 0.65 * share:.2f}"
        parts.append(element("path", d=bend, class_=f"link {color}", style=style, data_tip=tip))
    for place, (name, (x, y)) in enumerate(zip(matrix.names, places, strict=True)):
        color = f"group-{group[name] % GROUP_STYLES}"
        dot = element("circle", cx=x, cy=y, r=6 if named else 3.5, class_=f"member {color}")
        written = Markup("")
        if named:
            right = math.sin(angles[place]) >= 0
            turn = math.degrees(angles[place]) - (90 if right else -90)
            move = f"translate({x:.1f} {y:.1f}) rotate({turn:.1f})"
            written = element(
                "text",
                _shown(name, 11),
                x=10 if right else -10,
                y=4,
                class_=None if right else "end",
                transform=move,
                style=f"font-size: {11 if count <= MOST_WRITTEN else 8}px",
            )
        label = f"{name}: group {group[name] + 1}"
        parts.append(element("g", dot, written, data_tip=label))
    return _chart(title, *parts, width=size, height=size)


def _angles(matrix: OwnerMatrix) -> list[float]:
    """Return where nodes are on the circle, with a gap between groups."""
    gap = 0.7 if len(matrix.groups) > 1 else 0.0
    slots = len(matrix.names) + gap * len(matrix.groups)
    angles, at = [], 0.0
    for group in matrix.groups:
        for _ in group:
            angles.append(2 * math.pi * at / slots)
            at += 1
        at += gap
    return angles
