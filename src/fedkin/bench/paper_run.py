"""A whole Bi-level run of the paper's size, evaluation included."""

import time
from dataclasses import dataclass

import jax

from fedkin.bench.problem import BenchProblem
from fedkin.methods.bilevel.hypergradient import SvrgSolver
from fedkin.methods.bilevel.outer import ProximalBilevel
from fedkin.methods.local_svrg.center import LocalSvrg
from fedkin.training.runner import Budget, run
from fedkin.training.runner import begin as begin_run
from fedkin.types import Points

PERIOD, ROUNDS = 20, 20
"""τ and T_s/τ of the paper: 400 steps in each of the two solves of an outer iteration."""


@dataclass(frozen=True)
class PaperRun:
    """How long a run took."""

    outer_iterations: int
    seconds: float
    steps: int
    """Local-SVRG steps of all nodes, of both solves."""


def paper_run(problem: BenchProblem, outer_iterations: int, test_points: int = 5000) -> PaperRun:
    """Run Algorithm 3 with the paper's parameters; compile first."""
    algorithm = ProximalBilevel(
        cap=1 / 3,
        inner=LocalSvrg(0.02, PERIOD, ROUNDS),
        solve=SvrgSolver(LocalSvrg(0.0005, PERIOD, ROUNDS)),
    )
    test = problem.prepared(problem.nodes + 1, test_points)
    seconds = 0.0
    for steps in (1, outer_iterations):  # the first compiles
        begin = time.perf_counter()
        run(
            algorithm,
            problem.federation,
            problem.center,
            begin_run(algorithm, problem.federation, problem.theta),
            jax.random.key(0),
            budget=Budget(steps=steps),
            test=Points(*test),
        )
        seconds = time.perf_counter() - begin
    return PaperRun(outer_iterations, seconds, outer_iterations * 2 * PERIOD * ROUNDS)
