"""A federation on handwritten digits, some of whose nodes lie: what they get for it.

    python tests/attacks/lying_nodes.py --help

prints a table of the attacks of docs/lying-nodes.md. Eight nodes have 120 rows each. Those that lie have
random labels; of the others, one calls four digits by other names, and all other rows are like the owner's.
"""

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedkin.data.sources import load_images
from fedkin.errors import FedkinError
from fedkin.federation.unreliable import UnreliableSimulation
from fedkin.methods.bilevel.method import Bilevel
from fedkin.methods.bilevel.node import SLOPE
from fedkin.training.problem import Problem, simulation
from fedkin.training.runner import Budget
from fedkin.types import Points

NODES, ROWS, OWN_ROWS = 8, 120, 100
SWAPPED = {2: 0, 0: 1, 1: 5, 5: 2}
"""What the honest node that is unlike the owner calls some digits."""

METHODS = {
    "newton": ("logistic", Bilevel(), Budget()),
    "single loop": ("mlp", Bilevel(restarts=1), Budget(synchronizations=40)),
    "adaptive": ("logistic", Bilevel(outer="adaptive"), Budget(steps=15)),
    "proximal": ("logistic", Bilevel(outer="proximal", outer_learning_rate=0.1), Budget(steps=15)),
    "paper": ("mlp", Bilevel.paper(), Budget(steps=15)),
}
"""The model, the method and the budget of each outer loop."""


# What a liar reports


def false_slope(value):
    """Report this slope, whatever it is; the rest is true."""

    def lie(own, replies):
        if own.request.task is not SLOPE:
            return replies
        return {"slope": np.full_like(replies["slope"], value)}

    return lie


def scaled(factor):
    """Multiply updates, gradients and Hessian products."""

    def lie(own, replies):
        changed = dict(replies)
        for name in own.request.task.vector_replies:
            sent = np.asarray(own.request.message["point"]) if name == "point" else 0.0
            rows = sent if np.ndim(sent) < 2 else sent[list(own.models)]
            changed[name] = (rows + factor * (replies[name] - rows)).astype(replies[name].dtype)
        return changed

    return lie


def of_norm(norm):
    """Reply with vectors of this norm."""

    def lie(own, replies):
        changed = dict(replies)
        for name in own.request.task.vector_replies:
            lengths = np.linalg.norm(replies[name], axis=1, keepdims=True)
            changed[name] = (norm * replies[name] / np.maximum(lengths, 1e-12)).astype(
                replies[name].dtype
            )
        return changed

    return lie


def both(*lies):
    """Tell several lies at once."""

    def lie(own, replies):
        for each in lies:
            replies = each(own, replies)
        return replies

    return lie


SLOPES = (-0.1, -1.0, -100.0, -1e4)
FACTORS = (-10.0, -1.0, 10.0, 100.0)
ATTACKS = (
    {"noise labels only": None}
    | {f"slope {value:g}": false_slope(value) for value in SLOPES}
    | {f"updates × {factor:g}": scaled(factor) for factor in FACTORS}
    | {
        f"slope -1, updates × {factor:g}": both(false_slope(-1.0), scaled(factor))
        for factor in FACTORS
    }
    | {
        f"slope -1, norm {norm:g}": both(false_slope(-1.0), of_norm(norm))
        for norm in (100.0, 9000.0)
    }
)
"""What liars report, by name."""


# The federation


@dataclass(frozen=True)
class Rows:
    """The rows of all nodes and of the owner."""

    nodes: Mapping[str, Points]
    validation: Points
    test: Points


def digits_rows(seed):
    """Return the pixels and labels of all digits, in random order."""
    source = load_images("digits")
    images = np.concatenate([source.train_images, source.test_images])
    labels = np.concatenate([source.train_labels, source.test_labels])
    inputs = images.reshape(len(images), -1).astype(np.float32) / images.max()
    order = np.random.default_rng(seed).permutation(len(labels))
    return inputs[order], labels[order].astype(np.int32)


def digits(seed, liars):
    """Divide the digits among the owner and eight nodes; the last ones lie."""
    inputs, labels = digits_rows(seed)
    rng = np.random.default_rng([seed, 1])
    nodes = {}
    for number in range(NODES):
        rows = slice(number * ROWS, (number + 1) * ROWS)
        own = labels[rows].copy()
        if number == 0:
            own = np.array([SWAPPED.get(int(label), int(label)) for label in own], np.int32)
        if number >= NODES - liars:
            own = rng.integers(0, 10, len(own)).astype(np.int32)
        nodes[f"n{number + 1}"] = Points(inputs[rows], own)
    held = NODES * ROWS
    validation = Points(inputs[held : held + OWN_ROWS], labels[held : held + OWN_ROWS])
    test = Points(inputs[held + OWN_ROWS :], labels[held + OWN_ROWS :])
    return Rows(nodes, validation, test)


