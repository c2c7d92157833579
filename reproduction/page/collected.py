"""All studies of the reproduction: what was collected of each, and what is missing."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.errors import InputError
from fedkin.report.reading import Cell, Missing, Record, Run
from fedkin.studies.config import StudyConfig
from reproduction.page import condensed
from reproduction.page.condensed import EVIDENCE_STUDIES, ROUND_STUDIES, Trial
from reproduction.page.paper import PaperFigures

SOLVER_STUDIES = "solvers-"
"""Studies whose names begin like this are the damped-CG half of the second table."""

SINGLE_STUDIES = "single-loop"
"""Studies whose names begin like this are Bi-level with the automatic preset: the table's sixth row."""

HELD_OUT_STUDIES = "held-out"
"""In studies whose names begin like this the owner chooses by points that it does not learn from."""

DATA_SETS = ("fashion-mnist", "mnist", "cifar10-jpeg", "tiny-imagenet32")
"""The order of studies; those of other data sets follow."""


@dataclass(frozen=True)
class StudyState:
    """A study: which of its runs were collected, and which are missing."""

    name: str
    config: StudyConfig
    runs: list[Run]
    missing: list[Missing]
    trials: list[Trial]

    @property
    def planned(self) -> int:
        """The number of runs of the whole study."""
        return len(self.runs) + len(self.missing)

    @property
    def run_hours(self) -> float:
        """The time of the finished runs, one after the other."""
        return sum(run.outcome["total_seconds"] for run in self.runs) / 3600

    @property
    def trial_hours(self) -> float:
        """The time of the short runs that chose parameters."""
        return sum(trial.seconds for trial in self.trials) / 3600

    @property
    def typical_hours(self) -> float:
        """The time of the whole study if each run, and each trial, takes its method's median."""
        runs = [(run.method, run.outcome["total_seconds"]) for run in self.runs]
        trials = [(trial.method, trial.seconds) for trial in self.trials]
        planned = [each.method for each in [*self.runs, *self.missing]]
        return _at_medians(runs, planned) + _at_medians(trials, [method for method, _ in trials])

    @property
    def warned(self) -> int:
        """The number of runs with a warning."""
        return sum(bool(run.outcome["warnings"]) for run in self.runs)


def _at_medians(measured: list[tuple[str, float]], planned: list[str]) -> float:
    """Return the hours of what is planned; NaN if a method was never measured."""
    seconds: dict[str, list[float]] = {}
    for method, each in measured:
        seconds.setdefault(method, []).append(each)
    medians = {method: float(np.median(each)) for method, each in seconds.items()}
    return sum(medians.get(method, np.nan) for method in planned) / 3600


@dataclass(frozen=True)
class Reproduction:
    """All studies of a directory."""

    directory: Path
    studies: list[StudyState]

    @property
    def table_studies(self) -> list[StudyState]:
        """The studies of the paper's table."""
        others = (EVIDENCE_STUDIES, ROUND_STUDIES, SOLVER_STUDIES, SINGLE_STUDIES, HELD_OUT_STUDIES)
        return self.studies_outside(*others)

    @property
    def table_record(self) -> Record:
        """The studies of the paper's table as one."""
        runs = [run for study in self.table_studies for run in study.runs]
        missing = [each for study in self.table_studies for each in study.missing]
        return Record(self.directory, "study", runs, missing, paper=PaperFigures())

    @property
    def solver_studies(self) -> list[StudyState]:
        """The studies of the second table: those of the paper's, and those with damped CG."""
        return [*self.table_studies, *self.studies_of(SOLVER_STUDIES)]

    @property
    def solver_runs(self) -> list[Run]:
        """The runs of Bi-level with either solver."""
        runs = [run for study in self.solver_studies for run in study.runs]
        return [run for run in runs if run.method == "bilevel"]

    def studies_of(self, prefix: str) -> list[StudyState]:
        """Return the studies whose names begin like this."""
        return [study for study in self.studies if study.name.startswith(prefix)]

    def studies_outside(self, *prefixes: str) -> list[StudyState]:
        """Return the studies whose names begin with none of these."""
        return [study for study in self.studies if not study.name.startswith(prefixes)]

    @property
    def missing_solver_runs(self) -> list[Missing]:
        """The runs of Bi-level that the second table lacks."""
        missing = [each for study in self.solver_studies for each in study.missing]
        return [each for each in missing if each.method == "bilevel"]


def read_reproduction(directory: Path) -> Reproduction:
    """Read all condensed studies of a directory, and which of their runs are missing."""
    files = sorted((directory / condensed.STUDIES).glob("*.toml"), key=lambda f: _order(f.stem))
    if not files:
        raise InputError(
            f"{directory} has no studies: there is no TOML file in {directory / condensed.STUDIES}"
        )
    states = []
    for file in files:
        path = condensed.study_directory(directory, file.stem)
        study = condensed.read_study(directory, file.stem)
        if condensed.is_condensed(path):
            record = condensed.read_condensed(directory, file.stem)
            trials = condensed.read_trials(path)
            states.append(StudyState(file.stem, study, record.runs, record.missing, trials))
        else:
            planned = condensed.planned_without_results(directory, file.stem)
            states.append(StudyState(file.stem, study, [], planned, []))
    reproduction = Reproduction(directory, states)
    _refuse_variants(directory, reproduction.table_record.runs)
    for prefix in (SOLVER_STUDIES, SINGLE_STUDIES, HELD_OUT_STUDIES):
        runs = [run for study in reproduction.studies_of(prefix) for run in study.runs]
        _refuse_variants(directory, runs)
    if not reproduction.table_record.runs:
        raise InputError(
            f"{directory} has no finished run of the paper's table yet: add the directory of a study "
            "with --add"
        )
    return reproduction


def _order(name: str) -> tuple[int, int, str]:
    dataset = name.removeprefix(SOLVER_STUDIES)
    place = DATA_SETS.index(dataset) if dataset in DATA_SETS else len(DATA_SETS)
    prefixes = (SINGLE_STUDIES, HELD_OUT_STUDIES, SOLVER_STUDIES, ROUND_STUDIES, EVIDENCE_STUDIES)
    part = next((i for i, each in enumerate(prefixes, 1) if name.startswith(each)), 0)
    return part, place, name


def _refuse_variants(directory: Path, runs: list[Run]) -> None:
    """Refuse variants of a method: a table has one entry per cell and method."""
    seen: set[tuple[Cell, str, int]] = set()
    settings: dict[tuple[Cell, str], dict[str, Any]] = {}
    for run in runs:
        key = (run.cell, run.method, run.seed)
        if key in seen:
            raise InputError(
                f"{directory} has two runs of {run.method} with seed {run.seed} on {run.cell.title}: "
                "a table has room for one"
            )
        seen.add(key)
        own = run.config["settings"]
        if settings.setdefault((run.cell, run.method), own) != own:
            raise InputError(
                f"{directory} has runs of {run.method} with different parameters on "
                f"{run.cell.title}: in a table all seeds have the same parameters"
            )
