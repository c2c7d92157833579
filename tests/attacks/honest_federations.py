"""Federations in which nobody lies, to count false alarms: nodes like the owner, unlike it, tiny and noisy.

    python tests/attacks/honest_federations.py

prints how often a node of fifty federations is named.
"""

import argparse
import time

import numpy as np

from attacks.lying_nodes import METHODS, SWAPPED, Rows, build, digits_rows
from fedkin.types import Points

KINDS = ("alike", "half swapped", "two alike", "tiny and noisy", "three classes each")


def draw(kind, seed):
    """Divide the digits among an owner and eight nodes."""
    inputs, labels = digits_rows(seed)
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    sizes = [120] * 8
    if kind == "tiny and noisy":
        sizes = [int(size) for size in np.geomspace(12, 240, 8)]
    place, nodes = 0, {}
    validation = Points(inputs[-100:], labels[-100:])
    test = Points(inputs[-500:-100], labels[-500:-100])
    order = np.arange(len(labels) - 500)
    if kind == "three classes each":
        order = order[np.argsort(labels[order] // 3 % 3, kind="stable")]
        starts = np.linspace(0, len(order) - 120, 8).astype(int)
    for number, size in enumerate(sizes):
        begin = starts[number] if kind == "three classes each" else place
        rows = order[begin : begin + size]
        place += size
        own = labels[rows].copy()
        unlike = {"half swapped": number % 2 == 0, "two alike": number < 6}.get(kind, False)
        if unlike:
            own = np.array([SWAPPED.get(int(label), int(label)) for label in own], np.int32)
        if kind == "tiny and noisy" and number % 3 == 1:
            wrong = rng.random(len(own)) < 0.3
            own = np.where(wrong, rng.integers(0, 10, len(own)), own).astype(np.int32)
        nodes[f"n{number + 1}"] = Points(inputs[rows], own)
    return Rows(nodes, validation, test)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", nargs="*", default=["newton", "single loop"])
    parser.add_argument("--seeds", nargs="*", type=int, default=list(range(5)))
    parser.add_argument("--undefended", action="store_true")
    given = parser.parse_args()
    federations = alarms = 0
    for kind in KINDS:
        for method in given.methods:
            for seed in given.seeds:
                begun = time.monotonic()
                model, settings, budget = METHODS[method]
                problem = build(draw(kind, seed), model, {}, seed)
                state = problem.train(
                    settings, budget=budget, leave_one_out=not given.undefended
                ).state
                warnings = [warning for row in state.history for warning in row.warnings]
                named = [warning for warning in warnings if "gets no weight" in warning]
                federations, alarms = federations + 1, alarms + bool(named)
                print(
                    f"{kind}, {method}, seed {seed}: {state.kept.test.accuracy:.3f}, "
                    f"{state.cost.synchronizations}, {np.round(state.kept.node_weights, 2)}, "
                    f"{time.monotonic() - begun:.0f} s {named}",
                    flush=True,
                )
    print(f"{alarms} of {federations} federations with a false alarm")


if __name__ == "__main__":
    main()
