"""Random requests to a node: joins, preprocessing and tasks, well-formed and not.

    PYTHONPATH=tests python tests/attacks/fuzz.py --requests 10000

sends that many, with a seed, and says what came of them. Every request begins as one that the node would
answer; then a few of its parts are changed.
"""

import argparse
import copy
import json
import logging
import random
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from attacks.victim import LABEL, NUMBERS, Center, RefusedByNodeError, agreed, make_table
from fedkin.federation.task import Task
from fedkin.flower.guard import remote_tasks
from fedkin.flower.wire import EXCHANGE, FORMS, JOIN, Refusal
from flower.well_formed import exchange

FAILED = "a request failed"
"""What a node writes into its own log, with the traceback, if something happens that nobody has foreseen."""

ODD = [
    *(0, -1, 1, 2, 7, 10**6, 2**62, -(2**62), True, False),
    *(0.0, -0.0, 0.5, -1.0, 1e-300, 1e300, float("nan"), float("inf")),
    *("", "0", "-1", "0,1", "x", "None", "\x00", "\x1b[2J", "é" * 50, "1" * 400, "/etc/passwd"),
    *([], [0.5], [float("nan")] * 3),
]
"""Values that may stand in place of any other."""

ODD_NAMES = ["", "age", LABEL, "no such column", "\x00", "x" * 500, *NUMBERS]

ODD_NUMBERS = [0.0, 1.0, -1.0, 57.0, 1e-30, 1e30, 1e300, -1e300, 5e-324]


@dataclass
class Outcome:
    """What came of some requests."""

    answered: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    """The refusals by the name of their code."""
    data_wordings: set[str] = field(default_factory=set)
    """The wordings of refusals whose reason may depend on the node's data."""
    failures: list[str] = field(default_factory=list)
    """The log of failures that nobody has foreseen."""
    slowest: float = 0.0
    """Seconds that the slowest answer took."""


