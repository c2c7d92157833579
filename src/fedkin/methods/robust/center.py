"""FedAvg with robust aggregation: median and trimmed mean (Yin et al. 2018), Krum (Blanchard et al. 2017).

Nodes train with `descent_round`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.errors import InputError
from fedkin.federation.base import Cost, Federation, Revealed
from fedkin.federation.center import Center
from fedkin.methods.base import Info
from fedkin.methods.descent.center import Descent, DescentMethod
from fedkin.methods.descent.node import DESCENT_ROUND
from fedkin.methods.local_svrg.training import TrainingState
from fedkin.methods.robust.rules import coordinate_median, krum, trimmed_mean
from fedkin.methods.settings import share
from fedkin.methods.step_size import SMOOTHNESS
from fedkin.types import Key, Vector

RATES = (0.05, 0.02, 0.01)


@dataclass(frozen=True, kw_only=True)
class RobustMethod(DescentMethod):
    """Nodes train one model, and their models are aggregated robustly. See `TrainedMethod`."""

    tasks = (DESCENT_ROUND, SMOOTHNESS)
    reveals_models: ClassVar[bool] = True

    def aggregation(self, descent: Descent) -> "RobustAlgorithm":
        """Return the algorithm, given how nodes train."""
        raise NotImplementedError

    def prepare(
        self, federation: Federation, center: Center, key: Key
    ) -> tuple["RobustAlgorithm", Cost]:
        """Choose step size and lengths."""
        descent, cost = self.choose_descent(federation, center, key)
        return self.aggregation(descent), cost


@dataclass(frozen=True)
class RobustAlgorithm:
    """All nodes train the model θ for a round; their models become the next θ.

    Args:
        descent: How nodes train.
    """

    descent: Descent

    def aggregate(self, models: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return one model made of the rows, and the weight of each row where there is such a thing."""
        raise NotImplementedError

    def init(self, theta: Vector, nodes: int) -> TrainingState:
        """Begin at the initial model."""
        return TrainingState(theta, 0)

    def step(
        self, state: TrainingState, key: Key, federation: Federation, center: Center
    ) -> tuple[TrainingState, Info]:
        """Continue for as many synchronizations as the settings say."""
        theta, cost, watch = state.theta, Cost(), self.descent.watch("the model")
        node_weights = None
        for number in range(self.descent.rounds):
            reply = federation.exchange(
                train=Revealed(
                    DESCENT_ROUND, self.descent.message(theta), steps=self.descent.period
                ),
                key=jax.random.fold_in(key, number),
            )
            cost += reply.cost
            models, losses = np.asarray(reply.train["point"]), np.asarray(reply.train["loss"])
            answered = np.isfinite(models).all(axis=1) & np.isfinite(losses)
            loss = float("nan")
            if answered.any():
                found, weights = self.aggregate(models[answered])
                theta, loss = jnp.asarray(found, theta.dtype), float(np.mean(losses[answered]))
                node_weights = None if weights is None else np.zeros(len(models))
                if node_weights is not None:
                    node_weights[answered] = weights
            watch.see(theta, loss)
        info = Info(
            theta,
            None if node_weights is None else jnp.asarray(node_weights, theta.dtype),
            cost,
            {"training_loss": watch.loss},
        )
        return TrainingState(theta, state.rounds + self.descent.rounds), info


@dataclass(frozen=True, kw_only=True)
class Median(RobustMethod):
    """Train one model; each of its coordinates is the median over the nodes. See `TrainedMethod`.

    >>> Median(period=5).period
    5
    """

    name: ClassVar[str] = "median"
    title: ClassVar[str] = "Median"
    color: ClassVar[str] = "#370C3C"
    dark_color: ClassVar[str | None] = "#B5C44A"
    marker: ClassVar[str] = "1"
    dashes: ClassVar[tuple[float, ...]] = (7, 1, 1, 1)
    tuning_grid: ClassVar[Mapping[str, Sequence[Any]]] = {
        "learning_rate": RATES,
        "period": (10, 20),
    }

    def aggregation(self, descent: Descent) -> "MedianAlgorithm":
        """See `RobustMethod`."""
        return MedianAlgorithm(descent)


@dataclass(frozen=True)
class MedianAlgorithm(RobustAlgorithm):
    """Each coordinate of the next model is the median of the nodes'."""

    def aggregate(self, models: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """See `RobustAlgorithm`."""
        return coordinate_median(models), None


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(RobustMethod):
    """Train one model; each of its coordinates is a mean without the extremes. See `TrainedMethod`.

    Args:
        trimmed_share: The share β of the nodes that is left out at either end; 0.2 if open.

    >>> TrimmedMean(trimmed_share=0.3).trimmed_share
    0.3
    """

    name: ClassVar[str] = "trimmed-mean"
    title: ClassVar[str] = "Trimmed mean"
    color: ClassVar[str] = "#211C04"
    dark_color: ClassVar[str | None] = "#D9A441"
    marker: ClassVar[str] = "2"
    dashes: ClassVar[tuple[float, ...]] = (4, 1, 4, 3)
    tuning_grid: ClassVar[Mapping[str, Sequence[Any]]] = {
        "learning_rate": RATES,
        "trimmed_share": (0.2, 0.4),
    }

    trimmed_share: float | None = share()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trimmed_share is not None and not self.trimmed_share < 0.5:
            raise InputError(
                f"trimmed_share must be below 0.5, not {self.trimmed_share:g}: that share of the nodes is "
                "left out at either end"
            )

    def aggregation(self, descent: Descent) -> "TrimmedMeanAlgorithm":
        """See `RobustMethod`."""
        return TrimmedMeanAlgorithm(descent, self.trimmed_share or 0.2)


@dataclass(frozen=True)
class TrimmedMeanAlgorithm(RobustAlgorithm):
    """Each coordinate of the next model is the mean of the nodes' without the smallest and the largest.

    Args:
        descent: How nodes train.
        trimmed_share: The share of the nodes left out at either end.
    """

    trimmed_share: float = 0.2

    def aggregate(self, models: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """See `RobustAlgorithm`."""
        return trimmed_mean(models, self.trimmed_share), None


@dataclass(frozen=True, kw_only=True)
class Krum(RobustMethod):
    """Train one model; the next one is that of the node nearest to the others. See `TrainedMethod`.

    Args:
        bad_share: The share of the nodes that may be bad, f/m; 0.3 if open. Krum's promises need
            less than a half.

    >>> Krum(bad_share=0.4).bad_share
    0.4
    """

    name: ClassVar[str] = "krum"
    title: ClassVar[str] = "Krum"
    color: ClassVar[str] = "#091A15"
    dark_color: ClassVar[str | None] = "#E07BAA"
    marker: ClassVar[str] = "+"
    dashes: ClassVar[tuple[float, ...]] = (2, 1, 1, 1)
    tuning_grid: ClassVar[Mapping[str, Sequence[Any]]] = {
        "learning_rate": RATES,
        "bad_share": (0.2, 0.4),
    }

    bad_share: float | None = share()

    def aggregation(self, descent: Descent) -> "KrumAlgorithm":
        """See `RobustMethod`."""
        return KrumAlgorithm(descent, self.bad_share or 0.3)


@dataclass(frozen=True)
class KrumAlgorithm(RobustAlgorithm):
    """The next model is that of one node; its weight is 1.

    Args:
        descent: How nodes train.
        bad_share: The share of the nodes that may be bad.
    """

    bad_share: float = 0.3

    def aggregate(self, models: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """See `RobustAlgorithm`."""
        chosen = krum(models, int(self.bad_share * len(models)))
        return models[chosen], np.eye(len(models))[chosen]
