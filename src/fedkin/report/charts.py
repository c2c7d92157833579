"""The charts of the page: small SVG drawings that follow its colors, width and theme.

A curve has its numbers in `data-x` and `data-y`; the page's script reads them to show the values under
the pointer. `element` escapes all text.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from fedkin.report.curves import Band, Curve, FinalWeights, WeightPaths
from fedkin.report.style import Appearance, group

WIDTH, HEIGHT = 380, 250
LEFT, RIGHT, TOP, BOTTOM = 54, 12, 10, 40


def element(name: str, *children: Any, **attributes: Any) -> Markup:
    """Return an element with escaped text and attributes; `_` in an attribute's name becomes `-`."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = Markup("").join(children)
    # Both are safe: attributes are escaped above, and Markup's join escapes what is not Markup.
    return Markup(f"<{name}{written}>{inside}</{name}>")


def _text(value: Any) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return at most `most` round numbers from low to high."""
    if not high > low:
        return [low]
    rough = (high - low) / max(most - 1, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def short(value: float) -> str:
    """Format a number for an axis."""
    if value >= 1000 and value == round(value):
        return f"{value:,.0f}".replace(",", "\u202f")
    return f"{value:.10g}"


@dataclass(frozen=True)
class Frame:
    """Axes: the range of the data and where it is drawn."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        """Return the horizontal position of a number."""
        share = (value - self.x_low) / ((self.x_high - self.x_low) or 1)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Return the vertical position of a number."""
        share = (value - self.y_low) / ((self.y_high - self.y_low) or 1)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def draw(self, x_title: str, y_title: str) -> Iterator[Markup]:
        """Draw grid, numbers and titles."""
        right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
        for value in ticks(self.y_low, self.y_high, 6):
            y = self.y(value)
            yield element("line", x1=LEFT, x2=right, y1=y, y2=y, class_="grid")
            yield element("text", short(value), x=LEFT - 6, y=y + 4, class_="end")
        for value in ticks(self.x_low, self.x_high, 6):
            yield element("text", short(value), x=self.x(value), y=bottom + 16, class_="middle")
        yield element("line", x1=LEFT, x2=right, y1=bottom, y2=bottom, class_="axis")
        middle = (LEFT + right) / 2
        yield element("text", x_title, x=middle, y=HEIGHT - 6, class_="middle axis-title")
        turn = f"translate(11 {(TOP + bottom) / 2:.0f}) rotate(-90)"
        yield element("text", y_title, transform=turn, class_="middle axis-title")


def _frame(bands: Sequence[Band], x_high: float, x_low: float = 0.0) -> Frame:
    lows = [np.min(band.mean if band.low is None else band.low) for band in bands]
    highs = [np.max(band.mean if band.high is None else band.high) for band in bands]
    low, high = float(min(lows)), float(max(highs))
    margin = 0.05 * (high - low) or 0.05
    return Frame(x_low, x_high or 1.0, max(low - margin, 0.0) if low >= 0 else low, high + margin)


def svg(name: str, *children: Any, height: int = HEIGHT, **attributes: Any) -> Markup:
    """Return a drawing that fills the width of its place."""
    box = f"0 0 {WIDTH} {height}"
    return element("svg", *children, viewBox=box, role="img", aria_label=name, **attributes)


def _hoverable(name: str, frame: Frame, x_title: str, *children: Any) -> Markup:
    """Return a chart whose values the script shows, for pointer and keyboard."""
    return svg(
        name,
        *children,
        class_="chart hover",
        data_domain=f"{frame.x_low!r} {frame.x_high!r}",
        data_plot=f"{LEFT} {WIDTH - RIGHT} {TOP} {HEIGHT - BOTTOM} {WIDTH}",
        data_x_title=x_title,
    )


def _points(frame: Frame, x: np.ndarray, y: np.ndarray) -> str:
    return " ".join(
        f"{frame.x(a):.1f},{frame.y(b):.1f}" for a, b in zip(x.tolist(), y.tolist(), strict=True)
    )


def _numbers(values: np.ndarray) -> str:
    return " ".join(f"{value:.6g}" for value in values.tolist())


