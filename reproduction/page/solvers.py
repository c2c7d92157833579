"""The second table: Bi-level with damped conjugate gradients against the paper's Local-SVRG solver."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd

from fedkin.errors import InputError
from fedkin.report.reading import Cell, Run
from fedkin.report.tables import entry, signed
from reproduction.page.comparison import Count, count_cells
from reproduction.page.condensed import REACHED

PAPERS, OURS = "svrg", "cg"
TITLES = {PAPERS: "Local-SVRG", OURS: "damped CG"}
COSTS = ("synchronizations", "bytes", "seconds")
CELLS = tuple(
    Cell(dataset, setting, "minority")
    for dataset, setting in itertools.product(("fashion-mnist", "mnist"), ("1", "2", "3", "4"))
)
"""The cells that the two solvers are compared in."""

LARGEST_RATIO = 1 / 3
"""CG may need at most this share of the synchronizations of the paper's solver."""

COLUMNS = [
    *(*Cell._fields, "seeds"),
    *(f"{name}_{solver}" for solver in (PAPERS, OURS) for name in ("accuracy", "deviation")),
    *("difference", "pooled"),
    *(f"{cost}_{solver}" for cost in COSTS for solver in (PAPERS, OURS)),
    *(f"{cost}_ratio" for cost in COSTS),
    *("common_synchronizations", "common_ratio"),
]


def solver_of(run: Run) -> str:
    """Return the solver of a run of Bi-level; if left open, that of the preset."""
    settings = run.config["settings"]
    return settings.get("solver") or (PAPERS if settings.get("preset") == "paper" else OURS)


def compare_solvers(runs: Iterable[Run]) -> pd.DataFrame:
    """Return one row per cell in which both solvers have a run with the same seed.

    Only such seeds count. Costs are means over seeds, up to the first evaluation with 95% of the test
    accuracy of the run's own result; a ratio is that of the means. `common_synchronizations` is what CG
    takes to reach 95% of the accuracy of the *other* solver's result with the same seed, NaN if a run
    never does, and `common_ratio` the ratio of that to what the other takes.
    """
    found: dict[tuple[Cell, str], dict[int, Run]] = {}
    for run in runs:
        if run.method == "bilevel":
            of_solver = found.setdefault((run.cell, solver_of(run)), {})
            if of_solver.setdefault(run.seed, run) is not run:
                raise InputError(
                    f"two runs of Bi-level have the same solver and seed {run.seed} on {run.cell.title}: "
                    "solvers are compared by one run each"
                )
    rows = []
    for cell in dict.fromkeys(cell for cell, _ in found):
        papers, ours = found.get((cell, PAPERS), {}), found.get((cell, OURS), {})
        seeds = sorted(papers.keys() & ours.keys())
        if seeds:
            pairs = [(papers[seed], ours[seed]) for seed in seeds]
            rows.append({**cell._asdict(), "seeds": len(seeds)} | _row(pairs))
    return pd.DataFrame(rows, columns=COLUMNS)


