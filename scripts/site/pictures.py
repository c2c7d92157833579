"""Draw the pictures of docs/method.md: `PYTHONPATH=. python scripts/site/pictures.py`.

Each is an SVG in docs/images whose colors follow the page's: dark lines on a light page, light ones on a dark
page.
"""

import io
import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import scale

import fedkin
from reproduction.theory.regimes import RegimeStudy, measure_regimes

TARGET = Path(__file__).parents[2] / "docs" / "images"
INK, PAPER, QUIET, LIKE, UNLIKE, THIRD = (
    "#24292f",
    "#fefefe",
    "#8b8f94",
    "#0072b2",
    "#c45400",
    "#00805c",
)
DARK = {
    INK: "#e4e6ea",
    PAPER: "#1e2129",
    QUIET: "#90959c",
    LIKE: "#56b4e9",
    UNLIKE: "#f0a04b",
    THIRD: "#3fc79a",
}
"""What each color becomes on a dark page."""

STYLE: Any = {
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.facecolor": PAPER,
    "figure.facecolor": PAPER,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "svg.hashsalt": "fedkin",
}
DRAWS = 30
"""How many sets of own rows the third picture draws."""


def main() -> None:
    """Draw all pictures."""
    with mpl.rc_context(STYLE):
        save(draw_weights(), "method-weights")
        save(draw_levels(), "method-levels")
        save(draw_caution(), "method-caution")
        save(draw_pays(), "method-pays")


def save(figure: Figure, name: str) -> None:
    """Write a picture with colors that a page can exchange."""
    written = io.StringIO()
    FigureCanvasSVG(figure)
    figure.savefig(written, format="svg", metadata={"Date": None}, facecolor=PAPER)
    names = {color: f"--c{place}" for place, color in enumerate(DARK)}
    light = ";".join(f"{variable}:{color}" for color, variable in names.items())
    dark = ";".join(f"{variable}:{DARK[color]}" for color, variable in names.items())
    rules = f":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"
    content = written.getvalue()
    for color, variable in names.items():
        content = content.replace(f": {color}", f": var({variable})")
    content = re.sub(r"<defs>", f"<style>{rules}</style><defs>", content, count=1)
    content = "".join(f"{line.rstrip()}\n" for line in content.splitlines())
    (TARGET / f"{name}.svg").write_text(content, encoding="utf-8")


def draw_weights() -> Figure:
    """Nodes train one model, each as much as its weight says; the owner's rows judge it."""
    figure = Figure(figsize=(7.6, 3.3))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, 7.6), ylim=(0, 3.3))
    axes.set_axis_off()
    nodes = (("north", 0.5, LIKE), ("east", 0.4, LIKE), ("south", 0.1, UNLIKE), ("west", 0, UNLIKE))
    for place, (name, weight, color) in enumerate(nodes):
        height = 2.95 - 0.78 * place
        _box(axes, 0.15, height - 0.2, 1.25, 0.4, name, color)
        arrow = FancyArrowPatch(
            (1.45, height),
            (3.05, 1.72 + 0.12 * (1.5 - place)),
            arrowstyle="-",
            linewidth=max(16 * weight, 1),
            linestyle="-" if weight else (0, (2, 3)),
            color=color if weight else QUIET,
        )
        axes.add_patch(arrow)
        axes.text(
            0.78, height - 0.43, f"weight {weight}", ha="center", color=color if weight else QUIET
        )
    _box(axes, 3.1, 1.35, 1.1, 0.74, "model", INK)
    _box(axes, 5.9, 1.35, 1.55, 0.74, "your rows\njudge it", THIRD)
    _arrow(axes, (4.25, 1.72), (5.85, 1.72), INK)
    axes.text(5.05, 1.84, "predicts", ha="center")
    back = FancyArrowPatch(
        (6.6, 1.3),
        (2.3, 0.75),
        arrowstyle="-|>",
        mutation_scale=14,
        connectionstyle="arc3,rad=-0.22",
        color=THIRD,
        linewidth=1.6,
    )
    axes.add_patch(back)
    axes.text(4.4, 0.12, "change the weights so that it predicts them better", ha="center")
    return figure


def _box(axes: Any, x: float, y: float, width: float, height: float, text: str, color: str) -> None:
    box = FancyBboxPatch(
        (x, y), width, height, "round,pad=0.02", facecolor=PAPER, edgecolor=color, linewidth=1.6
    )
    axes.add_patch(box)
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", color=color)


def _arrow(axes: Any, start: tuple[float, float], end: tuple[float, float], color: str) -> None:
    axes.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=14, color=color, linewidth=1.6)
    )


def _patients() -> tuple[np.ndarray, np.ndarray]:
    inputs, outcome = load_diabetes(return_X_y=True)
    order = np.random.default_rng(1).permutation(len(outcome))
    return scale(inputs)[order], scale(outcome)[order]


