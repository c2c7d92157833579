"""A study's store condensed to three small tables that fit into a repository, and read back.

ROOT/studies/NAME.toml              the study, as `fedkin run` takes it
ROOT/results/NAME/index.csv         one row per finished run: its whole configuration, its outcome
ROOT/results/NAME/history.csv.gz    one row per evaluation of these runs
ROOT/results/NAME/tuning.csv        one row per short run that chose parameters
ROOT/evidence/why-…/…               the same for the studies of the investigation

Studies `rounds-…` are evaluated after every synchronization. Their histories have the share of the weight on
similar nodes in place of the weight of each node, to stay small.

A missing value is an empty field. Everything else that is not text is written as JSON, so that reading
it gives the same configuration, and the name of a run, which ends with a checksum of it, still fits.
"""

import csv
import io
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import ValidationError

from fedkin.errors import InputError
from fedkin.files import write_atomically
from fedkin.report.reading import (
    Missing,
    Record,
    Run,
    grid_order,
    make_run,
    missing_runs,
    read_record,
    with_labels,
)
from fedkin.studies.config import RunConfig, StudyConfig
from fedkin.studies.store import Store, read_config, read_finished
from fedkin.studies.study_file import load_study
from fedkin.training.history import WEIGHT_PREFIX

Key = tuple[tuple[str, str, str], str, int]
"""What a study asks for: a cell, a method and a seed. Variants of a method share it."""

SETTING_COLUMNS = (
    "preset",
    "learning_rate",
    "period",
    "rounds",
    "refresh_probability",
    "averaging",
    "cap",
    "solver",
    "damping",
    "solver_iterations",
    "adjoint_learning_rate",
    "outer",
    "outer_learning_rate",
    "warm_start",
    "warm_start_adjoint",
    "proximal",
    "personal_steps",
)
"""The parameters of the paper's methods, in the order of the collected tables."""

INDEX, HISTORY, TUNING = "index.csv", "history.csv.gz", "tuning.csv"
STUDIES, RESULTS, EVIDENCE = "studies", "results", "evidence"

EVIDENCE_STUDIES = "why-"
"""Studies whose names begin like this are what an investigation rests on; they are in neither table."""

ROUND_STUDIES = "rounds-"
"""Studies whose names begin like this are compared in `rounds.md`; they are in neither table."""

SIMILAR_WEIGHT = "similar_weight"
"""The column of their histories with the share of the weight on nodes with the owner's distribution."""

REACHED = 0.95
"""The share of a run's final accuracy at which the cost of reaching it is measured."""

BUDGETS = ("synchronizations", "points", "steps")
CONFIG_COLUMNS = {
    name: f"budget_{name}" if name in BUDGETS else name
    for name in RunConfig.model_fields
    if name != "settings"
}
"""The fields of a run's configuration, except the method's parameters, and their columns."""

COSTS = ("synchronizations", "points", "bytes_up", "bytes_down", "seconds")
VERSIONS = ("fedkin", "python", "jax", "jaxlib", "numpy", "optax")
TEXT = ("run", "dataset", "target", "method", "model", "stopped", "origin", *VERSIONS)
"""Columns that are text whatever they look like."""

HISTORY_COLUMNS = (
    *("step", "synchronizations", "rounds", "points", "bytes_up", "bytes_down", "seconds"),
    *("validation_loss", "validation_accuracy", "test_loss", "test_accuracy"),
)


@dataclass(frozen=True)
class Trial:
    """A short run that took part in the choice of parameters."""

    dataset: str
    setting: str
    target: str
    method: str
    seed: int
    parameters: str
    validation_accuracy: float
    validation_loss: float
    seconds: float
    chosen: bool


@dataclass(frozen=True)
class Collection:
    """The runs of a store that are to be condensed."""

    target: Path
    runs: list[Run]
    rows: list[dict[str, Any]]
    """The index of the runs."""
    trials: list[Trial]

    def write(self) -> None:
        """Write the three tables in place of those that are there."""
        try:
            self.target.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make {self.target}: {error.strerror}") from error
        write_atomically(self.target / INDEX, _csv(self.rows))
        shares = self.target.name.startswith(ROUND_STUDIES)
        write_atomically(self.target / HISTORY, _histories(self.runs, shares=shares))
        if self.trials:
            rows = [vars(trial) for trial in self.trials]
            write_atomically(self.target / TUNING, _csv(rows))
        else:
            (self.target / TUNING).unlink(missing_ok=True)


def study_directory(root: Path, name: str) -> Path:
    """Return where the tables of a study are."""
    return root / (EVIDENCE if name.startswith(EVIDENCE_STUDIES) else RESULTS) / name


