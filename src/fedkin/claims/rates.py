r"""`fedkin theory rates`: are Local-SVRG and Algorithms 2 and 3 as fast as the paper says?

Two measurements.

*Local-SVRG*: the error of the weighted average after T steps, mean over many runs, beside the bound of
`thm:localsvrg_complexity`, for several periods τ and step sizes γ.

*Rounds*: Algorithms 2 and 3 with the theory's schedule; after every outer iteration the synchronizations
spent and the accuracy reached. The federation is built to be hard: θ_k = a_k e_k with a_k² falling over three
decades, and best weights that differ from equal ones by the same amount everywhere, so that there is
always a direction left in which F is too flat for the steps taken so far, and the rate is the one of the
theory and not a faster one that easy problems have.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from fedkin.claims.quadratic_svrg import QuadraticNodes, local_svrg, quadratic_nodes
from fedkin.claims.tables import numbers, select
from fedkin.numerics.simplex import project_capped_simplex
from fedkin.theory.constants import Constants
from fedkin.theory.schedules import (
    OuterProblem,
    Schedule,
    largest_learning_rate,
    local_svrg_bound,
)
from fedkin.types import Array, Key

RANDOM_BITS = "rbg"
"""The generator of random numbers: on CPUs about twice as fast as the usual one in loops of tiny steps."""

Progress = Callable[[str], None]

ASYMPTOTIC = 8
"""Slopes are fitted from this outer iteration on."""

PREDICTED_SLOPES = {
    ("convex", False): -0.5,
    ("convex", True): -1.5,
    ("non-convex", False): -2.0,
    ("non-convex", True): -4.0,
}
"""Rounds grow as this power of ε, up to logarithms; True: with local steps (τ > 1)."""


# --- Local-SVRG against its bound --------------------------------------------------------------------


@dataclass(frozen=True)
class SvrgStudy:
    """Local-SVRG on a small ridge federation with heterogeneous nodes.

    Args:
        periods: The values of τ.
        fractions: The step sizes, as fractions of γ_0.
        runs: Independent runs of each.
        steps: T.
        checkpoints: How many times the error is measured on the way.
        refresh_probability: q.
        seed: Draws the data and all else.
    """

    periods: tuple[int, ...] = (1, 4, 16)
    fractions: tuple[float, ...] = (1.0, 0.25)
    runs: int = 64
    steps: int = 6400
    checkpoints: int = 40
    refresh_probability: float = 0.1
    seed: int = 0


def measure_local_svrg(study: SvrgStudy, progress: Progress) -> pd.DataFrame:
    """Return the measured error and its bound: one row a τ, γ and T."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(study.seed)
        nodes, targets = _heterogeneous_nodes(rng)
        weights = jnp.asarray([0.4, 0.3, 0.2, 0.1])
        frames = []
        for period in study.periods:
            for number, fraction in enumerate(study.fractions):
                progress(f"Local-SVRG: τ = {period}, γ = {fraction:g} γ_0, {study.runs} runs")
                key = jax.random.fold_in(
                    jax.random.key(study.seed, impl=RANDOM_BITS), 100 * period + number
                )
                frames.append(_svrg_curve(study, nodes, targets, weights, period, fraction, key))
        return pd.concat(frames, ignore_index=True)


def largest_share_of_bound(svrg: pd.DataFrame) -> float:
    """Return the largest (mean error + 2 standard errors) / bound: below 1 the proposition holds."""
    largest = numbers(svrg, "error") + 2 * numbers(svrg, "standard_error")
    return float(np.max(largest / numbers(svrg, "bound")))


def _heterogeneous_nodes(rng: np.random.Generator) -> tuple[QuadraticNodes, Array]:
    """Four nodes whose inputs, scales and truths differ; returns them with c_k = Xᵀy/n."""
    count, features = 12, 3
    rows = rng.normal(size=(4, count, features)) / math.sqrt(features)
    rows *= np.array([0.8, 1.0, 1.0, 1.2])[:, None, None]
    truths = rng.normal(size=(4, features))
    labels = np.einsum("kni,ki->kn", rows, truths) + 0.3 * rng.normal(size=(4, count))
    targets = np.einsum("kni,kn->ki", rows, labels) / count
    return quadratic_nodes(jnp.asarray(rows), 0.5), jnp.asarray(targets)


