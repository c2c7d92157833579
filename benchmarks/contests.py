"""The same computation by fedkin's engines and by the PyTorch loop, timed in turns and compared."""

# pyright: reportMissingImports=false
# PyTorch is an extra.

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import torch

from benchmarks import torch_loop, work
from benchmarks.engine import (
    ADJOINT_LEARNING_RATE,
    DITTO,
    LEARNING_RATE,
    PERIOD,
    PERSONAL_STEPS,
    PFEDME,
    PFEDME_ITERATIONS,
    REFRESH_PROBABILITY,
    FedkinEngine,
)
from benchmarks.problem import BenchProblem, batch_draws, svrg_draws
from benchmarks.torch_loop import Draws, Parameters, TorchLoop, TorchSvrg
from fedkin.errors import FedkinError
from fedkin.types import Key

LARGEST_DIFFERENCE = 1e-3
"""Single precision, over some twenty steps (pFedMe: 400) of a network whose ReLUs may flip."""

TURN_SECONDS = 1.0
"""How long each side runs before it is the other's turn: a few milliseconds are too noisy to time."""


@dataclass(frozen=True)
class Contest:
    """One computation, done in two or three ways; all return the same numbers."""

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
    module: Callable[[], np.ndarray] | None = None
    """fedkin's engine for PyTorch modules, with the loop's network."""


@dataclass(frozen=True)
class Outcome:
    """The times of a contest."""

    network: str
    name: str
    unit: str
    fedkin_seconds: float
    """The median time of a unit."""
    torch_seconds: float
    module_seconds: float | None
    """Those of fedkin's engine for PyTorch modules; None where it takes no part."""
    difference: float
    """‖fedkin's numbers − PyTorch's‖ / ‖PyTorch's‖; `run_contest` refuses more than `LARGEST_DIFFERENCE`."""
    points_per_second: float
    """fedkin's evaluations of single points per second."""
    matmul_share: float
    """fedkin's operations in matrix products, as a share of the machine's measured limit."""
    bandwidth_share: float
    """The bytes of images that fedkin reads per second, as a share of the machine's measured limit."""

    @property
    def ratio(self) -> float:
        """How many times faster fedkin is."""
        return self.torch_seconds / self.fedkin_seconds

    @property
    def module_ratio(self) -> float | None:
        """How many times faster than the loop fedkin is with the loop's own module."""
        return None if self.module_seconds is None else self.torch_seconds / self.module_seconds


