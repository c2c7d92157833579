"""How long do all owners take together, compared with one of them?

    python -m benchmarks.everyone digits
    python -m benchmarks.everyone fashion-mnist --synchronizations 40

Every case trains the first owner alone twice (the second time with compiled code at hand), then all owners in
shared exchanges, twice as well.
"""

import argparse
import resource
import time

import numpy as np

from fedkin.methods.registry import make_method
from fedkin.studies.config import check_study
from fedkin.studies.partitioned import draw_nodes
from fedkin.training.joint import JointProblem, OwnerData
from fedkin.training.problem import TrainedRun
from fedkin.training.runner import Budget

CASES = {
    "digits": {"dataset": "digits", "partition": "groups", "setting": 2, "model": "logistic"},
    "fashion-mnist": {
        "dataset": "fashion-mnist",
        "partition": "groups",
        "setting": 2,
        "model": "cnn",
    },
    "crowd": {"dataset": "mnist", "partition": "groups", "setting": "GROUPS", "model": "mlp"},
}


def measure(case: str, method: str, synchronizations: int, only: int | None) -> dict:
    """Return seconds and synchronizations of one owner and of all."""
    study = check_study({**CASES[case], "method": method}, case)
    config = study.runs()[0]
    data = draw_nodes(config)
    owners = {node.name: OwnerData(node.validation, node.train, node.test) for node in data.nodes}
    budget = Budget(synchronizations=synchronizations)
    found: dict = {"case": case, "method": method, "owners": len(owners)}

    def run(names: list[str]) -> tuple[float, int, int]:
        problem = JointProblem.build(
            {node.name: node.train for node in data.nodes},
            {name: owners[name] for name in names},
            model=config.model,
            classes=np.arange(len(data.classes)),
            seed=0,
        )
        begin = time.perf_counter()
        joint = problem.train(make_method(method, {}), budget=budget, keep="best")
        seconds = time.perf_counter() - begin
        runs = [run for run in joint.runs.values() if isinstance(run, TrainedRun)]
        slowest = max(run.state.cost.synchronizations for run in runs)
        return seconds, joint.cost.synchronizations, slowest

    names = list(owners)[:only]
    for repeat in ("first", "again"):
        found[f"one, {repeat}"] = run(names[:1])
        found[f"all, {repeat}"] = run(names)
    found["ratio"] = found["all, again"][0] / found["one, again"][0]
    found["memory, MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found


def main() -> None:
    """Measure one case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--method", default="bilevel")
    parser.add_argument("--synchronizations", type=int, default=60)
    parser.add_argument("--owners", type=int, default=None, help="only the first so many")
    arguments = parser.parse_args()
    measure(arguments.case, arguments.method, arguments.synchronizations, arguments.owners)


if __name__ == "__main__":
    main()
