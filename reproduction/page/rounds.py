"""How few synchronizations each way of learning weights takes: what `rounds.md` shows, and its goals.

All of it is measured on the studies `rounds-…`: the same cells and seeds for everyone. A run's final
accuracy is the test accuracy of its result, the model with the best validation accuracy, as everywhere in
the reproduction; "after n synchronizations" is the result of the run if it had been stopped there. What a
run never reaches is infinite, and what no run was made for is NaN.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedkin.report.reading import Cell, Run
from reproduction.page.collected import SOLVER_STUDIES, Reproduction
from reproduction.page.comparison import ENOUGH_WEIGHT, GRAY_CELLS, Count, count_cells
from reproduction.page.condensed import REACHED, ROUND_STUDIES, similar_shares

SINGLE, CG, PAPERS, FEDAVG, ORACLE = "single", "cg", "paper", "fedavg", "oracle"
TITLES = {
    SINGLE: "single loop",
    CG: "damped CG",
    PAPERS: "the paper's solver",
    FEDAVG: "FedAvg",
    ORACLE: "oracle (FedAvg on the similar nodes)",
}
WEIGHING = (SINGLE, CG, PAPERS)
"""Those that learn weights."""

OF_ONE_CELL = f"{ROUND_STUDIES}{PAPERS}-"
"""A study whose name begins like this has runs of the paper's solver for a cell in which the paper's table
has other parameters; those of the study for all cells do not count there."""

MEDIAN_GOAL, LARGEST_GOAL = 15, 30
"""Synchronizations to 95% of the final accuracy of the paper's solver: in the median, and in every cell."""
ORACLE_GOAL = 2
"""The same compared with what the oracle takes to 95% of its own final accuracy."""
EARLY, LATE = 100, 400
"""After how many synchronizations the single loop's accuracy is compared."""
KIN_GOAL = 30
"""Synchronizations until the similar nodes have 95% of the weight."""
LEAST_WEIGHT = 0.93
"""What they must keep from then on."""
BYTES_GOAL = 1 / 15
"""Bytes to the same accuracy compared with those of the paper's solver."""

Runs = dict[tuple[Cell, str], dict[int, Run]]
"""The runs of a cell and a role (`single`, `cg`, …) by seed."""


def role_of(study: str) -> str:
    """Return what a study is in the comparison: the first word of its name after `rounds-`."""
    return study.removeprefix(ROUND_STUDIES).split("-")[0]


def runs_by_role(reproduction: Reproduction) -> Runs:
    """Return the runs that are compared."""
    special = reproduction.studies_of(OF_ONE_CELL)
    elsewhere = {each.cell for study in special for each in [*study.runs, *study.missing]}
    found: Runs = {}
    for study in reproduction.studies_of(ROUND_STUDIES):
        for run in study.runs:
            if study.name != f"{ROUND_STUDIES}{PAPERS}" or run.cell not in elsewhere:
                found.setdefault((run.cell, role_of(study.name)), {})[run.seed] = run
    return found


def tuned_cg(reproduction: Reproduction) -> dict[Cell, list[Run]]:
    """Return the runs of damped CG whose parameters were tuned cell by cell: those of the second table."""
    found: dict[Cell, list[Run]] = {}
    for study in reproduction.studies_of(SOLVER_STUDIES):
        for run in study.runs:
            found.setdefault(run.cell, []).append(run)
    return found


def cost_to(run: Run, accuracy: float, cost: str = "synchronizations") -> float:
    """Return what a run takes to a test accuracy; infinite if it never has it."""
    reached = run.history[run.history.test_accuracy >= accuracy]
    if reached.empty:
        return np.inf
    first = reached.iloc[0]
    return float(first.bytes_up + first.bytes_down) if cost == "bytes" else float(first[cost])


def accuracy_after(run: Run, synchronizations: int) -> float:
    """Return the test accuracy of the result that a run has after this many synchronizations."""
    rows = run.history[run.history.synchronizations <= synchronizations]
    if rows.empty:
        return np.nan
    best = np.lexsort((rows.validation_loss, -rows.validation_accuracy))[0]
    return float(rows.test_accuracy.iloc[best])


def kin(run: Run) -> tuple[float, float]:
    """Return the synchronizations until similar nodes have 95% of the weight, and their least share then.

    Weights are stored as 32-bit numbers: a millionth below the mark is on it.
    """
    shares = similar_shares(run)
    assert shares is not None, f"{run.name} has no weights"
    enough = np.flatnonzero(shares >= ENOUGH_WEIGHT - 1e-6)
    if not len(enough):
        return np.inf, np.nan
    return float(run.history.synchronizations.iloc[enough[0]]), float(shares[enough[0] :].min())


