"""What is kept of every federation: one row of a CSV file, from which all figures are made."""

import csv
from pathlib import Path
from typing import Any

import pandas as pd

INTERVAL = ("gain", "gain_low", "gain_high")
LOSS, ACCURACY, REGRET = "loss ", "accuracy ", "regret "
"""What the columns of every candidate begin with."""


def regret(result: dict[str, Any], subject: str) -> float:
    """Return how far a model's accuracy is below the better of alone and equal weights."""
    accuracy = result["test_accuracy"]
    return max(accuracy["alone"], accuracy["equal weights"]) - accuracy[subject]


def to_row(result: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept of a federation. Regrets are in points of accuracy, for readers of the file."""
    rows, kin, kind = result["case"]
    covered, counted = result["covered_weights"]
    row = {"seed": result["seed"], "owner_rows": rows, "kin": kin, "kind": kind}
    row |= {name: result[name] for name in ("features", "verdict", "best")}
    row |= dict(zip(INTERVAL, result["gain"], strict=True))
    row |= {"true_gain": result["true_gain"]}
    row |= {"weights_covered": covered, "weights_counted": counted}
    row |= {LOSS + name: loss for name, loss in result["test_loss"].items()}
    for name, accuracy in result.get("test_accuracy", {}).items():
        row[ACCURACY + name] = accuracy
        row[REGRET + name] = 100 * regret(result, name)
    return {name: f"{v:.6g}" if isinstance(v, float) else v for name, v in row.items()}


def append(path: Path, result: dict[str, Any]) -> None:
    """Add a federation to a file."""
    row = to_row(result)
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, row, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)


def read(path: Path) -> list[dict[str, Any]]:
    """Return what a file has of every federation."""
    found = []
    for row in pd.read_csv(path).to_dict(orient="records"):
        result = {
            "seed": row["seed"],
            "case": [row["owner_rows"], row["kin"], row["kind"]],
            **{name: row[name] for name in ("features", "verdict", "best", "true_gain")},
            "gain": [row[name] for name in INTERVAL],
            "covered_weights": (row["weights_covered"], row["weights_counted"]),
            "test_loss": _named(row, LOSS),
        }
        accuracies = _named(row, ACCURACY)
        found.append(result | ({"test_accuracy": accuracies} if accuracies else {}))
    return found


def _named(row: dict[Any, Any], beginning: str) -> dict[str, float]:
    return {
        str(name).removeprefix(beginning): value
        for name, value in row.items()
        if str(name).startswith(beginning)
    }
