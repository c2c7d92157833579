"""The sixth row of the table: Bi-level with the automatic preset, the same in every cell."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from fedkin.report.reading import Cell, Record, Run
from reproduction.page.collected import SINGLE_STUDIES, Reproduction
from reproduction.page.comparison import MAIN_CELLS, Count, count_cells
from reproduction.page.paper import PaperFigures, Value

LABEL = "Bi-level, single loop"

LARGEST_SHARE = 0.1
"""It may take at most this share of the synchronizations of the paper's solver."""

ENOUGH_CELLS = 20
"""In how many cells it must be at least as accurate."""


def single_loop_runs(reproduction: Reproduction) -> list[Run]:
    """Return its runs, under a name of their own."""
    studies = reproduction.studies_of(SINGLE_STUDIES)
    return [replace(run, label=LABEL) for study in studies for run in study.runs]


class PapersMethods(PaperFigures):
    """The paper's table, which has no figure for the single loop."""

    def value(self, cell: Cell, method: str, runs: Iterable[Run]) -> Value | None:
        """Return the paper's figure, if the runs are those of one of its methods."""
        runs = list(runs)
        if any(run.label == LABEL for run in runs):
            return None
        return super().value(cell, method, runs)


def with_single_loop(reproduction: Reproduction) -> Record:
    """Return the paper's table and the single loop as one record."""
    table = reproduction.table_record
    cells = set(table.cells)
    added = [run for run in single_loop_runs(reproduction) if run.cell in cells]
    return replace(table, runs=[*table.runs, *added], paper=PapersMethods())


def compare(reproduction: Reproduction) -> pd.DataFrame:
    """Return one row per cell: both solvers on the seeds that both have, means over these."""
    found: dict[Cell, list[dict[int, Run]]] = {}
    tuned = [run for run in reproduction.table_record.runs if run.method == "bilevel"]
    for place, runs in enumerate((tuned, single_loop_runs(reproduction))):
        for run in runs:
            found.setdefault(run.cell, [{}, {}])[place][run.seed] = run
    rows = []
    for cell, (papers, single) in found.items():
        seeds = sorted(papers.keys() & single.keys())
        if seeds:
            rows.append(
                {**cell._asdict(), "seeds": len(seeds)}
                | _means("paper", [papers[seed] for seed in seeds])
                | _means("single", [single[seed] for seed in seeds])
            )
    table = pd.DataFrame(rows)
    if len(table):
        table["difference"] = table.accuracy_single - table.accuracy_paper
        table["share"] = table.synchronizations_single / table.synchronizations_paper
    return table


def _means(solver: str, runs: list[Run]) -> dict[str, float]:
    values = {
        "accuracy": [run.outcome["test_accuracy"] for run in runs],
        "synchronizations": [run.total.synchronizations for run in runs],
        "similar": [run.outcome["best_similar_weight"] for run in runs],
    }
    return {f"{name}_{solver}": float(np.mean(each)) for name, each in values.items()}


def count_as_accurate(table: pd.DataFrame) -> Count:
    """Count the cells in which it is at least as accurate, with a tenth of the synchronizations."""
    rows: Iterable[Any] = table.itertuples()
    of_cell = {Cell(row.dataset, row.setting, row.target): row for row in rows}

    def judge(cell: Cell) -> tuple[bool, str] | None:
        row = of_cell.get(cell)
        if row is None:
            return None
        reason = f"{row.difference:+.3f} with {row.share:.2f} of the synchronizations"
        return row.difference >= 0 and row.share <= LARGEST_SHARE, reason.replace("-", "−")

    claim = (
        "the untuned single loop is at least as accurate as the tuned solver of the paper, with at most a "
        "tenth of its synchronizations"
    )
    return count_cells(claim, ENOUGH_CELLS, MAIN_CELLS, judge)
