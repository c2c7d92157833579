"""Whether an owner's weights are those of the exact minimum, by a solver that shares no code with fedkin.

python -m reproduction.everyone.exact --seed 1 --owner swapped-4
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from fedkin.data.partitions import NodeSplit
from fedkin.methods.registry import make_method
from fedkin.studies.partitioned import draw_nodes
from fedkin.studies.study_file import load_study
from fedkin.training.joint import JointProblem, OwnerData
from fedkin.training.problem import TrainedRun
from fedkin.training.runner import Budget
from fedkin.types import Points
from reproduction.random_federations import RandomFederation, Rows

STUDY = Path(__file__).parent / "digits.toml"
CLASSES = 10
SYNCHRONIZATIONS = 60
PRECISION = 1e-7
"""Where the exact solver stops: a change of the validation loss."""


def learned_weights(nodes: list[NodeSplit], owner: NodeSplit, seed: int) -> np.ndarray:
    """Return the weights that Bi-level learns for one owner, with the study's settings."""
    problem = JointProblem.build(
        {node.name: node.train for node in nodes},
        {owner.name: OwnerData(owner.validation, owner.train)},
        model="logistic",
        classes=np.arange(CLASSES),
        seed=seed,
    )
    budget = Budget(synchronizations=SYNCHRONIZATIONS)
    run = problem.train(make_method("bilevel", {}), budget=budget, keep="last").runs[owner.name]
    assert isinstance(run, TrainedRun)
    assert run.state.kept is not None
    assert run.state.kept.node_weights is not None
    return np.asarray(run.state.kept.node_weights, np.float64)


def rows_of(points: Points) -> Rows:
    """Return what the model sees of images: pixels from 0 to 1."""
    return np.asarray(points.inputs, float).reshape(len(points.labels), -1) / 255, points.labels


def main(arguments: list[str] | None = None) -> None:
    """Print the validation loss at the learned weights, at the minimum, and within the owner's group."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--owner", default="swapped-4", help="a node of the three groups")
    options = parser.parse_args(arguments)
    runs = [run for run in load_study(STUDY).runs() if run.method == "bilevel"]
    runs = [run for run in runs if run.seed == options.seed]
    nodes = next(
        drawn
        for drawn in (draw_nodes(run).nodes for run in runs)
        if options.owner in {node.name for node in drawn}
    )
    owner = next(node for node in nodes if node.name == options.owner)
    kin = np.array([node.group == owner.group for node in nodes])
    exact = RandomFederation(
        "logistic",
        tuple(rows_of(node.train) for node in nodes),
        rows_of(owner.validation),
        tuple(str(node.group) for node in nodes),
        CLASSES,
    )
    learned = learned_weights(nodes, owner, options.seed)
    inside = np.where(kin, learned, 0.0)
    sys.stdout.write(f"{owner.name}: {len(owner.validation.labels)} validation rows\n")

    def report(title: str, weights: np.ndarray) -> None:
        sys.stdout.write(
            f"{title}: {weights[kin].sum():.1%} in the own group, validation loss "
            f"{exact.outer(weights)[0]:.4f}\n"
        )
        sys.stdout.flush()

    report("learned weights", learned)
    report("only the own group, in the same proportions", inside / inside.sum())
    report("exact minimum, from the learned weights", exact.descend(learned, PRECISION))


if __name__ == "__main__":
    main()
