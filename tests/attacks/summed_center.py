"""What a center gets out of secure sums by choosing its models.

    PYTHONPATH=tests python tests/attacks/summed_center.py

Five nodes of 60 patients each answer with sums that hide every single one. The attack is the last one of
`malicious_center.py`: large models tell the rows on two sides of a plane apart, also in a sum over all nodes.
"""

import argparse
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from attacks.malicious_center import L2, divide_by_planes
from attacks.victim import LABEL, NUMBERS, ROWS, count_rows, make_table
from fedkin.federation.base import WeightedSum
from fedkin.federation.privacy import Budget, Privacy
from fedkin.federation.private_work import PrivateWork
from fedkin.federation.secure.simulation import SecureSums
from fedkin.federation.simulation import SimulatedFederation
from fedkin.flower.wire import Parcel
from fedkin.models.linear import Logistic
from fedkin.models.objective import Objective

NODES = 5


def summary_of(table: pd.DataFrame) -> dict:
    """Return what the summaries of all nodes come to."""
    columns = {
        name: {
            "kind": "numbers",
            "count": len(table),
            "mean": float(table[name].mean()),
            "squared_deviations": float(table[name].var(ddof=0) * len(table)),
        }
        for name in NUMBERS
    }
    classes = sorted(table[LABEL].unique())
    return {"rows": len(table), "columns": columns, "label": {"categories": classes}}


class SumCenter:
    """A center that gets secure sums over all nodes, and chooses the models.

    Args:
        tables: The tables of the nodes.
        granted: The privacy that each node grants, if rows are protected by noise.
    """

    def __init__(self, tables: list[pd.DataFrame], granted: Privacy | None = None) -> None:
        everybody = pd.concat(tables)
        means, deviations = everybody[list(NUMBERS)].mean(), everybody[list(NUMBERS)].std(ddof=0)
        classes = sorted(everybody[LABEL].unique())
        nodes = [
            (
                ((own[list(NUMBERS)] - means) / deviations).to_numpy(np.float32),
                own[LABEL].map(classes.index).to_numpy(np.int32),
            )
            for own in tables
        ]
        objective = Objective.create(Logistic(l2=L2), jnp.asarray(nodes[0][0][:2]))

        def private(objective, data):
            return PrivateWork(objective, data, [Budget(granted) for _ in tables])

        work = None if granted is None else private
        inner = SimulatedFederation(objective, nodes, seed=0, threads=1, work=work)
        self._federation = SecureSums(inner)
        self.summary = summary_of(everybody)
        self.size = objective.size
        self.requests = 0

    def join(self, preprocessing: dict) -> None:
        """Do nothing: the nodes have joined."""
        self.size = self._federation.objective.size

    def ask(self, task, vectors: dict) -> Parcel:
        """Ask for the mean of all nodes' replies."""
        self.requests += 1
        message = {name: jnp.asarray(value, jnp.float32) for name, value in vectors.items()}
        weights = jnp.full(NODES, 1 / NODES)
        request = WeightedSum(task, message, weights=weights, begin=True)
        reply = self._federation.exchange(ask=request, key=jax.random.key(self.requests))
        return Parcel({}, {name: np.asarray(own) for name, own in reply.replies["ask"].items()})


def attack(norm: float, directory: Path, granted: Privacy | None = None) -> tuple[int, int, int]:
    """Return how many rows of all nodes, and of the first, are recovered, and with how many requests."""
    tables = [make_table(directory / f"{node}.csv", seed=node) for node in range(NODES)]
    center = SumCenter(tables, granted)
    found = np.array(divide_by_planes(center, center.summary, norm, 1.0))
    return count_rows(found, pd.concat(tables)), count_rows(found, tables[0]), center.requests


def main() -> None:
    """Run the attack with models of several norms, and print what it finds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--norm", type=float, nargs="*", default=[20_000.0, 1_000.0, 300.0, 100.0])
    with tempfile.TemporaryDirectory() as directory:
        for norm in parser.parse_args().norm:
            everybody, first, requests = attack(norm, Path(directory))
            print(  # noqa: T201
                f"norm {norm:g}: {everybody} of {NODES * ROWS} rows, {first} of the first node's {ROWS}; "
                f"{requests} requests"
            )


if __name__ == "__main__":
    main()