def _dash(dashes: Sequence[float]) -> str | None:
    return " ".join(f"{length:g}" for length in dashes) or None


def line_chart(
    name: str,
    curves: Mapping[str, Curve],
    appearances: Mapping[str, Appearance],
    x_title: str,
    y_title: str,
    unit: float = 1,
) -> Markup:
    """Draw a score against a cost: one line per method, with its interval over seeds shaded."""
    widest = max((float(curve.x.max()) for curve in curves.values() if not curve.level), default=1)
    frame = _frame([curve.band for curve in curves.values()], widest / unit)
    shades, lines = [], []
    for label, curve in curves.items():
        x = np.array([0.0, widest]) if curve.level else curve.x
        x = x / unit
        band = curve.band
        mean, low, high = (
            None if values is None else np.broadcast_to(values, x.shape)
            for values in (band.mean, band.low, band.high)
        )
        assert mean is not None
        color = f"method-{appearances[label].name}"
        if low is not None and high is not None:
            both = _points(frame, x, high) + " " + _points(frame, x[::-1], low[::-1])
            shades.append(element("polygon", points=both, class_=f"shade {color}"))
        lines.append(
            element(
                "polyline",
                points=_points(frame, x, mean),
                class_=f"line {color}",
                stroke_dasharray=_dash(appearances[label].dashes),
                data_name=label,
                data_x=_numbers(x),
                data_y=_numbers(mean),
                data_low=None if low is None else _numbers(low),
                data_high=None if high is None else _numbers(high),
            )
        )
    return _hoverable(name, frame, x_title, *frame.draw(x_title, y_title), *shades, *lines)


def path_chart(name: str, paths: WeightPaths) -> Markup:
    """Draw the weight of each node over outer iterations."""
    steps = paths.steps.astype(float)
    frame = Frame(1.0, max(float(steps.max()), 2.0), 0.0, 1.08 * float(paths.weights.max()))
    lines = [
        element(
            "polyline",
            points=_points(frame, steps, weights),
            class_=f"line thin {group(similar)}",
            stroke_dasharray="5 2" if similar is False else None,
            data_name=node,
            data_x=_numbers(steps),
            data_y=_numbers(weights),
        )
        for node, similar, weights in zip(paths.names, paths.similar, paths.weights, strict=True)
    ]
    equal = frame.y(1 / len(paths.names))
    level = element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=equal, y2=equal, class_="reference")
    title = "outer iteration"
    return _hoverable(name, frame, title, *frame.draw(title, "weight of a node"), level, *lines)


def bar_chart(name: str, final: FinalWeights) -> Markup:
    """Draw the weight of each node as a horizontal bar with its name and value."""
    row, start, end = 21, 118, WIDTH - 46
    height = row * len(final.names) + 6
    spread = np.zeros_like(final.mean) if final.deviation is None else final.deviation
    longest = float((final.mean + spread).max()) or 1.0
    parts = []
    for place, (node, similar, weight, deviation) in enumerate(
        zip(final.names, final.similar, final.mean.tolist(), spread.tolist(), strict=True)
    ):
        middle = row * place + row / 2 + 3
        length = weight / longest * (end - start)
        shown = node if len(node) <= 16 else node[:15] + "…"
        tooltip = f"{node}: {weight:.4f}" + (f" ± {deviation:.4f}" if deviation else "")
        parts.append(
            element(
                "g",
                element("title", tooltip),
                element("text", shown, x=start - 8, y=middle + 4, class_="end"),
                element(
                    "rect",
                    x=start,
                    y=middle - 7,
                    width=max(length, 0.8),
                    height=14,
                    class_=f"bar {group(similar)}",
                    data_node=node,
                    data_weight=f"{weight:.6g}",
                ),
                _whisker(start, end, weight, deviation, longest, middle),
                element("text", f"{weight:.3f}", x=WIDTH, y=middle + 4, class_="end number"),
            )
        )
    equal = start + (end - start) / len(final.names) / longest
    parts.append(element("line", x1=equal, x2=equal, y1=0, y2=height, class_="reference"))
    return svg(name, *parts, height=height, class_="chart")


