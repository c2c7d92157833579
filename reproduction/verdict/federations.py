"""Regret, verdicts and intervals of `fedkin.advise` on federations whose truth is known.

The nodes' part is solved by SciPy (`exact.py`), everything else is fedkin's own.
`python -m reproduction.verdict.federations --out verdict.jsonl --rounds 4` adds a line per federation (52 in
a round) and can be stopped and continued; `--summary` prints the table of docs/verdict.md.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize

from fedkin.advice.advise import judge
from fedkin.advice.candidates import (
    ALL_ROWS,
    CANDIDATES,
    Splits,
    fold_name,
    train_candidates,
)
from fedkin.advice.verdict import weight_intervals
from fedkin.training.alone import OwnRows, add_ones, losses
from reproduction.random_federations import RandomFederation
from reproduction.verdict.exact import ExactFederation, train_exactly
from reproduction.verdict.synthetic import Case, Rows, Synthetic, cases, draw

FOLDS, REPEATS = 5, 2
"""The defaults of `fedkin.advise`."""

FIRST_SEED = 5_000_000
"""Nothing was chosen by federations from this seed on."""


def measure(seed: int, case: Case, features: int, task: Any, fresh: int) -> dict[str, Any]:
    """Advise on one federation, and compare with what its owner's test rows say."""
    made = draw(seed, case, features=features, task=task, other_owners=fresh)
    begin = time.perf_counter()
    mean, deviation = 0.0, 1.0
    if task == "regression":
        mean, deviation = float(made.owner[1].mean()), float(made.owner[1].std())

    def own(rows: Rows) -> OwnRows:
        labels = rows[1] if task == "classification" else (rows[1] - mean) / deviation
        return OwnRows(add_ones(rows[0]), labels, task, 2 if task == "classification" else 1)

    nodes = {
        name: (x, y if task == "classification" else (y - mean) / deviation)
        for name, (x, y) in made.nodes.items()
    }
    rows, test = own(made.owner), own(made.test)
    splits = Splits.draw(rows, FOLDS, REPEATS, seed=0)
    federated = train_exactly(nodes, rows, splits)
    candidates = train_candidates(rows, splits, federated)
    judged = judge(rows, candidates)
    seconds = time.perf_counter() - begin
    final = np.einsum("j,jfk->fk", judged.shares, candidates.models)
    models = dict(zip(CANDIDATES, candidates.models, strict=True)) | {"final": final}
    if task == "classification":
        models["plain"] = _plain(made)
    loss = {name: _loss(model, test) for name, model in models.items()}
    learned = federated.weights[ALL_ROWS]
    of_folds = [
        [federated.weights[fold_name(repeat, fold)] for fold in range(FOLDS)]
        for repeat in range(REPEATS)
    ]
    low, high = weight_intervals(learned, np.array(of_folds), 1.0)
    result: dict[str, Any] = {
        "seed": seed,
        "case": list(case),
        "verdict": judged.verdict,
        "best": CANDIDATES[judged.best],
        "gain": list(judged.gain),
        "true_gain": loss["alone"] - loss[CANDIDATES[judged.best]],
        "test_loss": loss,
        "weights": np.stack([learned, low, high], axis=1).tolist(),
        "seconds": seconds,
    }
    if task == "classification":
        result["test_accuracy"] = {
            name: float(np.mean((test.inputs @ model).argmax(axis=1) == test.labels))
            for name, model in models.items()
        }
    federation = ExactFederation(nodes, rows)
    size = federation.sizes / federation.sizes.sum()
    first = federation.train(size)[0]
    result["fresh_weights"] = [
        federation.learn(own(other), size, first).tolist() for other in made.other_owners
    ]
    return result


def _loss(model: np.ndarray, test: OwnRows) -> float:
    return float(losses(test.inputs @ model, test.labels, test.task).mean())


def _plain(made: Synthetic) -> np.ndarray:
    """Return the model of Bi-level as it is: no prior, the default cap, rows of the owner only judge."""
    solver = RandomFederation("logistic", tuple(made.nodes.values()), made.owner, ())
    count = len(made.nodes)
    weights = minimize(
        lambda w: solver.outer(np.clip(w, 0, None)),
        np.full(count, 1 / count),
        jac=True,
        bounds=[(0, solver.cap)] * count,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": lambda w: np.ones(count)},
        method="SLSQP",
        options={"ftol": 1e-6, "maxiter": 60},
    ).x
    weights = np.clip(weights, 0, solver.cap)
    model = solver.solve_inner(weights / weights.sum())[0].reshape(-1, 2)
    return np.concatenate([model[1:], model[:1]])  # there, the intercept comes first