def read_store(store: Path, root: Path, *, keep: bool = False, replace: bool = False) -> Collection:
    """Read a store, to be collected under its own name.

    Runs that the study of that name does not ask for are left out. What was collected before is
    replaced as a whole; only with `keep` can the runs of one study come from two stores.

    Args:
        store: The directory of a study, named like it.
        root: The directory with `studies/`.
        keep: Whether runs collected before that the store lacks are kept.
        replace: Whether runs collected before that the store lacks may be lost.
    """
    record = read_record(store)
    if record.kind != "study":
        raise InputError(f"{store} is the result of a fit: give the directory of a study")
    name = store.resolve().name
    study = read_study(root, name)
    runs = _wanted(record.runs, study)
    if not runs:
        raise InputError(f"{store} has no finished run that {root / STUDIES / name}.toml asks for")
    target = study_directory(root, name)
    runs = sorted(runs, key=lambda run: run.name)
    rows = [_index_row(run) for run in runs]
    found = Collection(target, runs, rows, _trials(Store(store), runs))
    if not (target / INDEX).exists() or replace:
        return found
    if keep:
        return _with_former(found, root, study, store)
    asked = {(_cell(config), config.method, config.seed) for config in study.runs()}
    before = [key for key in map(_key, _read_if_sound(root, name)) if key in asked]
    _refuse_loss(store, target, Counter(before) - Counter(map(_key, runs)))
    return found


def _with_former(found: Collection, root: Path, study: StudyConfig, store: Path) -> Collection:
    """Add the runs that were collected before to those of a store."""
    before = read_condensed(root, found.target.name).runs
    outdated = len(before) - len(_wanted(before, study))
    if outdated:
        raise InputError(
            f"{outdated} of the {len(before)} runs in {found.target} are not what the study's file asks "
            "for now, and cannot be kept: put the file back, or lose them with --replace"
        )
    names, trials = {run.name for run in found.runs}, set(map(_trial_key, found.trials))
    former = {run.name: run for run in before if run.name not in names}
    _refuse_two_choices(store, found.target, study, [*former.values(), *found.runs])
    # Rows stay as they are: made again from a rounded history they may differ in the last digit.
    rows = [row for row in read_table(found.target / INDEX) if row["run"] in former]
    rows = [{column: row.get(column) for column in found.rows[0]} for row in rows]
    former_trials = [t for t in read_trials(found.target) if _trial_key(t) not in trials]
    return Collection(
        found.target,
        sorted([*found.runs, *former.values()], key=lambda run: run.name),
        sorted([*found.rows, *rows], key=lambda row: row["run"]),
        sorted([*found.trials, *former_trials], key=_trial_key),
    )


def _key(run: Run) -> Key:
    return run.cell, run.method, run.seed


def _wanted(runs: Iterable[Run], study: StudyConfig) -> list[Run]:
    runs = list(runs)
    asked = study.asked_for(RunConfig(**run.config) for run in runs)
    names = {config.directory for config in asked}
    return [run for run in runs if run.name in names]


def _read_if_sound(root: Path, name: str) -> list[Run]:
    try:
        return read_condensed(root, name).runs
    except InputError:
        return []  # Damaged tables are to be replaced.


def _refuse_loss(store: Path, target: Path, lost: Counter[Key]) -> None:
    """Refuse to replace runs that were collected before by fewer; variants are counted, not named."""
    if lost:
        cell, method, seed = next(iter(lost))
        raise InputError(
            f"{target} has {lost.total()} runs that {store} lacks (the first: {method} with seed {seed} "
            f"on {', '.join(cell)}) and that would be lost: add --keep to keep them, or --replace to lose "
            "them"
        )


def _refuse_two_choices(store: Path, target: Path, study: StudyConfig, runs: Iterable[Run]) -> None:
    """Refuse runs of two stores whose parameters were chosen differently."""
    names = {method: study.choices(method) for method in study.method}
    choices: dict[tuple[Any, ...], str] = {}
    for run in runs:
        settings = run.config["settings"].items()
        own = _parameters({name: value for name, value in settings if name in names[run.method]})
        variant = [each for each in settings if each[0] not in names[run.method]]
        other = choices.setdefault((run.cell, run.method, _parameters(dict(variant))), own)
        if own != other:
            raise InputError(
                f"{target} and {store} have runs of {run.method} on {', '.join(run.cell)} with different "
                f"choices, {other} and {own}, which cannot be kept together: run the study with the former "
                "choices (python -m reproduction run --collected), or lose the former runs with --replace"
            )


def is_condensed(directory: Path) -> bool:
    """Tell whether a directory is a condensed study."""
    return (directory / INDEX).exists() and (directory / HISTORY).exists()


