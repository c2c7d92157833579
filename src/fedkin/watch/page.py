"""The page of a run that is under way, as HTML. Everything on it is text from outside, and is escaped."""

import base64
import hashlib
import math
import time
from dataclasses import dataclass, replace

import numpy as np
from markupsafe import Markup

from fedkin.report import charts
from fedkin.report.curves import MOST_POINTS, Band, Curve, FinalWeights, WeightPaths
from fedkin.report.html import asset, environment
from fedkin.report.style import appearance, method_title, palette
from fedkin.version import __version__
from fedkin.watch.directory import Watched
from fedkin.watch.runs import GivenWarning, LiveRun

MOST_RUNS = 40
"""The most runs of a kind that are listed."""
MOST_WARNINGS = 50
"""The most warnings that are shown, the latest first."""
SILENT_SECONDS = 60.0
"""Without news for this long, and for many times the duration of a step, the page says so."""
MANY = 10

DASHES = {"validation accuracy": (5.0, 3.0)}
PAGE = "live.html"
SCRIPT = "live.js"


@dataclass(frozen=True)
class Node:
    """A node as the page shows it."""

    name: str
    weight: float | None
    absent_since: int | None
    """The step after which it was missing; None if it is there."""


def content_policy(script: str, *, asks: bool) -> str:
    """Return the content security policy of a page with one script.

    Args:
        script: The script.
        asks: Whether it may ask the server that the page came from.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    source = "'self'" if asks else "'none'"
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; "
        f"connect-src {source}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def render(watched: Watched, chosen: str | None, trouble: str = "") -> str:
    """Return the page.

    Args:
        watched: What is watched.
        chosen: The name of the run to show; None for the one with the latest news.
        trouble: Why the report of a run that is over cannot be shown.
    """
    now = time.time()
    run = _chosen(watched, chosen)
    over = watched.is_over()
    running = watched.in_state("running")
    methods = {each.method for each in (run, *running) if each is not None and each.method}
    own = [each for each in watched.runs.values() if not each.is_trial]
    trials = [each for each in watched.runs.values() if each.is_trial]
    return (
        environment()
        .get_template(PAGE)
        .render(
            watched=watched,
            version=__version__,
            script=Markup(asset(SCRIPT)),
            style=Markup(
                f"{asset('report.css')}\n{asset('live.css')}\n{palette(map(appearance, methods))}"
            ),
            over=over,
            to_report=over and chosen is None and not trouble,
            trouble=trouble,
            chosen=chosen,
            finished=sum(each.state == "finished" for each in own),
            failed=[each for each in watched.in_state("failed") if not each.is_trial],
            failed_trials=sum(each.state == "failed" for each in trials),
            trials=len(trials),
            trials_ended=sum(each.state in ("finished", "failed") for each in trials),
            begun=len(own),
            running=running,
            done=[each for each in watched.in_state("finished") if not each.is_trial][:MOST_RUNS],
            most=MOST_RUNS,
            run=run,
            nodes=[] if run is None else _nodes(run),
            scores=None if run is None else _score_chart(run),
            paths=None if run is None else _path_chart(run),
            bars=None if run is None else _bar_chart(run),
            warnings=_warnings(watched)[:MOST_WARNINGS],
            left=None if over else duration(watched.seconds_left()),
            ago=duration(now - watched.last_news) if watched.last_news else None,
            silent=not over and _is_silent(watched, running, now),
            duration=duration,
            clock=clock,
            method_title=method_title,
        )
    )


def duration(seconds: float | None) -> str | None:
    """Write how long something takes.

    >>> duration(7.4), duration(100), duration(9000), duration(None)
    ('7 s', '2 min', '2.5 h', None)
    """
    if seconds is None or not math.isfinite(seconds):
        return None
    if seconds < 90:
        return f"{max(seconds, 0):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def clock(when: float) -> str:
    """Write the time of day of an event; a dash where its time is none.

    >>> clock(1e300)
    '–'
    """
    try:
        return time.strftime("%H:%M:%S", time.localtime(when))
    except (ValueError, OverflowError, OSError):
        return "–"


def _chosen(watched: Watched, name: str | None) -> LiveRun | None:
    """Return the run that was asked for, or the one with the latest news, that under way first."""
    if name is not None:
        return watched.steps_of(name) if name in watched.runs else None
    for state in ("running", "finished", "failed"):
        found = [run for run in watched.in_state(state) if run.steps]
        if found:
            return watched.steps_of(found[0].name)
    return None


def _is_silent(watched: Watched, running: list[LiveRun], now: float) -> bool:
    """Tell whether nothing was heard for much longer than the steps of the runs under way take."""
    paces = [run.last.seconds / run.last.step for run in running if run.last is not None]
    patience = max([SILENT_SECONDS, *(MANY * pace for pace in paces)])
    return bool(watched.last_news) and now - watched.last_news > patience


def _nodes(run: LiveRun) -> list[Node]:
    """Return the nodes of a run, those that are missing first."""
    last = run.last
    absent = set() if last is None else set(last.absent)
    weights = (
        {}
        if last is None or last.weights is None
        else dict(zip(run.nodes, last.weights, strict=False))
    )
    nodes = [
        Node(name, weights.get(name), _absent_since(run, name) if name in absent else None)
        for name in run.nodes
    ]
    return sorted(nodes, key=lambda node: node.absent_since is None)


def _absent_since(run: LiveRun, name: str) -> int:
    since = run.steps[-1].step
    for step in reversed(run.steps):
        if name not in step.absent:
            break
        since = step.step
    return since


def _score_chart(run: LiveRun) -> Markup | None:
    """Draw accuracies over synchronizations, or the loss where there are none."""
    columns = {
        "test accuracy": [step.test_accuracy for step in run.steps],
        "validation accuracy": [step.validation_accuracy for step in run.steps],
    }
    title = "accuracy"
    if not any(value is not None for values in columns.values() for value in values):
        columns, title = (
            {"validation loss": [step.validation_loss for step in run.steps]},
            "validation loss",
        )
    talks = any(step.synchronizations for step in run.steps)
    places = [step.synchronizations if talks else step.step for step in run.steps]
    curves, looks = {}, {}
    for name, values in columns.items():
        known = [
            (place, value)
            for place, value in zip(places, values, strict=True)
            if value is not None and math.isfinite(value)
        ]
        if len(known) < 2:
            continue
        x, y = np.array(_thinned(known), float).T
        curves[name] = Curve(x, Band(y, None, None, 1))
        looks[name] = replace(appearance(run.method), dashes=DASHES.get(name, ()))
    if not curves:
        return None
    x_title = "synchronizations" if talks else "outer iteration"
    return charts.line_chart(f"{title} against {x_title}", curves, looks, x_title, title)


def _thinned(values: list) -> list:
    if len(values) <= MOST_POINTS:
        return values
    chosen = np.unique(np.linspace(0, len(values) - 1, MOST_POINTS).round().astype(int))
    return [values[place] for place in chosen]


def _weights(run: LiveRun) -> list[tuple[int, tuple[float, ...]]]:
    """Return the steps whose weights fit the nodes, and can be drawn."""
    return [
        (step.step, step.weights)
        for step in run.steps
        if step.weights is not None
        and len(step.weights) == len(run.nodes)
        and all(map(math.isfinite, step.weights))
    ]


def _path_chart(run: LiveRun) -> Markup | None:
    known = _thinned(_weights(run))
    if len(known) < 2:
        return None
    steps = np.array([step for step, _ in known])
    weights = np.array([each for _, each in known]).T
    unknown: list[bool | None] = [None] * len(run.nodes)
    return charts.path_chart(
        "weight of each node over outer iterations",
        WeightPaths(list(run.nodes), unknown, steps, weights),
    )


def _bar_chart(run: LiveRun) -> Markup | None:
    known = _weights(run)
    if not known:
        return None
    unknown: list[bool | None] = [None] * len(run.nodes)
    mean = np.array(known[-1][1])
    return charts.bar_chart(
        "weight of each node", FinalWeights(list(run.nodes), unknown, mean, None)
    )


def _warnings(watched: Watched) -> list[tuple[str, GivenWarning]]:
    """Return the warnings of all runs with the names of these, the latest first."""
    found = [
        (run.name, warning) for run in watched.runs.values() for warning in run.warnings.values()
    ]
    return sorted(found, key=lambda each: each[1].last, reverse=True)
