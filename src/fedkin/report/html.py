"""`report.html`: one file that opens with the answer. It needs no network and no script."""

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemBytecodeCache, PackageLoader, StrictUndefined
from jinja2.bccache import Bucket
from markupsafe import Markup

from fedkin.compilation import kept_code
from fedkin.errors import InputError
from fedkin.files import write_atomically
from fedkin.report import charts, curves, everyone_charts, findings, tables
from fedkin.report.contributions import second_opinion
from fedkin.report.everyone import SUMMARY_COLUMNS, Everyone, everyone_of, summary_entry
from fedkin.report.reading import Cell, Record, Run
from fedkin.report.style import group, palette, revealing, scenario_title
from fedkin.studies.config import GRID_FIELDS
from fedkin.studies.partition_config import PartitionConfig
from fedkin.version import __version__

NAME = "report.html"
MOST_HEAT_MAPS = 40
"""The most federations shown class by class; of a study with more cells, the first are shown."""


@dataclass(frozen=True)
class Panel:
    """A chart with its heading."""

    title: str
    chart: Markup


@dataclass(frozen=True)
class View:
    """Panels of one kind, one per cell, with a caption."""

    title: str
    caption: str
    panels: list[Panel]
    legend: str
    """Which legend it needs: `methods` or `groups`."""


@dataclass(frozen=True)
class Chapter:
    """The figures of one target."""

    target: str
    views: list[View]
    columns: int


def write_page(record: Record, path: Path) -> Path:
    """Write the page into a file, all of it or nothing."""
    text = render(record)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make {path.parent}: {error.strerror}") from error
    write_atomically(path, text.encode())
    return path


def render(record: Record) -> str:
    """Return the page."""
    script = asset("report.js")
    style = f"{asset('report.css')}\n{palette(map(record.appearance, record.labels))}"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    if record.kind == "map":
        return _render_map(record, script, digest, style)
    label, subject = findings.main_label(record), findings.subject(record)
    chapters = _chapters(record)
    table = tables.summary(record)
    return (
        environment()
        .get_template("report.html")
        .render(
            record=record,
            version=__version__,
            # Only these two files enter the page unescaped: they are part of the package.
            script=Markup(script),
            script_digest=digest,
            style=Markup(style),
            weights_sentence=findings.weights_sentence(record, label),
            weights_chart=_weights_chart(record, label),
            accuracy_sentence=findings.accuracy_sentence(record, subject),
            accuracy_chart=_accuracy_chart(record, subject),
            cost_sentence=findings.cost_sentence(record, subject),
            cost_rows=_cost_rows(record),
            revealing=revealing(record.labels.values()),
            everyone=_everyone(record),
            second_opinion=second_opinion(record.contributions),
            chapters=chapters,
            most_views=max(len(chapter.views) for chapter in chapters),
            legend=[(name, record.appearance(name)) for name in record.labels],
            grouped=any(run.similar for run in record.runs),
            rows=tables.rows_by_cell(table, record),
            table_notes=tables.notes(record) if record.kind == "study" else [],
            details=table,
            data=_data(record),
            configuration=_configuration(record),
            versions=_versions(record),
            request=json.dumps(record.request, indent=2, ensure_ascii=False),
            warnings=_warnings(record),
            stops=Counter(str(run.outcome.get("stopped")) for run in record.runs).most_common(),
        )
    )


def _render_map(record: Record, script: str, digest: str, style: str) -> str:
    """Return the page of a map: everyone's question, and what a reader should know about it."""
    return (
        environment()
        .get_template("map.html")
        .render(
            record=record,
            version=__version__,
            script=Markup(script),
            script_digest=digest,
            style=Markup(style),
            everyone=_everyone(record),
            data=_data(record),
            grouped=False,
            request=record.request,
            revealing=revealing([record.request["method"]]),
            warnings=record.request["warnings"],
        )
    )


class KeptTemplates(FileSystemBytecodeCache):
    """Templates that are compiled once, not in every process. Failing to keep one does no harm."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Write a compiled template into its file."""
        with suppress(OSError):
            super().dump_bytecode(bucket)


