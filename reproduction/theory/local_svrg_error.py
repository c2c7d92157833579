"""Local-SVRG's error next to the bound of `thm:localsvrg_complexity`: the first panel of `rates`.

The error of the weighted average after T steps, mean over many runs, for several periods τ and step sizes γ.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from fedkin.theory.schedules import largest_learning_rate, local_svrg_bound
from fedkin.types import Array, Key
from reproduction.theory.defaults import LOCAL_SVRG_RUNS
from reproduction.theory.quadratic_svrg import (
    RANDOM_BITS,
    QuadraticNodes,
    local_svrg,
    quadratic_nodes,
)
from reproduction.theory.tables import numbers


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
    runs: int = LOCAL_SVRG_RUNS
    steps: int = 6400
    checkpoints: int = 40
    refresh_probability: float = 0.1
    seed: int = 0


def measure_local_svrg(study: SvrgStudy, progress: Callable[[str], None]) -> pd.DataFrame:
    """Return the measured error and its bound: one row per τ, γ and T."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(study.seed)
        nodes, targets = heterogeneous_nodes(rng)
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


def heterogeneous_nodes(rng: np.random.Generator) -> tuple[QuadraticNodes, Array]:
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
