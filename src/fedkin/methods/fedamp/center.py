"""The center's part of FedAMP (Huang et al. 2021). Everybody trains with `descent_round`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedkin.federation.base import Cost, Federation
from fedkin.federation.center import Center
from fedkin.methods.base import Info
from fedkin.methods.descent.center import (
    Descent,
    DescentMethod,
    Participants,
    PersonalModels,
    mixed_rounds,
)
from fedkin.methods.descent.node import DESCENT_ROUND
from fedkin.methods.personalized import check_pull
from fedkin.methods.settings import positive, share
from fedkin.methods.step_size import SMOOTHNESS
from fedkin.types import Key, Vector


@dataclass(frozen=True, kw_only=True)
class FedAmp(DescentMethod):
    """Personal models that attract each other, the nearer the more. See also `TrainedMethod`.

    Args:
        attraction: The largest share of a model that may come from others, if all were equal; 1 if open.
            In the paper's terms it is α (m − 1) / σ for m participants.
        sigma: The squared distance σ at which the attraction has fallen to 1/e; if open, the mean squared
            distance between two models, in every synchronization.
        proximal: The strength λ of the pull toward the mixture of models; 0.1 if open.

    >>> FedAmp(attraction=0.5).attraction
    0.5
    """

    name: ClassVar[str] = "fedamp"
    title: ClassVar[str] = "FedAMP"
    color: ClassVar[str] = "#B7249A"
    dark_color: ClassVar[str | None] = "#DF9CD2"
    marker: ClassVar[str] = ">"
    dashes: ClassVar[tuple[float, ...]] = (4, 1, 1, 1)
    tasks = (DESCENT_ROUND, SMOOTHNESS)
    reveals_models: ClassVar[bool] = True
    tuning_grid: ClassVar[Mapping[str, Sequence[Any]]] = {
        "attraction": (0.5, 1.0),
        "proximal": (0.01, 0.1, 1.0),
    }

    attraction: float | None = share()
    sigma: float | None = positive()
    proximal: float | None = positive()

    def check(self, nodes: int) -> None:
        """Refuse a pull that is too strong for the step size."""
        if self.learning_rate is not None:
            check_pull(self.learning_rate, self.proximal or 0.1)

    def prepare(
        self, federation: Federation, center: Center, key: Key
    ) -> tuple["FedAmpAlgorithm", Cost]:
        """Choose step size and lengths."""
        descent, cost = self.choose_descent(federation, center, key, proximal=self.proximal or 0.1)
        return FedAmpAlgorithm(descent, self.attraction or 1.0, self.sigma), cost


@dataclass(frozen=True)
class FedAmpAlgorithm:
    r"""Everybody gets a mixture of all models, and trains from there, pulled toward it.

    .. math:: u_i = \sum_j \xi_{ij} x_j, \qquad
              x_i \approx \operatorname{argmin}_x F_i(x) + \frac{\lambda}{2} \|x - u_i\|^2

    Args:
        descent: How everybody trains; its pull is λ.
        attraction: The largest share of a model that may come from others.
        sigma: The squared distance σ; None for the mean one.
    """

    descent: Descent
    attraction: float = 1.0
    sigma: float | None = None

    def init(self, theta: Vector, nodes: int) -> PersonalModels:
        """Begin with the initial model for everybody."""
        return PersonalModels.begin(theta, nodes)

    def step(
        self, state: PersonalModels, key: Key, federation: Federation, center: Center
    ) -> tuple[PersonalModels, Info]:
        """Continue for as many synchronizations as the settings say."""
        everybody = Participants(federation, center)

        def weigh(models: np.ndarray) -> np.ndarray:
            return attention(
                models, everybody.present, attraction=self.attraction, sigma=self.sigma
            )

        models, info = mixed_rounds(everybody, state.of(everybody), key, self.descent, weigh)
        return state.after(models, self.descent.rounds), info


def attention(
    models: np.ndarray, present: np.ndarray, *, attraction: float, sigma: float | None
) -> np.ndarray:
    r"""Return :math:`\xi_{ij} = \alpha A'(\|x_i - x_j\|^2)`, and on the diagonal what is left of 1.

    With :math:`A'(t) = e^{-t/\sigma}/\sigma` and α = attraction · σ / (m − 1).
    """
    count = len(models)
    norms = np.sum(np.square(models, dtype=np.float64), axis=1)
    products = models.astype(np.float64) @ models.astype(np.float64).T
    squared = np.maximum(norms[:, None] + norms - 2 * products, 0)
    others = ~np.eye(count, dtype=bool) & present & present[:, None]
    if sigma is None:
        sigma = float(squared[others].mean()) if others.any() else 1.0
    near = np.exp(-squared / max(sigma, np.finfo(float).tiny))
    weights = np.where(others, attraction / max(count - 1, 1) * near, 0.0)
    return weights + np.diag(1 - weights.sum(axis=1))
