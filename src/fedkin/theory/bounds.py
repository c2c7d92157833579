r"""The paper's bounds on the excess risk, as functions of what they depend on.

All of them hold with high probability and up to unknown universal constants. The constants are parameters
with the default 1, so bounds can be compared in shape and order only, not in value. Arguments may be
arrays, which broadcast. `Situation` names them.

Theorem 2 and everything built on it need Assumption 2': there are J nodes like the center, and the cap
lets them carry all the weight, bJ ≥ 1. Otherwise the set W* of best weights is empty and an error is raised.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fedkin.errors import InputError

Real = Any
"""A number or an array of numbers."""

ROUNDING = 1e-9
"""1/K and 1/J are rarely binary fractions, so a cap may be too small by this fraction."""


@dataclass(frozen=True)
class Situation:
    """Everything that the bounds depend on.

    Args:
        valid: n_valid, the number of the center's points.
        train: n_train, the number of each node's points.
        nodes: K, the number of nodes.
        similar: J, the number of nodes with the center's distribution.
        cap: b, the largest weight of a node.
        distance: G (`fedkin.theory.distance`).
        covering: ν_H, the exponent of the covering numbers; roughly the number of parameters.
        failure: δ; the bounds hold with probability 1 − δ or 1 − 3δ.
        lipschitz: ℓ_0.
        strong_convexity: μ.
        error_bound_power: r of the error-bound condition (Assumption 3); 2 in linear regression.

    >>> near = Situation(valid=100, train=10_000, nodes=10, similar=5, cap=0.2, distance=0.01)
    >>> bool(corollary_1(near) < corollary_1(near.replace(distance=1.0)))
    True
    """

    valid: Real
    train: Real
    nodes: Real
    similar: Real = 1
    cap: Real = 1.0
    distance: Real = 0.0
    covering: Real = 1.0
    failure: Real = 0.05
    lipschitz: Real = 1.0
    strong_convexity: Real = 1.0
    error_bound_power: Real = 2.0

    def __post_init__(self) -> None:
        def require(condition: Any, message: str) -> None:
            if not np.all(condition):  # NaN satisfies no condition
                raise InputError(message)

        require(np.asarray(self.valid) > 0, "valid (n_valid) must be above 0")
        require(np.asarray(self.train) > 0, "train (n_train) must be above 0")
        require(np.asarray(self.similar) >= 1, "similar (J) must be at least 1")
        require(np.asarray(self.similar) <= self.nodes, "similar (J) cannot exceed nodes (K)")
        cap = np.asarray(self.cap)
        require(
            (cap * self.nodes >= 1 - ROUNDING) & (cap <= 1), "cap (b) must be between 1/K and 1"
        )
        require(np.asarray(self.distance) >= 0, "distance (G) must be at least 0")
        require(np.asarray(self.covering) >= 0, "covering (ν_H) must be at least 0")
        failure = np.asarray(self.failure)
        require((failure > 0) & (failure < 1), "failure (δ) must be between 0 and 1")
        require(np.asarray(self.lipschitz) >= 0, "lipschitz (ℓ_0) must be at least 0")
        require(np.asarray(self.strong_convexity) > 0, "strong_convexity (μ) must be above 0")
        require(np.asarray(self.error_bound_power) >= 1, "error_bound_power (r) must be at least 1")

    def replace(self, **changes: Real) -> "Situation":
        """Return the same situation with some arguments replaced."""
        return replace(self, **changes)

    def require_best_weights(self) -> None:
        """Refuse bJ < 1: then the cap forbids all weights on the similar nodes alone."""
        if not np.all(np.asarray(self.cap) * self.similar >= 1 - ROUNDING):
            raise InputError(
                "Assumption 2' needs cap·similar (bJ) of at least 1; otherwise the similar nodes cannot "
                "carry all the weight and this bound does not hold: choose a larger cap or similar (J)"
            )


def theorem_1(situation: Situation, *, constant: float = 1.0) -> Real:
    r"""Bound Bi-level's excess risk without assumptions on the other nodes (`eq:Theorem1bound`).

    .. math:: C_g\sqrt{\frac{\nu+\log(1/\delta)}{n_{valid}}}
              + C_g\frac{\ell_0}{\sqrt\mu}\Big(\frac{Kb^2(\nu+K+\log(1/\delta))}{n_{train}}\Big)^{1/4}
    """
    validation, training = _outer_terms(situation)
    return constant * (np.sqrt(validation) + _steepness(situation) * training**0.25)


def weight_distance(situation: Situation, *, constant: float = 1.0) -> Real:
    r"""Bound ε(n_valid, n_train), the distance of the learned weights to W* (`eq:defvarepsilon`).

    .. math:: C_w\Big(\frac{\nu+\log(1/\delta)}{n_{valid}}\Big)^{\frac1{2r}}
              + C_w\Big(\frac{\ell_0}{\sqrt\mu}\Big)^{\frac1r}
                \Big(\frac{Kb^2(\nu+K+\log(1/\delta))}{n_{train}}\Big)^{\frac1{4r}}

    The paper prints ℓ_0/√μ without the power 1/r that its proof gives. That is too small if ℓ_0 < √μ.
    """
    situation.require_best_weights()
    validation, training = _outer_terms(situation)
    power = situation.error_bound_power
    first = validation ** (1 / (2 * power))
    second = _steepness(situation) ** (1 / power) * training ** (1 / (4 * power))
    return constant * (first + second)


def effective_points(situation: Situation, weight_error: Real) -> Real:
    """Return N_ε = n_train / (b²J + ε²(K − J)) (`eq:Nepsilon`)."""
    situation.require_best_weights()
    others = situation.nodes - situation.similar
    return situation.train / (situation.cap**2 * situation.similar + weight_error**2 * others)


class Theorem2Terms(NamedTuple):
    """The three terms of `eq:Theorem2bound`."""

    sampling: Real
    """From the finite training sets of the similar nodes."""
    choice: Real
    """From the choice of the other nodes' weights."""
    dissimilarity: Real
    """2εG: the weight left on the other nodes, times how different they are."""

    @property
    def total(self) -> Real:
        """The bound."""
        return self.sampling + self.choice + self.dissimilarity


