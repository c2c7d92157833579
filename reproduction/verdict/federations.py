"""Regret, verdicts and intervals of `fedkin.advise` on federations whose truth is known.

The nodes' part is solved by SciPy (`exact.py`), everything else is fedkin's own.
`python -m reproduction.verdict.federations --out common.csv` adds a row per federation (`store.py`) and can
be stopped and continued; `--summary` prints the figures of docs/verdict.md.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
from scipy.stats import beta

from fedkin.advice.candidates import CANDIDATES
from fedkin.advice.conclusion import weight_table
from fedkin.methods.bilevel.method import default_cap
from fedkin.training.alone import OwnRows, add_ones, losses
from reproduction.verdict.exact import ExactFederation, Trained, conclude, train_all
from reproduction.verdict.store import append, read, regret
from reproduction.verdict.synthetic import MIXES, Case, Rows, Synthetic, TaskName, cases, draw

FIRST_SEED = 7_000_000
"""Nothing was chosen by federations from this seed on."""


def measure(seed: int, case: Case, task: TaskName, fresh: int) -> dict[str, Any]:
    """Advise on one federation, and compare with what its owner's test rows say."""
    made = draw(seed, case, task=task, other_owners=fresh)
    trained = train_all(made.nodes, made.owner, task)
    result = compare(made, trained) | {"seed": seed, "case": list(case)}
    federation = trained.federation
    size = federation.sizes / federation.sizes.sum()
    start = federation.train(size)
    drawn = [
        federation.learn(_own_rows(other, trained.rows, made.owner), size, start)
        for other in made.other_owners
    ]
    return result | {"covered_weights": count_covered(result.pop("weights"), drawn)}


def compare(made: Synthetic, trained: Trained) -> dict[str, Any]:
    """Return the advice on a federation, beside the truth."""
    judged, models = conclude(trained)
    rows, federation, task = trained.rows, trained.federation, trained.rows.task
    if task == "classification":
        models["bi-level"] = _bi_level(federation, rows)
    test = OwnRows(add_ones(made.test[0]), made.test[1], task, rows.outputs)
    loss = {name: _loss(model, test) / trained.deviation**2 for name, model in models.items()}
    weights = weight_table(
        trained.splits,
        trained.federated,
        judged.shares,
        pd.Series(federation.sizes, index=pd.Index(made.nodes)),
        rows.total,
        cap=1.0,
    )
    result: dict[str, Any] = {
        "features": rows.inputs.shape[1] - 1,
        "verdict": judged.verdict,
        "best": CANDIDATES[judged.best],
        "gain": list(judged.gain.interval),
        "error": judged.gain.error,
        "true_gain": loss["alone"] - loss[list(models)[judged.compared]],
        "shares": judged.shares.tolist(),
        "test_loss": loss,
        "weights": weights[["weight", "low", "high"]].to_numpy().tolist(),
    }
    if task == "classification":
        result["test_accuracy"] = {
            name: float(np.mean((test.inputs @ model).argmax(axis=1) == test.labels))
            for name, model in models.items()
        }
    return result


def _own_rows(drawn: Rows, rows: OwnRows, owner: Rows) -> OwnRows:
    """Return fresh rows of the owner, numbers in the unit of its first rows."""
    labels = drawn[1]
    if rows.task == "regression":
        labels = (labels - owner[1].mean()) / owner[1].std()
    return rows._replace(inputs=add_ones(drawn[0]), labels=labels)


def _loss(model: np.ndarray, test: OwnRows) -> float:
    return float(losses(test.inputs @ model, test.labels, test.task).mean())


def _bi_level(federation: ExactFederation, rows: OwnRows) -> np.ndarray:
    """Return the model of Bi-level as it is: no prior, the default cap, rows of the owner only judge."""
    count = len(federation.sizes)
    equal = np.full(count, 1 / count)
    start = federation.train(equal)
    cap = default_cap(count)
    return federation.train(federation.learn(rows, equal, start, strength=0.0, cap=cap), start)


def summarize(results: list[dict[str, Any]]) -> str:
    """Return the figures of docs/verdict.md."""
    lines = [f"{len(results)} federations"]
    if all("test_accuracy" in each for each in results):
        lines += _accuracy_lines(results)
    for verdict, sign in (("join", 1), ("alone", -1)):
        own = [sign * each["true_gain"] for each in results if each["verdict"] == verdict]
        lines.append(
            f"{verdict}: {len(own)}, the loss says otherwise: {sum(gain < 0 for gain in own)}"
        )
    covered = [each["gain"][1] <= each["true_gain"] <= each["gain"][2] for each in results]
    lines.append(f"90% intervals of the gain cover the true gain: {np.mean(covered):.1%}")
    for rows in sorted({each["case"][0] for each in results}):
        own = [place for place, each in enumerate(results) if each["case"][0] == rows]
        lines.append(
            f"  with {rows} rows: {np.mean([covered[place] for place in own]):.1%}; "
            f"weights {_share_of_weights([results[place] for place in own]):.1%}"
        )
    lines.append(
        "intervals of weights cover those of fresh rows, unless both weights are 0: "
        f"{_share_of_weights(results):.1%}"
    )
    names = results[0]["test_loss"]
    mean = {name: np.mean([each["test_loss"][name] for each in results]) for name in names}
    lines.append("mean test loss: " + ", ".join(f"{name} {mean[name]:.4f}" for name in names))
    return "\n".join(lines)


