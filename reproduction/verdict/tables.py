"""Advice on real tables: four hospitals by FLamby's protocol, and scikit-learn's tables split into sites.

`python -m reproduction.verdict.tables --out tables.csv` measures every candidate on test rows of every owner,
for FLamby's split and 15 others, and prints means with corrected standard errors (Nadeau and Bengio, 2003).
"""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from fedkin.training.alone import add_ones, losses
from fedkin.types import LearningTask
from reproduction.verdict.exact import conclude, train_all

FLAMBY_SEED = 43
TRAINING_SHARE = 0.66
OTHER_SPLITS = 15
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
NAMES = (
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
    "num",
)

FLAMBY = {"local": 0.730, "pooled": 0.735, "FedAvg": 0.685}
"""Mean accuracies over the four hospitals that FLamby's authors report for their own models on its split."""

Rows = tuple[np.ndarray, np.ndarray]


class Sites(NamedTuple):
    """A table divided among sites."""

    name: str
    task: LearningTask
    rows: dict[str, Rows]


def hospitals(directory: Path) -> Sites:
    """Read UCI's four hospitals as FLamby does: 740 complete rows, each center standardized by itself."""
    rows = {}
    for hospital in HOSPITALS:
        path = directory / "heart-disease" / f"processed.{hospital}.data"
        table = pd.read_csv(path, names=list(NAMES), na_values="?")
        table = table.drop(columns=["slope", "ca", "thal"]).dropna()
        label = (table.pop("num") > 0).to_numpy().astype(int)
        for column, codes in {"cp": (2, 3, 4), "restecg": (1, 2)}.items():
            values = table.pop(column)
            for code in codes:  # without the first
                table[f"{column}={code}"] = (values == code).astype(float)
        rows[hospital] = (table.to_numpy(float), label)
    return Sites("heart disease", "classification", rows)


