"""What commands print at the end: a comparison of methods, and the weights as bars."""

from collections.abc import Mapping

from rich.table import Table
from rich.text import Text

from fedkin.federation.base import Cost

BAR_WIDTH = 40


def method_table(outcomes: Mapping[str, tuple[float, Cost, float]]) -> Table:
    """Compare methods: test accuracy (the best in bold), cost and seconds of each."""
    table = Table(box=None, padding=(0, 1), header_style="bold")
    table.add_column("method")
    for title in ("test accuracy", "synchronizations", "MB up", "MB down", "seconds"):
        table.add_column(title, justify="right")
    best = max(accuracy for accuracy, _, _ in outcomes.values())
    for name, (accuracy, cost, seconds) in outcomes.items():
        table.add_row(
            name,
            f"{accuracy:.3f}",
            f"{cost.synchronizations:,}",
            f"{cost.bytes_up / 1e6:.1f}",
            f"{cost.bytes_down / 1e6:.1f}",
            f"{seconds:.1f}",
            style="bold" if accuracy == best else None,
        )
    return table


def weight_bars(weights: Mapping[str, float], similar: Mapping[str, bool] | None = None) -> Table:
    """Draw the weight of each node as a bar; where the truth is known, tell the groups apart."""
    table = Table(box=None, padding=(0, 1), show_header=False)
    longest = max(max(weights.values()), 1e-12)
    for name, weight in weights.items():
        alike = None if similar is None else similar[name]
        bar = ("▒" if alike is False else "█") * round(BAR_WIDTH * weight / longest)
        colour = "cyan" if alike is None else ("green" if alike else "magenta")
        group = [] if alike is None else [Text("similar" if alike else "dissimilar", style="dim")]
        table.add_row(name, *group, f"{weight:.3f}", Text(bar, style=colour))
    return table