def theorem_2(
    situation: Situation, *, constant: float = 1.0, weight_constant: float = 1.0
) -> Theorem2Terms:
    r"""Bound Bi-level's excess risk if J nodes are like the center (`eq:Theorem2bound`).

    .. math:: C_e\sqrt{\frac{\nu+J+\log(1/\delta)}{N_\varepsilon}}
              + C_e\frac{\varepsilon(K-J)}{b\sqrt{N_\varepsilon}} + 2\varepsilon G

    Args:
        situation: What the bound depends on.
        constant: C_e.
        weight_constant: C_w, in ε.
    """
    error = weight_distance(situation, constant=weight_constant)
    points = effective_points(situation, error)
    complexity = situation.covering + situation.similar + _log_failure(situation)
    others = situation.nodes - situation.similar
    return Theorem2Terms(
        constant * np.sqrt(complexity / points),
        constant * error * others / (situation.cap * np.sqrt(points)),
        2 * error * situation.distance,
    )


def corollary_1(situation: Situation, *, constant: float = 1.0) -> Real:
    r"""Bound the excess risk by n_valid, n_train and G alone (`thm:maincorollary`).

    .. math:: C\big[n_{train}^{-1/2} + G\,(n_{valid}^{-1/(2r)} + n_{train}^{-1/(4r)})\big]
    """
    return constant * (situation.train**-0.5 + situation.distance * _weight_order(situation))


def corollary_2(situation: Situation, *, constant: float = 1.0) -> Real:
    r"""Bound the excess risk by n_valid, n_train, G and the cap (`eq:Theorem2boundb2`).

    .. math:: C\sqrt{\frac{Jb^2(\nu+J+\log(1/\delta))}{n_{train}}}
              + C\,G\Big(\frac{\nu+\log(1/\delta)}{n_{valid}}\Big)^{\frac1{2r}}
              + C\,G\Big(\frac{Kb^2(\nu+K+\log(1/\delta))}{n_{train}}\Big)^{\frac1{4r}}
    """
    situation.require_best_weights()
    validation, training = _outer_terms(situation)
    power = situation.error_bound_power
    complexity = situation.covering + situation.similar + _log_failure(situation)
    sampling = np.sqrt(situation.similar * situation.cap**2 * complexity / situation.train)
    weights = validation ** (1 / (2 * power)) + training ** (1 / (4 * power))
    return constant * (sampling + situation.distance * weights)