def draw_levels() -> Figure:
    """What each mixture's model loses on the nodes' rows, and on the owner's."""
    inputs, outcome = _patients()
    inputs = np.c_[inputs, np.ones(len(inputs))]
    north, west, own = slice(0, 120), slice(120, 240), slice(240, 300)
    weights = np.linspace(0, 1, 101)
    trained, judged = [], []
    for weight in weights:
        parts = (
            (1 - weight, inputs[north], outcome[north]),
            (weight, inputs[west], -outcome[west]),
        )
        left = sum(share * x.T @ x / len(x) for share, x, _ in parts)
        right = sum(share * x.T @ y / len(x) for share, x, y in parts)
        theta = np.linalg.solve(left + 1e-3 * np.eye(inputs.shape[1]), right)
        trained.append(sum(share * np.mean((x @ theta - y) ** 2) for share, x, y in parts))
        judged.append(np.mean((inputs[own] @ theta - outcome[own]) ** 2))
    figure = Figure(figsize=(7.6, 3.1), layout="constrained")
    panels: Any = figure.subplots(1, 2)
    panels[0].plot(weights, trained, color=QUIET, linewidth=2.4)
    panels[0].set_title("inner question: how well does each\nmixture fit its own training rows?")
    panels[1].plot(weights, judged, color=THIRD, linewidth=2.4)
    panels[1].set_title("outer question: how well does that\nmodel predict your rows?")
    best = int(np.argmin(judged))
    panels[1].plot(weights[best], judged[best], "o", color=LIKE, markersize=9)
    panels[1].annotate(
        f"best weight: {weights[best]:.2f}",
        (weights[best], judged[best]),
        (0.02, judged[best] - 0.3),
        color=LIKE,
    )
    for axes in panels:
        axes.set_xlabel("weight of the unlike node")
        axes.set_ylabel("mean squared error")
        axes.set_ylim(0)
    return figure


def draw_caution() -> Figure:
    """The learned weights of many draws of few own rows: free, capped, and drawn toward size."""
    inputs, outcome = _patients()
    nodes = {
        "north": (inputs[:60], outcome[:60]),
        "east": (inputs[60:120], outcome[60:120]),
        "south": (inputs[120:180], outcome[120:180]),
        "west": (inputs[180:240], -outcome[180:240]),
    }
    choices: dict[str, dict[str, Any]] = {
        "no limit": {"cap": 1.0},
        "cap of one half": {"cap": 0.5},
        "prior toward size": {"cap": 1.0, "prior": "size"},
    }
    draw = np.random.default_rng(0)
    rows = [240 + draw.choice(202, 20, replace=False) for _ in range(DRAWS)]
    figure = Figure(figsize=(7.6, 3.1), layout="constrained")
    panels: Any = figure.subplots(1, 3, sharey=True)
    for axes, (title, options) in zip(panels, choices.items(), strict=True):
        results = [
            fedkin.fit(nodes, (inputs[own], outcome[own]), model="ridge", **options) for own in rows
        ]
        learned = np.array([list((each.weights or {}).values()) for each in results])
        spread = draw.uniform(-0.22, 0.22, learned.shape)
        for place in range(len(nodes)):
            color = UNLIKE if place == 3 else LIKE
            axes.plot(place + spread[:, place], learned[:, place], ".", color=color, alpha=0.55)
            axes.plot(
                [place - 0.3, place + 0.3], [learned[:, place].mean()] * 2, color=color, lw=2.6
            )
        axes.set_title(title)
        axes.set_xticks(range(len(nodes)), list(nodes))
        axes.set_ylim(-0.04, 1.04)
    panels[0].set_ylabel("learned weight")
    return figure


def draw_pays() -> Figure:
    """Who has the smallest error, as the own rows and the difference of the other nodes vary."""
    study = RegimeStudy()
    cells = measure_regimes(study, lambda _: None).query("axis == 'valid'")
    names = {"bilevel": "learned", "local": "alone", "equal": "equal"}
    table = cells.pivot_table(index="offset", columns="valid", values=list(names))
    winner = np.stack([table[way].to_numpy() for way in names]).argmin(axis=0)
    certain = cells.pivot_table(index="offset", columns="valid", values="certain").to_numpy()
    figure = Figure(figsize=(7.6, 3.9), layout="constrained")
    axes = figure.subplots()
    colors = [LIKE, UNLIKE, QUIET]
    axes.pcolormesh(
        winner, cmap=ListedColormap(colors), vmin=0, vmax=2, edgecolors=PAPER, linewidth=2
    )
    for (row, column), won in np.ndenumerate(winner):
        text = list(names.values())[won] + ("" if certain[row, column] else " ?")
        axes.text(
            column + 0.5, row + 0.5, text, ha="center", va="center", color=PAPER, fontsize=8.5
        )
    axes.set_xticks(np.arange(len(study.valid)) + 0.5, study.valid)
    axes.set_yticks(np.arange(len(table)) + 0.5, [f"{offset:g}" for offset in table.index])
    axes.set_xlabel("your own rows")
    axes.set_ylabel("how much five of\neight nodes differ from you")
    axes.set_title("smallest error on new cases: learned weights, alone, or equal weights")
    return figure


if __name__ == "__main__":
    main()
