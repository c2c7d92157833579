"""The directory `results/`: studies set beside the paper, every file made from condensed studies.

RESULTS/README.md             the comparison, cell by cell
RESULTS/table.md, .csv, .tex  every method in every cell
RESULTS/comparison.csv        the same beside the paper's figures, to nine decimals
RESULTS/solvers.md, .csv, .tex  damped CG against the paper's solver
RESULTS/figures/…             the figures of `fedkin report`, of all studies together
RESULTS/INVESTIGATION.md      written by hand; only read here
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from fedkin.errors import InputError
from fedkin.experiments.checkpoint import write_atomically
from fedkin.report import comparison, condensed, figures, solvers, tables
from fedkin.report.condensed import Trial
from fedkin.report.reading import Cell, Missing, Record, Run
from fedkin.report.style import method_title

README, INVESTIGATION, FIGURES = "README.md", "INVESTIGATION.md", "figures"
SOLVER_STUDIES = "solvers-"
"""Studies whose names begin like this are the second table's half with damped CG."""
EVIDENCE_STUDIES = "why-"
"""Studies whose names begin like this are what an investigation rests on; they are in no table."""

FIRST_SOLVER_STUDIES = "why-first-solvers-"
"""Evidence studies whose names begin like this are a former second table's half with damped CG."""

FIGURE_FORMATS = ("svg",)
"""What the repository keeps; `fedkin report` writes PNG and PDF too."""

DATA_SETS = ("fashion-mnist", "mnist", "cifar10-jpeg", "tiny-imagenet32")
"""The order of studies; others follow."""

PARAMETERS: dict[str, tuple[str, ...]] = {
    "γ": ("learning_rate",),
    "τ": ("period",),
    "γ_h": ("adjoint_learning_rate",),
    "η": ("outer_learning_rate",),
    "damping": ("damping",),
    "CG iterations": ("solver_iterations",),
    "λ, Ditto": ("proximal", "ditto"),
    "λ, pFedMe": ("proximal", "pfedme"),
}
"""Parameters as the paper writes them: their names, and a method where they are that method's own."""


@dataclass(frozen=True)
class StudyState:
    """A study: what there is of it, and what is still to come."""

    name: str
    synchronizations: int | None
    """The budget of a run."""
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
    """Return the hours of what is planned; NaN where a method was never measured."""
    seconds: dict[str, list[float]] = {}
    for method, each in measured:
        seconds.setdefault(method, []).append(each)
    medians = {method: float(np.median(each)) for method, each in seconds.items()}
    return sum(medians.get(method, np.nan) for method in planned) / 3600


@dataclass(frozen=True)
class Reproduction:
    """All that a directory of results holds."""

    directory: Path
    studies: list[StudyState]

    @property
    def table_record(self) -> Record:
        """The studies of the paper's table as one."""
        studies = [s for s in self._compared if not s.name.startswith(SOLVER_STUDIES)]
        runs = [run for study in studies for run in study.runs]
        missing = [each for study in studies for each in study.missing]
        return Record(self.directory, "study", runs, missing)

    @property
    def solver_runs(self) -> list[Run]:
        """The runs of Bi-level with either solver."""
        return [run for study in self._compared for run in study.runs if run.method == "bilevel"]

    @property
    def missing_solver_runs(self) -> list[Missing]:
        """The runs of Bi-level that the second table waits for."""
        missing = [each for study in self._compared for each in study.missing]
        return [each for each in missing if each.method == "bilevel"]

    @property
    def _compared(self) -> list[StudyState]:
        return [study for study in self.studies if not study.name.startswith(EVIDENCE_STUDIES)]


def read_reproduction(directory: Path) -> Reproduction:
    """Read all condensed studies of a directory of results, and what is planned."""
    files = sorted((directory / condensed.STUDIES).glob("*.toml"), key=lambda f: _order(f.stem))
    if not files:
        raise InputError(
            f"{directory} holds no results: there are no studies in {directory / condensed.STUDIES}"
        )
    states = []
    for file in files:
        path = directory / file.stem
        budget = condensed.read_study(directory, file.stem).synchronizations
        if condensed.is_condensed(path):
            record = condensed.read_condensed(path)
            trials = condensed.read_trials(path)
            states.append(StudyState(file.stem, budget, record.runs, record.missing, trials))
        else:
            planned = condensed.planned_without_results(directory, file.stem)
            states.append(StudyState(file.stem, budget, [], planned, []))
    reproduction = Reproduction(directory, states)
    _refuse_variants(directory, reproduction.table_record.runs)
    solver_studies = [s for s in states if s.name.startswith(SOLVER_STUDIES)]
    _refuse_variants(directory, [run for study in solver_studies for run in study.runs])
    if not reproduction.table_record.runs:
        raise InputError(
            f"{directory} holds no finished run of the paper's table yet: add the directory of a study "
            "with --add"
        )
    return reproduction


