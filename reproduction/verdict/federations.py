"""Regret, verdicts and intervals of `fedkin.advise` on federations whose truth is known.

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

import fedkin
from reproduction.verdict.synthetic import Case, Synthetic, cases, draw

FIRST_SEED = 5_000_000
"""Nothing was chosen by federations from this seed on."""


def measure(seed: int, case: Case, features: int, task: Any, fresh: int) -> dict[str, Any]:
    """Advise on one federation, and compare with what its owner's test rows say."""
    made = draw(seed, case, features=features, task=task, other_owners=fresh)
    begin = time.perf_counter()
    advice = fedkin.advise(made.nodes, made.owner, task=task, test=made.test)
    seconds = time.perf_counter() - begin
    table = advice.candidates
    result: dict[str, Any] = {
        "seed": seed,
        "case": list(case),
        "verdict": advice.verdict,
        "best": advice.best,
        "gain": list(advice.gain),
        "true_gain": float(table.loc["alone", "test_loss"] - table.loc[advice.best, "test_loss"]),
        "test_loss": table["test_loss"].to_dict() | {"final": advice.test_scores["test_loss"]},
        "weights": advice.weights[["weight", "low", "high"]].to_numpy().tolist(),
        "seconds": seconds,
        "synchronizations": advice.cost.synchronizations,
    }
    if task == "classification":
        accuracy = table["test_accuracy"].to_dict() | {"final": advice.test_scores["test_accuracy"]}
        result["test_accuracy"] = accuracy
        result["accuracy_gain"] = list(advice.accuracy_gain)
        plain = fedkin.fit(made.nodes, made.owner)
        right = plain.predict(made.test[0]) == made.test[1]
        result["test_accuracy"]["plain"] = float(np.mean(right))
        result["plain_synchronizations"] = plain.cost.synchronizations
    result["fresh_weights"] = [_weights(made, owner, task) for owner in made.other_owners]
    return result


def _weights(made: Synthetic, owner: Any, task: str) -> list[float]:
    """Return the weights that other rows of the owner lead to."""
    rows = np.array([len(y) for _, y in made.nodes.values()])
    prior = tuple((rows / rows.sum()).tolist())
    labels = owner[1]
    nodes: Any = made.nodes
    if task == "regression":
        mean, deviation = labels.mean(), labels.std()
        nodes = {name: (x, (y - mean) / deviation) for name, (x, y) in nodes.items()}
        owner = (owner[0], (labels - mean) / deviation)
    method = fedkin.Bilevel(cap=1.0, prior=prior, tolerance=1e-3)
    model = "ridge" if task == "regression" else "logistic"
    return list((fedkin.fit(nodes, owner, model=model, method=method).weights or {}).values())


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
    lines.append(
        f"seconds: median {np.median([each['seconds'] for each in results]):.1f}; synchronizations: "
        f"median {np.median([each['synchronizations'] for each in results]):.0f}"
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
