"""Federations in which nobody lies, to count false alarms: nodes like the owner, unlike it, tiny and noisy.

    PYTHONPATH=tests python tests/attacks/honest_federations.py

prints how often a node of fifty federations is named.
"""

import argparse
import time

import numpy as np

from attacks.lying_nodes import METHODS, SWAPPED, Rows, build, digits_rows
from fedkin.types import Points

KINDS = ("alike", "half swapped", "two alike", "tiny and noisy", "few classes each")


def synthetic_rows(seed):
    """Return rows of three classes that a linear model nearly tells apart."""
    rng = np.random.default_rng([seed, 3])
    inputs = rng.normal(size=(1797, 4)).astype(np.float32)
    scores = inputs @ (2 * rng.normal(size=(4, 3))) + 0.5 * rng.gumbel(size=(1797, 3))
    return inputs, np.argmax(scores, axis=1).astype(np.int32)


def draw(kind, seed, *, synthetic=False):
    """Divide rows among an owner and eight nodes."""
    inputs, labels = synthetic_rows(seed) if synthetic else digits_rows(seed)
    swapped = {0: 1, 1: 2, 2: 0} if synthetic else SWAPPED
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    sizes = [120] * 8
    if kind == "tiny and noisy":
        sizes = [int(size) for size in np.geomspace(12, 240, 8)]
    validation, test = (
        Points(inputs[part], labels[part]) for part in (slice(-100, None), slice(-500, -100))
    )
    order = np.arange(len(labels) - 500)
    starts = np.cumsum([0, *sizes])
    if kind == "few classes each":
        order = order[np.argsort(labels[order] // (1 if synthetic else 3) % 3, kind="stable")]
        starts = np.linspace(0, len(order) - 120, 8).astype(int)
    nodes = {}
    for number, size in enumerate(sizes):
        rows = order[starts[number] : starts[number] + size]
        own = labels[rows].copy()
        if (kind == "half swapped" and number % 2 == 0) or (kind == "two alike" and number < 6):
            own = np.array([swapped.get(int(label), int(label)) for label in own], np.int32)
        if kind == "tiny and noisy" and number % 3 == 1:
            wrong = rng.random(len(own)) < 0.3
            own = np.where(wrong, rng.integers(0, labels.max() + 1, len(own)), own).astype(np.int32)
        nodes[f"n{number + 1}"] = Points(inputs[rows], own)
    return Rows(nodes, validation, test)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", nargs="*", default=["newton", "single loop"])
    parser.add_argument("--seeds", nargs="*", type=int, default=list(range(5)))
    parser.add_argument("--synthetic", action="store_true", help="in place of handwritten digits")
    given = parser.parse_args()
    federations = alarms = 0
    for seed in given.seeds:
        for method in given.methods:
            for kind in KINDS:
                begun = time.monotonic()
                model, settings, budget = METHODS[method]
                problem = build(draw(kind, seed, synthetic=given.synthetic), model, {}, seed)
                state = problem.train(settings, budget=budget, leave_one_out=True).state
                named = [
                    warning
                    for row in state.history
                    for warning in row.warnings
                    if any(
                        sign in warning for sign in ("gets no weight", "left out", "a node lies")
                    )
                ]
                federations, alarms = federations + 1, alarms + bool(named)
                print(
                    f"{method}, {kind}, seed {seed}: accuracy {state.kept.test.accuracy:.3f}, "
                    f"{state.cost.synchronizations} synchronizations, "
                    f"{time.monotonic() - begun:.0f} s {named}",
                    flush=True,
                )
    print(f"{alarms} of {federations} federations with a false alarm")


if __name__ == "__main__":
    main()
