r"""The parameters of Algorithms 1-3 that the paper's theory requires, and what it promises for them.

The paper does not write out its constants C_1 … C_4 (`thm:errorboundofgradient`). They follow from
`eq:errorh1` and `eq:errorh2`: with

.. math:: B = 2K\Big[\ell_0^2 + \Big(\frac{2\ell_0\ell_1}{\mu} + \frac{\ell_2\ell_0^2}{\mu^2}\Big)^2\Big]

(the factor 2 comes from :math:`\|a+b\|^2 \le 2\|a\|^2 + 2\|b\|^2`), and because γ ≤ γ_0 ≤ 3/(80 ℓ_1),

.. math:: C_1 &= \tfrac{2B}{\mu}\max\{R^2, \ell_0^2/\mu^2\}, &
          C_2 &= 4 + \tfrac{32}{3q}\big(\tfrac{3}{80}\big)^2, \\
          C_3 &= 30e\,\tfrac{2+q}{q}\big(\tfrac{3}{80}\big)^3, &
          C_4 &= \tfrac{45e}{\mu}\, B\, \ell_1 \big(\tfrac{\ell_1}{\mu}+1\big)^2 \ell_0^2

bound the mean squared error of the hypergradient by

.. math:: \frac{C_1}{\gamma}(1-\gamma\mu)^{T+1}\big(C_2 + C_3(\tau-1)\big) + C_4\gamma^2(\tau-1)^2 .

`docs/theory.md` lists where this differs from what the paper prints, and why.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from fedkin.errors import InputError
from fedkin.numerics.simplex import check_cap
from fedkin.theory.constants import Constants

OuterProblem = Literal["convex", "non-convex"]
"""Whether F is convex (Algorithm 2, ε-optimal) or not (Algorithm 3, ε-stationary)."""

LARGEST_STEP = 3 / 80
"""An upper bound of γ_0 ℓ_1."""

LONG_SUM = 10_000
"""In longer sums, the terms beyond this number are bounded by an integral."""

MOST_ITERATIONS = 10**12
"""More outer iterations than this are treated as out of reach."""


def outer_smoothness(constants: Constants, nodes: int) -> float:
    r"""Return ℓ_F, the Lipschitz constant of ∇F (`eq:LF`, corrected).

    :math:`\nabla_k F = -\nabla L_k^\top H^{-1} \nabla L_0` changes with θ by at most
    :math:`2\ell_0\ell_1/\mu + \ell_2\ell_0^2/\mu^2` for each k, hence the whole vector by √K times that,
    and θ(w) changes by at most :math:`\sqrt K \ell_0/\mu`: so the first term has a factor K. The paper
    prints √K; `tests/theory` has a federation whose ∇F changes faster than that allows.
    """
    slope = _hypergradient_slope(constants)
    l0, l1, mu = constants.lipschitz, constants.smoothness, constants.strong_convexity
    return nodes * slope * l0 / mu + nodes * l1 * l0**2 / mu**2


def largest_learning_rate(
    smoothness: float, strong_convexity: float, *, period: int, refresh_probability: float
) -> float:
    """Return γ_0 (`eq:gamma0`), the largest step size that Local-SVRG's guarantee allows.

    >>> largest_learning_rate(1.0, 0.1, period=1, refresh_probability=0.5)
    0.0375
    """
    _check(period, refresh_probability)
    bounds = [LARGEST_STEP / smoothness, refresh_probability / (4 * strong_convexity)]
    if period > 1:
        away = period - 1
        if refresh_probability == 1:
            raise InputError(
                "with local steps (period above 1) the theory needs refresh_probability (q) below 1"
            )
        inner = 6 * away + 8 + 16 / (1 - refresh_probability)
        bounds.append(1 / (smoothness * math.sqrt(5 * math.e * away * inner)))
    return min(bounds)


def local_svrg_bound(
    *,
    smoothness: float,
    strong_convexity: float,
    learning_rate: float,
    period: int,
    refresh_probability: float,
    steps: int,
    start_distance: float,
    heterogeneity: float,
) -> float:
    r"""Return the bound of `thm:localsvrg_complexity` on E f(x̄) − f(x*).

    Args:
        smoothness: ℓ_1.
        strong_convexity: μ.
        learning_rate: γ, at most γ_0.
        period: τ.
        refresh_probability: q.
        steps: T.
        start_distance: ‖x⁰ − x*‖.
        heterogeneity: Σ_k w_k ‖∇f_k(x*)‖².
    """
    largest = largest_learning_rate(
        smoothness, strong_convexity, period=period, refresh_probability=refresh_probability
    )
    if not 0 < learning_rate <= largest * (1 + 1e-9):
        raise InputError(
            f"the theory does not cover the learning rate {learning_rate:g}: it must be above 0 and "
            f"at most γ_0 = {largest:g}"
        )
    q, step, away = refresh_probability, learning_rate * smoothness, period - 1
    factor = 4 + 32 * step**2 / (3 * q) + 30 * math.e * step**3 * away * (2 + q) / q
    decay = _decay(learning_rate, strong_convexity, steps)
    drift = 45 * math.e / 2 * smoothness * learning_rate**2 * away**2 * heterogeneity
    return decay * factor * start_distance**2 / learning_rate + drift


@dataclass(frozen=True)
class ErrorConstants:
    """C_1 … C_4 of `thm:errorboundofgradient`; the module's docstring derives them."""

    c1: float
    c2: float
    c3: float
    c4: float

    def squared_error(
        self, strong_convexity: float, learning_rate: float, period: int, steps: float
    ) -> float:
        """Bound E‖∇F − its approximation‖² (`eq:lemmaineq1`)."""
        decay = _decay(learning_rate, strong_convexity, steps)
        away = period - 1
        training = self.c1 / learning_rate * decay * (self.c2 + self.c3 * away)
        return training + self.c4 * learning_rate**2 * away**2

    def combined(self, period: int) -> float:
        """Return A_1 + A_2 (τ − 1) + A_3 (τ − 1)², with A_3 = C_4 (the paper has C_1 C_4, a mistake)."""
        away = period - 1
        return self.c1 * (self.c2 + self.c3 * away) + self.c4 * away**2


