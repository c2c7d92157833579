r"""The command `examples`: the paper's two worked examples.

*Mean estimation*: the center draws from N(0, 1), two nodes from N(a, 1) and N(−a, 1). No node is like the
center, and yet equal weights on both are. With sample means m, :math:`\hat w_1 = (m_0 - m_2)/(m_1 - m_2)`
within [0, 1].

*The error bound* (Assumption 3) in linear regression: Dist(w, W*) ≤ C_r √(F(w) − min F), with r = 2.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from fedkin.numerics.simplex import project_capped_simplex
from reproduction.theory.defaults import EXAMPLE_RUNS
from reproduction.theory.linear_regression import Federation
from reproduction.theory.tables import numbers, select

REGRESSION = Federation(similar=2, others=4)


@dataclass(frozen=True)
class ExampleStudy:
    """Both examples.

    Args:
        offsets: The values of a.
        valid: The values of n_valid; n_train is `ratio` times as large.
        ratio: n_train / n_valid.
        runs: Federations drawn for each point of the first example.
        federation: The linear regression of the second.
        weights: How many weights are drawn from the simplex in the second.
        scales: Offsets δ for which C_r and G are computed.
        seed: Draws everything.
    """

    offsets: tuple[float, ...] = (0.5, 1.0, 2.0)
    valid: tuple[int, ...] = (10, 30, 100, 300, 1000, 3000)
    ratio: int = 10
    runs: int = EXAMPLE_RUNS
    federation: Federation = REGRESSION
    weights: int = 1500
    scales: tuple[float, ...] = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
    seed: int = 0


def measure_mean_estimation(study: ExampleStudy, progress: Callable[[str], None]) -> pd.DataFrame:
    """Return how far ŵ_1 is from ½, and the excess risks: one row per a and n_valid."""
    rows = []
    for place, offset in enumerate(study.offsets):
        for number, valid in enumerate(study.valid):
            progress(f"mean estimation: a = {offset:g}, n_valid = {valid}")
            rng = np.random.default_rng([study.seed, place, number])
            train = study.ratio * valid
            own = rng.normal(0, 1 / math.sqrt(valid), study.runs)
            first, second = (
                rng.normal(sign * offset, 1 / math.sqrt(train), study.runs) for sign in (1, -1)
            )
            gap = first - second
            weight = ((own - second) / np.where(gap == 0, 1, gap)).clip(0, 1)
            model = weight * first + (1 - weight) * second
            even = (first + second) / 2
            spread = math.sqrt(1 / valid + 1 / (2 * train)) / (2 * offset)
            errors = (weight - 0.5) ** 2
            rows.append(
                {
                    "offset": offset,
                    "valid": valid,
                    "train": train,
                    "weight_error": math.sqrt(float(errors.mean())),
                    # The root halves the relative error of what is under it.
                    "weight_error_standard_error": float(errors.std(ddof=1))
                    / math.sqrt(study.runs)
                    / (2 * math.sqrt(float(errors.mean()))),
                    "predicted_weight_error": spread,
                    "bilevel": float((model**2).mean()),
                    "local": float((own**2).mean()),
                    "equal": float((even**2).mean()),
                    "runs": study.runs,
                }
            )
    return pd.DataFrame(rows)


def distance_to_best(weights: np.ndarray, similar: int, cap: float = 1.0) -> np.ndarray:
    """Return Dist(w, W*): W* is the capped simplex of the first J nodes.

    The nearest point has no weight on the others; on the first J it is the projection of what is there.
    """
    own = jnp.asarray(weights[:, :similar])
    nearest = jax.vmap(lambda point: project_capped_simplex(point, cap))(own)
    others = np.sum(weights[:, similar:] ** 2, axis=1)
    return np.sqrt(others + np.asarray(jnp.sum((own - nearest) ** 2, axis=1)))


def outer_gap(weights: np.ndarray, federation: Federation) -> np.ndarray:
    """Return F(w) − min F = ½‖Σ w_k θ_k‖²."""
    return 0.5 * np.sum((weights @ federation.truths) ** 2, axis=1)


def error_bound_constant(federation: Federation, draws: int, rng: np.random.Generator) -> float:
    """Return C_r for r = 2 and no cap: the largest Dist/√gap, which lies on the others' weights alone.

    With all of the others' weights u and the rest anywhere on the similar nodes, Dist² = ‖u‖² + (Σu)²/J,
    and the gap is quadratic in u: the ratio does not change with the length of u. It is maximized over
    random directions and the corners, and climbed from the best of them.
    """
    others = federation.truths[federation.similar :]

    def ratio(directions: np.ndarray) -> np.ndarray:
        squares = np.sum(directions**2, axis=1) + directions.sum(axis=1) ** 2 / federation.similar
        return np.sqrt(squares / (0.5 * np.sum((directions @ others) ** 2, axis=1)))

    directions = np.concatenate([np.eye(len(others)), rng.dirichlet(np.ones(len(others)), draws)])
    best = directions[np.argmax(ratio(directions))]
    length = 0.3
    while length > 1e-4:
        near = np.abs(best + length * rng.normal(size=(200, len(others))))
        near /= near.sum(axis=1, keepdims=True)
        values = ratio(near)
        if values.max() > ratio(best[None])[0]:
            best = near[np.argmax(values)]
        else:
            length *= 0.7
    return float(ratio(best[None])[0])


def measure_error_bound(
    study: ExampleStudy, progress: Callable[[str], None]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return Dist and gap of random weights, and C_r and G for every offset."""
    rng = np.random.default_rng([study.seed, 99])
    federation = study.federation
    progress("error bound: random weights")
    # Mixtures of sparse and dense weights, nearer and nearer to W*, to fill the picture.
    weights = rng.dirichlet(np.full(federation.nodes, 0.4), study.weights)
    shrink = 10 ** rng.uniform(-3, 0, study.weights)
    weights[:, federation.similar :] *= shrink[:, None]
    weights[:, 0] += 1 - weights.sum(axis=1)
    with jax.enable_x64(True):
        scatter = pd.DataFrame(
            {
                "gap": outer_gap(weights, federation),
                "distance_to_best": distance_to_best(weights, federation.similar),
            }
        )
    rows = []
    for offset in study.scales:
        progress(f"error bound: δ = {offset:g}")
        scaled = replace(federation, offset=offset)
        rows.append(
            {
                "offset": offset,
                "distance": scaled.distance,
                "error_bound_constant": error_bound_constant(scaled, 2000, rng),
            }
        )
    table = pd.DataFrame(rows)
    table["product"] = table["distance"] * table["error_bound_constant"]
    return scatter, table


def constant_at(constants: pd.DataFrame, offset: float) -> float:
    """Return C_r for one offset."""
    return float(numbers(select(constants, offset=offset), "error_bound_constant")[0])


def largest_share_of_error_bound(scatter: pd.DataFrame, constant: float) -> float:
    """Return the largest Dist / (C_r √gap) of the drawn weights: at most 1 if the error bound holds."""
    roots = np.sqrt(numbers(scatter, "gap"))
    return float(np.max(numbers(scatter, "distance_to_best") / (constant * roots)))
