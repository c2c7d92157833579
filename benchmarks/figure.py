"""The bar chart of `python -m benchmarks`."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.contests import Outcome
from fedkin.errors import InputError


def draw_outcomes(outcomes: Sequence[Outcome], path: Path) -> None:
    """Draw the times of both, on a logarithmic axis, with the ratio next to each pair."""
    networks = list(dict.fromkeys(outcome.network for outcome in outcomes))
    figure = Figure(
        figsize=(8, 0.8 + 0.42 * len(outcomes) + 0.5 * len(networks)), layout="constrained"
    )
    panels = figure.subplots(len(networks), 1, sharex=True, squeeze=False)[:, 0]
    for panel, network in zip(panels, networks, strict=True):
        own = [outcome for outcome in outcomes if outcome.network == network]
        places = range(len(own))
        torch_times = [outcome.torch_seconds * 1e3 for outcome in own]
        fedkin_times = [outcome.fedkin_seconds * 1e3 for outcome in own]
        panel.barh(
            [p - 0.2 for p in places], torch_times, 0.38, color="#b9b9b9", label="PyTorch loop"
        )
        panel.barh([p + 0.2 for p in places], fedkin_times, 0.38, color="#1f6f8b", label="fedkin")
        for place, outcome in zip(places, own, strict=True):
            panel.text(
                outcome.fedkin_seconds * 1e3 * 1.15,
                place + 0.2,
                f"{outcome.ratio:.0f} x faster",
                va="center",
                fontsize=9,
            )
        panel.set_yticks(list(places), [outcome.name for outcome in own])
        panel.invert_yaxis()
        panel.set_xscale("log")
        panel.set_title(f"{network}'s network", loc="left", fontsize=10)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].legend(loc="upper right", frameon=False, bbox_to_anchor=(1.0, 1.25), ncols=2)
    panels[-1].set_xlabel("milliseconds (logarithmic)")
    try:
        with mpl.rc_context({"svg.hashsalt": "fedkin"}):
            figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise InputError(f"the plot cannot be written to {path}: {error}") from error