def _difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the relative difference of two results; of nodes, where each has a row, the median.

    Rounding may decide which of two nearly equal numbers is the larger, in pooling or ReLU, and such a node
    then takes another step: a few nodes may, on either side, but wrong code differs at all of them.
    """
    distances = np.linalg.norm(ours - theirs, axis=-1) / np.linalg.norm(theirs, axis=-1)
    return float(np.median(distances))


def run_contest(
    problem: BenchProblem, contest: Contest, limits: work.Limits, repeats: int
) -> Outcome:
    """Compare the numbers of a first run of each, which compiles; then time both in turns."""
    ways = [contest.fedkin, contest.torch]
    if contest.module is not None:
        ways.append(contest.module)
    ours, theirs, *modules = (way() for way in ways)
    difference = max(_difference(own, theirs) for own in (ours, *modules))
    # A comparison with NaN is false, and `max` may lose it.
    if not all(np.isfinite(own).all() for own in (ours, *modules)) or not (
        difference <= LARGEST_DIFFERENCE
    ):
        raise FedkinError(
            f"{problem.network}, {contest.name}: fedkin and PyTorch differ by {difference:.1e}, so their "
            "times cannot be compared; please report this"
        )
    times: list[list[float]] = [[] for _ in ways]
    for _ in range(repeats):
        for way, found in zip(ways, times, strict=True):
            found.append(_time_turn(way) / contest.units)
    seconds, torch_seconds, *module_seconds = (float(np.median(found)) for found in times)
    run_seconds = seconds * contest.units
    image_bytes = int(np.prod(problem.image_shape))
    return Outcome(
        network=problem.network,
        name=contest.name,
        unit=contest.unit,
        fedkin_seconds=seconds,
        torch_seconds=torch_seconds,
        module_seconds=module_seconds[0] if module_seconds else None,
        difference=difference,
        points_per_second=contest.evaluations / run_seconds,
        matmul_share=contest.flops / run_seconds / limits.flops,
        bandwidth_share=contest.evaluations * image_bytes / run_seconds / limits.bandwidth,
    )


def _time_turn(way: Callable[[], np.ndarray]) -> float:
    """Return the mean time of a run, over as many as fit into a turn, at least one."""
    begin, runs = time.perf_counter(), 0
    while runs == 0 or time.perf_counter() - begin < TURN_SECONDS:
        way()
        runs += 1
    return (time.perf_counter() - begin) / runs


def choose_threads(problem: BenchProblem, loop: TorchLoop, most: int) -> int:
    """Find the number of threads with which the PyTorch loop is fastest."""
    start = loop.parameters(problem.parameters(problem.theta))
    times = dict.fromkeys(range(1, most + 1), float("inf"))
    for _ in range(5):  # the fastest of five: other work on the machine must not decide
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
        self.engine = FedkinEngine(problem)
        nodes = [problem.batched(node, problem.points) for node in range(problem.nodes)]
        self.loop = TorchLoop(problem.model, nodes)
        own = problem.batched(problem.nodes, problem.own_points)
        self.own_loop = TorchLoop(problem.model, [own])
        self.start = self.loop.parameters(problem.parameters(problem.theta))
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
        problem, engine = self.problem, self.engine
        points = problem.nodes * PERIOD * problem.batch_size
        state = TorchSvrg(self.loop, self.start, keep=keep)
        draws = self._svrg_draws(0.0)
        point, torch_point = problem.theta * 0.9, _scaled(self.start, 0.9)
        engine.begin_svrg(problem.theta)
        return Contest(
            "SVRG step, PyTorch with kept gradients" if keep else "SVRG step",
            "step of all nodes",
            PERIOD,
            points,
            points * work.gradient_flops(problem.model),
            lambda: engine.svrg_round(point),
            lambda: self._flat(state.round(torch_point, draws, LEARNING_RATE)),
        )

    def adjoint(self) -> Contest:
        """Steps of the solve for h, without refreshes."""
        problem, engine = self.problem, self.engine
        points = problem.nodes * PERIOD * problem.batch_size
        target = engine.validation_gradient(problem.theta)
        torch_target = self.loop.parameters(problem.parameters(target))
        state = TorchSvrg(self.loop, _scaled(torch_target, 0.0), self.start, torch_target)
        draws = self._svrg_draws(0.0)
        engine.begin_adjoint(problem.theta, target)
        return Contest(
            "h-solve step",
            "step of all nodes",
            PERIOD,
            points,
            points * work.product_flops(problem.model),
            lambda: engine.adjoint_round(target),
            lambda: self._flat(state.round(torch_target, draws, ADJOINT_LEARNING_RATE)),
        )

    def outer_iteration(self) -> Contest:
        """An outer iteration with one round in each solve and the slopes: mostly full passes."""
        problem, engine = self.problem, self.engine
        # The solves fold the number of the round, 0, into the key.
        draws = self._svrg_draws(REFRESH_PROBABILITY, jax.random.fold_in(engine.key, 0))
        weights = jnp.asarray(self.weights)

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

        steps = problem.nodes * PERIOD * problem.batch_size
        refreshes = int(draws[1].sum()) * problem.points
        passes = problem.nodes * problem.points
        gradients = steps + refreshes + 2 * passes
        products = steps + refreshes + passes
        return Contest(
            "outer iteration, one round per solve",
            "iteration",
            1,
            gradients + products,
            gradients * work.gradient_flops(problem.model)
            + products * work.product_flops(problem.model),
            lambda: engine.outer_iteration(problem.theta, weights),
            theirs,
        )

    def ditto(self) -> Contest:
        """A synchronization of Ditto: the nodes' steps, and the center's on its personal model."""
        problem, engine = self.problem, self.engine
        draws = batch_draws(engine.key, problem.nodes, PERIOD, engine.batches)
        own_draws = batch_draws(engine.key, 1, PERSONAL_STEPS, engine.center_batches)[0]

        def ours() -> np.ndarray:
            shared = engine.ditto_shared_round(problem.theta)
            return np.concatenate([shared, engine.ditto_personal_round(problem.theta)])

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

        points = (problem.nodes * PERIOD + PERSONAL_STEPS) * problem.batch_size
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
        problem, engine = self.problem, self.engine
        draws = batch_draws(engine.key, problem.nodes, PERIOD, engine.batches)
        own_draws = batch_draws(engine.key, 1, PERIOD, engine.center_batches)[0]
        evaluations = engine.pfedme_gradients(problem.theta)

        def ours() -> np.ndarray:
            shared = engine.pfedme_shared_round(problem.theta)
            return np.concatenate([shared, engine.pfedme_personal_round(problem.theta)])

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

    def _svrg_draws(self, refresh_probability: float, key: Key | None = None) -> Draws:
        return svrg_draws(
            self.engine.key if key is None else key,
            self.problem.nodes,
            PERIOD,
            self.engine.batches,
            refresh_probability,
        )

    def _flat(self, models: list[Parameters]) -> np.ndarray:
        return np.stack([self.loop.flat(model) for model in models])


def _scaled(parameters: Parameters, factor: float) -> Parameters:
    return {name: factor * tensor for name, tensor in parameters.items()}
