"""A whole `fedkin.fit` with a network of usual size: weights, accuracy, memory and time."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import fedkin
from benchmarks.probe import peak_bytes
from fedkin.studies.cell import draw_problem
from fedkin.studies.config import RunConfig
from fedkin.training.runner import Evaluation

SEED = 3


@dataclass(frozen=True)
class WholeFit:
    """What a run of `fit` found, and what it took."""

    similar_weight: float
    """The sum of the weights of the nodes with the owner's distribution."""
    similar_nodes: int
    weights: dict[str, float]
    accuracy: float
    """On test data of the owner's distribution."""
    synchronizations: int
    stopped: str
    seconds: float
    peak_megabytes: float


def fit_whole(
    nodes: int,
    similar: int,
    points: int,
    synchronizations: int,
    on_step: Callable[[str], None] = lambda line: None,
) -> WholeFit:
    """Learn the weights of nodes with Fashion-MNIST in the paper's setting 2, with `cnn-fedavg`.

    Args:
        nodes: The number of nodes.
        similar: How many of them have the owner's labels and its shares of classes.
        points: Images per node.
        synchronizations: When to stop.
        on_step: Called after each step with a line that describes it.
    """
    config = RunConfig(
        dataset="fashion-mnist",
        setting=2,
        seed=SEED,
        target="minority",
        minority_nodes=similar,
        majority_nodes=nodes - similar,
        train_size=points,
        validation_size=points,
        test_size=2000,
    )
    data = draw_problem(config).data
    started = time.perf_counter()

    def report(evaluation: Evaluation) -> None:
        on_step(
            f"step {evaluation.step}, {evaluation.rounds} synchronizations, {evaluation.seconds:.0f} s: "
            f"validation loss {evaluation.validation.loss:.3f}"
        )

    result = fedkin.fit(
        dict(zip(data.names, data.nodes, strict=True)),
        data.validation,
        model="cnn-fedavg",
        method="bilevel",
        seed=SEED,
        test=data.test,
        classes=len(data.classes),
        synchronizations=synchronizations,
        on_step=report,
    )
    seconds = time.perf_counter() - started
    weights = result.weights or {}
    kin = [name for name, same in zip(data.names, data.similar, strict=True) if same]
    images, labels = data.test
    return WholeFit(
        similar_weight=sum(weights[name] for name in kin),
        similar_nodes=len(kin),
        weights=weights,
        accuracy=float(np.mean(np.asarray(result.predict(images)) == labels)),
        synchronizations=result.cost.synchronizations,
        stopped=result.stopped,
        seconds=seconds,
        peak_megabytes=peak_bytes() / 1e6,
    )
