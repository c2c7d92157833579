"""The command `cap`: how the cap b and the number J of similar nodes change Bi-level's excess risk."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np
import pandas as pd

from fedkin.theory.bounds import Situation, corollary_2
from reproduction.theory.defaults import CAP_RUNS
from reproduction.theory.linear_regression import Federation, draw_sample, excess_risks
from reproduction.theory.tables import numbers, select, values


@dataclass(frozen=True)
class CapStudy:
    """One curve of risk against b for each J.

    Args:
        nodes: K.
        similar: The values of J.
        caps: How many values of b, from 1/K to 1, evenly in the logarithm; 1/J is always among them.
        offset: δ of the other nodes.
        features: d.
        valid: n_valid.
        train: n_train.
        runs: Federations drawn for each point.
        seed: Draws them.
    """

    nodes: int = 12
    similar: tuple[int, ...] = (2, 4, 8)
    caps: int = 9
    offset: float = 1.0
    features: int = 6
    valid: int = 100
    train: int = 50
    runs: int = CAP_RUNS
    seed: int = 0


def measure_cap(study: CapStudy, progress: Callable[[str], None]) -> pd.DataFrame:
    """Return one row per J and b: the mean excess risk and the weight on dissimilar nodes."""
    rows = []
    even = np.geomspace(1 / study.nodes, 1, study.caps).tolist()
    corners = [1 / similar for similar in study.similar]
    every = sorted(
        [*corners, *(cap for cap in even if min(np.abs(np.subtract(corners, cap))) > 1e-6)]
    )
    with jax.enable_x64(True):
        for number, similar in enumerate(study.similar):
            federation = Federation(
                similar, study.nodes - similar, study.features, study.offset, seed=study.seed
            )
            # The same federations for every cap.
            rng = np.random.default_rng([study.seed, number])
            sample = draw_sample(
                rng, federation, valid=study.valid, train=study.train, runs=study.runs
            )
            for cap in every:
                progress(f"J = {similar}, b = {cap:.3f}: {study.runs} federations")
                risks = excess_risks(sample, cap, similar)
                rows.append(
                    {
                        "similar": similar,
                        "cap": cap,
                        "excess_risk": float(risks.bilevel.mean()),
                        "standard_error": float(risks.bilevel.std(ddof=1)) / math.sqrt(study.runs),
                        "weight_on_others": float(risks.weights[:, similar:].sum(axis=1).mean()),
                        "effective_nodes": float((1 / (risks.weights**2).sum(axis=1)).mean()),
                        "local": float(risks.local.mean()),
                        "distance": federation.distance,
                        "runs": study.runs,
                    }
                )
    return pd.DataFrame(rows)


def cap_bounds(study: CapStudy, cells: pd.DataFrame) -> pd.DataFrame:
    """Return Corollary 2 and its first term for the cells of which it says something: bJ ≥ 1."""
    rows = []
    for cell in cells.to_dict("records"):
        similar, cap = int(cell["similar"]), float(cell["cap"])
        if cap < 1 / similar:
            continue
        situation = Situation(
            valid=study.valid,
            train=study.train,
            nodes=study.nodes,
            similar=similar,
            cap=cap,
            distance=float(cell["distance"]),
            covering=study.features,
        )
        rows.append(
            {
                "similar": similar,
                "cap": cap,
                "corollary_2": float(corollary_2(situation)),
                "sampling_term": float(corollary_2(situation.replace(distance=0.0))),
            }
        )
    return pd.DataFrame(rows)


@dataclass(frozen=True)
class BestCap:
    """The cap with the smallest measured excess risk for one J."""

    similar: int
    cap: float
    excess_risk: float
    standard_error: float
    at_smallest_cap: float
    without_cap: float


def best_caps(cells: pd.DataFrame) -> list[BestCap]:
    """Return the best measured cap for every J."""
    found = []
    for similar in values(cells, "similar"):
        curve = select(cells, similar=similar)
        risks = numbers(curve, "excess_risk")
        place = int(np.argmin(risks))
        found.append(
            BestCap(
                round(similar),
                float(numbers(curve, "cap")[place]),
                float(risks[place]),
                float(numbers(curve, "standard_error")[place]),
                float(risks[0]),
                float(risks[-1]),
            )
        )
    return found