def error_constants(
    constants: Constants, nodes: int, *, refresh_probability: float
) -> ErrorConstants:
    """Return C_1 … C_4."""
    l0, l1, mu = constants.lipschitz, constants.smoothness, constants.strong_convexity
    q = refresh_probability
    both = 2 * nodes * (l0**2 + _hypergradient_slope(constants) ** 2)
    return ErrorConstants(
        c1=2 * both / mu * max(constants.radius**2, (l0 / mu) ** 2),
        c2=4 + 32 / (3 * q) * LARGEST_STEP**2,
        c3=30 * math.e * (2 + q) / q * LARGEST_STEP**3,
        c4=45 * math.e / mu * both * l1 * (l1 / mu + 1) ** 2 * l0**2,
    )


@dataclass(frozen=True)
class InnerPlan:
    """How Local-SVRG runs in one outer iteration, for both θ and h."""

    learning_rate: float
    """γ."""
    rounds: int
    """The number of synchronizations: T_s/τ, rounded up."""


@dataclass(frozen=True)
class Schedule:
    """The theory's parameters for one federation (`thm:complexityfedbl`, `thm:complexityfedbl_nc`).

    Args:
        constants: ℓ_0, ℓ_1, ℓ_2, μ and R.
        nodes: K.
        cap: b.
        outer_problem: Whether F is convex.
        period: τ.
        refresh_probability: q.
        error_scale: σ. In outer iteration s the hypergradient's root mean squared error stays below
            σ/(s+1)², or σ/(s+1) for a non-convex F. The paper's 1 is a choice of units; another value
            leaves the rates unchanged.
        known_outer_smoothness: ℓ_F, if it is known to be smaller than what follows from the constants.

    >>> constants = Constants(1.0, 1.0, 0.0, strong_convexity=0.5, radius=1.0)
    >>> schedule = Schedule(constants, nodes=4, cap=0.5)
    >>> round(schedule.outer_learning_rate, 6), schedule.inner(0).rounds
    (0.006944, 661)
    """

    constants: Constants
    nodes: int
    cap: float
    outer_problem: OuterProblem = "convex"
    period: int = 1
    refresh_probability: float = 0.1
    error_scale: float = 1.0
    known_outer_smoothness: float | None = None

    def __post_init__(self) -> None:
        _check(self.period, self.refresh_probability)
        if self.outer_problem not in get_args(OuterProblem):
            names = " or ".join(repr(name) for name in get_args(OuterProblem))
            raise InputError(f"outer_problem must be {names}, not {self.outer_problem!r}")
        if self.nodes < 1:
            raise InputError(f"nodes must be a whole number of at least 1, not {self.nodes!r}")
        check_cap(self.cap, self.nodes)
        _check_positive("error_scale", self.error_scale)
        if self.known_outer_smoothness is not None:
            _check_positive("known_outer_smoothness", self.known_outer_smoothness)

    @property
    def largest_learning_rate(self) -> float:
        """γ_0."""
        return largest_learning_rate(
            self.constants.smoothness,
            self.constants.strong_convexity,
            period=self.period,
            refresh_probability=self.refresh_probability,
        )

    @property
    def outer_learning_rate(self) -> float:
        """η = 1/(3 ℓ_F)."""
        smoothness = self.known_outer_smoothness
        if smoothness is None:
            smoothness = outer_smoothness(self.constants, self.nodes)
        return 1 / (3 * smoothness)

    @property
    def error_constants(self) -> ErrorConstants:
        """C_1 … C_4."""
        return error_constants(
            self.constants, self.nodes, refresh_probability=self.refresh_probability
        )

    def allowed_error(self, iteration: int) -> float:
        """Return the largest allowed root mean squared error of the hypergradient in outer iteration s."""
        power = 2 if self.outer_problem == "convex" else 1
        return self.error_scale / (iteration + 1) ** power

    def inner(self, iteration: int) -> InnerPlan:
        """Return γ and T_s of outer iteration s = 0, 1, …"""
        gamma, steps = self.learning_rate_and_steps(iteration)
        return InnerPlan(gamma, max(1, math.ceil(steps / self.period)))

    def learning_rate_and_steps(self, iteration: int) -> tuple[float, float]:
        """Return γ and T_s before rounding; a negative T_s means that there is nothing to do."""
        mu, combined = self.constants.strong_convexity, self.error_constants.combined(self.period)
        gamma, allowed = self.largest_learning_rate, self.allowed_error(iteration)
        if self.period == 1:
            return gamma, math.log(combined / (gamma * allowed**2)) / (gamma * mu)
        inverse = max(1 / gamma, math.sqrt(combined) / allowed)  # M_s
        return 1 / inverse, inverse * math.log(inverse**3) / mu

    def promised(self, iterations: int, initial_gap: float | None = None) -> float:
        r"""Return the ε that the theory promises after S outer iterations, in expectation.

        Convex F: a bound on :math:`F(w_{ag}) - F(\hat w)`. Telescoping the inequality in the paper's
        proof gives (docs/theory.md has the derivation):

        .. math:: \frac{2}{S(S+1)}\Big[\frac{2}{\eta}\|\hat w-w^0\|^2 + D\sigma H_S
                  + \frac{\eta\sigma^2}{4}\sum_{s<S}\frac{s+2}{(s+1)^3}\Big]

        where D is the diameter of the capped simplex, H_S the harmonic number, and w⁰ equal weights.

        Non-convex F: a bound on the root mean square of the stationarity measure
        :math:`\|w - P(w-\eta\nabla F(w))\|/\eta` at a random iterate:

        .. math:: \sqrt{\frac{4}{\eta S}\big[F(w^0)-F(\hat w)\big] + \frac{4D\sigma}{\eta S} H_S
                  + \frac{2\sigma^2}{S}\sum_{s<S}(s+1)^{-2}}

        Args:
            iterations: S.
            initial_gap: F(w⁰) − F(ŵ) for a non-convex F; by default ℓ_0 times the largest distance of
                two models, 2R.
        """
        eta, scale = self.outer_learning_rate, self.error_scale
        diameter = capped_simplex_diameter(self.nodes, self.cap)
        total = iterations * (iterations + 1) / 2
        if self.outer_problem == "convex":
            farthest = farthest_from_equal(self.nodes, self.cap)
            tail = _power_sum(iterations, 2) + _power_sum(iterations, 3)
            error = diameter * scale * _power_sum(iterations, 1) + eta * scale**2 / 4 * tail
            return (2 / eta * farthest**2 + error) / total
        if initial_gap is None:
            initial_gap = 2 * self.constants.radius * self.constants.lipschitz
        linear = 4 * (initial_gap + diameter * scale * _power_sum(iterations, 1)) / eta
        return math.sqrt((linear + 2 * scale**2 * _power_sum(iterations, 2)) / iterations)

    def iterations(self, epsilon: float, initial_gap: float | None = None) -> int:
        """Return the smallest S for which the theory promises ε."""
        _check_positive("epsilon", epsilon)
        enough = 1
        while self.promised(enough, initial_gap) > epsilon:
            enough *= 2
            if enough > MOST_ITERATIONS:
                raise InputError(f"epsilon={epsilon:g} is out of reach: choose a larger one")
        low = enough // 2
        while enough - low > 1:
            middle = (low + enough) // 2
            if self.promised(middle, initial_gap) <= epsilon:
                enough = middle
            else:
                low = middle
        return enough

    def rounds(self, iterations: int) -> float:
        """Return the synchronizations of Local-SVRG in S outer iterations, with two solves in each."""
        return 2.0 * _sum_of(lambda s: self.inner(s).rounds, iterations)