def _order(name: str) -> tuple[int, int, str]:
    dataset = name.removeprefix(SOLVER_STUDIES)
    place = DATA_SETS.index(dataset) if dataset in DATA_SETS else len(DATA_SETS)
    part = 2 if name.startswith(EVIDENCE_STUDIES) else int(name.startswith(SOLVER_STUDIES))
    return part, place, name


def _refuse_variants(directory: Path, runs: list[Run]) -> None:
    """Refuse variants of a method: the table has one entry for a cell and a method."""
    seen: set[tuple[Cell, str, int]] = set()
    settings: dict[tuple[Cell, str], dict[str, Any]] = {}
    for run in runs:
        key = (run.cell, run.method, run.seed)
        if key in seen:
            raise InputError(
                f"{directory} has two runs of {run.method} with seed {run.seed} on {run.cell.title}: "
                "a table has one"
            )
        seen.add(key)
        own = run.config["settings"]
        if settings.setdefault((run.cell, run.method), own) != own:
            raise InputError(
                f"{directory} has runs of {run.method} with different parameters on "
                f"{run.cell.title}: a table is of one choice for all seeds"
            )


def build(directory: Path) -> list[Path]:
    """Write every table, figure and the page; return their paths."""
    reproduction = read_reproduction(directory)
    written = []
    for name, text in texts(reproduction).items():
        write_atomically(directory / name, text.encode())
        written.append(directory / name)
    beside = directory / FIGURES
    beside.mkdir(exist_ok=True)
    drawn = figures.save_figures(reproduction.table_record, beside, FIGURE_FORMATS)
    for path in set(beside.iterdir()) - set(drawn):
        path.unlink()  # Names depend on the targets that there are: one of a former state is in the way.
    return written + drawn


def texts(reproduction: Reproduction) -> dict[str, str]:
    """Return every file that is text, by its name: the tables and the page."""
    record = reproduction.table_record
    # Nine decimals: the last digits of a mean may depend on the processor, and files are compared.
    table = comparison.compare(record).round(9)
    solver_table = solvers.compare_solvers(reproduction.solver_runs).round(9)
    summary = tables.summary(record).round(9)
    found = {f"table.{ending}": write(summary) for ending, write in tables.WRITERS.items()}
    found["comparison.csv"] = table.to_csv(index=False)
    if len(solver_table):
        found |= {
            f"solvers.{ending}": write(solver_table) for ending, write in solvers.WRITERS.items()
        }
    found[README] = _page(reproduction, record, table, solver_table)
    return found


