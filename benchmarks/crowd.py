"""How long an outer step takes in a large federation when few nodes are like the owner."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import jax
import numpy as np

from fedkin.methods.bilevel.method import Bilevel
from fedkin.studies.cell import draw_problem
from fedkin.studies.config import RunConfig
from fedkin.training.problem import Problem

SEED = 7
FIRST_STEPS = 5
"""Steps that do not count: they compile, and the weights are still on their way."""


@dataclass(frozen=True)
class Step:
    """One outer step."""

    seconds: float
    nodes_asked: int
    counted: int
    """The nodes that have a weight after it."""
    kin_weight: float
    """The weight of the nodes that are like the owner."""


@dataclass(frozen=True)
class CrowdTimes:
    """The steps of two runs, which differ in nothing but whom they ask."""

    nodes: int
    kin: int
    some: list[Step]
    """Nodes without weight are asked for slopes alone, a fourth of them at a time."""
    everyone: list[Step]
    """All nodes are asked for everything."""

    @property
    def medians(self) -> tuple[float, float]:
        """The median seconds of the steps after the fifth, of both runs."""
        some, everyone = (
            float(np.median([step.seconds for step in steps[FIRST_STEPS:]]))
            for steps in (self.some, self.everyone)
        )
        return some, everyone

    @property
    def share(self) -> float:
        """The time of a step as a part of the time of one that asks all."""
        some, everyone = self.medians
        return some / everyone


def time_crowd(
    nodes: int,
    kin: int,
    steps: int,
    points: int,
    on_step: Callable[[str], None] = lambda line: None,
) -> CrowdTimes:
    """Learn the weights of many nodes with digits, of which few have the owner's labels.

    Args:
        nodes: The number of nodes.
        kin: How many of them are like the owner.
        steps: The outer steps of each of the two runs.
        points: Images per node.
        on_step: Called after each step with a line that describes it.
    """
    config = RunConfig(
        dataset="digits",
        setting=2,
        model="cnn",
        seed=SEED,
        target="minority",
        minority_nodes=kin,
        majority_nodes=nodes - kin,
        train_size=points,
    )
    drawn = draw_problem(config)
    similar = np.array(drawn.data.similar)
    runs: dict[bool, list[Step]] = {}
    for ask_all in (False, True):
        runs[ask_all] = []
        for step in islice(_steps(drawn.problem, similar, ask_all=ask_all), steps):
            runs[ask_all].append(step)
            asked = "all" if ask_all else "some"
            on_step(
                f"asking {asked}, step {len(runs[ask_all])}: {step.seconds:.3f} s, {step.nodes_asked} "
                f"nodes asked; then {step.counted} have a weight, those like the owner "
                f"{step.kin_weight:.1%} of it"
            )
    return CrowdTimes(nodes, kin, runs[False], runs[True])


def _steps(problem: Problem, similar: np.ndarray, *, ask_all: bool) -> Iterator[Step]:
    federation, center, key = problem.federation, problem.center, jax.random.key(SEED)
    federation.ask_all = ask_all
    # Other models, begun when the weights have settled, would make later steps longer in both runs.
    algorithm, _ = Bilevel(restarts=0).prepare(federation, center, key)
    state = algorithm.init(federation.objective.init(key), len(federation.names))
    number = 0
    while True:
        began = time.perf_counter()
        state, info = algorithm.step(state, jax.random.fold_in(key, number), federation, center)
        seconds = time.perf_counter() - began
        weights = np.asarray(state.search.node_weights)
        yield Step(
            seconds,
            info.cost.nodes_asked,
            int(np.count_nonzero(weights)),
            float(weights[similar].sum()),
        )
        number += 1