def summarize(results: list[dict[str, Any]]) -> str:
    """Return the figures of docs/verdict.md."""
    classified = [each for each in results if "test_accuracy" in each]
    lines = [f"{len(results)} federations"]
    if classified:
        lines += _accuracy_lines(classified)
    covered = [each["gain"][1] <= each["true_gain"] <= each["gain"][2] for each in results]
    lines.append(f"90% intervals of the gain cover the true gain: {np.mean(covered):.1%}")
    for rows in sorted({each["case"][0] for each in results}):
        own = [c for c, each in zip(covered, results, strict=True) if each["case"][0] == rows]
        lines.append(f"  with {rows} rows: {np.mean(own):.1%}")
    inside = [
        low - 1e-6 <= weight <= high + 1e-6
        for each in results
        for fresh in each["fresh_weights"]
        for weight, (_, low, high) in zip(fresh, each["weights"], strict=True)
    ]
    if inside:
        lines.append(f"intervals of weights cover those of fresh rows: {np.mean(inside):.1%}")
    losses = {
        name: np.mean([each["test_loss"][name] for each in results])
        for name in results[0]["test_loss"]
    }
    lines.append(
        "mean test loss: " + ", ".join(f"{name} {loss:.4f}" for name, loss in losses.items())
    )
    return "\n".join(lines)


def _accuracy_lines(results: list[dict[str, Any]]) -> list[str]:
    lines = []
    groups = {
        "all": results,
        "some kin": [each for each in results if each["case"][1] > 0],
        "no kin, hostile": [each for each in results if Case(*each["case"]).is_hostile],
        "no kin, other": [
            each for each in results if each["case"][1] == 0 and not Case(*each["case"]).is_hostile
        ],
        "all, 50 rows or more": [each for each in results if each["case"][0] >= 50],
    }
    lines.append("regret in points of accuracy (mean, mean of its positive part, worst):")
    for name, own in groups.items():
        for subject in ("final", "plain", "equal", "alone"):
            regret = np.array([100 * _regret(each, subject) for each in own])
            lines.append(
                f"  {name:22} {subject:6} {regret.mean():6.2f} {np.maximum(regret, 0).mean():6.2f} "
                f"{regret.max():6.1f}"
            )
    for verdict in ("join", "alone", "unclear"):
        own = [each for each in results if each["verdict"] == verdict]
        lines.append(
            f"{verdict}: {len(own)}, wrong by more than 0.5 points: {sum(map(_is_wrong, own))}"
        )
    hostile = [each for each in groups["no kin, hostile"] if each["case"][0] >= 50]
    right = [each["verdict"] == "alone" for each in hostile]
    lines.append(f"hostile with 50 rows or more, 'alone': {sum(right)} of {len(right)}")
    return lines


def _regret(result: dict[str, Any], subject: str) -> float:
    """Return how far a model's accuracy is below the better of alone and equal weights."""
    accuracy = result["test_accuracy"]
    return max(accuracy["alone"], accuracy["equal"]) - accuracy[subject]


def _is_wrong(result: dict[str, Any]) -> bool:
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
    parser.add_argument("--rounds", type=int, default=4, help="52 federations each")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--features", type=int, default=5)
    parser.add_argument(
        "--task", choices=("classification", "regression"), default="classification"
    )
    parser.add_argument("--fresh", type=int, default=2, help="fresh draws of the owner's rows")
    parser.add_argument("--summary", action="store_true", help="only print the summary")
    options = parser.parse_args(arguments)
    results = []
    if options.out.exists():
        results = [json.loads(line) for line in options.out.read_text().splitlines()]
    done = {each["seed"] for each in results}
    if not options.summary:
        for number in range(options.rounds):
            for place, case in enumerate(cases()):
                seed = options.first_seed + 100 * number + place
                if seed in done:
                    continue
                result = measure(seed, case, options.features, options.task, options.fresh)
                results.append(result)
                with options.out.open("a") as file:
                    file.write(json.dumps(result) + "\n")
    sys.stdout.write(summarize(results) + "\n")


if __name__ == "__main__":
    main()