def by_component(name: str, task: LearningTask, inputs: np.ndarray, labels: np.ndarray) -> Sites:
    """Divide a table into four sites along its second principal component, and relabel a fifth one.

    Neighboring sites are alike, distant ones less so; the fifth has rows from everywhere with the opposite
    outcome, and is of no use to anybody.
    """
    scaled = (inputs - inputs.mean(axis=0)) / np.maximum(inputs.std(axis=0), 1e-9)
    random = np.random.default_rng(0)
    relabeled = random.permutation(len(labels))[: len(labels) // 5]
    kept = np.setdiff1d(np.arange(len(labels)), relabeled)
    direction = np.linalg.svd(scaled[kept], full_matrices=False)[2][1]
    order = kept[np.argsort(scaled[kept] @ direction)]
    rows = {
        f"site {number}": (inputs[part], labels[part])
        for number, part in enumerate(np.array_split(order, 4), start=1)
    }
    opposite = 1 - labels if task == "classification" else 2 * labels.mean() - labels
    rows["relabeled"] = (inputs[relabeled], opposite[relabeled])
    return Sites(name, task, rows)


def all_sites(directory: Path) -> Iterator[Sites]:
    """Yield every table."""
    yield hospitals(directory)
    cancer: Any = load_breast_cancer()
    # The first ten columns are means; the others are their errors and extremes.
    yield by_component("breast cancer", "classification", cancer.data[:, :10], cancer.target)
    digits: Any = load_digits()
    even = (digits.target % 2 == 0).astype(int)
    used = digits.data[:, digits.data.std(axis=0) > 4.5]  # pixels at the border hardly vary
    yield by_component("digits, even or odd", "classification", used, even)
    diabetes: Any = load_diabetes()
    yield by_component("diabetes", "regression", diabetes.data, diabetes.target)


def split_and_scale(sites: Sites, seed: int) -> tuple[dict[str, Rows], dict[str, Rows]]:
    """Return the training and the test rows of every site.

    Training rows decide how columns are scaled: each hospital's own, as in FLamby; elsewhere those of
    all sites.
    """
    train, test = {}, {}
    for name, (x, y) in sites.rows.items():
        stratify = y if sites.task == "classification" and np.bincount(y).min() > 1 else None
        split: Any = train_test_split(
            x, y, train_size=TRAINING_SHARE, random_state=seed, stratify=stratify
        )
        x_train, x_test, y_train, y_test = split
        train[name], test[name] = (x_train, y_train), (x_test, y_test)
    pooled = np.concatenate([x for x, _ in train.values()])
    for name, (x_train, y_train) in train.items():
        reference = x_train if sites.name == "heart disease" else pooled
        mean, deviation = reference.mean(axis=0), reference.std(axis=0)
        deviation = np.where(deviation > 0, deviation, 1.0)
        x_test, y_test = test[name]
        train[name] = ((x_train - mean) / deviation, y_train)
        test[name] = ((x_test - mean) / deviation, y_test)
    return train, test


def measure(sites: Sites, seed: int) -> list[dict[str, Any]]:
    """Split every site, and advise each as the owner, but for the relabeled one."""
    train, test = split_and_scale(sites, seed)
    found = []
    for owner in sites.rows:
        if owner == "relabeled":
            continue
        nodes = {name: rows for name, rows in train.items() if name != owner}
        advised = conclude(train_all(nodes, train[owner], sites.task))
        for name, model in advised.models.items():
            found.append(
                {
                    "table": sites.name,
                    "owner": owner,
                    "seed": seed,
                    "candidate": name,
                    "verdict": advised.judged.verdict,
                    "train_rows": len(train[owner][1]),
                    "test_rows": len(test[owner][1]),
                    **_scores(model, test[owner], sites.task),
                }
            )
    return found


def _scores(model: np.ndarray, test: Rows, task: LearningTask) -> dict[str, float]:
    outputs = add_ones(test[0]) @ model
    loss = float(losses(outputs, test[1], task).mean())
    if task == "regression":
        return {"loss": 2 * loss}
    margin = outputs[:, 1] - outputs[:, 0]
    one_class = len(np.unique(test[1])) == 1
    return {
        "loss": loss,
        "accuracy": float(np.mean((margin > 0) == test[1])),
        "auc": float("nan") if one_class else float(roc_auc_score(test[1], margin)),
    }


def summarize(table: Any) -> str:
    """Return means over owners, for FLamby's split and for the others, with corrected standard errors."""
    lines = []
    for name, own in table.groupby("table", sort=False):
        for title, part in {
            f"split {FLAMBY_SEED}": own[own["seed"] == FLAMBY_SEED],
            "other splits": own[own["seed"] != FLAMBY_SEED],
        }.items():
            if part.empty:
                continue
            owners, splits = part["owner"].nunique(), part["seed"].nunique()
            lines.append(f"{name}, {title} ({owners} owners, {splits} splits)")
            lines += _score_lines(part)
            if name == "heart disease" and title.endswith(str(FLAMBY_SEED)):
                lines.append(f"  FLamby's own accuracies: {FLAMBY}")
            verdicts = part[part["candidate"] == "final"].groupby("owner", sort=False)["verdict"]
            lines += [f"  {who}: {own.value_counts().to_dict()}" for who, own in verdicts]
    return "\n".join(lines)


def _score_lines(part: Any) -> list[str]:
    """Return the scores of each candidate, and what it is below the final model, split by split."""
    scores = [
        column
        for column in ("accuracy", "auc", "loss")
        if column in part and part[column].notna().any()
    ]
    # An AUC needs both classes among the test rows: an owner without them has none, in any split.
    by_split = part.groupby(["candidate", "seed"], sort=False)[scores].mean()
    ratio = float(part["test_rows"].sum() / part["train_rows"].sum())
    final = by_split.loc["final"]
    lines = []
    for candidate, values in by_split.groupby("candidate", sort=False):
        values = values.droplevel("candidate")
        shown = []
        for score in scores:
            text = f"{score} {values[score].mean():.3f}"
            if len(values) > 1:
                # Nadeau and Bengio: splits share rows, so their spread alone is too small.
                factor = np.sqrt(1 / len(values) + ratio)
                away = values[score] - final[score]
                text += f" ± {factor * values[score].std(ddof=1):.3f}"
                text += f" ({away.mean():+.3f} ± {factor * away.std(ddof=1):.3f} to final)"
            shown.append(text)
        lines.append(f"  {candidate!s:13} {', '.join(shown)}")
    return lines


def main(arguments: list[str] | None = None) -> None:
    """Measure, or print the summary of what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("FEDKIN_DATA", "data")))
    options = parser.parse_args(arguments)
    if options.out.exists():
        sys.stdout.write(summarize(pd.read_csv(options.out)) + "\n")
        return
    rows = [
        row
        for sites in all_sites(options.data)
        for seed in (FLAMBY_SEED, *range(OTHER_SPLITS))
        for row in measure(sites, seed)
    ]
    pd.DataFrame(rows).to_csv(options.out, index=False, float_format="%.9g")
    sys.stdout.write(summarize(pd.read_csv(options.out)) + "\n")


if __name__ == "__main__":
    main()
