"""Everything that the benchmark asks of fedkin's engine: single rounds, one outer iteration, a whole run."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.problem import SEED, BenchProblem
from fedkin.federation.base import Federation, PerNode, Revealed
from fedkin.federation.center import Center
from fedkin.federation.simulation import SimulatedFederation
from fedkin.federation.task import Task
from fedkin.methods.bilevel.hypergradient import AdjointSystem
from fedkin.methods.bilevel.node import ADJOINT_SVRG_ROUND, SLOPE
from fedkin.methods.bilevel.outer import Differentiation, ProximalBilevel
from fedkin.methods.bilevel.solvers import LocalSvrgSolver
from fedkin.methods.bilevel.solvers.local_svrg import solve_by_svrg
from fedkin.methods.ditto.node import DITTO_PERSONAL_ROUND, DITTO_SHARED_ROUND
from fedkin.methods.local_svrg.center import LocalSvrg, solve_inner
from fedkin.methods.local_svrg.node import INNER_SVRG_ROUND
from fedkin.methods.pfedme.node import PFEDME_PERSONAL_ROUND, PFEDME_ROUND
from fedkin.training.runner import Budget, begin, run
from fedkin.types import Array, Points, Vector

PERIOD = 20
"""Steps between two synchronizations (τ of the paper)."""

LEARNING_RATE = 0.02
ADJOINT_LEARNING_RATE = 0.0005
REFRESH_PROBABILITY = 0.02
"""The chance q of a refresh in `outer_iteration`; single rounds have none."""

DITTO = {"learning_rate": 0.02, "proximal": 0.1}
PERSONAL_STEPS = 25
PFEDME = {"learning_rate": 0.02, "proximal": 10.0, "tolerance": 0.005}
PFEDME_ITERATIONS = 20
PAPER_ROUNDS = 20
"""T_s/τ of the paper: 400 steps in each of the two solves of an outer iteration."""


class FedkinEngine:
    """fedkin's nodes and center on a problem of the benchmark.

    Methods return NumPy arrays, so the work is finished when they return. `key` decides the
    mini-batches of a round, which are the same in every round.

    Args:
        problem: The data and the network.
        period: The steps of a round.
        learning_rate: The step size of training.
    """

    def __init__(
        self, problem: BenchProblem, period: int = PERIOD, learning_rate: float = LEARNING_RATE
    ) -> None:
        self.problem = problem
        self.period = period
        self.learning_rate = learning_rate
        self.key = jax.random.key(1)

    @cached_property
    def federation(self) -> SimulatedFederation:
        """The nodes."""
        problem = self.problem
        # All images in one array, which goes back to the system as a whole.
        shape = (problem.nodes, problem.points, *problem.objective.point_shape)
        images, labels = np.empty(shape, np.uint8), np.empty(shape[:2], np.int32)
        for node in range(problem.nodes):
            images[node], labels[node] = problem.prepared(node, problem.points)
        nodes = list(zip(images, labels, strict=True))
        return SimulatedFederation(
            problem.objective, nodes, batch_size=self.problem.batch_size, seed=SEED
        )

    @cached_property
    def center(self) -> Center:
        """The center; its images are those of a node that does not take part."""
        own = self.problem.prepared(self.problem.nodes, self.problem.own_points)
        return Center(self.problem.objective, *own, batch_size=self.problem.batch_size, seed=SEED)

    @property
    def batches(self) -> int:
        """The number of mini-batches of a node."""
        return self.federation.batches

    @property
    def center_batches(self) -> int:
        """The number of mini-batches of the center."""
        return self.center.alone.batches

    def validation_gradient(self, point: Vector) -> Vector:
        """Compute ∇L_0."""
        return self.center.loss_and_gradient(point)[1]

    def begin_svrg(self, point: Vector) -> None:
        """Make this point the reference of all nodes, and train them for a round."""
        self._ask_nodes(
            INNER_SVRG_ROUND, _svrg(point, self.learning_rate), reply="point", begin=True
        )

    def svrg_round(self, point: Vector) -> np.ndarray:
        """Train all nodes for a round from this point, without refreshes; return their points."""
        return self._ask_nodes(INNER_SVRG_ROUND, _svrg(point, self.learning_rate), reply="point")

    def begin_adjoint(self, theta: Vector, target: Vector) -> None:
        """Begin to solve for h at zero, given θ and ∇L_0(θ), and take the steps of a round."""
        message = _svrg(jnp.zeros_like(target), ADJOINT_LEARNING_RATE)
        message |= {"theta": theta, "target": target}
        self._ask_nodes(ADJOINT_SVRG_ROUND, message, reply="point", begin=True)

    def adjoint_round(self, point: Vector) -> np.ndarray:
        """Take the steps of a round for h from this point, without refreshes; return the nodes' points."""
        message = _svrg(point, ADJOINT_LEARNING_RATE)
        return self._ask_nodes(ADJOINT_SVRG_ROUND, message, reply="point")

    def outer_iteration(self, theta: Vector, weights: Array) -> np.ndarray:
        """Solve for the model and for h with one round each; return the slopes of all nodes."""
        federation, key = self.federation, self.key
        inner, adjoint = (
            LocalSvrg(rate, PERIOD, rounds=1, refresh_probability=REFRESH_PROBABILITY)
            for rate in (LEARNING_RATE, ADJOINT_LEARNING_RATE)
        )
        solution = solve_inner(federation, weights, theta, key, inner)
        target = self.validation_gradient(solution.point)
        start = jnp.zeros_like(target)
        system = AdjointSystem(federation, weights, solution.point, target, key)
        found, _ = solve_by_svrg(system, start, adjoint)
        assert found is not None, "the solve for h diverged"
        reply = federation.exchange(slopes=PerNode(SLOPE, {"vector": found}), key=key)
        return np.asarray(reply.slopes["slope"])

    def ditto_shared_round(self, shared: Vector) -> np.ndarray:
        """Train the shared model on all nodes for a round; return their points."""
        message = {"shared": shared, "learning_rate": DITTO["learning_rate"]}
        return self._ask_nodes(DITTO_SHARED_ROUND, message)

    def ditto_personal_round(self, shared: Vector) -> np.ndarray:
        """Train the center's personal model of Ditto."""
        request = Revealed(
            DITTO_PERSONAL_ROUND,
            {"shared": shared, "personal": shared, **DITTO},
            begin=True,
            steps=PERSONAL_STEPS,
        )
        return np.asarray(self.center.alone.exchange(own=request, key=self.key).own["point"])

    def pfedme_shared_round(self, shared: Vector) -> np.ndarray:
        """Train all nodes with pFedMe for a round; return their shared models."""
        return np.asarray(self._pfedme_round(self.federation, shared, PFEDME_ROUND)["point"])

    def pfedme_personal_round(self, shared: Vector) -> np.ndarray:
        """Train the center with pFedMe for a round; return its personal model."""
        replies = self._pfedme_round(self.center.alone, shared, PFEDME_PERSONAL_ROUND)
        return np.asarray(replies["point"])

    def pfedme_gradients(self, shared: Vector) -> int:
        """Count the gradients of single points in both rounds together."""
        gradients = 0
        for learners in (self.federation, self.center.alone):
            iterations = self._pfedme_round(learners, shared, PFEDME_ROUND)["iterations"]
            gradients += round(float(jnp.sum(iterations)) * PERIOD * self.problem.batch_size)
        return gradients

    def _pfedme_round(
        self, learners: Federation, shared: Vector, task: Task
    ) -> Mapping[str, Array]:
        message = {"shared": shared, **PFEDME}
        request = Revealed(task, message, steps=PERIOD, iterations=PFEDME_ITERATIONS)
        return learners.exchange(train=request, key=self.key).train

    def _ask_nodes(
        self, task: Task, message: Mapping[str, Array | float], **options: Any
    ) -> np.ndarray:
        request = Revealed(task, message, steps=self.period, **options)
        return np.asarray(self.federation.exchange(train=request, key=self.key).train["point"])