def read_any(directory: Path) -> Record:
    """Read a condensed study, a study's store, or what `fedkin fit` has written."""
    if not is_condensed(directory):
        return read_record(directory)
    whole = directory.resolve()
    return read_condensed(whole.parents[1], whole.name)


def read_condensed(root: Path, name: str) -> Record:
    """Read a condensed study; its file decides which runs are missing."""
    study, directory = read_study(root, name), study_directory(root, name)
    try:
        history = pd.read_csv(directory / HISTORY)
        by_run = {str(name): table.drop(columns="run") for name, table in history.groupby("run")}
    except (OSError, EOFError, ValueError, KeyError, zlib.error) as error:
        raise InputError(f"{directory / HISTORY} is damaged: collect it again") from error
    runs = [_read_row(row, by_run, directory) for row in read_table(directory / INDEX)]
    order = grid_order(study)
    runs = sorted(with_labels(runs), key=lambda run: (order(run.cell), run.seed))
    missing = list(missing_runs(study, runs, lambda *_: "not finished"))
    return Record(directory, "study", runs, missing, request=study.model_dump(mode="json"))


def read_collected(root: Path, name: str, study: StudyConfig) -> list[RunConfig]:
    """Return the runs of a study that were collected under a name; there may be none."""
    if read_study(root, name) != study:
        raise InputError(
            f"{root / STUDIES / name}.toml asks for other runs than the file that was given, so they "
            "could not be collected: give that file, or make the two the same"
        )
    if not (study_directory(root, name) / INDEX).exists():
        return []
    return study.asked_for(RunConfig(**run.config) for run in read_condensed(root, name).runs)


def planned_without_results(root: Path, name: str) -> list[Missing]:
    """Return all runs of a study of which nothing was collected."""
    return list(missing_runs(read_study(root, name), [], lambda *_: "not begun"))


def read_trials(directory: Path) -> list[Trial]:
    """Read what was tried to choose parameters; an empty list if nothing was."""
    if not (directory / TUNING).exists():
        return []
    rows = read_table(directory / TUNING)
    for row in rows:
        row["setting"] = str(row["setting"])
    return [Trial(**row) for row in rows]


