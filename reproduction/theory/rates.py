r"""The command `rates`: how many rounds do Algorithms 2 and 3 need to reach ε?

They are run with the theory's schedule on a federation built to be hard (`hard_federation`); after every
outer iteration, the synchronizations spent and the accuracy reached are noted. `slopes` fits powers to
them; `local_svrg_error` is about Algorithm 1.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from fedkin.numerics.simplex import project_capped_simplex
from fedkin.theory.schedules import OuterProblem, Schedule
from fedkin.types import Array, Key
from reproduction.theory.hard_federation import HardFederation, hard_federation
from reproduction.theory.quadratic_svrg import RANDOM_BITS, local_svrg

ASYMPTOTIC = 24
"""Slopes are fitted from this outer iteration on: two and a half times the nine in which Algorithm 2 solves
the steepest direction of F for the first time."""


@dataclass(frozen=True)
class RoundsStudy:
    """Algorithms 2 and 3 with the theory's schedule on the hard federation.

    Args:
        nodes: K; as many features.
        decades: Over how many decades a_k² falls.
        period: The τ of the runs with local steps.
        iterations: S of the four runs: convex and non-convex with τ = 1, then with local steps.
        runs: Independent runs of each.
        refresh_probability: q.
        seed: Decides all draws.
    """

    nodes: int = 8
    decades: float = 3.5
    period: int = 2
    iterations: tuple[int, int, int, int] = (160, 200, 110, 160)
    runs: int = 4
    refresh_probability: float = 0.2
    seed: int = 0

    def with_effort(self, factor: float) -> "RoundsStudy":
        """Return the study with the outer iterations multiplied by a factor, but with enough for a fit."""
        first, second, third, fourth = (
            max(2 * ASYMPTOTIC, round(factor * count)) for count in self.iterations
        )
        return replace(self, iterations=(first, second, third, fourth))


def error_scale(schedule: Schedule, iteration: int) -> float:
    """Choose the error scale with which local steps begin to need a smaller γ in this outer iteration.

    The paper asks for a root mean squared error of 1/(s+1)², whatever the units of the loss. The rates
    are the same with any other scale; the cost of a study is not.
    """
    at_one = replace(schedule, error_scale=1.0)
    needed = math.sqrt(schedule.error_constants.combined(schedule.period))
    return needed * schedule.largest_learning_rate / at_one.allowed_error(iteration)


def measure_rounds(study: RoundsStudy, progress: Callable[[str], None]) -> pd.DataFrame:
    """Return accuracy and rounds after every outer iteration of the four runs."""
    with jax.enable_x64(True):
        federation = hard_federation(study.nodes, study.decades)
        key = jax.random.key(study.seed, impl=RANDOM_BITS)
        frames = []
        kinds: list[tuple[OuterProblem, int]] = [
            ("convex", 1),
            ("non-convex", 1),
            ("convex", study.period),
            ("non-convex", study.period),
        ]
        for number, ((problem, period), count) in enumerate(
            zip(kinds, study.iterations, strict=True)
        ):
            schedule = Schedule(
                federation.constants,
                study.nodes,
                cap=1.0,
                outer_problem=problem,
                period=period,
                refresh_probability=study.refresh_probability,
            )
            schedule = replace(
                schedule,
                error_scale=error_scale(schedule, ASYMPTOTIC // 2),
                known_outer_smoothness=federation.outer_smoothness,
            )
            name = "Algorithm 2" if problem == "convex" else "Algorithm 3"
            frames.append(
                _follow(
                    federation,
                    schedule,
                    count,
                    study.runs,
                    jax.random.fold_in(key, number),
                    lambda s, name=name, period=period, count=count: progress(
                        f"{name}, τ = {period}: outer iteration {s + 1} of {count}"
                    ),
                )
            )
        return pd.concat(frames, ignore_index=True)


def _follow(
    federation: HardFederation,
    schedule: Schedule,
    iterations: int,
    runs: int,
    key: Key,
    progress: Callable[[int], None],
) -> pd.DataFrame:
    """Run one algorithm, all runs at once, and record what it has reached after every iteration."""
    convex = schedule.outer_problem == "convex"
    eta, nodes = schedule.outer_learning_rate, schedule.nodes
    project = jax.jit(jax.vmap(lambda point: project_capped_simplex(point, schedule.cap)))
    weights = aggregate = jnp.full((runs, nodes), 1 / nodes)
    rounds, squares, rows = 0, [], []
    for s in range(iterations):
        progress(s)
        middle = 2 / (s + 2) * weights + s / (s + 2) * aggregate if convex else weights
        gradient = _hypergradient(federation, schedule, s, middle, jax.random.fold_in(key, s))
        exact = federation.outer_gradient(middle)
        error = np.asarray(jnp.sum((gradient - exact) ** 2, axis=1))
        rounds += 2 * schedule.inner(s).rounds
        if convex:
            weights = project(weights - eta * (s + 1) / 4 * gradient)
            aggregate = project(middle - eta * gradient)
            gaps = np.asarray(federation.outer_loss(aggregate))
        else:
            moved = project(weights - eta * exact)
            squares.append(np.asarray(jnp.sum((weights - moved) ** 2, axis=1)) / eta**2)
            weights = project(weights - eta * gradient)
            # The result is an iterate drawn at random: its mean square is the mean over all so far.
            gaps = np.mean(squares, axis=0)
        mean = float(gaps.mean())
        spread = float(gaps.std(ddof=1)) / math.sqrt(runs) if runs > 1 else math.nan
        rows.append(
            {
                "outer_problem": schedule.outer_problem,
                "period": schedule.period,
                "iteration": s + 1,
                "fitted": ASYMPTOTIC <= s + 1 <= federation.last_sublinear(schedule.outer_problem),
                "rounds": rounds,
                "accuracy": mean if convex else math.sqrt(mean),
                "standard_error": spread if convex else spread / (2 * math.sqrt(mean)),
                "promised": schedule.promised(
                    s + 1, float(federation.outer_loss(jnp.full(nodes, 1 / nodes)))
                ),
                "gradient_error": math.sqrt(float(error.mean())),
                "allowed_error": schedule.allowed_error(s),
                "runs": runs,
            }
        )
    return pd.DataFrame(rows)


def _hypergradient(
    federation: HardFederation, schedule: Schedule, iteration: int, weights: Array, key: Key
) -> Array:
    """Compute the hypergradient as Algorithms 2 and 3 do: Local-SVRG for θ, then for h."""
    plan = schedule.inner(iteration)
    runs, nodes = weights.shape
    features = federation.truths.shape[1]
    inner_key, adjoint_key = jax.random.split(key)

    def solve(targets: Array, key: Key) -> Array:
        return local_svrg(
            federation.nodes,
            jnp.broadcast_to(targets, (runs, nodes, features)),
            weights,
            key,
            learning_rate=plan.learning_rate,
            refresh_probability=schedule.refresh_probability,
            averaging_rate=min(
                plan.learning_rate * schedule.constants.strong_convexity,
                schedule.refresh_probability / 4,
            ),
            period=schedule.period,
            rounds=plan.rounds,
        )[0]

    theta = solve(federation.targets, inner_key)
    target = theta @ federation.hessian - federation.validation_target
    adjoint = solve(target[:, None], adjoint_key)
    gradients = (theta[:, None] - federation.truths) @ federation.hessian
    return -jnp.sum(gradients * adjoint[:, None], axis=-1)