def _page(
    reproduction: Reproduction, record: Record, table: pd.DataFrame, solver_table: pd.DataFrame
) -> str:
    shares = comparison.weight_shares(record)
    file = reproduction.directory / INVESTIGATION
    investigation = file.read_text(encoding="utf-8") if file.exists() else ""
    far = comparison.far_entries(table)
    investigated = _headings(investigation)
    waiting = {each.method for each in record.missing if each.cell in comparison.MAIN_CELLS}
    of_solvers = any(each.cell in solvers.CELLS for each in reproduction.missing_solver_runs)
    counts = [
        (1, comparison.bilevel_wins(table), bool(waiting)),
        (1, comparison.bilevel_close_to_paper(table), "bilevel" in waiting),
        (1, comparison.fedavg_below_local(table), bool(waiting & {"fedavg", "local"})),
        (2, comparison.similar_nodes_have_the_weight(shares), "bilevel" in waiting),
        (3, solvers.cg_is_faster(solver_table), of_solvers),
        (3, solvers.cg_is_faster(solver_table, ratio="common_ratio"), of_solvers),
    ]
    environment = Environment(
        loader=PackageLoader("fedkin.report"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown, of our own words and numbers
    )
    environment.filters |= {
        "signed": tables.signed,
        "deviations": lambda value: f"{round(value, 1) + 0.0:+.1f}".replace("-", "−"),
        "known": lambda value: not np.isnan(value),
        "method": method_title,
        "key": comparison.entry_key,
        "entry": lambda row: tables.entry(row.accuracy, row.deviation),
        "paper": lambda row: tables.entry(row.paper, row.paper_spread),
    }
    return environment.get_template("results.md").render(
        counts=counts,
        table_is_partial=bool(record.missing),
        studies=reproduction.studies,
        typical_hours=np.nansum([study.typical_hours for study in reproduction.studies]),
        of_unknown_time=[s.name for s in reproduction.studies if np.isnan(s.typical_hours)],
        missing=_missing_words(reproduction.studies),
        chapters=_chapters(table),
        winners=_winners(table),
        far=far,
        investigated=[row for row in far if f"`{comparison.entry_key(row)}`" in investigated],
        far_in_errors=int((table.errors.abs() > comparison.FAR).sum()),
        compared=int(table.paper.notna().sum()),
        shares=_share_rows(shares),
        solver_table=solvers.to_markdown(solver_table) if len(solver_table) else "",
        first=_first_solver_counts(reproduction),
        parameter_names=list(PARAMETERS),
        parameters=_parameters(reproduction.studies),
        notes=tables.notes(record)[1:],
        figures=[name for name, _ in figures.plan(record)],
        has_investigation=bool(investigation),
    )


def _first_solver_counts(reproduction: Reproduction) -> tuple[int, int, int] | None:
    """Return in how many cells a former second table met its two claims, and of how many."""
    former = [s for s in reproduction.studies if s.name.startswith(FIRST_SOLVER_STUDIES)]
    ours = [run for study in former for run in study.runs]
    if not ours:
        return None
    papers = [r for r in reproduction.solver_runs if solvers.solver_of(r) == solvers.PAPERS]
    table = solvers.compare_solvers([*papers, *ours])
    own, common = (
        len(solvers.cg_is_faster(table, ratio=ratio).shown)
        for ratio in ("synchronizations_ratio", "common_ratio")
    )
    return own, common, len(solvers.CELLS)


def _headings(text: str) -> str:
    """Return the headings of chapters: what they name, the chapters are about."""
    return "\n".join(line for line in text.splitlines() if line.startswith("## "))


def _chapters(table: pd.DataFrame) -> dict[str, list[Any]]:
    rows: Iterable[Any] = table.itertuples()
    chapters: dict[str, list[Any]] = {}
    for row in rows:
        chapters.setdefault(row.dataset, []).append(row)
    return chapters


def _winners(table: pd.DataFrame) -> list[tuple[Cell, str, str, int]]:
    """Return for each cell the best method of ours and of the paper's, and how many there are."""
    rows = []
    for key, of_cell in table.groupby(["dataset", "setting", "target"], sort=False):
        ours = of_cell.loc[of_cell.accuracy.idxmax()]
        papers = of_cell[of_cell.paper_best]
        best = "–" if papers.empty else method_title(str(papers.method.iloc[0]))
        cell = Cell(*map(str, key))  # pyright: ignore[reportArgumentType]
        rows.append((cell, method_title(str(ours.method)), best, len(of_cell)))
    return rows


def _share_rows(shares: pd.DataFrame) -> list[dict[str, Any]]:
    rows = []
    for key, of_cell in shares.groupby(list(Cell._fields), sort=False):
        cell = Cell(*map(str, key))  # pyright: ignore[reportArgumentType]
        last = of_cell["last"]
        rows.append(
            {
                "cell": cell,
                "seeds": len(of_cell),
                "last": last.mean(),
                "lowest": last.min(),
                "best": of_cell["best"].mean(),
            }
        )
    return rows


def _missing_words(studies: list[StudyState]) -> list[str]:
    """Say what is missing, a line a study and method."""
    lines = []
    for study in studies:
        if study.missing and not study.runs:
            lines.append(f"{study.name}: all {study.planned} runs")
            continue
        by_method: dict[str, list[Missing]] = {}
        for each in study.missing:
            by_method.setdefault(each.method, []).append(each)
        for method, missing in by_method.items():
            seeds: dict[Cell, list[int]] = {}
            for each in missing:
                seeds.setdefault(each.cell, []).append(each.seed)
            cells: dict[str, list[str]] = {}
            for cell, of_cell in seeds.items():
                words = ", ".join(map(str, of_cell))
                cells.setdefault(words, []).append(f"{cell.setting} {cell.target}")
            told = "; ".join(f"seeds {words} of {', '.join(c)}" for words, c in cells.items())
            lines.append(f"{study.name}, {method_title(method)}: {len(missing)} runs ({told})")
    return lines


def _parameters(studies: list[StudyState]) -> list[tuple[str, str, list[str]]]:
    """Return for each study and cell the values of the parameters in `PARAMETERS`."""
    rows = []
    for study in studies:
        for cell in dict.fromkeys(run.cell for run in study.runs):
            of_cell = [run for run in study.runs if run.cell == cell]
            values = [_values(of_cell, *names) for names in PARAMETERS.values()]
            rows.append((study.name, f"{cell.setting} {cell.target}", values))
    return rows


def _values(runs: list[Run], name: str, method: str | None = None) -> str:
    """Write the values of a parameter, several where methods differ."""
    settings = [run.config["settings"] for run in runs if method in (None, run.method)]
    found = {each[name] for each in settings if each.get(name) is not None}
    return ", ".join(f"{value:g}" for value in sorted(found)) or "–"
