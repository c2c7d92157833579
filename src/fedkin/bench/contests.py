"""The same computation by fedkin and by the PyTorch loop, timed in turns and compared."""

# pyright: reportMissingImports=false
# PyTorch is an extra.

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from fedkin.bench import torch_loop, work
from fedkin.bench.problem import BATCH_SIZE, BenchProblem, batch_draws, svrg_draws
from fedkin.bench.torch_loop import Parameters, TorchLoop, TorchSvrg
from fedkin.errors import FedkinError
from fedkin.methods.local_svrg.center import LocalSvrg, solve_adjoint, solve_inner
from fedkin.types import Array

PERIOD = 20
"""Steps between two synchronizations (τ of the paper)."""

LEARNING_RATE = 0.02
ADJOINT_LEARNING_RATE = 0.0005
REFRESH_PROBABILITY = 0.02
DITTO = {"learning_rate": 0.02, "proximal": 0.1}
PERSONAL_STEPS = 25
PFEDME = {"learning_rate": 0.02, "proximal": 10.0, "tolerance": 0.005}
PFEDME_ITERATIONS = 20


LARGEST_DIFFERENCE = 1e-3
"""Single precision, over some twenty steps (pFedMe: 400) of a network whose ReLUs may flip."""

TURN_SECONDS = 1.0
"""How long each way runs before it is the other's turn: a few milliseconds say little."""


@dataclass(frozen=True)
class Contest:
    """One computation, done in two ways; both return the same numbers."""

    name: str
    unit: str
    """What a time is given for."""
    units: int
    """How many of these a run does."""
    evaluations: int
    """Gradients or Hessian-vector products of single points a run computes, over all nodes."""
    flops: int
    """Operations in matrix products of a run."""
    fedkin: Callable[[], np.ndarray]
    torch: Callable[[], np.ndarray]


@dataclass(frozen=True)
class Outcome:
    """The times of a contest."""

    network: str
    name: str
    unit: str
    fedkin_seconds: float
    """The median time of a unit."""
    torch_seconds: float
    difference: float
    """‖fedkin's numbers − PyTorch's‖ / ‖PyTorch's‖; `run_contest` refuses more than `LARGEST_DIFFERENCE`."""
    points_a_second: float
    """fedkin's evaluations of single points a second."""
    matmul_share: float
    """fedkin's operations in matrix products, as a share of the machine's measured limit."""
    bandwidth_share: float
    """The bytes of images that fedkin reads a second, as a share of the machine's measured limit."""

    @property
    def ratio(self) -> float:
        """How many times faster fedkin is."""
        return self.torch_seconds / self.fedkin_seconds


def run_contest(
    problem: BenchProblem, contest: Contest, limits: work.Limits, repeats: int
) -> Outcome:
    """Run both in turns; the first, warming runs are compared, and do not count."""
    ours, theirs = contest.fedkin(), contest.torch()
    difference = float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))
    if not difference <= LARGEST_DIFFERENCE:  # also if it is no number
        raise FedkinError(
            f"{problem.network}, {contest.name}: fedkin and PyTorch differ by {difference:.1e}, so their "
            "times cannot be compared; please report this"
        )
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for way, found in zip((contest.fedkin, contest.torch), times, strict=True):
            found.append(_time_for_a_turn(way) / contest.units)
    seconds, torch_seconds = float(np.median(times[0])), float(np.median(times[1]))
    run_seconds = seconds * contest.units
    image_bytes = int(np.prod(problem.model.image_shape))
    return Outcome(
        network=problem.network,
        name=contest.name,
        unit=contest.unit,
        fedkin_seconds=seconds,
        torch_seconds=torch_seconds,
        difference=difference,
        points_a_second=contest.evaluations / run_seconds,
        matmul_share=contest.flops / run_seconds / limits.flops,
        bandwidth_share=contest.evaluations * image_bytes / run_seconds / limits.bandwidth,
    )


def _time_for_a_turn(way: Callable[[], np.ndarray]) -> float:
    """Return the mean time of as many runs as a turn has room for, one at least."""
    begin, runs = time.perf_counter(), 0
    while runs == 0 or time.perf_counter() - begin < TURN_SECONDS:
        way()
        runs += 1
    return (time.perf_counter() - begin) / runs


def choose_threads(problem: BenchProblem, loop: TorchLoop, most: int) -> int:
    """Find the number of threads with which the PyTorch loop is fastest."""
    start = loop.parameters(problem.parameters(problem.theta))
    times = dict.fromkeys(range(1, most + 1), float("inf"))
    for _ in range(5):  # the least of some: a disturbance must not decide
        for threads in times:
            torch.set_num_threads(threads)
            begin = time.perf_counter()
            for node in loop.nodes:
                loop.gradient(node, 0, start)
            times[threads] = min(times[threads], time.perf_counter() - begin)
    best = min(times, key=lambda threads: times[threads])
    torch.set_num_threads(best)
    return best