def final_accuracy(run: Run) -> float:
    """Return the test accuracy of a run's result."""
    return float(run.outcome["test_accuracy"])


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return float(np.mean(found)) if found else np.nan


def measure(reproduction: Reproduction) -> pd.DataFrame:
    """Return one row per cell of the comparison: means over the seeds that have the runs needed."""
    runs, tuned = runs_by_role(reproduction), tuned_cg(reproduction)
    rows = [{**cell._asdict(), **_row(cell, runs, tuned.get(cell, []))} for cell in GRAY_CELLS]
    # Nine decimals, as in the other tables: the last digits of a mean may depend on the processor.
    return pd.DataFrame(rows).round(9)


def _row(cell: Cell, runs: Runs, tuned: list[Run]) -> dict[str, float]:
    papers, single = runs.get((cell, PAPERS), {}), runs.get((cell, SINGLE), {})
    oracle = runs.get((cell, ORACLE), {}).values()
    row: dict[str, float] = {"seeds": len(papers.keys() & single.keys())}
    for role in WEIGHING:
        own = runs.get((cell, role), {})
        # The mark of a run is that of the paper's solver with the same seed.
        pairs = [(own[s], REACHED * final_accuracy(papers[s])) for s in own.keys() & papers.keys()]
        row[f"synchronizations_{role}"] = _mean(cost_to(run, mark) for run, mark in pairs)
        row[f"bytes_{role}"] = _mean(cost_to(run, mark, "bytes") for run, mark in pairs)
        arrivals = [kin(run) for run in own.values()]
        row[f"kin_{role}"] = _mean(arrival for arrival, _ in arrivals)
        row[f"least_{role}"] = float(np.min([least for _, least in arrivals] or [np.nan]))
    row["synchronizations_oracle"] = _mean(
        cost_to(run, REACHED * final_accuracy(run)) for run in oracle
    )
    row["oracle_ratio"] = row["synchronizations_single"] / row["synchronizations_oracle"]
    row["bytes_ratio"] = row["bytes_single"] / row["bytes_paper"]
    for after in (EARLY, LATE):
        row[f"accuracy_{after}"] = _mean(accuracy_after(run, after) for run in single.values())
    row["accuracy_paper"] = _mean(final_accuracy(run) for run in papers.values())
    row["accuracy_oracle"] = _mean(final_accuracy(run) for run in oracle)
    scores = [accuracy_after(run, LATE) for run in tuned]
    row["accuracy_tuned"] = _mean(scores)
    row["deviation_tuned"] = float(np.std(scores, ddof=1)) if len(scores) > 1 else np.nan
    return row


class Goal(NamedTuple):
    """What the comparison must show, what it shows, and whether that is enough."""

    number: str
    goal: str
    found: str
    verdict: str
    """`yes`, `no`, or `open` while runs are missing that can still decide."""
    others: list[str]
    """The cells that do not meet it, with the reason."""