def capped_simplex_diameter(nodes: int, cap: float) -> float:
    """Bound the distance of two points of Δ(b): ‖w − v‖² ≤ ‖w‖² + ‖v‖² for weights that are not negative."""
    return min(math.sqrt(2 * _largest_squared_norm(cap)), 2 * farthest_from_equal(nodes, cap))


def farthest_from_equal(nodes: int, cap: float) -> float:
    """Return the largest distance between a point of Δ(b) and equal weights."""
    return math.sqrt(max(_largest_squared_norm(cap) - 1 / nodes, 0.0))


def _largest_squared_norm(cap: float) -> float:
    """Return max ‖w‖² on Δ(b): as many weights as possible at the cap, and one with the rest."""
    full = math.floor(1 / cap + 1e-9)
    return full * cap**2 + max(1 - full * cap, 0.0) ** 2


def _decay(learning_rate: float, strong_convexity: float, steps: float) -> float:
    """Return (1 − γμ)^(T+1), accurately even for a tiny γμ and millions of steps."""
    return math.exp((steps + 1) * math.log1p(-learning_rate * strong_convexity))


def _hypergradient_slope(constants: Constants) -> float:
    """Return a Lipschitz constant of one entry of the hypergradient as a function of θ."""
    l0, l1, mu = constants.lipschitz, constants.smoothness, constants.strong_convexity
    return 2 * l0 * l1 / mu + constants.hessian_lipschitz * l0**2 / mu**2


def _power_sum(count: int, power: int) -> float:
    """Return Σ_{n=1}^{count} n^−power; an integral bounds long sums from above."""
    short = min(count, LONG_SUM)
    total = _short_power_sum(short, power)
    if count == short:
        return total
    if power == 1:
        return total + math.log(count / short)
    return total + (short ** (1 - power) - count ** (1 - power)) / (power - 1)


@lru_cache
def _short_power_sum(count: int, power: int) -> float:
    return math.fsum(n**-power for n in range(1, count + 1))


def _sum_of(function: Callable[[int], float], count: int) -> float:
    """Sum a slowly varying function of 0 … count − 1; long sums use blocks of growing length."""
    total, begin = 0.0, 0
    while begin < count:
        length = 1 if begin < 1000 else min(max(1, begin // 500), count - begin)
        total += length * function(begin + (length - 1) // 2)
        begin += length
    return total


def _check(period: int, refresh_probability: float) -> None:
    if period < 1:
        raise InputError(f"period must be a whole number of at least 1, not {period!r}")
    if not 0 < refresh_probability <= 1:
        raise InputError(
            f"refresh_probability must be above 0 and at most 1, not {refresh_probability!r}"
        )


def _check_positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name} must be a positive number, not {value!r}")
