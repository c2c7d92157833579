"""The figures: what was measured, next to what the theory says."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullFormatter

from fedkin.errors import InputError
from fedkin.report.figures import STYLE
from fedkin.report.style import appearance as appearance_of
from reproduction.theory.regimes import RegimeStudy, measured_border, predicted_border
from reproduction.theory.slopes import Slope
from reproduction.theory.tables import numbers, select, values

COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")
"""Okabe and Ito's colors, for what are no methods."""

DASHES = ((), (5, 2), (1.5, 1.5), (7, 2, 1.5, 2))

GRAY = "#5A5A5A"

WAYS = {"bilevel": "Bi-level", "local": "local training", "equal": "equal weights"}
WAY_APPEARANCES = {
    "bilevel": appearance_of("bilevel"),
    "local": appearance_of("local"),
    "equal": appearance_of("fedavg"),
}


def save_figure(figure: Figure, directory: Path, name: str) -> list[Path]:
    """Write a figure as SVG and PNG; the same data give the same bytes."""
    written = []
    for ending, metadata in (("svg", {"Date": None}), ("png", None)):
        path = directory / f"{name}.{ending}"
        try:
            with mpl.rc_context(STYLE):
                figure.savefig(path, dpi=200, facecolor="white", metadata=metadata)
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror}") from error
        written.append(path)
    return written


def _figure(
    width: float, height: float, widths: tuple[float, ...], draw: Callable[[Figure, Any], None]
) -> Figure:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]
        draw(figure, axes)
    return figure


# --- rates -------------------------------------------------------------------------------------------


def draw_rates(svrg: pd.DataFrame, rounds: pd.DataFrame, slopes: list[Slope]) -> Figure:
    """Draw the error of Local-SVRG with its bound, and rounds against ε with the fitted slopes."""

    def draw(figure: Figure, axes: Any) -> None:
        _svrg_panel(axes[0], svrg)
        _rounds_panel(axes[1], rounds, slopes, "convex")
        _rounds_panel(axes[2], rounds, slopes, "non-convex")

    return _figure(13.2, 4.3, (1.1, 1, 1), draw)


def _svrg_panel(axes: Any, svrg: pd.DataFrame) -> None:
    fractions = values(svrg, "fraction")[::-1]
    periods = values(svrg, "period")
    for period, color in zip(periods, COLORS, strict=False):
        for fraction, dashes in zip(fractions, DASHES, strict=False):
            curve = select(svrg, period=period, fraction=fraction)
            low = (curve["error"] - 2 * curve["standard_error"]).clip(lower=curve["error"] / 10)
            axes.fill_between(
                curve["steps"],
                low,
                curve["error"] + 2 * curve["standard_error"],
                color=color,
                alpha=0.25,
                linewidth=0,
            )
            style = {"color": color, "dashes": dashes}
            axes.plot(curve["steps"], curve["error"], linewidth=1.8, **style)
            axes.plot(curve["steps"], curve["bound"], linewidth=0.9, alpha=0.75, **style)
    axes.set_yscale("log")
    # Below this there is only rounding.
    axes.set_ylim(1e-14, 30 * float(numbers(svrg, "bound").max()))
    axes.set_xlabel("steps T of Local-SVRG")
    axes.set_ylabel("E f(x̄) − f(x*)")
    axes.set_title("Local-SVRG: error (thick) stays below its bound (thin)", loc="left")
    axes.set_xlim(left=0)
    handles = [
        Line2D([], [], color=color, linewidth=1.8, label=f"τ = {period:g}")
        for period, color in zip(periods, COLORS, strict=False)
    ] + [
        Line2D([], [], color=GRAY, dashes=dashes, label=f"γ = {_fraction(fraction)}γ₀")
        for fraction, dashes in zip(fractions, DASHES, strict=False)
    ]
    axes.legend(handles=handles, loc="lower left", fontsize=8, handlelength=2.6)


def _fraction(value: float) -> str:
    if value == 1:
        return ""
    whole = round(1 / value)
    return f"1/{whole} " if abs(1 / value - whole) < 1e-9 else f"{value:g} "