@cache
def environment() -> Environment:
    """Return the environment of the page templates."""
    directory = kept_code()
    environment = Environment(
        loader=PackageLoader("fedkin.report"),
        bytecode_cache=KeptTemplates(str(directory), "fedkin-%s.template") if directory else None,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["zip"] = zip
    environment.filters |= {
        "entry": lambda row: tables.entry(row.accuracy, row.deviation),
        "signed": tables.signed,
        "summary_entry": summary_entry,
        "setting": lambda setting: scenario_title(setting).removeprefix("setting "),
        "known": lambda value: not np.isnan(value),
        "gain": lambda value: (f"{value:+.3f}" if abs(value) < 100 else f"{value:+.3g}").replace(
            "-", "−"
        ),
        "base": lambda path: Path(path).name,
        "number": lambda value, digits=0: f"{value:,.{digits}f}".replace(",", "\u202f"),
    }
    return environment


def asset(name: str) -> str:
    """Return a file that is part of the package."""
    file = resources.files("fedkin.report").joinpath("templates", name)
    return file.read_text(encoding="utf-8").strip()


def _weights_chart(record: Record, label: str | None) -> Markup | None:
    """Draw the nodes' weights for one federation, else the share of similar nodes per cell."""
    if label is None:
        return None
    learned = [cell for cell in record.cells if label in curves.learners(record, cell)]
    if len(learned) == 1:
        final = curves.final_weights(record, learned[0], label)
        return charts.bar_chart("weight of each node", final)
    known = findings.shares(record, label)
    rows = [(each.cell.title, each.share, each.equal) for each in known]
    return charts.share_chart("share of the weight of nodes like the owner", rows)


def _accuracy_chart(record: Record, label: str) -> Markup | None:
    """Dots: the accuracy of each method in one cell, else its difference from `label` per cell."""
    if record.kind == "fit":
        return None
    if len(record.cells) == 1:
        cell = record.cells[0]
        rows = [
            (
                name,
                record.appearance(name),
                curves.score_interval(
                    np.array(
                        [run.outcome["test_accuracy"] for run in record.of(cell, name)], float
                    ),
                    "test_accuracy",
                ),
            )
            for name in record.labels
        ]
        return charts.dot_chart("test accuracy of each method", rows, "test accuracy")
    compared = findings.gains(record, label)
    if not compared:
        return None
    rows = [
        (gain.label, record.appearance(gain.label), curves.Band(gain.differences, None, None, 1))
        for gain in compared
    ]
    title = f"accuracy of {label} minus that of …, one dot per cell"
    return charts.dot_chart(title, rows, title, difference=True)


def _everyone(record: Record) -> list[dict[str, Any]]:
    """Draw what is shown of the cells in which every node is an owner."""
    return [_everyone_of_cell(record, view) for view in everyone_of(record)]


def _everyone_of_cell(record: Record, view: Everyone) -> dict[str, Any]:
    labels = [each.label for each in view.summaries]
    appearances = {label: record.appearance(label) for label in labels}
    known = {name for each in view.summaries for name in each.numbers}
    found: dict[str, Any] = {
        "view": view,
        "legend": list(appearances.items()),
        "columns": {name: title for name, title in SUMMARY_COLUMNS.items() if name in known},
        "matrix_chart": None,
    }
    if view.matrix is None:
        return found
    gains = everyone_charts.gain_chart(
        f"test accuracy of every node, {view.title}",
        view.nodes,
        labels,
        appearances,
        view.alone,
        view.learner,
        view.measure,
        view.higher,
    )
    return found | {
        "matrix_chart": everyone_charts.matrix_chart(
            f"weights that every owner gives to every node, {view.title}", view.matrix
        ),
        "graph_chart": everyone_charts.graph_chart(
            f"who learns with whom, {view.title}", view.matrix
        ),
        "gain_chart": gains,
    }


def _cost_rows(record: Record) -> list[tuple[str, dict[str, float]]]:
    """Return what a run of each method costs on average."""
    rows = []
    for label in record.labels:
        totals = [run.total for run in record.runs if run.label == label]
        rows.append(
            (label, {name: float(np.mean([t[name] for t in totals])) for name in tables.COSTS})
        )
    return rows


def _chapters(record: Record) -> list[Chapter]:
    chapters = []
    for target in record.distinct("target", record.cells):
        cells = [cell for cell in record.cells if cell.target == target]
        settings = {cell.setting for cell in cells}
        chapters.append(Chapter(target, _views(record, cells), len(settings)))
    return chapters


COST_TITLES = {
    "synchronizations": "synchronizations",
    "points": "points processed",
    "bytes_up": "bytes sent up",
    "bytes_down": "bytes sent down",
}
COST_NOTES = {
    "points": " Points are those of the busiest node.",
    "bytes_up": " From the nodes to the center, all nodes together.",
    "bytes_down": " From the center to the nodes, all nodes together.",
}


def _views(record: Record, cells: list[Cell]) -> list[View]:
    appearances = {label: record.appearance(label) for label in record.labels}
    score = curves.SCORES[curves.score_column(record)]
    counts = {
        len(runs) for cell in cells for label in appearances if (runs := record.of(cell, label))
    }
    several = max(counts) > 1
    mean = ", mean over seeds" if several else ""
    shade = f" Shaded: {curves.interval_words(*counts)}." if several else ""
    whiskers = " Whiskers: one standard deviation over seeds." if several else ""
    compared = "local" in record.labels.values() and len(record.labels) > 1
    levels = " Local-train is a horizontal line at its final value." if compared else ""
    views = []

    def view(title: str, caption: str, legend: str, of: list[Cell], draw: Callable[[Cell], Markup]):
        panels = [Panel(cell.short_title, draw(cell)) for cell in of]
        if panels:
            views.append(View(title, caption, panels, legend))

    for cost in curves.shown_costs(record):
        axis, unit = curves.COSTS[cost]
        view(
            f"{score.capitalize()} against {COST_TITLES[cost]}",
            f"The model at that point{mean}.{shade}{levels}{COST_NOTES.get(cost, '')}",
            "methods",
            cells,
            lambda cell, cost=cost, axis=axis, unit=unit: charts.line_chart(
                f"{score} against {COST_TITLES[cost]}, {cell.title}",
                curves.score_curves(record, cell, cost),
                appearances,
                axis,
                score,
                unit,
            ),
        )
    learned = curves.all_learners(record)
    for label in learned:
        of = [cell for cell in cells if label in curves.learners(record, cell)]
        ending = f": {label}" if len(learned) > 1 else ""
        view(
            f"Weights over outer iterations{ending}",
            f"The weights that {label} learned, one line per node{mean}. Dotted: equal weights.",
            "groups",
            of,
            lambda cell, label=label: charts.path_chart(
                f"weights of {label} over outer iterations, {cell.title}",
                curves.weight_paths(record, cell, label),
            ),
        )
        if record.kind == "fit":
            continue  # The page opens with the final weights.
        view(
            f"Final weights{ending}",
            f"The weights of {label}'s result{mean}.{whiskers} Dotted: equal weights.",
            "groups",
            of,
            lambda cell, label=label: charts.bar_chart(
                f"final weights of {label}, {cell.title}",
                curves.final_weights(record, cell, label),
            ),
        )
    return views


def _data(record: Record) -> list[dict[str, Any]]:
    """Return what each node holds in the first run of each cell: counts per class, or rows."""
    found = []
    for cell in record.cells[:MOST_HEAT_MAPS]:
        run = record.of(cell)[0]
        data = run.data
        if not data.get("points"):
            continue
        rows = []
        counts = data.get("class_counts") or [None] * len(data["names"])
        for name, points, held in zip(data["names"], data["points"], counts, strict=True):
            rows.append(_held(name, group(run.similar.get(name)), points, held))
        for name in ("validation", "test"):
            held = data.get(f"{name}_counts")
            if held:
                rows.append(_held(name, "owner", sum(held), held))
        found.append(
            {
                "title": f"{cell.title}, seed {run.seed}" if record.kind == "study" else cell.title,
                "classes": data.get("classes", []) if data.get("class_counts") else [],
                "rows": rows,
                "weights": run.weights if record.kind == "fit" else None,
            }
        )
    return found


def _held(name: str, group: str, points: int, counts: list[int] | None) -> dict[str, Any]:
    shares = [] if counts is None else [count / max(points, 1) for count in counts]
    return {
        "name": name,
        "group": group,
        "points": points,
        "counts": counts or [],
        "shares": shares,
    }


def _configuration(record: Record) -> list[tuple[str, str]]:
    """Return every parameter that was set, with all its values."""
    if record.kind == "fit":
        return [("model", str(record.request["model"]["name"]))]
    names = [
        name for name in record.runs[0].config if name not in (*GRID_FIELDS, "settings", "declared")
    ]
    rows = []
    for name in names:
        values = [run.config.get(name) for run in record.runs]
        if name == "partition":
            values = [value and PartitionConfig.model_validate(value).title for value in values]
        if any(value is not None for value in values):
            rows.append((name, _distinct(values)))
    for method in dict.fromkeys(record.labels.values()):
        runs = [run for run in record.runs if run.method == method]
        keys = dict.fromkeys(key for run in runs for key in run.config["settings"])
        for key in keys:
            values = [run.config["settings"].get(key) for run in runs]
            if any(value is not None for value in values):
                rows.append((f"{method}: {key}", _distinct(values)))
    return [(name.replace("_", " "), value) for name, value in rows]


def _distinct(values: list[Any]) -> str:
    found = dict.fromkeys("not set" if value is None else str(value) for value in values)
    return ", ".join(found)


def _versions(record: Record) -> list[tuple[str, str]]:
    names = dict.fromkeys(name for run in record.runs for name in run.versions)
    return [
        (name, _distinct([run.versions.get(name) for run in record.runs if run.versions]))
        for name in names
    ]


def _warnings(record: Record) -> list[tuple[str, int, list[str]]]:
    """Return each warning, how often it occurred, and in which runs."""
    places: dict[str, list[str]] = {}
    for run in record.runs:
        for warning in run.outcome.get("warnings", []):
            places.setdefault(warning, []).append(_run_title(run))
    return [(text, len(runs), list(dict.fromkeys(runs))) for text, runs in places.items()]


def _run_title(run: Run) -> str:
    return f"{run.cell.title}, {run.label}, seed {run.seed}"