def _svrg_curve(
    study: SvrgStudy,
    nodes: QuadraticNodes,
    targets: Array,
    weights: Array,
    period: int,
    fraction: float,
    key: Key,
) -> pd.DataFrame:
    smoothness = float(jnp.max(jnp.sum(nodes.rows**2, axis=-1)) + nodes.l2)
    strong_convexity = float(jnp.min(jnp.linalg.eigvalsh(nodes.moment)))
    q = study.refresh_probability
    gamma = fraction * largest_learning_rate(
        smoothness, strong_convexity, period=period, refresh_probability=q
    )
    total = jnp.einsum("k,kij->ij", weights, nodes.moment)
    best = jnp.linalg.solve(total, weights @ targets)
    slopes = jnp.einsum("kij,j->ki", nodes.moment, best) - targets
    heterogeneity = float(weights @ jnp.sum(slopes**2, axis=1))
    rounds = study.steps // period
    every = max(1, rounds // study.checkpoints)
    keep = rounds // every
    averages = local_svrg(
        nodes,
        jnp.broadcast_to(targets, (study.runs, *targets.shape)),
        jnp.broadcast_to(weights, (study.runs, len(weights))),
        key,
        learning_rate=gamma,
        refresh_probability=q,
        averaging_rate=min(gamma * strong_convexity, q / 4),
        period=period,
        rounds=every * keep,
        every=every,
        keep=keep,
    )
    away = averages - best
    errors = 0.5 * np.asarray(jnp.einsum("cri,ij,crj->cr", away, total, away))
    steps = period * every * np.arange(1, keep + 1)
    bounds = [
        local_svrg_bound(
            smoothness=smoothness,
            strong_convexity=strong_convexity,
            learning_rate=gamma,
            period=period,
            refresh_probability=q,
            steps=int(count),
            start_distance=float(jnp.linalg.norm(best)),
            heterogeneity=heterogeneity,
        )
        for count in steps
    ]
    return pd.DataFrame(
        {
            "period": period,
            "fraction": fraction,
            "learning_rate": gamma,
            "steps": steps,
            "error": errors.mean(axis=1),
            "standard_error": errors.std(axis=1, ddof=1) / math.sqrt(study.runs),
            "bound": bounds,
            "runs": study.runs,
        }
    )


# --- Rounds until ε ----------------------------------------------------------------------------------


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

    nodes: int = 6
    decades: float = 3.0
    period: int = 2
    iterations: tuple[int, int, int, int] = (200, 200, 40, 80)
    runs: int = 4
    refresh_probability: float = 0.2
    seed: int = 0

    def with_effort(self, factor: float) -> "RoundsStudy":
        """Return the study with so many times the outer iterations, but enough for a fit."""
        first, second, third, fourth = (
            max(2 * ASYMPTOTIC, round(factor * count)) for count in self.iterations
        )
        return replace(self, iterations=(first, second, third, fourth))


@dataclass(frozen=True)
class HardFederation:
    """Ridge regression with the same inputs everywhere: F(w) = ½(Aw − θ_0)ᵀH(Aw − θ_0) + a constant."""

    nodes: QuadraticNodes
    targets: Array
    """c_k = H θ_k of each node."""
    truths: Array
    """θ_k, one a row."""
    validation_target: Array
    """H θ_0: ∇L_0(θ) = Hθ − this."""
    constants: Constants
    outer_smoothness: float
    """The largest eigenvalue of ∇²F: the ℓ_F that `eq:LF` bounds from above, here by a factor of about
    forty."""

    @property
    def hessian(self) -> Array:
        """H, the same everywhere."""
        return self.nodes.moment[0]

    def outer_loss(self, weights: Array) -> Array:
        """Return F(w) − min F; the best weights are known."""
        away = weights @ self.truths - jnp.linalg.solve(self.hessian, self.validation_target)
        return 0.5 * jnp.sum((away @ self.hessian) * away, axis=-1)

    def outer_gradient(self, weights: Array) -> Array:
        """Return ∇F(w), exactly: −∇L_kᵀ H⁻¹ ∇L_0."""
        theta = weights @ self.truths
        adjoint = theta - jnp.linalg.solve(self.hessian, self.validation_target)
        gradients = (theta[..., None, :] - self.truths) @ self.hessian
        return -jnp.sum(gradients * adjoint[..., None, :], axis=-1)


def hard_federation(nodes: int, decades: float) -> HardFederation:
    """Build it: orthogonal inputs of length one, θ_k along the axes, l2 = 1 (H is a multiple of I)."""
    inputs = np.broadcast_to(np.eye(nodes), (nodes, nodes, nodes))
    l2 = 1.0
    sizes = 10 ** (-0.5 * decades * np.arange(nodes) / max(nodes - 1, 1))
    truths = np.diag(sizes)
    best = np.full(nodes, 1 / nodes) + np.where(np.arange(nodes) % 2, -0.5, 0.5) / nodes
    best /= best.sum()
    prepared = quadratic_nodes(jnp.asarray(inputs), l2)
    hessian = np.asarray(prepared.moment[0])
    # θ(w) runs over the hull of the θ_k; a gradient's norm is convex, so largest at a corner.
    corners = [*truths, best @ truths]
    lipschitz = max(
        np.linalg.norm(hessian @ (corner - other)) for corner in truths for other in corners
    )
    constants = Constants(
        lipschitz=float(lipschitz),
        smoothness=1.0 + l2,
        hessian_lipschitz=0.0,
        strong_convexity=float(np.linalg.eigvalsh(hessian)[0]),
        radius=float(max(np.linalg.norm(truths, axis=1))),
    )
    return HardFederation(
        prepared,
        jnp.asarray(truths @ hessian),
        jnp.asarray(truths),
        jnp.asarray(best @ truths @ hessian),
        constants,
        float(np.linalg.eigvalsh(truths @ hessian @ truths.T)[-1]),
    )


def error_scale(schedule: Schedule, iteration: int) -> float:
    """Choose the error scale with which local steps begin to need a smaller γ in this outer iteration.

    The paper asks for a root mean squared error of 1/(s+1)², whatever the units of the loss. The rates
    are the same with any other scale; the cost of a study is not.
    """
    at_one = replace(schedule, error_scale=1.0)
    needed = math.sqrt(schedule.error_constants.combined(schedule.period))
    return needed * schedule.largest_learning_rate / at_one.allowed_error(iteration)


def measure_rounds(study: RoundsStudy, progress: Progress) -> pd.DataFrame:
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


# --- Slopes ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slope:
    """A power law fitted to rounds against ε."""

    outer_problem: str
    period: int
    slope: float
    standard_error: float
    promised_slope: float
    """The same fit to the theory's own promise over the same iterations: with its logarithms."""
    predicted: float
    """The theory's power, without logarithms."""
    points: int

    @property
    def no_worse(self) -> bool:
        """Whether rounds grow no faster than promised, within two standard errors."""
        return self.slope + 2 * self.standard_error >= self.promised_slope


def fit_slopes(rounds: pd.DataFrame) -> list[Slope]:
    """Fit log rounds = a + slope · log ε for each run, leaving out the first iterations.

    Iterations follow each other, so their errors are not independent: ten points are taken evenly in
    log rounds, and the standard error is that of a jackknife over these.

    Args:
        rounds: From `measure_rounds`.
    """
    slopes = []
    kinds = rounds[["outer_problem", "period"]].drop_duplicates()
    for problem, period in kinds.itertuples(index=False):
        group = select(rounds, outer_problem=problem, period=period)
        logs = np.log(numbers(group, "rounds"))
        wanted = np.linspace(logs[min(ASYMPTOTIC, len(logs)) - 1], logs[-1], 10)
        chosen = np.unique(np.searchsorted(logs, wanted - 1e-12).clip(max=len(logs) - 1))
        picked = group.iloc[chosen]
        accuracy = np.log(numbers(picked, "accuracy"))
        promised = np.log(numbers(picked, "promised"))
        slope, error = _jackknife_slope(accuracy, logs[chosen])
        slopes.append(
            Slope(
                str(problem),
                int(period),
                slope,
                error,
                _slope(promised, logs[chosen]),
                PREDICTED_SLOPES[str(problem), int(period) > 1],
                len(chosen),
            )
        )
    return slopes


def _slope(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.polyfit(x, y, 1)[0])


def _jackknife_slope(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    count = len(x)
    without = np.array([_slope(np.delete(x, i), np.delete(y, i)) for i in range(count)])
    spread = math.sqrt((count - 1) / count * float(np.sum((without - without.mean()) ** 2)))
    return _slope(x, y), spread
