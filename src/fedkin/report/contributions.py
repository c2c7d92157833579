"""What each node contributes, as a part of reports: a chart, a table, and how to read them."""

from typing import Any, NamedTuple

from markupsafe import Markup

from fedkin.report.charts import WIDTH, element, short, svg, ticks
from fedkin.valuation.result import INTERVAL, Contributions, NodeValue, with_error


class SecondOpinion(NamedTuple):
    """What a report shows of contributions."""

    found: Contributions
    chart: Markup
    rows: list[dict[str, Any]]
    """The numbers of each node as they are written, the largest contribution first."""


def second_opinion(found: Contributions | None) -> SecondOpinion | None:
    """Return what to show; None if contributions were not asked for."""
    if found is None:
        return None
    rows = [
        {
            "node": each.node,
            "weight": each.weight,
            "contribution": with_error(each.shapley, each.error),
            "lost": with_error(each.leave_one_out, each.leave_one_out_error),
        }
        for each in _by_value(found)
    ]
    return SecondOpinion(found, contribution_chart(found), rows)


def contribution_chart(found: Contributions) -> Markup:
    """Draw every node's Shapley value with its 90% interval, and a ring for what is lost without it."""
    nodes = _by_value(found)
    row, start, end = 30, 118, WIDTH - 12
    ends = [0.0]
    for each in nodes:
        reach = INTERVAL * each.error
        ends += [each.shapley - reach, each.shapley + reach, each.leave_one_out]
    low, high = min(ends), max(ends)
    margin = 0.06 * (high - low) or 0.05
    low, high = low - margin, high + margin
    bottom = row * len(nodes) + 4

    def x(value: float) -> float:
        return start + (value - low) / (high - low) * (end - start)

    parts = []
    for value in ticks(low, high, 5):
        style = "axis" if abs(value) < 1e-9 else "grid"
        text = short(round(value, 9)).replace("-", "−")
        parts += [
            element("line", x1=x(value), x2=x(value), y1=2, y2=bottom, class_=style),
            element("text", text, x=x(value), y=bottom + 14, class_="middle"),
        ]
    for place, each in enumerate(nodes):
        y = row * place + row / 2 + 2
        name, value, lost = each.node, each.shapley, each.leave_one_out
        side = "gains" if value >= 0 else "loses"
        shown = name if len(name) <= 16 else name[:15] + "…"
        tooltip = (
            f"{name}: contribution {with_error(value, each.error)}, lost without it {lost:+.3f}"
        )
        limits = {"x1": x(value - INTERVAL * each.error), "x2": x(value + INTERVAL * each.error)}
        numbers = {"data_node": name, "data_value": f"{value:.6g}"}
        parts.append(
            element(
                "g",
                element("title", tooltip),
                element("text", shown, x=start - 10, y=y + 4, class_="end"),
                element("line", **limits, y1=y, y2=y, class_=f"interval {side}"),
                element("circle", cx=x(value), cy=y, r=6, class_=f"credit {side}", **numbers),
                element("circle", cx=x(lost), cy=y, r=4.5, class_="ring"),
            )
        )
    better = "higher" if found.score == "accuracy" else "lower"
    title = f"to the right: {better} {found.score_name}"
    middle = (start + end) / 2
    parts.append(element("text", title, x=middle, y=bottom + 32, class_="middle axis-title"))
    return svg("what each node contributes", *parts, height=bottom + 38, class_="chart")


def _by_value(found: Contributions) -> list[NodeValue]:
    return sorted(found.nodes, key=lambda each: -each.shapley)
