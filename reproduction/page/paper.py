"""The paper's table, to be shown next to ours."""

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from fedkin.report.reading import Cell, Record, Run
from fedkin.report.tables import summary

FILE = Path(__file__).with_name("paper_table.csv")
METHODS = ("bilevel", "fedavg", "ditto", "pfedme", "local")
"""The methods of the paper's table by our names, in its order."""

METHOD_NAMES: dict[Any, str] = {"bi-level": "bilevel", "local-train": "local"}
DATA_SET_NAMES: dict[Any, str] = {"ds-imagenet": "downsampled-imagenet"}
RE_ENCODED = {"cifar10-jpeg": "cifar10"}
"""Data sets that differ from the paper's only in the encoding of their images, and the paper's."""

SEEDS = 5
"""The paper: "We repeat all experiments five times using different random seeds." """

Value = tuple[float, float]
"""A test accuracy and its spread over seeds."""


class PaperFigures:
    """The paper's table as `fedkin.report` shows it (`fedkin.report.reading.PaperTable`)."""

    def value(self, cell: Cell, method: str, runs: Iterable[Run]) -> Value | None:
        """Return the paper's figure if all runs are of the paper's model on the paper's federation."""
        return paper_value(cell, method) if all(map(is_papers_experiment, runs)) else None

    def notes(self, record: Record) -> list[str]:
        """Return how our experiments differ from the paper's."""
        found = []
        known = [run for run in record.runs if paper_value(run.cell, run.method) is not None]
        if summary(record).paper.notna().any():
            found.append(
                "Paper: the figure of that cell in the paper's table, and ours less the paper's. The "
                "paper's budgets and chosen parameters may differ from those of this study."
            )
        datasets = {cell.dataset for cell in record.cells}
        if datasets & {"cifar10", *RE_ENCODED}:
            found.append("The paper used the original images of CIFAR-10.")
        if "tiny-imagenet32" in datasets:
            found.append(
                "tiny-imagenet32 is not the paper's DS-ImageNet, so the paper has no figure for it."
            )
        if not all(map(is_papers_experiment, known)):
            found.append(
                "Some runs use another model or other sizes than the paper; they are not compared with "
                "its figures."
            )
        return found


@lru_cache(maxsize=1)
def paper_values() -> dict[tuple[Cell, str], Value]:
    """Return the paper's test accuracy and its spread by cell and method, with our names."""
    rows: Iterable[Any] = pd.read_csv(FILE, dtype={"setting": str}).itertuples()
    return {
        (
            Cell(DATA_SET_NAMES.get(row.dataset, str(row.dataset)), row.setting, row.target),
            METHOD_NAMES.get(row.method, str(row.method)),
        ): (float(row.test_accuracy), float(row.spread))
        for row in rows
    }


def paper_value(cell: Cell, method: str) -> Value | None:
    """Return the paper's test accuracy and its spread, if its table has the cell."""
    dataset = RE_ENCODED.get(cell.dataset, cell.dataset)
    return paper_values().get((cell._replace(dataset=dataset), method))


def is_papers_experiment(run: Run) -> bool:
    """Tell whether a run is of the paper's model on the paper's federation."""
    config = run.config
    sizes = ("train_size", "validation_size", "test_size")
    return (
        config.get("model") == "cnn"
        and config.get("declared") is None
        and (config.get("minority_nodes"), config.get("majority_nodes")) == (5, 10)
        and all(config.get(name) is None for name in sizes)
    )
