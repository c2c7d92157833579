"""What is kept of every run: a row in `results/STUDY.csv`. Tables and figures are made of these alone."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from fedkin.events import EVENTS_FILE
from fedkin.report.reading import Run, read_record
from fedkin.studies.config import RunConfig, StudyConfig, with_settings
from fedkin.studies.store import read_config
from reproduction.leaderboard.plan import RESULTS

KEY = ["cell", "method", "seed"]
COLUMNS = [
    *KEY,
    "settings",
    "accuracy",
    "worst",
    "validation_accuracy",
    "owners",
    "bad_weight",
    "synchronizations",
    "bytes",
    "seconds",
    "run",
]
"""`owners` has the accuracy of every owner; `bad_weight` is the weight of bad nodes together; `run` is the
checksum of what decides the run. A run that diverged has no accuracy."""


def table_path(name: str) -> Path:
    """Return the table of a study."""
    return RESULTS / f"{name}.csv"


def read_rows(name: str) -> pd.DataFrame:
    """Return the rows of a study; there may be none."""
    path = table_path(name)
    return pd.read_csv(path, dtype={"run": str}) if path.exists() else pd.DataFrame(columns=COLUMNS)


def add_rows(name: str, rows: Iterable[dict[str, Any]]) -> None:
    """Add rows to the table of a study; a run that is there already is replaced."""
    new = pd.DataFrame(list(rows), columns=COLUMNS)
    old = read_rows(name)
    both = pd.concat([each for each in (old, new) if len(each)] or [new], ignore_index=True)
    kept = both.groupby(KEY, sort=False).tail(1).sort_values(KEY, kind="stable")
    RESULTS.mkdir(exist_ok=True)
    kept.to_csv(table_path(name), index=False)


def collect(name: str, store: Path) -> int:
    """Add the runs of a store that have ended to the table of its study; return how many they are."""
    rows = [row_of(run) for run in read_record(store).runs]
    directories = sorted((store / "runs").iterdir())
    rows += [row_of_diverged(path) for path in directories if has_diverged(path)]
    add_rows(name, rows)
    return len(rows)


def has_diverged(directory: Path) -> bool:
    """Tell whether the last that happened to a run is that its training diverged."""
    events = directory / EVENTS_FILE
    if (directory / "finished.json").exists() or not events.exists():
        return False
    last = json.loads(events.read_text(encoding="utf-8").splitlines()[-1])
    return last["event"] == "failed" and "diverged" in last["reason"]


def row_of_diverged(directory: Path) -> dict[str, Any]:
    """Return the row of a run that diverged: no accuracy, no cost."""
    config = read_config(directory)
    row = {"cell": config.cell, "method": config.method, "seed": config.seed}
    row |= {"settings": json.dumps(config.settings, sort_keys=True), "owners": "[]"}
    return dict.fromkeys(COLUMNS) | row | {"run": _checksum(directory.name)}


def row_of(run: Run) -> dict[str, Any]:
    """Return what is kept of a run."""
    config = RunConfig(**run.config)
    outcome, everyone = run.outcome, run.owners
    owners = [outcome["test_accuracy"]]
    sent: Any = run.total
    if everyone is not None:
        owners = [row.get("test_accuracy") for row in everyone["owners"]]
        sent = outcome
    bad_weight = None
    if config.bad is not None and run.weights is not None:
        bad_weight = sum(run.weights.get(node, 0.0) for node in config.bad.nodes)
    return make_row(
        cell=config.cell,
        method=run.method,
        seed=run.seed,
        settings=config.settings,
        owners=owners,
        validation_accuracy=outcome["validation_accuracy"],
        bad_weight=bad_weight,
        synchronizations=int(outcome["total_synchronizations"]),
        sent=int(sent["bytes_up"] + sent["bytes_down"]),
        seconds=outcome["total_seconds"],
        run=_checksum(run.name),
    )


def _checksum(directory: str) -> str:
    """Return the end of the name of a run's directory, which decides that it is this run."""
    return directory.rsplit("-", 1)[1]


def make_row(
    *,
    cell: str,
    method: str,
    seed: int,
    settings: dict[str, Any],
    owners: list[float],
    validation_accuracy: float,
    bad_weight: float | None = None,
    synchronizations: int,
    sent: int,
    seconds: float,
    run: str,
) -> dict[str, Any]:
    """Return a row of a table, with digits that suffice."""
    return {
        "cell": cell,
        "method": method,
        "seed": seed,
        "settings": json.dumps(settings, sort_keys=True),
        "accuracy": round(sum(owners) / len(owners), 6),
        "worst": round(min(owners), 6),
        "validation_accuracy": round(validation_accuracy, 6),
        "owners": json.dumps([round(each, 4) for each in owners]),
        "bad_weight": None if bad_weight is None else round(bad_weight, 6),
        "synchronizations": synchronizations,
        "bytes": sent,
        "seconds": round(seconds, 1),
        "run": run,
    }


def known_runs(study: StudyConfig, rows: pd.DataFrame) -> list[RunConfig]:
    """Return the runs of a study that have a row, made by the study's file as it is now."""
    by_key = {(row["cell"], row["method"], row["seed"]): row for row in rows.to_dict("records")}
    found = []
    for planned in study.runs():
        row = by_key.get((planned.cell, planned.method, planned.seed))
        if row is None:
            continue
        config = with_settings(planned, json.loads(row["settings"]))
        if _checksum(config.directory) == row["run"]:
            found.append(config)
    return study.asked_for(found)
