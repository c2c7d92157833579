"""Four hospitals, each in turn asking: whom should I learn with, and does it pay?

Reads the four processed files of UCI's Heart Disease data from FEDKIN_DATA/heart-disease. Each
hospital in turn is the target: its rows are split into validation, test and a rest that stays a
node along with the other three. Every method sees the same split; this is repeated, and means and
standard deviations over the splits are printed.

    python examples/heart_disease/heart_disease.py --splits 10
"""

import argparse
import os
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

import fedkin
from fedkin.data.labels import binary_label, split_rows
from fedkin.data.table_federation import TableFederation, federate
from fedkin.data.tables import Table, TableFormat, read_table
from fedkin.numerics.scores import classification_scores
from fedkin.types import Points

HOSPITALS = {
    "Cleveland": "processed.cleveland.data",
    "Hungary": "processed.hungarian.data",
    "Switzerland": "processed.switzerland.data",
    "VA": "processed.va.data",
}
# fmt: off
COLUMNS = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak",
    "slope", "ca", "thal", "num",
)
# fmt: on
CODES = ("cp", "restecg", "slope", "thal")
NOT_MEASURED = {"chol": 0.0, "trestbps": 0.0}
VALIDATION, TEST = 0.3, 0.3


def read_hospitals(directory: Path) -> dict[str, Table]:
    written = TableFormat(names=COLUMNS)
    return {
        name: binary_label(read_table(directory / file, f"node '{name}'", written), "num", ">0")
        for name, file in HOSPITALS.items()
    }


def split(hospitals: dict[str, Table], target: str, seed: int) -> TableFederation:
    validation, test, rest = split_rows(
        hospitals[target], "num", (VALIDATION, TEST), seed, stratify=True
    )
    nodes = {**hospitals, target: rest}
    return federate(nodes, validation, test, "num", categorical=CODES, missing_codes=NOT_MEASURED)


def compare(federation: TableFederation, target: str, seed: int):
    """Return every method's scores on the test rows, and the weights that Bi-level learned."""
    rest = federation.nodes[target]
    own = Points(*(np.concatenate(pair) for pair in zip(federation.validation, rest, strict=True)))
    fits = {
        "Bi-level": ("bilevel", federation.validation),
        "FedAvg": ("fedavg", federation.validation),
        "Local-train": ("local", federation.validation),
        "Local, all own rows": ("local", own),
    }
    scores, weights = {}, {}
    for name, (method, validation) in fits.items():
        result = fedkin.fit(federation.nodes, validation, method=method, seed=seed, classes=2)
        probabilities = np.asarray(result.predict_proba(federation.test.inputs), np.float64)
        scores[name] = classification_scores(federation.test.labels, probabilities)
        if method == "bilevel":
            weights = result.weights
    return scores, weights


def verdict(gains: np.ndarray) -> str:
    """Say whether Bi-level's AUC differs from another method's, split by split.

    The splits share rows, so their differences are not independent: the variance of their mean is
    that of one split times (1/n + test rows / other rows), not times 1/n (Nadeau and Bengio, 2003).
    """
    mean = gains.mean()
    error = gains.std(ddof=1) * np.sqrt(1 / len(gains) + TEST / (1 - TEST))
    shown = f"AUC {mean:+.3f}, standard error {error:.3f}"
    if abs(mean) <= 2 * error:
        return f"{shown}: no difference that {len(gains)} splits can show"
    return f"{shown}: {'Bi-level is better' if mean > 0 else 'Bi-level is worse'}"


def spread(values: list[float]) -> str:
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"


def report(target: str, hospitals: dict[str, Table], splits: int) -> None:
    accuracy, area, weights = defaultdict(list), defaultdict(list), defaultdict(list)
    for seed in range(splits):
        print(f"\r{target}: split {seed + 1} of {splits}", end="", file=sys.stderr, flush=True)
        scores, learned = compare(split(hospitals, target, seed), target, seed)
        for method, score in scores.items():
            accuracy[method].append(score["accuracy"])
            area[method].append(score["auc"])
        for name, weight in learned.items():
            weights[name].append(weight)
    print("\r" + " " * 40 + "\r", end="", file=sys.stderr)

    labels = hospitals[target].columns["num"]
    sick = np.mean(labels == "yes")
    print(f"\n{target} as target: {len(labels)} rows, {sick:.0%} with disease")
    for name, values in weights.items():
        own = " (its own other rows)" if name == target else ""
        print(f"  weight of {name:<12} {spread(values)}{own}")
    print(f"  {'method':<20} {'test accuracy':<16} test AUC")
    for method in accuracy:
        print(f"  {method:<20} {spread(accuracy[method]):<16} {spread(area[method])}")
    always = max(sick, 1 - sick)
    print(f"  {'always the same':<20} {always:.3f}{'':<11} 0.500")
    for other in ("Local, all own rows", "FedAvg"):
        gains = np.subtract(area["Bi-level"], area[other])
        print(f"  Bi-level against '{other}': {verdict(gains)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=10, help="random splits (at least 2)")
    splits = parser.parse_args().splits
    directory = Path(os.environ.get("FEDKIN_DATA", "."), "heart-disease")
    if splits < 2:
        sys.exit("error: --splits must be at least 2, for a standard deviation")
    if not directory.is_dir():
        sys.exit(f"error: no directory {directory}; set FEDKIN_DATA to the one that holds it")
    hospitals = read_hospitals(directory)
    print(f"{splits} splits; {VALIDATION:.0%} validation, {TEST:.0%} test; mean ± std. deviation")
    for target in hospitals:
        report(target, hospitals, splits)


if __name__ == "__main__":
    main()