def corollaries_apply(situation: Situation, *, weight_constant: float = 1.0) -> Any:
    """Tell whether ε ≤ b√J/(K − J), which both corollaries assume."""
    error = weight_distance(situation, constant=weight_constant)
    others = situation.nodes - situation.similar
    return error * others <= situation.cap * np.sqrt(situation.similar)


def local_training(situation: Situation, *, constant: float = 1.0) -> Real:
    r"""Bound the excess risk of training on the center's data alone (`thm:boundoflocaltrain`).

    .. math:: 2C_0\sqrt{(\nu+\log(1/\delta))/n_{valid}}
    """
    validation, _ = _outer_terms(situation)
    return 2 * constant * np.sqrt(validation)


def equal_weights(situation: Situation, *, constant: float = 1.0) -> Real:
    r"""Bound the excess risk of equal weights (`thm:boundofequalweigh`).

    .. math:: 2C_a\sqrt{\frac{\nu+K+\log(1/\delta)}{Kn_{train}}} + \frac{2\sqrt{K-J}}{K}G
    """
    complexity = situation.covering + situation.nodes + _log_failure(situation)
    sampling = np.sqrt(complexity / (situation.nodes * situation.train))
    others = situation.nodes - situation.similar
    return 2 * constant * sampling + 2 * np.sqrt(others) / situation.nodes * situation.distance


def border_with_local_training(situation: Situation) -> Real:
    r"""Return the G below which Corollary 1 is smaller than local training's rate n_valid^(−1/2).

    .. math:: G^* = \frac{n_{valid}^{-1/2} - n_{train}^{-1/2}}
                         {n_{valid}^{-1/(2r)} + n_{train}^{-1/(4r)}}

    It is zero if n_train ≤ n_valid: then no G is small enough. For n_train → ∞ it is
    :math:`n_{valid}^{-(1/2 - 1/(2r))}`, the paper's condition.
    """
    gain = situation.valid**-0.5 - situation.train**-0.5
    return np.maximum(gain, 0) / _weight_order(situation)


def border_with_equal_weights(situation: Situation) -> Real:
    r"""Return the G above which Bi-level's bound is smaller than that of equal weights, with constants 1.

    Both proofs bound twice a uniform deviation and twice the bias. With the same constant in both,

    .. math:: 2\sqrt{\frac{Jb^2(\nu+J+\log(1/\delta))}{n_{train}}} + 2\varepsilon G
              \quad\text{against}\quad
              2\sqrt{\frac{\nu+K+\log(1/\delta)}{Kn_{train}}} + \frac{2\sqrt{K-J}}{K} G .

    Equal weights use the data of all K nodes: because b ≥ 1/J and J ≤ K, their first term is never
    larger. Bi-level has the smaller slope in G if ε < √(K − J)/K, which needs enough data. Otherwise the
    border is infinite: no G is large enough.
    """
    sampling = corollary_2(situation.replace(distance=0.0))
    others = np.sqrt(np.asarray(situation.nodes - situation.similar, dtype=float))
    equal_slope = 2 * others / situation.nodes
    equal_sampling = equal_weights(situation.replace(distance=0.0))
    gain = np.asarray(equal_slope - 2 * weight_distance(situation))
    needed = np.maximum(2 * sampling - equal_sampling, 0)  # negative only by rounding
    return np.where(gain > 0, needed / np.where(gain > 0, gain, 1), np.inf)[()]


def _weight_order(situation: Situation) -> Real:
    """Return n_valid^(−1/2r) + n_train^(−1/4r), the order of ε."""
    situation.require_best_weights()
    power = situation.error_bound_power
    return situation.valid ** (-1 / (2 * power)) + situation.train ** (-1 / (4 * power))


def _outer_terms(situation: Situation) -> tuple[Real, Real]:
    """Return (ν + log 1/δ)/n_valid and Kb²(ν + K + log 1/δ)/n_train."""
    complexity = situation.covering + _log_failure(situation)
    validation = complexity / np.asarray(situation.valid, dtype=float)
    training = situation.nodes * situation.cap**2 * (complexity + situation.nodes) / situation.train
    return validation[()], training


def _steepness(situation: Situation) -> Real:
    return situation.lipschitz / np.sqrt(situation.strong_convexity)


def _log_failure(situation: Situation) -> Real:
    return np.log(1 / np.asarray(situation.failure))[()]
