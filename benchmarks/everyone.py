"""How long all owners of a federation take together, compared with single ones."""

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedkin.data.labeled import load_labeled
from fedkin.data.partitions import NodeSplit, split_nodes
from fedkin.data.partitions.groups import Group, Groups
from fedkin.methods.registry import make_method
from fedkin.studies.partitioned import draw_nodes
from fedkin.studies.study_file import check_study
from fedkin.training.joint import JointProblem, OwnerData
from fedkin.training.problem import TrainedRun
from fedkin.training.runner import Budget

MODELS = {"digits": "logistic", "fashion-mnist": "cnn", "crowd": "cnn"}
"""The model of each federation. The first two are the 15 nodes of the paper's setting 2."""

RUNS = {"digits": 2, "fashion-mnist": 2, "crowd": 1}
"""How often each is run: the crowd once, for the time that it takes."""

CROWD_GROUPS = 10
CROWD_POINTS = 400
"""Images per node of the crowd: a hundred nodes with MNIST's, in groups that name the digits differently."""


@dataclass(frozen=True)
class Timing:
    """One run of one owner or of all."""

    first_seconds: float
    """With compilation: of the first single owner, and of all."""
    seconds: float
    """Of the last time."""
    processor_seconds: float
    """Of all cores together: what counts where other work runs on the machine."""
    synchronizations: int


@dataclass(frozen=True)
class EveryoneTimes:
    """The runs of single owners, one of each group, and the run of all."""

    nodes: int
    single: dict[str, Timing]
    everyone: Timing
    slowest: int
    """The synchronizations of the owner that needs the most, as if it were alone."""
    within: float
    """The smallest share of its weight that an owner gives to its own group."""
    megabytes: float
    """The most memory that the process has held."""

    @property
    def ratio(self) -> float:
        """The time of all, in times of one (the mean of the single runs)."""
        return self.everyone.seconds / float(np.mean([t.seconds for t in self.single.values()]))

    @property
    def processor_ratio(self) -> float:
        """The same of the processor's time."""
        alone = np.mean([timing.processor_seconds for timing in self.single.values()])
        return self.everyone.processor_seconds / float(alone)

    @property
    def first_ratio(self) -> float:
        """The same with compilation: the first run of one owner, and the first of all."""
        return self.everyone.first_seconds / next(iter(self.single.values())).first_seconds


def time_everyone(
    federation: str,
    synchronizations: int,
    on_run: Callable[[str], None] = lambda line: None,
) -> EveryoneTimes:
    """Learn the weights of one owner of each group, then those of all owners in shared exchanges.

    Everything runs as often as `RUNS` says. The second time its code is compiled.

    Args:
        federation: A key of `MODELS`.
        synchronizations: The budget of each owner.
        on_run: Called before each run with a line that describes it.
    """
    nodes = crowd_nodes() if federation == "crowd" else setting_nodes(federation)
    groups = {node.name: node.group for node in nodes}
    firsts = list({group: name for name, group in reversed(groups.items())}.values())
    firsts = firsts if federation != "crowd" else firsts[:1]

    def run(owners: Sequence[str]) -> tuple[Timing, dict[str, TrainedRun]]:
        first, *_ = whole = run_once(owners)
        seconds, processor_seconds, cost, runs = run_once(owners) if RUNS[federation] > 1 else whole
        return Timing(first, seconds, processor_seconds, cost), runs

    def run_once(owners: Sequence[str]) -> tuple[float, float, int, dict[str, TrainedRun]]:
        on_run(f"{federation}: {'all' if len(owners) > 1 else owners[0]} …")
        problem = _problem(nodes, owners, MODELS[federation])
        budget = Budget(synchronizations=synchronizations)
        begin, processor_begin = time.perf_counter(), time.process_time()
        joint = problem.train(make_method("bilevel", {}), budget=budget, keep="best")
        seconds = time.perf_counter() - begin
        processor_seconds = time.process_time() - processor_begin
        finished = {n: r for n, r in joint.runs.items() if isinstance(r, TrainedRun)}
        return seconds, processor_seconds, joint.cost.synchronizations, finished

    single = {name: run([name])[0] for name in firsts}
    everyone, runs = run(list(groups))
    return EveryoneTimes(
        nodes=len(nodes),
        single=single,
        everyone=everyone,
        slowest=max(each.state.cost.synchronizations for each in runs.values()),
        within=min(_share_within(each, groups, name) for name, each in runs.items()),
        megabytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def setting_nodes(dataset: str) -> list[NodeSplit]:
    """Return the 5 and 10 nodes of the paper's setting 2, every one with data to judge by."""
    study = {"dataset": dataset, "partition": "groups", "setting": 2, "method": "bilevel"}
    return draw_nodes(check_study(study, "benchmark").runs()[0]).nodes


def crowd_nodes(nodes: int = 100, dataset: str = "mnist") -> list[NodeSplit]:
    """Return many nodes in ten groups, each of which counts its labels from another digit."""
    groups = tuple(
        Group(
            nodes // CROWD_GROUPS, permutation={digit: (digit + first) % 10 for digit in range(10)}
        )
        for first in range(CROWD_GROUPS)
    )
    return split_nodes(load_labeled(dataset), Groups(groups, CROWD_POINTS), 0)


def _problem(nodes: Sequence[NodeSplit], owners: Sequence[str], model: str) -> JointProblem:
    return JointProblem.build(
        {node.name: node.train for node in nodes},
        {
            node.name: OwnerData(node.validation, node.train, node.test)
            for node in nodes
            if node.name in owners
        },
        model=model,
        classes=np.arange(10),
    )


def _share_within(run: TrainedRun, groups: dict[str, str | None], owner: str) -> float:
    assert run.state.kept is not None
    weights = run.state.kept.node_weights
    assert weights is not None
    return float(weights[[group == groups[owner] for group in groups.values()]].sum())
