"""The automatic preset on color images next to the first tuned table, seed by seed: goal 7 of `rounds.md`."""

import numpy as np
import pandas as pd

from fedkin.report.reading import Cell, Run
from reproduction.page import rounds
from reproduction.page.collected import Reproduction
from reproduction.page.comparison import count_cells
from reproduction.page.evidence import FIRST_TABLES

COLOR = "color"
"""The role of the study of color images among the studies of rounds."""


def measure(reproduction: Reproduction) -> pd.DataFrame:
    """Return one row per cell: mean accuracies over the seeds that the tuned table has, too.

    Both end after as many synchronizations as their studies allow.
    """
    by_role = rounds.runs_by_role(reproduction)
    tuned: dict[Cell, dict[int, Run]] = {}
    for study in reproduction.studies_of(FIRST_TABLES):
        for run in study.runs:
            if run.method == "bilevel":
                tuned.setdefault(run.cell, {})[run.seed] = run
    rows = []
    for (cell, role), single in sorted(by_role.items()):
        if role != COLOR:
            continue
        table, oracle = tuned.get(cell, {}), by_role.get((cell, rounds.ORACLE), {})
        seeds = sorted(single.keys() & table.keys())
        rows.append(
            {
                **cell._asdict(),
                "seeds": len(seeds),
                "single": _mean_accuracy(single, seeds),
                "table": _mean_accuracy(table, seeds),
                "oracle": _mean_accuracy(oracle, seeds),
                "kin_single": _mean_share(single, seeds),
                "kin_table": _mean_share(table, seeds),
            }
        )
    return pd.DataFrame(rows).round(9)


def goal(table: pd.DataFrame) -> rounds.Goal | None:
    """Judge the table; None where it has no cells."""
    if table.empty:
        return None
    leads = {
        Cell(row["dataset"], row["setting"], row["target"]): float(row["single"] - row["table"])
        for row in table.to_dict(orient="records")
    }

    def judge(cell: Cell) -> tuple[bool, str] | None:
        lead = leads[cell]
        return None if np.isnan(lead) else (lead >= 0, f"{lead:+.3f}".replace("-", "−"))

    claim = "color images: at least the accuracy of the tuned table, with the same seeds and budget"
    return rounds.from_count("7", count_cells(claim, len(leads), leads, judge))


def _mean_accuracy(runs: dict[int, Run], seeds: list[int]) -> float:
    return _mean([rounds.final_accuracy(runs[seed]) for seed in seeds if seed in runs])


def _mean_share(runs: dict[int, Run], seeds: list[int]) -> float:
    return _mean([float(runs[seed].outcome["best_similar_weight"]) for seed in seeds])


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else np.nan
