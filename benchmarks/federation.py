"""What a synchronization over Flower takes: seconds, HTTP requests and objects, with real processes.

A SuperLink, SuperNodes and workers are started as `fedkin federation up` does, and the run is that of the
README. What is counted, the SuperLink has written down (`counted_superlink.py`).
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks import counted_superlink
from benchmarks.counted_superlink import TRAFFIC
from benchmarks.wide import PARAMETERS
from fedkin.errors import InputError
from fedkin.flower import processes, trial
from fedkin.flower.launch import Server, superlink_command
from fedkin.flower.layout import SUPERLINK, Layout

SYNCHRONIZATIONS = 30
"""The budget of the README's run."""
SAMPLE_SECONDS = 0.5
"""How often the memory of the processes is looked at."""
PUSHES = ("/v1/runtime/push-messages", "/v1/runtime/dispatch")
"""With one of these the center begins an exchange."""
COLLECTS = (
    "/v1/runtime/pull-messages",
    "/v1/runtime/pull-object",
    "/v1/runtime/confirm-message-received",
    "/v1/runtime/collect",
)
"""With these it waits for the answers and fetches them."""


@dataclass(frozen=True)
class Visit:
    """One HTTP request to the SuperLink."""

    path: str
    begin: float
    end: float
    up: int
    down: int
    objects: int
    """How many objects had been stored when it was answered."""


@dataclass(frozen=True)
class Timing:
    """What a run over Flower has taken."""

    nodes: int
    parameters: int | None
    """None for logistic regression on digits, which has 650."""
    run_seconds: float
    """From `fedkin federation run` to its end, with all nodes up."""
    seconds: list[float]
    """Of each synchronization, from the center's first request to its last."""
    requests: float
    """HTTP requests to the SuperLink per synchronization, with those that found nothing."""
    requests_by_path: dict[str, float]
    objects: float
    """Objects stored per synchronization."""
    megabytes: float
    """Bodies of requests and of answers, per synchronization."""
    memory: dict[str, float]
    """The most megabytes that processes of a kind held: the SuperLink, the center's program, one SuperNode,
    one worker."""

    @property
    def median(self) -> float:
        """The median seconds of a synchronization."""
        return float(np.median(self.seconds))

    @property
    def percentile(self) -> float:
        """The seconds that nine in ten synchronizations do not exceed."""
        return float(np.percentile(self.seconds, 90))


def time_federation(
    directory: Path,
    nodes: int,
    parameters: int | None,
    synchronizations: int,
    on_step: Callable[[str], None] = lambda line: None,
    *,
    plain_sums: bool = False,
) -> Timing:
    """Run the README's trial with real processes.

    Args:
        directory: An empty directory for the federation.
        nodes: How many nodes.
        parameters: About how many parameters the model has; None for logistic regression.
        synchronizations: The run's budget.
        on_step: Called with lines that say what is being done.
        plain_sums: Whether the nodes do not mask their vectors.
    """
    layout, out = Layout(directory / "trial"), directory / "results"
    traffic = directory / "traffic.jsonl"
    model = "logistic" if parameters is None else "benchmarks.wide:model"
    further = {TRAFFIC: str(traffic), PARAMETERS: str(parameters or 0)}
    with _environment(further):
        _fedkin("init", str(layout.directory), "--nodes", str(nodes))
        if parameters is not None:
            _let_nodes_load(layout, model)
        with _counting_superlink():
            trial.up(layout, on_step)
        try:
            memory: dict[str, float] = {}
            with _watch_memory(layout, memory):
                begin = time.monotonic()
                _fedkin(
                    *("run", str(layout.directory), "--method", "bilevel", "--model", model),
                    *("--synchronizations", str(synchronizations), "--out", str(out)),
                    *(("--plain-sums",) if plain_sums else ()),
                )
                seconds = time.monotonic() - begin
        finally:
            trial.down(layout)
    visits = read_visits(traffic)
    done = _synchronizations(out)
    return summarize(visits, done, Timing(nodes, parameters, seconds, [], 0, {}, 0, 0, memory))


