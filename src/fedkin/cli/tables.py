"""Weights as bars on the terminal."""

from collections.abc import Mapping

from rich.table import Table
from rich.text import Text

BAR_WIDTH = 40


def weight_bars(weights: Mapping[str, float], similar: Mapping[str, bool] | None = None) -> Table:
    """Draw the weight of each node as a bar; where the truth is known, tell the groups apart."""
    table = Table(box=None, padding=(0, 1), show_header=False)
    longest = max(max(weights.values()), 1e-12)
    for name, weight in weights.items():
        alike = None if similar is None else similar[name]
        bar = ("▒" if alike is False else "█") * round(BAR_WIDTH * weight / longest)
        color = "cyan" if alike is None else ("green" if alike else "magenta")
        group = [] if alike is None else [Text("similar" if alike else "dissimilar", style="dim")]
        table.add_row(Text(name), *group, f"{weight:.3f}", Text(bar, style=color))
    return table