def _svrg(point: Vector, learning_rate: float) -> dict[str, Array | float]:
    return {
        "point": point,
        "learning_rate": learning_rate,
        "refresh_probability": 0.0,
        "averaging_rate": 0.0,
    }


@dataclass(frozen=True)
class PaperRun:
    """How long a Bi-level run of the paper's size took."""

    outer_iterations: int
    seconds: float
    steps: int
    """Local-SVRG steps of all nodes, of both solves."""


def time_paper_run(
    engine: FedkinEngine, outer_iterations: int, test_points: int = 5000
) -> PaperRun:
    """Run Algorithm 3 with the paper's parameters, evaluation included; compile first."""
    problem = engine.problem
    differentiation = Differentiation(
        cap=1 / 3,
        inner=LocalSvrg(LEARNING_RATE, PERIOD, PAPER_ROUNDS),
        solver=LocalSvrgSolver(training=LocalSvrg(ADJOINT_LEARNING_RATE, PERIOD, PAPER_ROUNDS)),
    )
    method = ProximalBilevel(differentiation, outer_learning_rate=0.02)
    test = Points(*problem.prepared(problem.nodes + 1, test_points))
    seconds = 0.0
    for steps in (1, outer_iterations):  # the first compiles
        began = time.perf_counter()
        run(
            method,
            engine.federation,
            engine.center,
            begin(method, engine.federation, problem.theta),
            jax.random.key(0),
            budget=Budget(steps=steps),
            test=test,
        )
        seconds = time.perf_counter() - began
    return PaperRun(outer_iterations, seconds, outer_iterations * 2 * PERIOD * PAPER_ROUNDS)