def _rounds_panel(axes: Any, rounds: pd.DataFrame, slopes: list[Slope], problem: str) -> None:
    own = [slope for slope in slopes if slope.outer_problem == problem]
    for slope, color, marker in zip(own, COLORS, "os", strict=False):
        period = slope.period
        curve = select(rounds, outer_problem=problem, period=period)
        verdict = "no worse" if slope.no_worse else "worse"
        label = (
            f"τ = {period}: slope {slope.slope:.2f} ± {2 * slope.standard_error:.2f}\n"
            f"{verdict} than {_power(slope.predicted)} with logarithms: {slope.promised_slope:.2f}"
        ).replace("-", "−")
        axes.plot(
            curve["accuracy"],
            curve["rounds"],
            color=color,
            marker=marker,
            markersize=3,
            linewidth=1,
            markevery=0.06,
            label=label,
        )
        fitted = select(curve, fitted=True)
        axes.plot(fitted["accuracy"], fitted["rounds"], color=color, linewidth=2.6, alpha=0.6)
        _guide(axes, fitted, slope, color)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.invert_xaxis()
    convex = problem == "convex"
    axes.set_xlabel(
        "ε reached: E F(w) − min F" if convex else "ε reached: r.m.s. stationarity measure"
    )
    axes.set_ylabel("synchronizations")
    axes.set_title("Algorithm 2, convex F" if convex else "Algorithm 3, random iterate", loc="left")
    axes.xaxis.set_minor_formatter(NullFormatter())
    if not convex:  # about one decade: powers of ten are too few
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
    axes.legend(
        loc="upper left",
        fontsize=8,
        handlelength=1.6,
        labelspacing=0.8,
        title="thick: range of the fit; dashed: the theory's power",
        title_fontsize=8,
        alignment="left",
    )
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** 0.35)


def _guide(axes: Any, curve: pd.DataFrame, slope: Slope, color: str) -> None:
    """Draw a line of the predicted slope over the range of the fit, shifted to lie next to the curve."""
    end = curve.iloc[-1]
    reach = np.array([curve["accuracy"].iloc[0], end["accuracy"]])
    line = 0.45 * end["rounds"] * (reach / end["accuracy"]) ** slope.predicted
    axes.plot(reach, line, color=color, dashes=(4, 2), linewidth=0.9, alpha=0.8)


def _power(value: float) -> str:
    return {-0.5: "-1/2", -1.5: "-3/2"}.get(value, f"{value:g}")


# --- regimes -----------------------------------------------------------------------------------------


def draw_regimes(study: RegimeStudy, cells: pd.DataFrame) -> Figure:
    """Draw a cut through the first map, and both maps of who wins with the borders."""

    def draw(figure: Figure, axes: Any) -> None:
        _cut_panel(axes[0], study, cells)
        _map_panel(axes[1], study, cells, "valid")
        _map_panel(axes[2], study, cells, "train")
        handles: list[Any] = [
            Patch(facecolor=WAY_APPEARANCES[way].color, label=f"{title} wins")
            for way, title in WAYS.items()
        ]
        handles += [
            Patch(facecolor="#D9D9D9", label="pale: not beyond doubt"),
            Line2D([], [], color="black", marker="o", markersize=4, label="measured borders"),
            Line2D(
                [], [], color="black", dashes=(4, 2), label="Bi-level | local: the paper's bounds"
            ),
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=6, fontsize=8.5)

    return _figure(13.2, 4.6, (0.9, 1, 1), draw)


