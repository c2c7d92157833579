"""The charts of an advice: what each candidate gains over staying alone, and every node's weight."""

from markupsafe import Markup

from fedkin.advice.result import Advice, by_weight, candidate_title, records
from fedkin.report.charts import WIDTH, element, short, svg, ticks

SIDE = 92
"""The width that the title of a side needs."""


def gain_chart(advice: Advice) -> Markup:
    """Draw the gain of every way of joining over staying alone, with its 90% interval."""
    left_out = ("alone", "final") if advice.verdict == "alone" else ("alone",)
    joined = [row for row in records(advice.candidates) if row["candidate"] not in left_out]
    row, start, end = 50, 12, WIDTH - 12
    low = min(0.0, *(own["gain_low"] for own in joined))
    high = max(0.0, *(own["gain_high"] for own in joined))
    margin = 0.06 * (high - low) or 0.05
    low, high = low - margin, high + margin
    bottom = row * len(joined) + 26

    def x(value: float) -> float:
        return start + (value - low) / (high - low) * (end - start)

    zero = x(0.0)
    parts = [
        element("rect", x=start, y=22, width=zero - start, height=bottom - 22, class_="worse"),
        element("rect", x=zero, y=22, width=end - zero, height=bottom - 22, class_="better"),
    ]
    if zero - start > SIDE:
        parts.append(element("text", "alone is better", x=zero - 8, y=14, class_="end axis-title"))
    if end - zero > SIDE:
        parts.append(element("text", "joining is better", x=zero + 8, y=14, class_="axis-title"))
    for value in ticks(low, high, 5):
        text = short(round(value, 9)).replace("-", "−")
        parts += [
            element("line", x1=x(value), x2=x(value), y1=22, y2=bottom, class_="grid"),
            element("text", text, x=x(value), y=bottom + 15, class_="middle"),
        ]
    parts.append(element("line", x1=zero, x2=zero, y1=20, y2=bottom, class_="axis strong"))
    for place, own in enumerate(joined):
        name = own["candidate"]
        y = 22 + row * place + 33
        style = "best" if name == advice.compared else "other"
        title = candidate_title(name)
        numbers = {"data_name": name, "data_value": f"{own['gain']:.6g}"}
        ends = {"x1": x(own["gain_low"]), "x2": x(own["gain_high"])}
        parts += [
            element("text", title, x=start + 4, y=y - 15, class_="halo"),
            element("line", **ends, y1=y, y2=y, class_=f"interval {style}"),
            element("line", x1=zero, x2=x(own["gain"]), y1=y, y2=y, class_=f"stem {style}"),
            element("circle", cx=zero, cy=y, r=4, class_="dot baseline"),
            element("circle", cx=x(own["gain"]), cy=y, r=7, class_=f"dot {style}", **numbers),
        ]
    unit = f"gain over staying alone ({advice.score_name}), with 90% interval"
    parts.append(element("text", unit, x=WIDTH / 2, y=bottom + 34, class_="middle axis-title"))
    return svg("what each way of joining gains", *parts, height=bottom + 40, class_="chart advice")


def shares_chart(advice: Advice) -> Markup:
    """Draw what the owner's rows and every node count in the final model."""
    nodes = sorted(records(advice.weights), key=lambda row: -row["share"])
    shares = [("your own cases", advice.own_share, "own")]
    shares += [(str(own["node"]), own["share"], "node") for own in nodes]
    row, start, end = 30, 128, WIDTH - 46
    parts = []
    for place, (name, share, kind) in enumerate(shares):
        middle = row * place + row / 2
        shown = name if len(name) <= 17 else name[:16] + "…"
        width = max(share * (end - start), 0.8)
        parts.append(
            element(
                "g",
                element("title", f"{name}: {share:.1%}"),
                element("text", shown, x=start - 8, y=middle + 4, class_="end"),
                element(
                    "rect",
                    x=start,
                    y=middle - 9,
                    width=width,
                    height=18,
                    class_=f"bar {kind}",
                    data_share=f"{share:.6g}",
                ),
                element("text", f"{share:.0%}", x=start + width + 6, y=middle + 4, class_="number"),
            )
        )
    height = row * len(shares) + 6
    return svg(
        "share of everyone's rows in the model", *parts, height=height, class_="chart advice"
    )


def weights_chart(advice: Advice) -> Markup:
    """Draw the learned weight of each node as a bar, with where it would lie for other rows of the owner."""
    weights = by_weight(advice)
    row, start, end = 26, 128, WIDTH - 46
    longest = max(own["high"] for own in weights) or 1.0
    height = row * len(weights) + 30
    parts = []
    for place, own in enumerate(weights):
        middle = row * place + row / 2
        node = str(own["node"])
        shown = node if len(node) <= 17 else node[:16] + "…"

        def x(value: float) -> float:
            return start + value / longest * (end - start)

        value, low, high = (own[column] for column in ("weight", "low", "high"))
        tooltip = f"{node}: {value:.3f}, 90% interval {low:.2f} to {high:.2f}"
        number = f"{value:.2f}" + ("*" if own["at_cap"] else "")
        parts.append(
            element(
                "g",
                element("title", tooltip),
                element("text", shown, x=start - 8, y=middle + 4, class_="end"),
                element(
                    "rect",
                    x=start,
                    y=middle - 8,
                    width=max(x(value) - start, 0.8),
                    height=16,
                    class_="bar node",
                    data_node=node,
                    data_weight=f"{value:.6g}",
                ),
                element("line", x1=x(low), x2=x(high), y1=middle, y2=middle, class_="whisker wide"),
                element("text", number, x=WIDTH, y=middle + 4, class_="end number"),
            )
        )
    bottom = row * len(weights) + 4
    for value in ticks(0.0, longest, 5):
        at = start + value / longest * (end - start)
        parts.append(element("text", short(round(value, 9)), x=at, y=bottom + 14, class_="middle"))
    return svg("learned weight of each node", *parts, height=height, class_="chart advice")
