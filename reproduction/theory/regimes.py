"""The command `regimes`: who wins, as the center's points, the nodes' points and the distance G vary?

For every cell of two grids, n_valid × G and n_train × G, the excess risks of Bi-level, local training and
equal weights, each mean over many federations; and the borders that the paper's bounds predict.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import jax
import numpy as np
import pandas as pd

from fedkin.theory.bounds import (
    Real,
    Situation,
    border_with_local_training,
    corollaries_apply,
)
from reproduction.theory.defaults import REGIME_RUNS
from reproduction.theory.linear_regression import Federation, draw_sample, excess_risks
from reproduction.theory.tables import numbers, select, values

RIVALS = ("local", "equal")
METHODS = ("bilevel", *RIVALS)
IDEAL = "similar"
"""Equal weights on the similar nodes alone: no method, since nobody knows them, but the best of W*."""
AXES = ("valid", "train")

REGRESSION = Federation(similar=3, others=5, features=4)


@dataclass(frozen=True)
class RegimeStudy:
    """The two grids.

    Args:
        federation: All but the offset, which the grid varies.
        offsets: δ, the distances of the other nodes' θ_k; each has its G.
        valid: The n_valid of the first grid.
        train: The n_train of the second grid.
        fixed_train: n_train of the first grid.
        fixed_valid: n_valid of the second grid.
        cap: b.
        runs: Federations drawn for each cell.
        seed: Draws them.
    """

    federation: Federation = REGRESSION
    offsets: tuple[float, ...] = (0.004, 0.008, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
    valid: tuple[int, ...] = (10, 20, 50, 100, 200, 500, 1000, 2000)
    train: tuple[int, ...] = (10, 20, 50, 100, 200, 500, 1000, 2000)
    fixed_train: int = 100
    fixed_valid: int = 100
    cap: float = 1.0
    runs: int = REGIME_RUNS
    seed: int = 0

    def cells(self) -> Iterator[tuple[str, float, int, int]]:
        """Yield the axis that varies, δ, n_valid and n_train of every cell."""
        for offset in self.offsets:
            for valid in self.valid:
                yield "valid", offset, valid, self.fixed_train
            for train in self.train:
                yield "train", offset, self.fixed_valid, train

    def situation(self, valid: Real, train: Real) -> Situation:
        """Return what the bounds need to know, all but G."""
        return Situation(
            valid=valid,
            train=train,
            nodes=self.federation.nodes,
            similar=self.federation.similar,
            cap=self.cap,
            covering=self.federation.features,
        )


def measure_regimes(study: RegimeStudy, progress: Callable[[str], None]) -> pd.DataFrame:
    """Return one row per cell: the mean excess risk of each method, and which of them wins."""
    rows = []
    cells = list(study.cells())
    with jax.enable_x64(True):
        for number, (axis, offset, valid, train) in enumerate(cells):
            progress(f"cell {number + 1} of {len(cells)}: {study.runs} federations")
            federation = replace(study.federation, offset=offset)
            rng = np.random.default_rng([study.seed, number])
            sample = draw_sample(rng, federation, valid=valid, train=train, runs=study.runs)
            risks = excess_risks(sample, study.cap, federation.similar)
            rows.append(
                {
                    "axis": axis,
                    "offset": offset,
                    "distance": federation.distance,
                    "valid": valid,
                    "train": train,
                    "runs": study.runs,
                    "largest_parameter": risks.largest_parameter,
                    "corollaries_apply": bool(corollaries_apply(study.situation(valid, train))),
                }
                | _summary({name: getattr(risks, name) for name in (*METHODS, IDEAL)})
            )
    return pd.DataFrame(rows)


def _summary(risks: dict[str, np.ndarray]) -> dict[str, float | str | bool]:
    """Return means, standard errors, the winner, and whether it wins beyond doubt.

    All methods see the same data, so two are compared by their difference, run by run.
    """
    runs = math.sqrt(len(risks["bilevel"]))
    found: dict[str, float | str | bool] = {}
    for name, own in risks.items():
        found[name] = float(own.mean())
        found[f"{name}_standard_error"] = float(own.std(ddof=1)) / runs
    for name in RIVALS:
        difference = risks[name] - risks["bilevel"]
        found[f"gain_over_{name}"] = float(difference.mean())
        found[f"gain_over_{name}_standard_error"] = float(difference.std(ddof=1)) / runs
    difference = risks["equal"] - risks[IDEAL]
    found[f"gain_of_{IDEAL}_over_equal"] = float(difference.mean())
    found[f"gain_of_{IDEAL}_over_equal_standard_error"] = float(difference.std(ddof=1)) / runs
    first, second = sorted(METHODS, key=lambda name: float(risks[name].mean()))[:2]
    lead = risks[second] - risks[first]
    found["winner"] = first
    found["certain"] = bool(lead.mean() > 2 * lead.std(ddof=1) / runs)
    return found


def cells_won(cells: pd.DataFrame) -> dict[str, dict[str, int]]:
    """Count the cells that each method wins, on each map."""
    return {
        axis: {way: len(select(cells, axis=axis, winner=way)) for way in METHODS} for axis in AXES
    }


@dataclass(frozen=True)
class SmallestDistance:
    """What Bi-level achieves against local training where the nodes differ least."""

    distance: float
    cells: int
    beats_local: int


def at_smallest_distance(cells: pd.DataFrame) -> SmallestDistance:
    """Count the cells at the smallest G in which Bi-level beats local training."""
    smallest = values(cells, "distance")[0]
    there = select(cells, distance=smallest)
    beaten = int(np.sum(numbers(there, "gain_over_local") > 0))
    return SmallestDistance(smallest, len(there), beaten)


def cells_lost_to_equal(cells: pd.DataFrame, way: str) -> int:
    """Count the cells in which equal weights have a smaller excess risk than this way of learning."""
    return int(np.sum(numbers(cells, "equal") < numbers(cells, way)))


def predicted_border(study: RegimeStudy, axis: str, sizes: np.ndarray) -> np.ndarray:
    """Return the G at which Corollary 1 and local training's rate cross, constants being 1."""
    situation = study.situation(
        sizes if axis == "valid" else study.fixed_valid,
        sizes if axis == "train" else study.fixed_train,
    )
    return np.asarray(border_with_local_training(situation))


@dataclass(frozen=True)
class Border:
    """Where two ways of learning change places, for one size of the data sets."""

    size: int
    distance: float | None
    always: str | None


def measured_border(
    cells: pd.DataFrame, axis: str, rival: str, way: str = "bilevel"
) -> list[Border]:
    """Return for every size the G at which Bi-level (or another way) and a rival change places.

    Interpolated between neighboring G where the logarithm of the ratio of risks changes its sign. Nothing
    where it does not: `always` then says who is ahead at every G.
    """
    rows = []
    chosen = select(cells, axis=axis)
    for size in values(chosen, axis):
        column = select(chosen, **{axis: size}).sort_values("distance")
        logs = np.log(numbers(column, rival) / numbers(column, way))
        distances = np.log(numbers(column, "distance"))
        changes = np.nonzero(np.sign(logs[:-1]) != np.sign(logs[1:]))[0]
        crossing = None
        if len(changes):
            # The last change: at small G the two may be as good as each other.
            at = changes[-1]
            share = logs[at] / (logs[at] - logs[at + 1])
            crossing = math.exp(distances[at] + share * (distances[at + 1] - distances[at]))
        always = None if len(changes) else (way if logs[0] > 0 else rival)
        rows.append(Border(int(size), crossing, always))
    return rows
