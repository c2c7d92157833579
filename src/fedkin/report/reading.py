"""Read a directory of results into a `Record`, which reports are made from."""

import hashlib
import json
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pandas as pd
from pydantic import ValidationError

from fedkin.errors import InputError
from fedkin.events import EVENTS_FILE, EventReader, RunFailed, StepDone
from fedkin.report.style import (
    Appearance,
    appearance,
    method_order,
    method_title,
    scenario_title,
)
from fedkin.studies.config import GRID_FIELDS, RunConfig, StudyConfig, refused
from fedkin.studies.store import OWNERS_FILE, Store, read_config, read_finished
from fedkin.training.map_directory import COLLABORATION
from fedkin.training.result_directory import CONTRIBUTIONS
from fedkin.training.table_result import read_rows
from fedkin.valuation.result import Contributions


class Cell(NamedTuple):
    """One cell of the paper's table. Methods are compared within a cell."""

    dataset: str
    setting: str
    target: str

    @property
    def title(self) -> str:
        """The data set, the setting and the target."""
        return f"{self.short_title}, target {self.target}" if self.target else self.short_title

    @property
    def short_title(self) -> str:
        """The data set and the setting: panels of one figure have the same target."""
        name = Path(self.dataset).name
        return f"{name}, {scenario_title(self.setting)}" if self.setting else name


@dataclass(frozen=True)
class Run:
    """One finished run."""

    name: str
    cell: Cell
    method: str
    seed: int
    config: dict[str, Any]
    versions: dict[str, str]
    outcome: dict[str, Any]
    history: pd.DataFrame
    weights: dict[str, float] | None
    """The weight of each node in the resulting model; None if there are no weights."""
    data: dict[str, Any]
    """What the nodes hold; empty if unknown."""
    owners: dict[str, Any] | None = None
    """Where every node is an owner: each one's scores, and the matrix of weights."""
    label: str = ""
    """The method's title, with the parameters that distinguish its variants."""

    @property
    def similar(self) -> dict[str, bool]:
        """Which nodes are like the owner, by name; empty if unknown."""
        return dict(zip(self.data.get("names", []), self.data.get("similar", []), strict=False))

    @property
    def total(self) -> pd.Series:
        """The cost of the whole run."""
        return self.history.iloc[-1]


class Missing(NamedTuple):
    """A run of the study that has no result."""

    cell: Cell
    method: str
    seed: int
    reason: str


class PaperTable(Protocol):
    """A table of published results, to be shown next to a record's own.

    The package has none: the reproduction of the paper, outside of it, supplies its table.
    """

    def value(self, cell: Cell, method: str, runs: Iterable[Run]) -> tuple[float, float] | None:
        """Return the published test accuracy and its spread for these runs, if there is one."""
        ...

    def notes(self, record: "Record") -> list[str]:
        """Return what a reader has to know to compare the two."""
        ...


@dataclass(frozen=True)
class Record:
    """Everything that a directory of results holds."""

    directory: Path
    kind: str
    """`study`, `fit` for the result of `fedkin fit`, or `map` for that of `fedkin map`."""
    runs: list[Run]
    missing: list[Missing] = field(default_factory=list)
    doubt: str = ""
    """Why it is unknown which runs are missing; empty if it is known."""
    request: dict[str, Any] = field(default_factory=dict)
    """The study as requested, or what is known about a fit."""
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The scores of a fit, by the table that they were measured on."""
    comparison: list[dict[str, Any]] = field(default_factory=list)
    """What the learned weights of a fit had to beat: losses on the validation rows."""
    contributions: Contributions | None = None
    """What each node of a fit contributes, if that was asked."""
    paper: PaperTable | None = None
    """Published results to be shown next to the record's own."""

    @property
    def title(self) -> str:
        """A heading."""
        name = self.directory.resolve().name
        return f"{ {'study': 'Study', 'map': 'Map'}.get(self.kind, 'Result') } {name}"

    @property
    def cells(self) -> list[Cell]:
        """The cells with finished runs, in order."""
        return list(dict.fromkeys(run.cell for run in self.runs))

    @property
    def labels(self) -> dict[str, str]:
        """The labels of methods and their variants in order, each with its method."""
        found = {run.label: run.method for run in self.runs}
        return dict(sorted(found.items(), key=lambda item: method_order(item[1])))

    def appearance(self, label: str) -> Appearance:
        """Return how a label is drawn."""
        method = self.labels[label]
        variants = [other for other, name in self.labels.items() if name == method]
        return appearance(method, variants.index(label))

    def distinct(self, part: str, cells: Iterable[Cell]) -> list[str]:
        """Return the cells' values of `dataset`, `setting` or `target`, in the order of the study.

        If cells are missing, the order of the remaining ones can differ from it.
        """
        asked = [str(value) for value in self.request.get(part, [])]
        found = dict.fromkeys(getattr(cell, part) for cell in cells)
        return sorted(found, key=lambda value: asked.index(value) if value in asked else len(asked))

    def of(self, cell: Cell, label: str | None = None) -> list[Run]:
        """Return the runs of a cell, of one label only if it is given."""
        return [run for run in self.runs if run.cell == cell and label in (None, run.label)]