class Contests:
    """All contests on one problem."""

    def __init__(self, problem: BenchProblem) -> None:
        self.problem = problem
        nodes = [problem.batched(node, problem.points) for node in range(problem.nodes)]
        self.loop = TorchLoop(problem.model, nodes)
        self.own_loop = TorchLoop(problem.model, [_own_batches(problem)])
        self.start = self.loop.parameters(problem.parameters(problem.theta))
        self.key = jax.random.key(1)
        self.batches = problem.federation.batches
        self.weights = np.full(problem.nodes, 1 / problem.nodes, np.float32)

    def __iter__(self) -> Iterator[Contest]:
        """Make the contests one after the other."""
        yield self.svrg(keep=False)
        yield self.svrg(keep=True)
        yield self.adjoint()
        yield self.outer_iteration()
        yield self.ditto()
        yield self.pfedme()

    def svrg(self, *, keep: bool) -> Contest:
        """SVRG steps of all nodes, without refreshes.

        fedkin keeps the gradients at the reference point from one refresh to the next. The loop computes
        them in each step, as the algorithm is written, or keeps them too.
        """
        problem = self.problem
        points = problem.nodes * PERIOD * BATCH_SIZE
        state = TorchSvrg(self.loop, self.start, keep=keep)
        draws = svrg_draws(self.key, problem.nodes, PERIOD, self.batches, 0.0)
        message = _message(problem.theta * 0.9, LEARNING_RATE)
        start = _scaled(self.start, 0.9)
        problem.federation.call(
            "inner_svrg_round",
            _message(problem.theta, LEARNING_RATE),
            key=self.key,
            steps=PERIOD,
            reply="point",
            start=True,
        )
        return Contest(
            "SVRG step, PyTorch with kept gradients" if keep else "SVRG step",
            "step of all nodes",
            PERIOD,
            points,
            points * work.gradient_flops(problem.model),
            lambda: self._call("inner_svrg_round", message, reply="point"),
            lambda: self._flat(state.round(start, draws, LEARNING_RATE)),
        )

    def adjoint(self) -> Contest:
        """Steps of the solve for h, without refreshes."""
        problem = self.problem
        points = problem.nodes * PERIOD * BATCH_SIZE
        target = problem.center.loss_and_gradient(problem.theta)[1]
        torch_target = self.loop.parameters(problem.parameters(target))
        state = TorchSvrg(self.loop, _scaled(torch_target, 0.0), self.start, torch_target)
        draws = svrg_draws(self.key, problem.nodes, PERIOD, self.batches, 0.0)
        message = _message(target, ADJOINT_LEARNING_RATE)
        problem.federation.call(
            "adjoint_svrg_round",
            _message(jnp.zeros_like(target), ADJOINT_LEARNING_RATE)
            | {"theta": problem.theta, "target": target},
            key=self.key,
            steps=PERIOD,
            reply="point",
            start=True,
        )
        return Contest(
            "h-solve step",
            "step of all nodes",
            PERIOD,
            points,
            points * work.product_flops(problem.model),
            lambda: self._call("adjoint_svrg_round", message, reply="point"),
            lambda: self._flat(state.round(torch_target, draws, ADJOINT_LEARNING_RATE)),
        )

    def outer_iteration(self) -> Contest:
        """An outer iteration with one round in each solve and the slopes: mostly full passes."""
        problem = self.problem
        settings = LocalSvrg(
            LEARNING_RATE, PERIOD, rounds=1, refresh_probability=REFRESH_PROBABILITY
        )
        adjoint_settings = LocalSvrg(
            ADJOINT_LEARNING_RATE, PERIOD, rounds=1, refresh_probability=REFRESH_PROBABILITY
        )
        draws = svrg_draws(
            jax.random.fold_in(self.key, 0),
            problem.nodes,
            PERIOD,
            self.batches,
            REFRESH_PROBABILITY,
        )
        weights = jnp.asarray(self.weights)

        def ours() -> np.ndarray:
            solution = solve_inner(problem.federation, weights, problem.theta, self.key, settings)
            target = problem.center.loss_and_gradient(solution.point)[1]
            adjoint, _ = solve_adjoint(
                problem.federation,
                weights,
                solution.point,
                target,
                jnp.zeros_like(target),
                self.key,
                adjoint_settings,
            )
            replies, _ = problem.federation.call("slope", {"vector": adjoint.point}, key=self.key)
            return np.asarray(replies["slope"])

        def theirs() -> np.ndarray:
            points = TorchSvrg(self.loop, self.start).round(self.start, draws, LEARNING_RATE)
            theta = torch_loop.average(points, self.weights)
            own_gradient = self.own_loop.full_gradient(self.own_loop.nodes[0], theta)
            target = dict(zip(theta, own_gradient, strict=True))
            nothing = _scaled(target, 0.0)
            state = TorchSvrg(self.loop, nothing, theta, target)
            adjoint = torch_loop.average(
                state.round(nothing, draws, ADJOINT_LEARNING_RATE), self.weights
            )
            vector = self.loop.flat(adjoint)
            gradients = [self.loop.full_gradient(node, theta) for node in self.loop.nodes]
            rows = [self.loop.flat(dict(zip(theta, own, strict=True))) for own in gradients]
            return -np.stack(rows) @ vector

        steps = problem.nodes * PERIOD * BATCH_SIZE
        refreshes = int(draws[1].sum()) * problem.points
        passes = problem.nodes * problem.points
        gradients = steps + refreshes + 2 * passes
        products = steps + refreshes + passes
        return Contest(
            "outer iteration, one round a solve",
            "iteration",
            1,
            gradients + products,
            gradients * work.gradient_flops(problem.model)
            + products * work.product_flops(problem.model),
            ours,
            theirs,
        )

    def ditto(self) -> Contest:
        """A synchronization of Ditto: the nodes' steps, and the center's on its personal model."""
        problem = self.problem
        draws = batch_draws(self.key, problem.nodes, PERIOD, self.batches)
        own_draws = batch_draws(self.key, 1, PERSONAL_STEPS, problem.center.alone.batches)[0]
        message = {"shared": problem.theta}

        def ours() -> np.ndarray:
            shared = self._call(
                "ditto_shared_round",
                message | {"learning_rate": DITTO["learning_rate"]},
            )
            personal, _ = problem.center.alone.call(
                "ditto_personal_round",
                message | DITTO,
                key=self.key,
                steps=PERSONAL_STEPS,
                start=True,
            )
            return np.concatenate([shared, np.asarray(personal["point"])])

        def theirs() -> np.ndarray:
            found = [
                torch_loop.descend(
                    self.loop,
                    node,
                    self.start,
                    self.start,
                    draws[number],
                    learning_rate=DITTO["learning_rate"],
                    proximal=0.0,
                )
                for number, node in enumerate(self.loop.nodes)
            ]
            own = torch_loop.descend(
                self.own_loop, self.own_loop.nodes[0], self.start, self.start, own_draws, **DITTO
            )
            return self._flat([*found, own])

        points = (problem.nodes * PERIOD + PERSONAL_STEPS) * BATCH_SIZE
        return Contest(
            "Ditto synchronization",
            "synchronization",
            1,
            points,
            points * work.gradient_flops(problem.model),
            ours,
            theirs,
        )

    def pfedme(self) -> Contest:
        """A synchronization of pFedMe: the nodes' local rounds, and the center's."""
        problem = self.problem
        draws = batch_draws(self.key, problem.nodes, PERIOD, self.batches)
        own_draws = batch_draws(self.key, 1, PERIOD, problem.center.alone.batches)[0]
        message = {"shared": problem.theta, **PFEDME}
        evaluations = 0
        for learners in (problem.federation, problem.center.alone):
            replies, _ = learners.call(
                "pfedme_round",
                message,
                key=self.key,
                steps=PERIOD,
                iterations=PFEDME_ITERATIONS,
                reply="shared",
            )
            evaluations += round(float(jnp.sum(replies["iterations"])) * PERIOD * BATCH_SIZE)

        def ours() -> np.ndarray:
            shared = self._call(
                "pfedme_round", message, iterations=PFEDME_ITERATIONS, reply="shared"
            )
            personal, _ = problem.center.alone.call(
                "pfedme_round",
                message,
                key=self.key,
                steps=PERIOD,
                iterations=PFEDME_ITERATIONS,
                reply="personal",
            )
            return np.concatenate([shared, np.asarray(personal["point"])])

        def theirs() -> np.ndarray:
            found = [
                torch_loop.proximal_rounds(
                    self.loop,
                    node,
                    self.start,
                    draws[number],
                    iterations=PFEDME_ITERATIONS,
                    **PFEDME,
                )[0]
                for number, node in enumerate(self.loop.nodes)
            ]
            own = torch_loop.proximal_rounds(
                self.own_loop,
                self.own_loop.nodes[0],
                self.start,
                own_draws,
                iterations=PFEDME_ITERATIONS,
                **PFEDME,
            )[1]
            return self._flat([*found, own])

        return Contest(
            "pFedMe synchronization",
            "synchronization",
            1,
            evaluations,
            evaluations * work.gradient_flops(problem.model),
            ours,
            theirs,
        )

    def _call(self, task: str, message: dict[str, Array | float], **options: Any) -> np.ndarray:
        replies, _ = self.problem.federation.call(
            task, message, key=self.key, steps=PERIOD, **options
        )
        return np.asarray(replies["point"])

    def _flat(self, models: list[Parameters]) -> np.ndarray:
        return np.stack([self.loop.flat(model) for model in models])


def _own_batches(problem: BenchProblem) -> tuple[np.ndarray, np.ndarray]:
    return problem.batched(problem.nodes, problem.own_points)


def _message(point: Array, learning_rate: float) -> dict[str, Array | float]:
    return {
        "point": point,
        "learning_rate": learning_rate,
        "refresh_probability": 0.0,
        "averaging_rate": 0.0,
    }


def _scaled(parameters: Parameters, factor: float) -> Parameters:
    return {name: factor * tensor for name, tensor in parameters.items()}
