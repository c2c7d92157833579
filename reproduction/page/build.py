"""The page of results, its tables and figures, all made from condensed studies.

ROOT/README.md                  the page
ROOT/table.md, .csv, .tex       every method in every cell
ROOT/comparison.csv             the same next to the paper's figures, to nine decimals
ROOT/solvers.md, .csv, .tex     damped CG against the paper's solver
ROOT/rounds.md, .csv            the studies `rounds-…`: how few synchronizations are needed
ROOT/figures/…                  ours against the paper's, those of `fedkin report`, and those of rounds.md
ROOT/INVESTIGATION.md           written by hand; only read here
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedkin.files import write_atomically
from fedkin.report import figures, tables
from fedkin.report.reading import Cell, Run
from fedkin.report.style import method_title
from fedkin.studies.config import StudyConfig
from reproduction.page import (
    comparison,
    evidence,
    held_out,
    opening,
    rounds_figures,
    rounds_page,
    single_loop,
    solvers,
)
from reproduction.page.collected import (
    SINGLE_STUDIES,
    Reproduction,
    StudyState,
    read_reproduction,
)
from reproduction.page.condensed import ROUND_STUDIES
from reproduction.page.markdown import markdown_environment, missing_words

README, INVESTIGATION, FIGURES = "README.md", "INVESTIGATION.md", "figures"

FIGURE_FORMATS = ("svg",)
"""What the repository keeps; `fedkin report` writes PNG and PDF too."""

PARAMETERS: dict[str, tuple[str, ...]] = {
    "γ": ("learning_rate",),
    "τ": ("period",),
    "γ_h": ("adjoint_learning_rate",),
    "η": ("outer_learning_rate",),
    "damping": ("damping",),
    "CG iterations": ("solver_iterations",),
    "h kept": ("warm_start_adjoint",),
    "λ, Ditto": ("proximal", "ditto"),
    "λ, pFedMe": ("proximal", "pfedme"),
}
"""Parameters as the paper writes them: their names in a config, and the method if only one has them."""


def write_all(directory: Path) -> list[Path]:
    """Write every table, figure and the page; return their paths."""
    reproduction = read_reproduction(directory)
    written = []
    for name, text in texts(reproduction).items():
        write_atomically(directory / name, text.encode())
        written.append(directory / name)
    folder = directory / FIGURES
    folder.mkdir(exist_ok=True)
    table = comparison.compare(reproduction.table_record)
    drawn = []
    if table.paper.notna().any():
        opens = [(opening.FIGURE, opening.draw(table))]
        drawn = figures.write_figures(opens, folder, FIGURE_FORMATS)
    whole = single_loop.with_single_loop(reproduction)
    drawn += figures.save_figures(whole, folder, FIGURE_FORMATS)
    drawn += figures.write_figures(rounds_figures.draw_all(reproduction), folder, FIGURE_FORMATS)
    for path in set(folder.iterdir()) - set(drawn):
        path.unlink()  # Names depend on the targets there are: figures of a former state are removed.
    return written + drawn


def texts(reproduction: Reproduction) -> dict[str, str]:
    """Return the text files by name: the tables and the page."""
    record = reproduction.table_record
    # Nine decimals: the last digits of a mean may depend on the processor, and files are compared.
    table = comparison.compare(record).round(9)
    solver_table = solvers.compare_solvers(reproduction.solver_runs).round(9)
    summary = tables.summary(single_loop.with_single_loop(reproduction)).round(9)
    found = {f"table.{ending}": write(summary) for ending, write in tables.WRITERS.items()}
    found["comparison.csv"] = table.to_csv(index=False)
    if len(solver_table):
        found |= {
            f"solvers.{ending}": write(solver_table) for ending, write in solvers.WRITERS.items()
        }
    found[README] = _page(reproduction, table, solver_table, found["table.md"])
    return found | rounds_page.texts(reproduction)


def _page(
    reproduction: Reproduction,
    table: pd.DataFrame,
    solver_table: pd.DataFrame,
    opening_table: str,
) -> str:
    record = reproduction.table_record
    whole = single_loop.with_single_loop(reproduction)
    shares = comparison.weight_shares(record.runs)
    single_table = single_loop.compare(reproduction).round(9)
    file = reproduction.directory / INVESTIGATION
    investigation = file.read_text(encoding="utf-8") if file.exists() else ""
    far = comparison.far_entries(table)
    investigated = _headings(investigation)
    waiting = {each.method for each in record.missing if each.cell in comparison.MAIN_CELLS}
    of_solvers = any(each.cell in solvers.CELLS for each in reproduction.missing_solver_runs)
    weights = comparison.similar_nodes_have_the_weight(shares)
    single = single_loop.count_as_accurate(single_table)
    counts = [
        (1, comparison.bilevel_wins(table), bool(waiting)),
        (1, comparison.bilevel_close_to_paper(table), "bilevel" in waiting),
        (1, comparison.fedavg_below_local(table), bool(waiting & {"fedavg", "local"})),
        (2, weights, "bilevel" in waiting),
        (3, single, _waits_for_single(reproduction, waiting)),
        (4, solvers.cg_is_faster(solver_table), of_solvers),
    ]
    added = [("4a", solvers.cg_is_faster(solver_table, ratio="common_ratio"), of_solvers)]
    environment = markdown_environment()
    environment.filters |= {
        "signed": tables.signed,
        "deviations": lambda value: f"{round(value, 1) + 0.0:+.1f}".replace("-", "−"),
        "number": lambda value, digits: "–" if np.isnan(value) else f"{value:.{digits}f}",
        "known": lambda value: not np.isnan(value),
        "method": method_title,
        "key": comparison.entry_key,
        "entry": lambda row: tables.entry(row.accuracy, row.deviation),
        "paper": lambda row: tables.entry(row.paper, row.paper_spread),
        "extremes": _extremes,
    }
    return environment.get_template("README.md.jinja").render(
        opening_table=opening_table,
        facts=opening.facts(table),
        weights=weights,
        single=single,
        opening_figure=opening.FIGURE,
        counts=counts,
        added=added,
        table_is_partial=bool(record.missing),
        studies=reproduction.studies,
        typical_hours=np.nansum([study.typical_hours for study in reproduction.studies]),
        of_unknown_time=[s.name for s in reproduction.studies if np.isnan(s.typical_hours)],
        missing=missing_words(reproduction.studies),
        chapters=_chapters(table),
        winners=_winners(table),
        far=far,
        investigated=[row for row in far if f"`{comparison.entry_key(row)}`" in investigated],
        far_in_errors=int((table.errors.abs() > comparison.FAR).sum()),
        compared=int(table.paper.notna().sum()),
        shares=_share_rows(shares),
        single_rows=list(single_table.itertuples()),
        held_out_rows=list(held_out.compare(reproduction).round(9).itertuples()),
        solver_table=solvers.to_markdown(solver_table) if len(solver_table) else "",
        solver_pairings=evidence.solver_pairings(reproduction),
        weight_columns=dict.fromkeys((c.setting, c.target) for c in comparison.WEIGHT_CELLS),
        other_shares=evidence.end_shares(reproduction),
        choices=[row for study in reproduction.studies for row in _choices(study)],
        parameter_names=list(PARAMETERS),
        parameters=_parameters(reproduction.studies_outside(ROUND_STUDIES)),
        notes=tables.notes(record)[1:],
        figures=[name for name, _ in figures.plan(whole)],
        has_investigation=bool(investigation),
        has_rounds=bool(reproduction.studies_of(ROUND_STUDIES)),
    )


def _waits_for_single(reproduction: Reproduction, waiting: set[str]) -> bool:
    """Tell whether runs of the single loop, or those it is compared with, are missing."""
    studies = reproduction.studies_of(SINGLE_STUDIES)
    cells = {each.cell for study in studies for each in study.missing}
    return not studies or "bilevel" in waiting or bool(cells & set(comparison.MAIN_CELLS))


def _extremes(values: pd.Series, *, sign: bool = False) -> str:
    """Write the smallest and the largest of some values; NaN stands for runs that never reach a mark."""
    known = values.dropna()
    if known.empty:
        return "–"
    write = tables.signed if sign else "{:.2f}".format
    least, most = write(known.min()), write(known.max())
    return f"{least} to {most}" + (", or never" if len(known) < len(values) else "")


def _headings(text: str) -> str:
    """Return the headings of chapters, which name the entries that the chapters are about."""
    return "\n".join(line for line in text.splitlines() if line.startswith("## "))


def _chapters(table: pd.DataFrame) -> dict[str, list[Any]]:
    rows: Iterable[Any] = table.itertuples()
    chapters: dict[str, list[Any]] = {}
    for row in rows:
        chapters.setdefault(row.dataset, []).append(row)
    return chapters


def _winners(table: pd.DataFrame) -> list[tuple[Cell, str, str, int]]:
    """Return for each cell our best method, the paper's, and the number of methods we have."""
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


def _choices(state: StudyState) -> list[tuple[str, str, str, int, str]]:
    """Return what a study's parameters were chosen from: one row per method that was tuned."""
    symbols = {name: symbol for symbol, (name, *_) in PARAMETERS.items()} | {"proximal": "λ"}
    rows = []
    for method, lists in state.config.tune.items():
        words = "; ".join(
            f"{symbols.get(name, name)}: {', '.join(map(str, values))}"
            for name, values in lists.items()
        )
        combinations = math.prod(map(len, lists.values()))
        rows.append((state.name, method, words, combinations, _trial_length(state.config)))
    return rows


def _trial_length(study: StudyConfig) -> str:
    if study.tune_synchronizations is not None:
        return f"{study.tune_synchronizations} synchronizations"
    return f"{study.tune_steps} steps"


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
    """Write the values of a parameter; several if methods differ."""
    settings = [run.config["settings"] for run in runs if method in (None, run.method)]
    found = {each[name] for each in settings if each.get(name) is not None}
    words = ["yes" if value is True else f"{value:g}" for value in sorted(found)]
    return ", ".join(words) or "–"