def read_record(directory: Path) -> Record:
    """Read a study's store, or a directory that `fedkin fit` wrote."""
    if not directory.is_dir():
        problem = "is a file" if directory.exists() else "does not exist"
        raise InputError(f"{directory} {problem}: name the directory of a study or a fit")
    if (directory / "study.json").exists():
        return _read_study(directory)
    if (directory / COLLABORATION).exists():
        from fedkin.report.map_reading import read_map  # it needs what is defined here

        return read_map(directory)
    if (directory / "history.csv").exists() and (directory / "metrics.json").exists():
        return _read_fit(directory)
    raise InputError(
        f"{directory} has no results: name the directory that was the --out of fedkin run, fedkin "
        "reproduce, fedkin demo, fedkin fit or fedkin map"
    )


def _read_study(directory: Path) -> Record:
    store = Store(directory)
    store.check_format()
    content = json.loads((directory / "study.json").read_text(encoding="utf-8"))
    try:
        study = StudyConfig.from_record(content["study"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = refused(error) if isinstance(error, ValidationError) else None
        raise InputError(
            f"{directory / 'study.json'}: {reason or 'it is damaged or was edited: restore it'}"
        ) from error
    runs, damaged = [], {}
    for path in sorted(store.runs.iterdir()) if store.runs.is_dir() else []:
        outcome = read_finished(path) if path.is_dir() else None
        if outcome is None:
            continue
        try:
            runs.append(_read_run(read_config(path), outcome, path))
        except InputError as error:
            damaged[path.name] = str(error)
    order = grid_order(study)
    runs = sorted(with_labels(runs), key=lambda run: (order(run.cell), run.seed))
    missing, doubt = [], ""
    try:
        why = _why_missing(store, {run.name for run in runs}, damaged)
        missing = list(missing_runs(study, runs, why))
    except InputError as error:  # The file of a user's own setting no longer exists.
        doubt = str(error)
    if not runs:
        reason = next(iter(damaged.values()), "there is nothing to report")
        raise InputError(f"{directory} has no finished run that can be read: {reason}")
    return Record(directory, "study", runs, missing, doubt, content["study"])


def _read_run(config: RunConfig, outcome: dict[str, Any], path: Path) -> Run:
    return make_run(
        config,
        name=path.name,
        versions=_json(path / "config.json")["versions"],
        outcome=outcome,
        history=pd.read_parquet(path / "history.parquet"),
        weights=_json(path / "weights.json"),
        data=_json(path / "data.json"),
        owners=_json(path / OWNERS_FILE) if (path / OWNERS_FILE).exists() else None,
    )


def make_run(config: RunConfig, **rest: Any) -> Run:
    """Make a run from its config and the other files of its directory."""
    return Run(
        cell=_cell(config),
        method=config.method,
        seed=config.seed,
        config=config.model_dump(mode="json"),
        label=method_title(config.method),
        **rest,
    )


def _cell(config: RunConfig) -> Cell:
    return Cell(config.dataset, config.setting_title, config.target)


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def grid_order(study: StudyConfig) -> Callable[[Cell], tuple[Any, ...]]:
    """Return a sort key that orders cells as the study lists them; unknown cells come last."""
    lists = [list(map(str, values)) for values in (study.dataset, study.setting, study.target)]

    def place(cell: Cell) -> tuple[Any, ...]:
        return tuple(
            (values.index(part) if part in values else len(values), part)
            for values, part in zip(lists, cell, strict=True)
        )

    return place


def with_labels(runs: list[Run]) -> list[Run]:
    """Label the runs so that variants of a method with different parameters differ."""
    varying: dict[str, set[str]] = {}
    for cell, method in {(run.cell, run.method) for run in runs}:
        flat = [_parameters(run) for run in runs if (run.cell, run.method) == (cell, method)]
        keys = {key for each in flat for key in each}
        varying.setdefault(method, set()).update(
            key for key in keys if len({repr(each.get(key)) for each in flat}) > 1
        )
    return [_label(run, sorted(varying[run.method])) for run in runs]


def _label(run: Run, keys: Iterable[str]) -> Run:
    parameters = _parameters(run)
    shown = [f"{key.replace('_', ' ')} {_brief(parameters.get(key))}" for key in keys]
    label = f"{method_title(run.method)} ({', '.join(shown)})" if shown else run.label
    return replace(run, label=label)


def _brief(value: Any) -> str:
    """Format a parameter; a long one, such as a declared setting, as a few digits of its checksum."""
    text = str(value)
    return text if len(text) <= 30 else hashlib.sha256(text.encode()).hexdigest()[:6]


def _parameters(run: Run) -> dict[str, Any]:
    """Return all parameters of a config except the grid, in one level."""
    own = {name: value for name, value in run.config.items() if name not in GRID_FIELDS}
    return own | own.pop("settings", {})


RunKey = tuple[Cell, str, int]
"""Cell, method and seed of a run."""


def missing_runs(
    study: StudyConfig, runs: list[Run], why: Callable[[RunKey, str | None], str]
) -> Iterable[Missing]:
    """Yield the runs of a study that have no result.

    Args:
        study: The study as requested.
        runs: The finished runs.
        why: Returns the reason, given the run's key and its name (None if tuning decides the name).
    """
    finished = {run.name for run in runs}
    # If tuning decides the parameters of a run, or of the method that it follows, the name of its
    # directory is unknown, so such runs are counted instead.
    tuned = Counter((run.cell, run.method, run.seed) for run in runs)
    for config in study.runs():
        key = (_cell(config), config.method, config.seed)
        if study.follow_bilevel or study.candidates(config):
            if tuned[key] > 0:
                tuned[key] -= 1
            else:
                yield Missing(*key, why(key, None))
        elif config.directory not in finished:
            yield Missing(*key, why(key, config.directory))


def _why_missing(
    store: Store, finished: Collection[str], damaged: Mapping[str, str]
) -> Callable[[RunKey, str | None], str]:
    """Return a function that says why a run is missing from a store."""
    unfinished = _unfinished(store, finished)

    def why(key: RunKey, name: str | None) -> str:
        if name is not None:
            return _reason(store.runs / name, damaged)
        paths = unfinished.get(key)
        return _reason(paths.pop(0), damaged) if paths else "not begun"

    return why


def _unfinished(store: Store, finished: Collection[str]) -> dict[RunKey, list[Path]]:
    """Return the directories of unfinished runs by their keys."""
    found: dict[RunKey, list[Path]] = {}
    for path in sorted(store.runs.iterdir()) if store.runs.is_dir() else []:
        if path.name in finished:
            continue
        try:
            config = read_config(path)
        except InputError:  # Its key is unknown.
            continue
        found.setdefault((_cell(config), config.method, config.seed), []).append(path)
    return found


def _reason(path: Path, damaged: Mapping[str, str]) -> str:
    """Say why a run is missing."""
    if path.name in damaged:
        return damaged[path.name]
    if not path.is_dir():
        return "not begun"
    if (path / "finished.json").exists():
        return "a file of it is damaged or was edited: run the study again with --resume"
    events = EventReader(path / EVENTS_FILE).new()
    if events and isinstance(events[-1], RunFailed):
        return f"failed: {events[-1].reason}"
    steps = [event.step for event in events if isinstance(event, StepDone)]
    return f"not finished, step {steps[-1]} was the last" if steps else "begun"


def read_contributions(directory: Path) -> Contributions | None:
    """Read what each node contributes, if that was asked."""
    path = directory / CONTRIBUTIONS
    if not path.exists():
        return None
    try:
        return Contributions.from_summary(_json(path))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is damaged: run the command again with --contributions and --force"
        ) from error


def _read_fit(directory: Path) -> Record:
    try:
        metrics = _json(directory / "metrics.json")
        weights = _json(directory / "weights.json")
        history = pd.read_csv(directory / "history.csv")
        rows = read_rows(directory)
        with zipfile.ZipFile(directory / "model.fedkin") as archive:
            saved = json.loads(archive.read("result.json"))
        method, outcome = saved["method"], {key: saved[key] for key in ("stopped", "warnings")}
        request = {"method": method, "model": saved["model"], "classes": saved["classes"]}
        comparison = saved.get("comparison") or []
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        what = f"{error.filename} is missing" if isinstance(error, FileNotFoundError) else error
        raise InputError(
            f"{directory} is not a complete result of fedkin fit ({what}): run it again with --force"
        ) from error
    run = Run(
        name=directory.resolve().name,
        cell=Cell(directory.resolve().name, "", ""),
        method=method,
        seed=0,
        config=request,
        versions={},
        outcome=outcome,
        history=history,
        weights=weights or None,
        data={"names": list(rows), "points": list(rows.values())},
        label=method_title(method),
    )
    return Record(
        directory,
        "fit",
        [run],
        request=request,
        metrics=metrics,
        comparison=comparison,
        contributions=read_contributions(directory),
    )