def summarize(visits: list[Visit], synchronizations: int, timing: Timing) -> Timing:
    """Add what the SuperLink has written down; the exchanges before the run's own (joining) do not count."""
    exchanges = find_exchanges(visits)[-synchronizations:]
    begin, end = exchanges[0][0], exchanges[-1][1]
    during = [visit for visit in visits if begin <= visit.begin <= end]
    count = len(exchanges)
    paths = Counter(visit.path.removeprefix("/v1/") for visit in during)
    before = max((visit.objects for visit in visits if visit.end < begin), default=0)
    return replace(
        timing,
        seconds=[last - first for first, last in exchanges],
        requests=len(during) / count,
        requests_by_path={path: number / count for path, number in paths.most_common()},
        objects=(max(visit.objects for visit in during) - before) / count,
        megabytes=sum(visit.up + visit.down for visit in during) / count / 1e6,
    )


def find_exchanges(visits: list[Visit]) -> list[tuple[float, float]]:
    """Return when exchanges began and ended: from a push of the center to its last request for answers.

    Large messages take several pushes before the center asks for answers.
    """
    begins = sorted(visit.begin for visit in visits if visit.path in PUSHES)
    collected = sorted((visit.begin, visit.end) for visit in visits if visit.path in COLLECTS)
    found: list[tuple[float, float]] = []
    first: float | None = None
    for begin, following in zip(begins, [*begins[1:], float("inf")], strict=True):
        first = begin if first is None else first
        ends = [end for start, end in collected if begin <= start < following]
        if ends:
            found.append((first, max(ends)))
            first = None
    return found


def read_visits(file: Path) -> list[Visit]:
    """Read what the SuperLink has written down."""
    with file.open(encoding="ascii") as lines:
        return [Visit(**json.loads(line)) for line in lines]


def _synchronizations(out: Path) -> int:
    """Return how many synchronizations the run has made."""
    import pandas as pd

    (history,) = out.rglob("history.parquet")
    return pd.read_parquet(history)["synchronizations"].to_numpy().max()


def _fedkin(*arguments: str) -> None:
    command = [sys.executable, "-m", "fedkin", "federation", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"fedkin federation {arguments[0]} has failed: {done.stderr[-2000:]}")


def _let_nodes_load(layout: Layout, model: str) -> None:
    """Write into every node's settings that it may train this model."""
    text = layout.file.read_text(encoding="utf-8")
    written = text.replace("[[node]]\n", f'[[node]]\nmodels = "{model}"\n')
    layout.file.write_text(written, encoding="utf-8")


@contextmanager
def _environment(further: Mapping[str, str]) -> Iterator[None]:
    """Let the processes that are started find the benchmark's modules and settings."""
    repository = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, [repository, os.environ.get("PYTHONPATH")]))
    former = dict(os.environ)
    os.environ |= {**further, "PYTHONPATH": path}
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= former


@contextmanager
def _counting_superlink() -> Iterator[None]:
    """Let `trial.up` start the SuperLink that counts."""

    def command(server: Server) -> list[str]:
        return [
            str(counted_superlink.__file__) if part.endswith("superlink.py") else part
            for part in superlink_command(server)
        ]

    former, trial.superlink_command = trial.superlink_command, command
    try:
        yield
    finally:
        trial.superlink_command = former


@contextmanager
def _watch_memory(layout: Layout, most: dict[str, float]) -> Iterator[None]:
    """Look at the memory of all processes now and then, and keep the most of each kind."""
    ended = threading.Event()
    identity = layout.read().id

    def watch() -> None:
        while not ended.wait(SAMPLE_SECONDS):
            for number, role in processes.find(identity).items():
                with suppress(psutil.Error):
                    process = psutil.Process(number)
                    kind = _kind(process.cmdline(), role)
                    megabytes = process.memory_info().rss / 1e6
                    most[kind] = max(most.get(kind, 0.0), megabytes)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _kind(command: list[str], role: str) -> str:
    text = " ".join(command)
    if "serverapp.py" in text:
        return "center"
    if role == SUPERLINK:
        return "SuperLink"
    return "worker" if "fedkin.flower.worker" in text else "SuperNode"


def as_record(timing: Timing) -> dict[str, Any]:
    """Return what `--json` prints."""
    return {
        "nodes": timing.nodes,
        "parameters": timing.parameters,
        "run_seconds": timing.run_seconds,
        "synchronizations": len(timing.seconds),
        "median_seconds": timing.median,
        "percentile_90_seconds": timing.percentile,
        "requests": timing.requests,
        "requests_by_path": timing.requests_by_path,
        "objects": timing.objects,
        "megabytes": timing.megabytes,
        "memory_megabytes": timing.memory,
    }
