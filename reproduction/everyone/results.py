"""What the studies of everyone's question have found: one row per run and owner, and tables made of them."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedkin.report.reading import Run, read_record
from fedkin.training.collaboration import summarize_scores

DIRECTORY = Path(__file__).parent
RESULTS, TABLES = DIRECTORY / "results.csv", DIRECTORY / "tables.md"

RUN = ["cell", "model", "method", "seed"]
"""What distinguishes a run."""

SUMMARIES = {
    "mean": "mean",
    "worst": "worst node",
    "tenth_percentile": "tenth percentile",
    "weighted_mean": "mean by points",
    "gain": "nodes that gain",
    "lose": "nodes that lose",
}


def read_store(directory: Path) -> pd.DataFrame:
    """Return a row for every owner of every finished run of a study."""
    rows = [row for run in read_record(directory).runs for row in _rows(run)]
    return pd.DataFrame(rows)


def _rows(run: Run) -> Iterator[dict[str, Any]]:
    found = run.owners or {}
    owners = found["owners"]
    true: dict[str, set[str]] = {}
    for row in owners:
        true.setdefault(row["group"], set()).add(row["name"])
    known = None not in true
    matrix = found["matrix"] if run.method == "bilevel" else None
    learned = matrix is not None
    groups = {frozenset(group) for group in found["found_groups"]}
    for place, row in enumerate(owners):
        share = None
        if matrix is not None and known and matrix[place] is not None:
            kin = [other["group"] == row["group"] for other in owners]
            share = float(np.array(matrix[place])[kin].sum())
        yield {
            "cell": run.cell.short_title,
            "model": run.config["model"],
            "method": run.method,
            "seed": run.seed,
            "owner": row["name"],
            "test_points": row["test_points"],
            "accuracy": row.get("test_accuracy"),
            "share_in_group": share,
            "groups_found": groups == {frozenset(each) for each in true.values()}
            if learned and known
            else None,
            "own_synchronizations": row.get("synchronizations"),
            "synchronizations": run.outcome["total_synchronizations"],
            "megabytes": round((run.outcome["bytes_up"] + run.outcome["bytes_down"]) / 1e6, 3),
            "seconds": round(run.outcome["total_seconds"], 1),
        }


def add_results(known: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    """Return both; runs that are in both are taken from the new ones."""
    both = pd.concat([known, new], ignore_index=True)
    newest = both.groupby([*RUN, "owner"], sort=False).tail(1)
    return newest.sort_values([*RUN, "owner"], kind="stable", key=_order).reset_index(drop=True)


def _order(column: pd.Series) -> pd.Series:
    """Sort methods as the paper lists them, everything else by name."""
    if column.name != "method":
        return column
    order = ["local", "fedavg", "ditto", "pfedme", "bilevel"]
    return column.map(lambda name: f"{order.index(name) if name in order else len(order)} {name}")


def tables(results: pd.DataFrame) -> str:
    """Return a table for each cell and model, as Markdown."""
    kinds = sorted(set(zip(results["cell"], results["model"], strict=True)))
    return "\n".join(
        _table(cell, model, results.query("cell == @cell and model == @model"))
        for cell, model in kinds
    )


def _table(cell: str, model: str, results: pd.DataFrame) -> str:
    nodes, seeds = (len(results[name].unique()) for name in ("owner", "seed"))
    lines = [
        f"## {cell}, `{model}`: {nodes} nodes, {seeds} {'seed' if seeds == 1 else 'seeds'}",
        "",
        f"| method | {' | '.join(SUMMARIES.values())} | synchronizations | MB | seconds |",
        f"|---|{'---:|' * (len(SUMMARIES) + 3)}",
    ]
    for method, own in results.groupby("method", sort=False):
        numbers = _over_seeds(own, results.query("method == 'local'"))
        best = [_entry(name, numbers[name]) for name in SUMMARIES]
        runs = own.drop_duplicates("seed")
        costs = [runs["synchronizations"].mean(), runs["megabytes"].mean(), runs["seconds"].mean()]
        lines.append(
            f"| {method} | {' | '.join(best)} | {' | '.join(f'{cost:,.0f}' for cost in costs)} |"
        )
    shares = results["share_in_group"].dropna()
    if len(shares):
        runs = results.dropna(subset=["groups_found"]).drop_duplicates("seed")
        lines += [
            "",
            f"Share of its weight that an owner gives to its own group: {shares.mean():.4f} in the mean, "
            f"{shares.min():.4f} at least, over {len(shares)} owners of {len(runs)} runs. The groups were "
            f"found exactly in {list(runs['groups_found'].astype(bool)).count(True)} of {len(runs)} runs.",
        ]
    return "\n".join([*lines, ""])


def _over_seeds(own: pd.DataFrame, local: pd.DataFrame) -> Mapping[str, Sequence[float]]:
    """Summarize every seed's nodes; return the list of each number over seeds."""
    found: dict[str, list[float]] = {name: [] for name in SUMMARIES}
    for seed, one in own.groupby("seed"):
        table = pd.DataFrame(
            {"points": one["test_points"].to_numpy(), "score": one["accuracy"].to_numpy()},
            index=pd.Index(one["owner"]),
        )
        alone = local[local["seed"] == seed].set_index("owner")["accuracy"]
        if len(alone) and one["method"].iloc[0] != "local":
            table = table.assign(local=alone)
        summary = summarize_scores(table, "accuracy").loc["score"]
        for name in SUMMARIES:
            if name in summary and not np.isnan(summary[name]):
                found[name].append(float(summary[name]))
    return found


def _entry(name: str, values: Sequence[float]) -> str:
    if not values:
        return "–"
    digits = 1 if name in ("gain", "lose") else 3
    mean = f"{np.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {np.std(values, ddof=1):.{digits}f}"