def random_preprocessing(honest: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """Return a preprocessing that differs from the honest one in some places."""
    changed = copy.deepcopy(honest)
    for _ in range(draw.choice([0, 0, 1, 1, 2, 3])):
        columns, label = changed["columns"], changed["label"]
        place = draw.randrange(len(columns)) if columns else 0
        numeric = {"mean": draw.choice(ODD_NUMBERS), "standard_deviation": draw.choice(ODD_NUMBERS)}
        texts = draw.choice([[], [""], ["1", "1"], [str(n) for n in range(draw.choice([3, 4001]))]])
        name = draw.choice(ODD_NAMES)
        match draw.randrange(9):
            case 0 if columns:
                columns[place] |= numeric
            case 1:
                columns.append({"kind": "numeric", "name": name, **numeric})
            case 2:
                columns.append({"kind": "categorical", "name": name, "categories": texts})
            case 3 if columns:
                columns[place] = {
                    "kind": "categorical",
                    "name": columns[place]["name"],
                    "categories": texts,
                }
            case 4 if columns:
                del columns[place]
            case 5:
                changed["label"] = {"kind": "quantity", "name": label["name"], **numeric}
            case 6:
                label["name"] = name
            case 7:
                changed["label"] = {"kind": "classes", "name": label["name"], "classes": texts}
            case 8:
                changed["missing_codes"] = {name: draw.choice(ODD_NUMBERS)}
    return changed


def random_join(honest: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """Return a request to join, with some odd values."""
    label = random_preprocessing(honest, draw)
    classes = label["label"].get("classes", [0])
    values = {
        "kind": JOIN,
        "run": draw.choice(["a run", "another", "", "x" * 999, "\x1b[2J"]),
        "attempt": "1",
        "number": draw.choice([0, 1, 999_999]),
        "seed": draw.choice([0, 7, 2**31 - 1]),
        "batch-size": draw.choice([1, 5, 50, 50, 1_000_000]),
        "model": draw.choice(
            ["logistic"] * 5 + ["ridge", "mlp", "mlp", "cnn", "resnet", "no:model"]
        ),
        "task": draw.choice(["classification"] * 5 + ["regression"]),
        "classes": draw.choice([len(classes)] * 6 + [1, 2, 3]),
        "l2": draw.choice([1e-3, 1e-3, 1e-9, 1e-9, 0.0, 1e6]),
        "preprocessing": json.dumps(label),
    }
    return _with_odd_values(values, draw)


def random_exchange(task: Task, size: int, draw: random.Random) -> tuple[dict, dict]:
    """Return a request for a task, with some odd values and vectors."""
    models = draw.choice([None, None, (0, 2)])
    values, vectors = exchange(task, size, begin=draw.random() < 0.8, models=models)
    for name in list(values):
        if ".option." in name and isinstance(values[name], int):
            values[name] = draw.choice([1, 1, 1, 20, 10_000])
        if ".number." in name:
            values[name] = draw.choice([values[name], 0.0, 1e3, 1e6])
        if name.endswith(".form"):
            values[name] = draw.choice([values[name]] * 12 + list(FORMS))
    for name, array in vectors.items():
        scale = np.float32(draw.choice([0.0, 1.0, 1.0, 1.0, 5.0, 30.0, 1e30, 3e38]))
        values_of_it = np.random.default_rng(draw.getrandbits(32)).normal(size=array.shape)
        with np.errstate(over="ignore"):
            vectors[name] = draw.choice(
                [(scale * values_of_it.astype(np.float32))] * 40
                + [array[..., :-1], array.astype(np.float64), np.float32(0), array.astype(int)]
            )
    header = {"kind": EXCHANGE, "attempt": "1", "step": 0, "key": f"{draw.getrandbits(64):016x}"}
    return _with_odd_values(header | values, draw), vectors


def _with_odd_values(values: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """Replace, remove or add some values."""
    for _ in range(draw.choice([0, 0, 0, 1, 1, 2])):
        name = draw.choice(list(values))
        match draw.randrange(4):
            case 0 | 1:
                values[name] = draw.choice(ODD)
            case 2 if name != "kind":
                del values[name]
            case 3:
                values[draw.choice(["data", "settings", name + ".", "rows-of.0"])] = draw.choice(
                    ODD
                )
    return values


class _Failures(logging.Handler):
    """Keeps what a node writes about failures that nobody has foreseen."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() == FAILED:
            self.found.append(logging.Formatter().format(record))


def fuzz(requests: int, seed: int, settings: dict[str, Any]) -> Outcome:
    """Send random requests to a node, and return what came of them.

    Args:
        requests: How many.
        seed: Decides them.
        settings: The settings of the node, which has the table of `make_table`.
    """
    draw, outcome, handler = random.Random(seed), Outcome(), _Failures()
    tasks = [task for task in remote_tasks().values() if task.is_fedkins_own]
    log = logging.getLogger("fedkin.flower.node")
    log.addHandler(handler)
    try:
        center = Center(settings)
        honest = agreed(center.describe())
        center.join(honest)
        size = usual = center.size
        for _ in range(requests):
            kind = draw.choice([JOIN, EXCHANGE, EXCHANGE, EXCHANGE])
            if kind == JOIN:
                values, vectors = random_join(honest, draw), {}
            else:
                values, vectors = random_exchange(draw.choice(tasks), size, draw)
            begin = time.monotonic()
            try:
                answered = center.send(values, vectors)
                outcome.answered[kind] += 1
                if kind == JOIN:
                    size = int(str(answered.values["size"]))
                    if size != usual and draw.random() < 0.8:
                        center.join(honest, attempt="1")  # code is compiled for one size only
                        size = usual
            except RefusedByNodeError as refused:
                outcome.refused[Refusal(refused.code).name] += 1
                if refused.code == Refusal.DATA:
                    outcome.data_wordings.add(refused.reason)
            outcome.slowest = max(outcome.slowest, time.monotonic() - begin)
    finally:
        log.removeHandler(handler)
    outcome.failures = handler.found
    return outcome


def fuzzed_settings(directory: Path) -> dict[str, Any]:
    """Write a table, and return the settings of its node, whose limits leave room for many joins."""
    make_table(directory / "table.csv")
    return {
        "name": "hospital",
        "data": str(directory / "table.csv"),
        "label": LABEL,
        "plain-sums": True,
        "state": str(directory / "state"),
        "joins-per-day": 100_000,
        "requests-per-run": 10_000_000,
        "steps-per-request": 2_000,
    }


def main() -> None:
    """Fuzz a node, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.getLogger("fedkin.flower.node").propagate = False
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        settings = fuzzed_settings(Path(directory))
        outcome = fuzz(arguments.requests, arguments.seed, settings)
    print(f"answered: {dict(outcome.answered)}")  # noqa: T201
    print(f"refused: {dict(outcome.refused)}")  # noqa: T201
    print(f"wordings that may depend on data: {len(outcome.data_wordings)}")  # noqa: T201
    print(f"slowest answer: {outcome.slowest:.2f} s")  # noqa: T201
    print(f"failures: {len(outcome.failures)}")  # noqa: T201
    print("\n".join(sorted(set(outcome.failures))[:5]))  # noqa: T201


if __name__ == "__main__":
    main()