def _row(pairs: list[tuple[Run, Run]]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    variances = []
    for solver, runs in zip((PAPERS, OURS), zip(*pairs, strict=True), strict=True):
        scores = np.array([run.outcome["test_accuracy"] for run in runs])
        deviation = float(scores.std(ddof=1)) if len(scores) > 1 else np.nan
        variances.append(deviation**2)
        row |= {f"accuracy_{solver}": float(scores.mean()), f"deviation_{solver}": deviation}
        for cost in COSTS:
            row[f"{cost}_{solver}"] = float(np.mean([_cost(run, cost) for run in runs]))
    row["difference"] = row[f"accuracy_{OURS}"] - row[f"accuracy_{PAPERS}"]
    row["pooled"] = float(np.sqrt(np.mean(variances)))
    for cost in COSTS:
        row[f"{cost}_ratio"] = row[f"{cost}_{OURS}"] / row[f"{cost}_{PAPERS}"]
    row["common_synchronizations"] = float(
        np.mean([_synchronizations_to(ours, _mark(papers)) for papers, ours in pairs])
    )
    row["common_ratio"] = row["common_synchronizations"] / row[f"synchronizations_{PAPERS}"]
    return row


def _cost(run: Run, cost: str) -> float:
    if cost == "bytes":
        return run.outcome["reach95_bytes_up"] + run.outcome["reach95_bytes_down"]
    return run.outcome[f"reach95_{cost}"]


def _mark(run: Run) -> float:
    return REACHED * run.outcome["test_accuracy"]


def _synchronizations_to(run: Run, mark: float) -> float:
    """Return the synchronizations a run takes to reach an accuracy; NaN if it never does."""
    reached = run.history[run.history.test_accuracy >= mark]
    return np.nan if reached.empty else float(reached.synchronizations.iloc[0])


def cg_is_faster(table: pd.DataFrame, *, ratio: str = "synchronizations_ratio") -> Count:
    """Count the cells in which CG takes at most a third of the synchronizations, at no loss.

    No loss: its mean accuracy is not more than one standard deviation below that of the paper's solver.
    The deviation is that of a run, pooled over the two solvers; with one seed there is none, and the
    cell is left open.
    """
    rows: Iterable[Any] = table.itertuples()
    by_cell = {Cell(row.dataset, row.setting, row.target): row for row in rows}

    def judge(cell: Cell) -> tuple[bool, str] | None:
        row = by_cell.get(cell)
        if row is None or np.isnan(row.pooled):
            return None
        share, lost = getattr(row, ratio), row.difference < -row.pooled
        slow = "never reached" if np.isnan(share) else f"{share:.2f} of the synchronizations"
        reasons = [] if share <= LARGEST_RATIO else [slow]
        reasons += [f"accuracy {row.difference:+.3f}".replace("-", "−")] if lost else []
        return not reasons, ", ".join(reasons)

    claim = "damped CG takes at most a third of the synchronizations at no loss of accuracy"
    if ratio == "common_ratio":
        claim += ", both to 95% of what the paper's solver reaches"
    return count_cells(claim, len(CELLS), CELLS, judge)


HEADER = (
    *("data set", "setting", "seeds", f"accuracy, {TITLES[PAPERS]}", f"accuracy, {TITLES[OURS]}"),
    *("difference", "synchronizations", "ratio", "MB", "ratio", "seconds", "ratio"),
    *("synchronizations to the same accuracy", "ratio"),
)


def to_markdown(table: pd.DataFrame) -> str:
    """Write the table: what each solver takes to 95% of its final accuracy, the paper's first."""
    lines = [list(HEADER), ["---"] * 2 + ["---:"] * (len(HEADER) - 2), *_shown(table)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def to_latex(table: pd.DataFrame) -> str:
    """Write the table for LaTeX with booktabs."""
    rows = [" & ".join(_latex(text) for text in row) + r" \\" for row in _shown(table)]
    lines = [
        r"% \usepackage{booktabs}",
        rf"\begin{{tabular}}{{ll{'r' * (len(HEADER) - 2)}}}",
        *(r"\toprule", " & ".join(HEADER) + r" \\", r"\midrule", *rows, r"\bottomrule"),
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def to_csv(table: pd.DataFrame) -> str:
    """Write the table with every digit."""
    return table.to_csv(index=False)


def _shown(table: pd.DataFrame) -> list[list[str]]:
    rows: Iterable[Any] = table.itertuples()
    return [_shown_row(row) for row in rows]


def _shown_row(row: Any) -> list[str]:
    cells = [row.dataset, row.setting, str(row.seeds)]
    for solver in (PAPERS, OURS):
        cells.append(entry(getattr(row, f"accuracy_{solver}"), getattr(row, f"deviation_{solver}")))
    cells.append(signed(row.difference))
    for cost, unit, digits in (("synchronizations", 1, 0), ("bytes", 1e6, 1), ("seconds", 1, 0)):
        papers, ours = (getattr(row, f"{cost}_{solver}") / unit for solver in (PAPERS, OURS))
        cells += [
            f"{papers:.{digits}f} → {ours:.{digits}f}",
            f"{getattr(row, cost + '_ratio'):.2f}",
        ]
    if np.isnan(row.common_ratio):
        return [*cells, "not reached", "–"]
    return [*cells, f"{row.common_synchronizations:.0f}", f"{row.common_ratio:.2f}"]


def _latex(text: str) -> str:
    for symbol, command in {"±": r"$\pm$", "→": r"$\to$", "−": "$-$", "–": "--"}.items():
        text = text.replace(symbol, command)
    return text


WRITERS: dict[str, Callable[[pd.DataFrame], str]] = {
    "md": to_markdown,
    "csv": to_csv,
    "tex": to_latex,
}
"""How the table is written, by the ending of its file."""