def goals(table: pd.DataFrame) -> list[Goal]:
    """Judge the table."""
    by_cell = {Cell(*key): row for *key, row in _rows(table)}

    def count(
        number: str,
        claim: str,
        judge: Callable[[Mapping[str, float]], tuple[bool, str] | None],
        *,
        needed: int | None = None,
        cells: Iterable[Cell] = GRAY_CELLS,
    ) -> Goal:
        cells = list(cells)
        needed = len(cells) if needed is None else needed
        return from_count(number, count_cells(claim, needed, cells, lambda c: judge(by_cell[c])))

    def at_most(column: str, limit: float, words: str) -> Callable[[Any], tuple[bool, str] | None]:
        def judge(row: Mapping[str, float]) -> tuple[bool, str] | None:
            value = row[column]
            return None if np.isnan(value) else (value <= limit, written(value, words))

        return judge

    def early(row: Mapping[str, float]) -> tuple[bool, str] | None:
        lead = row[f"accuracy_{EARLY}"] - row["accuracy_paper"]
        return None if np.isnan(lead) else (lead >= 0, f"{lead:+.3f}".replace("-", "−"))

    def late(row: Mapping[str, float]) -> tuple[bool, str] | None:
        lead = row[f"accuracy_{LATE}"] - row["accuracy_tuned"]
        if np.isnan(lead + row["deviation_tuned"]):
            return None
        words = f"{lead:+.3f}, deviation {row['deviation_tuned']:.3f}".replace("-", "−")
        return lead >= -row["deviation_tuned"], words

    def kept(row: Mapping[str, float]) -> tuple[bool, str] | None:
        if np.isnan(row["kin_single"]):
            return None
        least = row["least_single"]  # NaN if a run never got there
        return least >= LEAST_WEIGHT, "never 95%" if np.isnan(least) else f"{least:.1%}"

    with_tuned = [cell for cell in GRAY_CELLS if not np.isnan(by_cell[cell]["accuracy_tuned"])]
    to_mark = "synchronizations to 95% of the final accuracy of the paper's solver"
    return [
        _median(table.synchronizations_single, f"{to_mark}: at most {MEDIAN_GOAL} in the median"),
        count(
            "1b",
            f"{to_mark}: at most {LARGEST_GOAL}",
            at_most("synchronizations_single", LARGEST_GOAL, "{:.0f}"),
        ),
        count(
            "2",
            f"at most {ORACLE_GOAL} times the synchronizations of FedAvg on the similar nodes alone, to 95% "
            "of its own final accuracy",
            at_most("oracle_ratio", ORACLE_GOAL, "{:.1f} times"),
        ),
        count(
            "3a",
            f"accuracy after {EARLY} synchronizations at least the final one of the paper's solver",
            early,
            needed=len(GRAY_CELLS) - 1,
        ),
        count(
            "3b",
            f"accuracy after {LATE} not more than one standard deviation below tuned CG's after {LATE}",
            late,
            cells=with_tuned,
        ),
        _mean_lead(table),
        count(
            "3d",
            f"similar nodes have {ENOUGH_WEIGHT:.0%} of the weight within {KIN_GOAL} synchronizations",
            at_most("kin_single", KIN_GOAL, "{:.0f}"),
        ),
        count("3e", f"and do not fall below {LEAST_WEIGHT:.0%} afterwards", kept),
        count(
            "4",
            f"at most 1/{1 / BYTES_GOAL:.0f} of the bytes of the paper's solver to the same accuracy",
            at_most("bytes_ratio", BYTES_GOAL, "{:.3f}"),
        ),
    ]


def written(value: float, words: str) -> str:
    """Write a number; an infinite one was never reached."""
    return "never" if np.isinf(value) else words.format(value)


def _rows(table: pd.DataFrame) -> Iterable[tuple[Any, ...]]:
    rows: list[dict[str, Any]] = table.to_dict(orient="records")  # pyright: ignore[reportAssignmentType]
    return [(*(row[name] for name in Cell._fields), row) for row in rows]


def from_count(number: str, count: Count) -> Goal:
    """Turn a count of cells into a goal."""
    found = f"{len(count.shown)} of {count.judged} cells"
    if count.judged < count.expected:
        found += f" judged, {count.expected} in all"
    goal = f"{count.claim}, in {count.needed} of {count.expected} cells"
    # Without any cell, every one of none would do.
    verdict = count.verdict if count.expected else "open"
    return Goal(number, goal, found, verdict, count.others)


def _median(values: pd.Series, goal: str) -> Goal:
    known = values.dropna()
    if known.empty:
        return Goal("1a", goal, "–", "open", [])
    # With an even number of cells the median may lie between a number and never.
    median = float(np.sort(known)[[(len(known) - 1) // 2, len(known) // 2]].mean())
    verdict = "yes" if median <= MEDIAN_GOAL else "no"
    if len(known) < len(values):
        verdict = "open"
    return Goal("1a", goal, f"{written(median, '{:.1f}')} over {len(known)} cells", verdict, [])


def _mean_lead(table: pd.DataFrame) -> Goal:
    goal = f"accuracy after {LATE} not lower than tuned CG's in the mean over cells"
    compared = table[table.accuracy_tuned.notna()]
    leads = compared[f"accuracy_{LATE}"] - compared.accuracy_tuned
    known = leads.dropna()
    if known.empty:
        return Goal("3c", goal, "–", "open", [])
    lead = round(float(known.mean()), 9)
    verdict = "yes" if lead >= 0 else "no"
    if len(known) < len(leads):
        verdict = "open"
    found = f"{lead:+.4f} over {len(known)} cells".replace("-", "−")
    return Goal("3c", goal, found, verdict, [])