def _whisker(
    start: float, end: float, mean: float, deviation: float, longest: float, y: float
) -> Markup:
    if not deviation:
        return Markup("")
    low, high = (
        start + (end - start) * max(value, 0.0) / longest
        for value in (mean - deviation, mean + deviation)
    )
    return element("line", x1=low, x2=high, y1=y, y2=y, class_="whisker")


def share_chart(name: str, rows: Sequence[tuple[str, float, float]]) -> Markup:
    """Draw shares of the weight as bars; a row is a title, the share, and that of equal weights."""
    row, start, end = 34, 4, WIDTH - 58
    parts = []
    for place, (title, share, equal) in enumerate(rows):
        top = row * place
        mark = start + equal * (end - start)
        parts += [
            element("text", title, x=start, y=top + 12),
            element("rect", x=start, y=top + 17, width=end - start, height=11, class_="track"),
            element(
                "rect",
                x=start,
                y=top + 17,
                width=share * (end - start),
                height=11,
                class_="bar similar",
                data_share=f"{share:.6g}",
            ),
            element("line", x1=mark, x2=mark, y1=top + 14, y2=top + 31, class_="reference"),
            element("text", f"{share:.1%}", x=WIDTH, y=top + 27, class_="end number"),
        ]
    return svg(name, *parts, height=row * len(rows) + 4, class_="chart")


def dot_chart(
    name: str,
    rows: Sequence[tuple[str, Appearance, Band]],
    x_title: str,
    *,
    difference: bool = False,
) -> Markup:
    """Draw one number per row as a dot with its interval.

    A band with one number per cell shows all of them as small dots and their mean as a large dot.
    Differences have a sign, and their axis includes zero. Long labels, which name the parameters of
    variants, go above their row.
    """
    above = max(len(label) for label, _, _ in rows) > 15
    row, start, end = (46, 10, WIDTH - 52) if above else (28, 96, WIDTH - 52)
    bottom, height = row * len(rows) + 4, row * len(rows) + 38
    parts_of_bands = [part for _, _, band in rows for part in (band.mean, band.low, band.high)]
    values = np.concatenate([np.atleast_1d(part) for part in parts_of_bands if part is not None])
    low, high = float(values.min()), float(values.max())
    if difference:
        low, high = min(low, 0.0), max(high, 0.0)
    margin = 0.06 * (high - low) or 0.05
    low, high = low - margin, high + margin

    def x(value: float) -> float:
        return start + (value - low) / (high - low) * (end - start)

    parts = []
    for value in ticks(low, high, 5):
        style = "axis" if difference and abs(value) < 1e-9 else "grid"
        text = short(round(value, 9)).replace("-", "−")
        parts += [
            element("line", x1=x(value), x2=x(value), y1=2, y2=bottom, class_=style),
            element("text", text, x=x(value), y=bottom + 14, class_="middle"),
        ]
    for place, (label, appearance, band) in enumerate(rows):
        y = row * place + (32 if above else row / 2 + 2)
        color = f"method-{appearance.name}"
        every = np.atleast_1d(band.mean)
        mean = float(every.mean())
        named = {"x": 0, "y": y - 15} if above else {"x": start - 10, "y": y + 4, "class_": "end"}
        shown = label if len(label) <= 52 else label[:51] + "…"
        written = f"{mean:+.3f}".replace("-", "−") if difference else f"{mean:.3f}"
        parts += [
            element("text", shown, element("title", label), **named),
            element("text", written, x=WIDTH, y=y + 4, class_="end number"),
        ]
        if band.low is not None and band.high is not None:
            ends = {"x1": x(float(band.low)), "x2": x(float(band.high))}
            parts.append(element("line", **ends, y1=y, y2=y, class_=f"interval {color}"))
        if every.size > 1:
            parts += [
                element("circle", cx=x(value), cy=y, r=3, class_=f"small {color}")
                for value in every.tolist()
            ]
        numbers = {"data_name": label, "data_value": f"{mean:.6g}"}
        parts.append(element("circle", cx=x(mean), cy=y, r=6, class_=f"dot {color}", **numbers))
    middle = (start + end) / 2
    parts.append(element("text", x_title, x=middle, y=height - 4, class_="middle axis-title"))
    return svg(name, *parts, height=height, class_="chart")
