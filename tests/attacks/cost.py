"""What the defenses of a node cost: `PYTHONPATH=tests python tests/attacks/cost.py`.

The same node answers the same requests with its defenses and without them, in turns: limits, counts of
requests and audit log, the time limit, and mini-batches drawn from its secret. Printed is the processor
time of one answer.
"""

import argparse
import contextlib
import tempfile
import time
from pathlib import Path
from unittest import mock

import numpy as np

from attacks.victim import LABEL, Center, agreed, make_table
from fedkin.flower import node
from fedkin.flower.owner_limits import OwnerLimits
from fedkin.methods.bilevel.node import SLOPE
from fedkin.methods.local_svrg.node import INNER_SVRG_ROUND

REQUESTS = {
    "a slope": (SLOPE, {}),
    "50 local steps": (INNER_SVRG_ROUND, {"learning_rate": 0.01, "steps": 50}),
}


@contextlib.contextmanager
def without_defenses():
    """Take the checks away that every answer passes."""
    with contextlib.ExitStack() as stack:
        for place, name, stand_in in (
            (node, "_audit_log", lambda settings: None),
            (node, "_usage", lambda settings: None),
            (node, "limited_time", lambda *given: contextlib.nullcontext()),
            (OwnerLimits, "check", lambda self, blocks, spread: 1),
        ):
            stack.enter_context(mock.patch.object(place, name, stand_in))
        yield


def connect(directory, rows, **settings):
    """Return a center that has joined a node."""
    directory.mkdir()
    make_table(directory / "table.csv", rows=rows)
    owner = {"name": "victim", "data": str(directory / "table.csv"), "label": LABEL}
    center = Center(owner | {"plain-sums": True, "state": str(directory / "state")} | settings)
    center.join(agreed(center.describe()))
    return center


def seconds(center, task, more, count):
    """Return the processor time of one answer."""
    models = np.random.default_rng(0).normal(size=(count, len(task.vectors), center.size))
    begin = time.process_time()
    for vectors in models:
        center.ask(task, dict(zip(task.vectors, vectors, strict=True)), **more)
    return (time.process_time() - begin) / count


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="*", type=int, default=[60, 6000])
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--requests", type=int, default=20, help="in each turn")
    given = parser.parse_args()
    for rows in given.rows:
        with tempfile.TemporaryDirectory() as directory:
            defended = connect(Path(directory) / "defended", rows)
            bare = connect(Path(directory) / "bare", rows, reproducible=True)
            for name, (task, more) in REQUESTS.items():
                taken = {"defended": [], "bare": []}
                for turn in range(given.turns + 1):
                    own = seconds(defended, task, more, given.requests)
                    with without_defenses():
                        other = seconds(bare, task, more, given.requests)
                    if turn > 0:  # the first one compiles
                        taken["defended"].append(own)
                        taken["bare"].append(other)
                with_all, without = (1e3 * np.median(each) for each in taken.values())
                print(  # noqa: T201
                    f"{name}, {rows} rows: {with_all:.2f} ms with the defenses, {without:.2f} ms without, "
                    f"{with_all - without:.2f} ms more",
                    flush=True,
                )


if __name__ == "__main__":
    main()