def read_table(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a table that a collection has written."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [{name: _parse(name, text) for name, text in row.items()} for row in rows]


def read_study(root: Path, name: str) -> StudyConfig:
    """Read which runs a study consists of."""
    file = root / STUDIES / f"{name}.toml"
    if not file.exists():
        raise InputError(
            f"there is no file {file}, which says what the study {name} consists of: put it there, and "
            "give the study's directory the same name"
        )
    return load_study(file)


def _cell(config: RunConfig) -> Any:
    return config.dataset, config.setting_title, config.target


def _index_row(run: Run) -> dict[str, Any]:
    """Return everything that decided a run, and everything that came out of it except the models."""
    row: dict[str, Any] = {"run": run.name}
    row |= {column: run.config[name] for name, column in CONFIG_COLUMNS.items()}
    row |= {name: run.config["settings"].get(name) for name in SETTING_COLUMNS}
    outcome, last = run.outcome, run.total
    mark = REACHED * outcome["test_accuracy"]
    reached = run.history[run.history.test_accuracy >= mark].iloc[0]
    row |= {name: outcome[name] for name in ("test_accuracy", "validation_accuracy")}
    places: dict[str, Any] = {"best": outcome, "total": last, "reach95": reached}
    for prefix, place in places.items():
        row |= {f"{prefix}_{name}": int(place[name]) for name in ("step", *COSTS[:-1])}
        row |= {f"{prefix}_seconds": _rounded(place["seconds"])}
    similar = [name for name, alike in run.similar.items() if alike]
    return row | {
        "best_similar_weight": _share(run.weights, similar),
        "last_similar_weight": _share(weights_at(last), similar),
        "similar_nodes": similar,
        "stopped": outcome["stopped"],
        "warnings": outcome["warnings"],
        "origin": run.data.get("origin"),
        **{name: run.versions.get(name) for name in VERSIONS},
    }


def weights_at(evaluation: pd.Series) -> dict[str, float] | None:
    """Return the weights of nodes at an evaluation; None if the method has none."""
    weights = {
        str(name).removeprefix(WEIGHT_PREFIX): float(value)
        for name, value in evaluation.items()
        if str(name).startswith(WEIGHT_PREFIX) and not pd.isna(value)
    }
    return weights or None


def similar_shares(run: Run) -> np.ndarray | None:
    """Return the weight on similar nodes at every evaluation of a run; None if it has no weights."""
    if SIMILAR_WEIGHT in run.history:
        return run.history[SIMILAR_WEIGHT].to_numpy(float)
    columns = [WEIGHT_PREFIX + name for name, alike in run.similar.items() if alike]
    if not set(columns) <= set(run.history):
        return None
    return run.history[columns].to_numpy(float).sum(axis=1)


def _share(weights: Mapping[str, float] | None, names: Iterable[str]) -> float | None:
    return None if weights is None else _rounded(sum(weights[name] for name in names))


def _rounded(value: float) -> float:
    """Keep seven digits, for seconds and weights; a run's name depends on each digit of its parameters."""
    return float(f"{value:.7g}")


def _read_row(row: dict[str, Any], histories: Mapping[str, pd.DataFrame], directory: Path) -> Run:
    settings = {name: row[name] for name in SETTING_COLUMNS if row.get(name) is not None}
    given = {name: row.get(column) for name, column in CONFIG_COLUMNS.items()}
    known = {name: value for name, value in given.items() if value is not None}
    # An empty budget was left open on purpose: it must not get its default.
    known |= {name: None for name in BUDGETS if row.get(CONFIG_COLUMNS[name]) is None}
    try:
        config = RunConfig(**known, settings=settings)  # pyright: ignore[reportArgumentType]
        history = histories[row["run"]].dropna(axis=1, how="all").reset_index(drop=True)
        kept: Any = history[history.step == row["best_step"]].iloc[0]
        agrees = bool(np.isclose(kept.test_accuracy, row["test_accuracy"], atol=1e-6))
    except (ValidationError, InputError, KeyError, IndexError) as error:
        raise InputError(
            f"{directory / INDEX} is damaged or was edited, at {row.get('run')}: collect it again"
        ) from error
    if config.directory != row["run"] or not agrees:
        raise InputError(
            f"{directory / INDEX} was edited: the row of {row['run']} does not fit its name or its "
            "history; collect it again"
        )
    weights = weights_at(kept)
    similar = set(row["similar_nodes"])
    return make_run(
        config,
        name=row["run"],
        versions={name: row[name] for name in VERSIONS if row[name] is not None},
        outcome={**row, "step": row["best_step"]},
        history=history,
        weights=weights,
        data={
            "names": list(weights or similar),
            "similar": [name in similar for name in weights or similar],
            "origin": row["origin"],
        },
    )


def _histories(runs: list[Run], *, shares: bool) -> bytes:
    """Write all histories; with `shares`, the similar nodes' share in place of each node's weight."""
    tables = []
    for run in runs:
        weights = [name for name in run.history if str(name).startswith(WEIGHT_PREFIX)]
        kept = [name for name in HISTORY_COLUMNS if name in run.history]
        table = run.history[kept if shares else [*kept, *weights]].copy()
        found = similar_shares(run) if shares else None
        if found is not None:
            table[SIMILAR_WEIGHT] = found
        table.insert(0, "run", run.name)
        tables.append(table)
    whole = pd.concat(tables, ignore_index=True)
    buffer = io.BytesIO()
    # Seven digits are what float32 has; no time in the file, so that the same runs give the same bytes.
    whole.to_csv(
        buffer, index=False, float_format="%.7g", compression={"method": "gzip", "mtime": 0}
    )
    return buffer.getvalue()


def _trials(store: Store, runs: list[Run]) -> list[Trial]:
    used = {(run.cell, run.method, _parameters(run.config["settings"])) for run in runs}
    trials = []
    for path in sorted(store.tuning.iterdir()) if store.tuning.is_dir() else []:
        outcome = read_finished(path) if path.is_dir() else None
        if outcome is None:
            continue
        config = read_config(path)
        last: Any = pd.read_parquet(path / "history.parquet").iloc[-1]
        parameters = _parameters(config.settings)
        trials.append(
            Trial(
                dataset=config.dataset,
                setting=config.setting_title,
                target=config.target,
                method=config.method,
                seed=config.seed,
                parameters=parameters,
                validation_accuracy=_rounded(last.validation_accuracy),
                validation_loss=_rounded(last.validation_loss),
                seconds=_rounded(outcome["total_seconds"]),
                chosen=(_cell(config), config.method, parameters) in used,
            )
        )
    return sorted(trials, key=_trial_key)


def _trial_key(trial: Trial) -> tuple[Any, ...]:
    return trial.dataset, trial.setting, trial.target, trial.method, trial.seed, trial.parameters


def _parameters(settings: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items() if value is not None)


def _csv(rows: list[dict[str, Any]]) -> bytes:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _text(value) for name, value in row.items()} for row in rows)
    return buffer.getvalue().encode()


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def _parse(name: str, text: str) -> Any:
    if text == "":
        return None
    if name in TEXT:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text
