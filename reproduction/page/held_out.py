"""Ditto and Local-train judged by points that they learn from, as in the paper, and by points held out."""

from typing import Any

import numpy as np
import pandas as pd

from fedkin.report.reading import Cell, Run
from reproduction.page.collected import HELD_OUT_STUDIES, Reproduction

METHODS = ("ditto", "local")


def compare(reproduction: Reproduction) -> pd.DataFrame:
    """Return one row per cell that has runs of both kinds: means over the seeds of both.

    `same_steps` says whether both kinds have the same γ, so that nothing but the choice is different.
    """
    kinds: list[dict[tuple[Cell, str], dict[int, Run]]] = [{}, {}]
    held_out = [run for s in reproduction.studies_of(HELD_OUT_STUDIES) for run in s.runs]
    for found, runs in zip(kinds, (reproduction.table_record.runs, held_out), strict=True):
        for run in runs:
            if run.method in METHODS:
                found.setdefault((run.cell, run.method), {})[run.seed] = run
    papers, held = kinds
    rows = []
    for cell in dict.fromkeys(cell for cell, _ in papers):
        row: dict[str, Any] = cell._asdict()
        for method in METHODS:
            both = [found.get((cell, method), {}) for found in (papers, held)]
            seeds = sorted(both[0].keys() & both[1].keys())
            for kind, runs in zip(("paper", "held"), both, strict=True):
                row |= _means(f"{method}_{kind}", [runs[seed] for seed in seeds])
            row["seeds"] = max(len(seeds), row.get("seeds", 0))
            rates = {
                run.config["settings"].get("learning_rate")
                for runs in both
                for run in runs.values()
            }
            row["same_steps"] = row.get("same_steps", True) and len(rates) <= 1
        if row["seeds"]:
            rows.append(row)
    return pd.DataFrame(rows)


def _means(prefix: str, runs: list[Run]) -> dict[str, Any]:
    """Return what was chosen and what it is worth; NaN without runs."""
    if not runs:
        return {f"{prefix}_{name}": np.nan for name in ("accuracy", "proximal", "kept")}
    return {
        f"{prefix}_accuracy": float(np.mean([run.outcome["test_accuracy"] for run in runs])),
        f"{prefix}_proximal": runs[0].config["settings"].get("proximal", np.nan),
        f"{prefix}_kept": float(np.mean([_share_of_run(run) for run in runs])),
    }


def _share_of_run(run: Run) -> float:
    """Return how far into a run the model is that was kept: 1 is its end."""
    return float(run.outcome["step"]) / float(run.total.step)