def small(seed, liars):
    """Eight nodes with 60 rows of three classes each, for quick tests; the last ones have random labels."""
    rng = np.random.default_rng([seed, 2])
    target = 2 * rng.normal(size=(4, 3))

    def rows(count):
        inputs = rng.normal(size=(count, 4)).astype(np.float32)
        scores = inputs @ target + 0.5 * rng.gumbel(size=(count, 3))
        return Points(inputs, np.argmax(scores, axis=1).astype(np.int32))

    nodes = {f"n{number + 1}": rows(60) for number in range(NODES)}
    for number in range(NODES - liars, NODES):
        own = nodes[f"n{number + 1}"]
        nodes[f"n{number + 1}"] = Points(own.inputs, rng.integers(0, 3, 60).astype(np.int32))
    return Rows(nodes, rows(100), rows(500))


def build(rows, model, lies, seed=0, *, secure=False):
    """Bind the rows to a model; `lies` has what some nodes report, by number."""
    engine = simulation(rows.nodes, batch_size=50, seed=seed)
    return Problem.build(
        lambda objective: UnreliableSimulation(engine(objective), lies=lies, secure=secure),
        rows.validation,
        model=model,
        classes=np.unique(rows.test.labels),
        test=rows.test,
        seed=seed,
    )


@dataclass(frozen=True)
class Outcome:
    """What became of a run."""

    weights: np.ndarray
    accuracy: float
    synchronizations: int
    stopped: str
    warnings: tuple[str, ...]

    def liars_weight(self, liars):
        return float(self.weights[NODES - liars :].sum())

    def named(self):
        """The nodes that a warning names."""
        names = [f"n{k + 1}" for k in range(len(self.weights))]
        return {name for name in names if any(f"{name} " in warning for warning in self.warnings)}


def play(method, lie, liars, seed=0, rows=digits, **options):
    """Run a method on a federation with liars."""
    lies = {} if lie is None else dict.fromkeys(range(NODES - liars, NODES), lie)
    return play_on(rows(seed, liars), method, lies, seed, **options)


def play_without(method, liars, seed=0, rows=digits, **options):
    """Run a method on the same federation without those who would lie."""
    whole = rows(seed, liars)
    honest = dict(list(whole.nodes.items())[: NODES - liars])
    return play_on(Rows(honest, whole.validation, whole.test), method, {}, seed, **options)


def play_on(rows, method, lies, seed, **options):
    """Run a method on nodes, of which some lie."""
    model, settings, budget = METHODS[method]
    problem = build(rows, model, lies, seed)
    try:
        state = problem.train(settings, budget=budget, **options).state
    except FedkinError as error:
        nothing = np.full(len(rows.nodes), np.nan)
        return Outcome(nothing, float("nan"), 0, f"failed: {error}", problem.federation.end_step())
    warnings = tuple(warning for row in state.history for warning in row.warnings)
    return Outcome(
        np.asarray(state.kept.node_weights),
        state.kept.test.accuracy,
        state.cost.synchronizations,
        state.stopped,
        warnings,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--liars", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--attacks", nargs="*", default=list(ATTACKS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--defended", action="store_true", help="leave each node out at the end")
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()
    print(
        "method, liars, attack: weight of liars, test accuracy, synchronizations, seconds; warnings"
    )
    for method in given.methods:
        for liars in given.liars:
            alone = play_without(method, liars, given.seed, leave_one_out=given.defended)
            print(
                f"{method}, without the {liars}: accuracy {alone.accuracy:.3f}, "
                f"{alone.synchronizations} synchronizations; {alone.stopped[:100]}",
                flush=True,
            )
            for attack in given.attacks:
                begun = time.monotonic()
                found = play(
                    method, ATTACKS[attack], liars, given.seed, leave_one_out=given.defended
                )
                named = ", ".join(sorted(found.named())) or "nobody"
                print(
                    f"{method}, {liars}, {attack}: {found.liars_weight(liars):.3f}, "
                    f"{found.accuracy:.3f}, {found.synchronizations}, "
                    f"{time.monotonic() - begun:.0f} s; names {named}; {found.stopped[:100]}",
                    flush=True,
                )
                if given.verbose:
                    print(found.weights.round(3), *found.warnings, sep="\n  ", flush=True)


if __name__ == "__main__":
    main()