def _cut_panel(axes: Any, study: RegimeStudy, cells: pd.DataFrame) -> None:
    fixed = min(study.valid, key=lambda size: abs(np.log(size / study.fixed_valid)))
    curve = select(cells, axis="valid", valid=fixed).sort_values("distance")
    for way, title in WAYS.items():
        appearance = WAY_APPEARANCES[way]
        axes.errorbar(
            curve["distance"],
            curve[way],
            2 * curve[f"{way}_standard_error"],
            color=appearance.color,
            marker=appearance.marker,
            markersize=4.5,
            capsize=2,
            linewidth=1.5,
            label=title,
        )
    axes.plot(
        curve["distance"],
        curve["similar"],
        color=GRAY,
        dashes=(2, 2),
        linewidth=1.2,
        label="similar nodes alone, if they were known",
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("distance G of the dissimilar nodes")
    axes.set_ylabel("excess risk")
    axes.set_title(f"A cut: n_valid = {fixed}, n_train = {study.fixed_train}", loc="left")
    axes.legend(loc="upper left", fontsize=8.5)


def _map_panel(axes: Any, study: RegimeStudy, cells: pd.DataFrame, axis: str) -> None:
    chosen = select(cells, axis=axis)
    sizes, distances = (np.array(values(chosen, name)) for name in (axis, "distance"))
    image = np.ones((len(distances), len(sizes), 3))
    for row in chosen.to_dict("records"):
        color = np.array(to_rgb(WAY_APPEARANCES[row["winner"]].color))
        place = np.searchsorted(distances, row["distance"]), np.searchsorted(sizes, row[axis])
        image[place] = color if row["certain"] else 0.45 * color + 0.55
    axes.pcolormesh(_edges(sizes), _edges(distances), image, edgecolor="white", linewidth=0.6)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(False)
    for rival in ("local", "equal"):
        border = [each for each in measured_border(cells, axis, rival) if each.distance]
        for color, width in (("white", 3.4), ("black", 1.6)):
            axes.plot(
                [each.size for each in border],
                [each.distance for each in border],
                color=color,
                linewidth=width,
                marker="o",
                markersize=4,
            )
    fine = np.geomspace(sizes[0], sizes[-1], 300)
    predicted = predicted_border(study, axis, fine)
    predicted = np.where(predicted > 0, predicted, np.nan)
    for color, width in (("white", 3.2), ("black", 1.5)):
        axes.plot(fine, predicted, color=color, linewidth=width, dashes=(4, 2))
    axes.set_xlim(_edges(sizes)[[0, -1]])
    axes.set_ylim(_edges(distances)[[0, -1]])
    other = (
        f"n_train = {study.fixed_train}" if axis == "valid" else f"n_valid = {study.fixed_valid}"
    )
    axes.set_xlabel(
        "n_valid: points of the center" if axis == "valid" else "n_train: points of a node"
    )
    axes.set_ylabel("distance G of the dissimilar nodes")
    axes.set_title(f"Who has the smallest excess risk; {other}", loc="left")


def _edges(centers: np.ndarray) -> np.ndarray:
    """Return the borders of cells around these centers, in the logarithm."""
    logs = np.log(centers)
    middle = (logs[1:] + logs[:-1]) / 2
    return np.exp(np.concatenate([[2 * logs[0] - middle[0]], middle, [2 * logs[-1] - middle[-1]]]))


# --- cap ---------------------------------------------------------------------------------------------


def draw_cap(cells: pd.DataFrame, bounds: pd.DataFrame, nodes: int) -> Figure:
    """Draw the excess risk, and the weight on dissimilar nodes, against the cap."""
    groups = [
        (round(similar), select(cells, similar=similar)) for similar in values(cells, "similar")
    ]

    def draw(figure: Figure, axes: Any) -> None:
        for number, (similar, curve) in enumerate(groups):
            color, marker = COLORS[number % len(COLORS)], "os^Dv*"[number % 6]
            common = {"color": color, "marker": marker, "markersize": 4, "linewidth": 1.5}
            axes[0].errorbar(
                curve["cap"],
                curve["excess_risk"],
                2 * curve["standard_error"],
                capsize=2,
                label=f"J = {similar} of K = {nodes}",
                **common,
            )
            bound = select(bounds, similar=similar)
            scale = curve["excess_risk"].iloc[-1] / bound["sampling_term"].iloc[-1]
            axes[0].plot(
                bound["cap"],
                scale * bound["sampling_term"],
                color=color,
                dashes=(2, 2),
                linewidth=1,
            )
            axes[1].plot(curve["cap"], curve["weight_on_others"], **common)
            axes[2].plot(curve["cap"], curve["effective_nodes"], **common)
            for panel in axes:
                panel.axvline(1 / similar, color=color, linewidth=0.8, alpha=0.6)
        axes[0].set_yscale("log")
        axes[0].set_ylabel("excess risk")
        axes[0].set_title("Excess risk falls until b = 1/J, then is flat or rises", loc="left")
        axes[1].set_ylabel("weight on the K − J dissimilar nodes")
        axes[1].set_title("A cap below 1/J forces weight on them", loc="left")
        axes[2].set_ylabel("effective number of nodes, 1/Σw²")
        axes[2].set_title("A cap above 1/J lets weight pile up", loc="left")
        ticks = [1 / nodes, *sorted(1 / similar for similar, _ in groups), 1.0]
        for panel in axes:
            panel.set_xscale("log")
            panel.set_xlabel("cap b")
            panel.set_xticks(ticks, [f"1/{round(1 / tick)}" if tick < 1 else "1" for tick in ticks])
            panel.minorticks_off()
        axes[0].legend(
            handles=[
                *axes[0].get_legend_handles_labels()[0],
                Line2D(
                    [], [], color=GRAY, dashes=(2, 2), label="first term of Corollary 2, scaled"
                ),
                Line2D([], [], color=GRAY, linewidth=0.8, label="b = 1/J"),
            ],
            fontsize=8,
            frameon=True,
            framealpha=1,
            edgecolor="white",
        )

    return _figure(13.2, 4.2, (1.15, 1, 1), draw)


# --- examples ----------------------------------------------------------------------------------------


def draw_examples(
    means: pd.DataFrame, scatter: pd.DataFrame, constants: pd.DataFrame, constant: float
) -> Figure:
    """Draw mean estimation, the error bound with r = 2, and how C_r and G depend on the offset."""

    def draw(figure: Figure, axes: Any) -> None:
        for number, offset in enumerate(values(means, "offset")):
            curve = select(means, offset=offset)
            color, marker = COLORS[number % len(COLORS)], "os^Dv*"[number % 6]
            axes[0].errorbar(
                curve["valid"],
                curve["weight_error"],
                2 * curve["weight_error_standard_error"],
                color=color,
                marker=marker,
                markersize=4.5,
                linestyle="none",
                capsize=2,
                label=f"a = {offset:g}",
            )
            axes[0].plot(
                curve["valid"], curve["predicted_weight_error"], color=color, linewidth=1.2
            )
        axes[0].set_title("Mean estimation: ŵ tends to (½, ½)", loc="left")
        axes[0].set_xlabel("n_valid")
        axes[0].set_ylabel("r.m.s. error of ŵ₁")
        axes[0].legend(title="lines: √(1/n_valid + 1/2n_train) / 2a", title_fontsize=8)
        axes[1].scatter(
            scatter["gap"],
            scatter["distance_to_best"],
            s=5,
            color=COLORS[0],
            alpha=0.5,
            linewidth=0,
        )
        found = numbers(scatter, "gap")
        gaps = np.geomspace(found.min(), found.max(), 50)
        axes[1].plot(
            gaps,
            constant * np.sqrt(gaps),
            color=COLORS[4],
            linewidth=1.6,
            label="C_r √(F(w) − min F)",
        )
        axes[1].set_title("Error bound with r = 2: no point above the line", loc="left")
        axes[1].set_xlabel("F(w) − min F")
        axes[1].set_ylabel("Dist(w, W*)")
        axes[1].legend()
        lines: Mapping[str, tuple[str, str, str]] = {
            "error_bound_constant": ("C_r", COLORS[4], "o"),
            "distance": ("G", COLORS[0], "s"),
            "product": ("C_r · G", GRAY, "^"),
        }
        for column, (label, color, marker) in lines.items():
            axes[2].plot(
                constants["offset"],
                constants[column],
                color=color,
                marker=marker,
                markersize=4.5,
                linewidth=1.5,
                label=label,
            )
        axes[2].set_title("C_r grows as G shrinks: their product stays", loc="left")
        axes[2].set_xlabel("offset δ of the dissimilar nodes")
        axes[2].legend()
        for panel in axes:
            panel.set_xscale("log")
            panel.set_yscale("log")

    return _figure(13.2, 4.2, (1, 1, 1), draw)