def count_covered(weights: list[list[float]], fresh: Sequence[np.ndarray]) -> tuple[int, int]:
    """Count the intervals of weights that cover those of fresh rows, and all of them, but for zeros of both.

    >>> count_covered([[0.5, 0.4, 0.6], [0.5, 0.0, 0.1], [0.0, 0.0, 0.1]], [np.array([0.5, 0.5, 0.0])])
    (1, 2)

    Args:
        weights: The weight of each node with the ends of its interval.
        fresh: The weights that fresh rows lead to.
    """
    covered = [
        low - 1e-6 <= weight <= high + 1e-6
        for drawn in fresh
        for weight, (learned, low, high) in zip(drawn, weights, strict=True)
        if weight > 1e-6 or learned > 1e-6
    ]
    return sum(covered), len(covered)


def _share_of_weights(results: list[dict[str, Any]]) -> float:
    covered, counted = np.sum([each["covered_weights"] for each in results], axis=0)
    return float(covered / counted)


def _accuracy_lines(results: list[dict[str, Any]]) -> list[str]:
    groups = {
        "all": results,
        "all hostile": [each for each in results if Case(*each["case"]).is_hostile],
        "others": [each for each in results if not Case(*each["case"]).is_hostile],
        "50 rows or more": [each for each in results if each["case"][0] >= 50],
        "20 rows": [each for each in results if each["case"][0] == 20],
        "up to 12 features": [each for each in results if each["features"] <= 12],
        "13 features or more": [each for each in results if each["features"] > 12],
    }
    lines = ["regret in points of accuracy (mean ± standard error, worst):"]
    for name, own in groups.items():
        if not own:
            continue
        lines.append(f"  {name} ({len(own)})")
        for subject in ("final", "bi-level", "equal weights", "alone"):
            points = np.array([100 * regret(each, subject) for each in own])
            error = points.std() / np.sqrt(len(points))
            lines.append(f"    {subject:13} {points.mean():6.2f} ± {error:.2f} {points.max():6.1f}")
    for verdict in ("join", "alone", "unclear"):
        own = [each for each in results if each["verdict"] == verdict]
        wrong = sum(map(is_wrong, own))
        lines.append(
            f"{verdict}: {len(own)}, wrong by more than 0.5 points: {_share(wrong, len(own))}"
        )
    hostile = [each for each in groups["all hostile"] if each["case"][0] >= 50]
    right = sum(each["verdict"] == "alone" for each in hostile)
    lines.append(f"hostile with 50 rows or more, 'alone': {_share(right, len(hostile))}")
    return lines


def _share(count: int, total: int) -> str:
    """Return a number with the 90% limits (Clopper and Pearson) of its share."""
    if total == 0:
        return "0 of 0"
    low = beta.ppf(0.05, count, total - count + 1) if count else 0.0
    high = beta.ppf(0.95, count + 1, total - count) if count < total else 1.0
    return f"{count} of {total} ({count / total:.1%}; 90% limits {low:.1%} to {high:.1%})"


def is_wrong(result: dict[str, Any]) -> bool:
    """Tell whether a verdict costs more than half a point of accuracy."""
    accuracy = result["test_accuracy"]
    if result["verdict"] == "join":
        return accuracy["alone"] - accuracy["final"] > 0.005
    if result["verdict"] == "alone":
        return accuracy[result["best"]] - accuracy["alone"] > 0.005
    return False


def main(arguments: list[str] | None = None) -> None:
    """Measure, or print the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--mix", choices=sorted(MIXES), default="common")
    parser.add_argument("--rounds", type=int, default=10, help="24 (common) or 28 federations each")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--task", choices=get_args(TaskName), default="classification")
    parser.add_argument("--fresh", type=int, default=2, help="fresh draws of the owner's rows")
    parser.add_argument("--only-hostile", action="store_true", help="leave out other federations")
    parser.add_argument("--summary", action="store_true", help="only print the summary")
    options = parser.parse_args(arguments)
    results = read(options.out) if options.out.exists() else []
    done = {each["seed"] for each in results}
    wanted = [
        (options.first_seed + 100 * number + place, case)
        for number in range(0 if options.summary else options.rounds)
        for place, case in enumerate(cases(options.mix))
        if case.is_hostile or not options.only_hostile
    ]
    for seed, case in wanted:
        if seed not in done:
            append(options.out, measure(seed, case, options.task, options.fresh))
    sys.stdout.write(summarize(read(options.out)) + "\n")


if __name__ == "__main__":
    main()
