"""Bi-level as a method: its settings, and how open ones are chosen."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np

from fedkin.errors import InputError
from fedkin.federation.base import Cost, Federation
from fedkin.federation.center import Center
from fedkin.federation.excluding import nodes_may_lie
from fedkin.federation.secure.orders import FEWEST_SUMMED
from fedkin.federation.secure.refusals import fewest_in_sum
from fedkin.methods.base import Algorithm, Keep, PresetName
from fedkin.methods.bilevel.curvature import is_small
from fedkin.methods.bilevel.hypergradient import SOLVERS, AdjointSolver
from fedkin.methods.bilevel.newton import NewtonBilevel
from fedkin.methods.bilevel.node import (
    ADJOINT_SVRG_ROUND,
    CLASS_PRODUCT,
    DECREMENT,
    GRADIENT,
    HESSIAN_PRODUCT,
    SLOPE,
)
from fedkin.methods.bilevel.outer import (
    AcceleratedBilevel,
    AdaptiveBilevel,
    Differentiation,
    ProximalBilevel,
)
from fedkin.methods.bilevel.prior import Prior
from fedkin.methods.bilevel.single_loop import SingleLoop
from fedkin.methods.bilevel.solvers import ConjugateGradients, LocalSvrgSolver
from fedkin.methods.local_svrg.node import INNER_SVRG_ROUND
from fedkin.methods.local_svrg.training import SvrgMethod, paper_rounds
from fedkin.methods.settings import choice, count, flag, positive, share
from fedkin.methods.step_size import SMOOTHNESS
from fedkin.methods.weights import Cap
from fedkin.models.base import LinearModel
from fedkin.models.objective import Objective
from fedkin.numerics.simplex import check_cap
from fedkin.types import Key

OuterName = Literal["single", "adaptive", "proximal", "accelerated"]

DEFAULT_OUTER_LEARNING_RATE = 0.02

OF_SEVERAL_EXCHANGES = ("rounds", "averaging", "solver", "warm_start", "warm_start_adjoint")
"""Settings of outer steps that solve for θ and h in exchanges of their own."""
OF_ROUNDS = ("learning_rate", "period", "refresh_probability", "restarts")
"""Settings of training in rounds of local steps, which small linear models do without."""
MOST_RESTARTS = 3
"""How many models the single loop begins for a network when the weights have settled."""
SHORTEST_PERIOD, LONGEST_PERIOD = 20, 100
"""The local steps of an exchange: one pass over the largest node's data, within these limits."""

MOST_PARAMETERS = 2_000
"""The largest linear model whose Hessian the center computes for its own data."""

WHOLE_HESSIAN_TOLERANCE, SKETCHED_TOLERANCE = 1e-4, 1e-3
"""How much lower the validation loss may still be at convergence, as a share of it: the last digits cost next
to nothing where the Hessian is exact, and many exchanges where it is not."""

MOST_EXCHANGES = 200
"""The default limit of the single loop, which usually ends by itself long before."""


def default_cap(nodes: int, *, secure: bool = False) -> float:
    """Return 1/3, the paper's cap, or 2/K where so few nodes take part that 1/3 would bind them.

    With secure sums three nodes always have to count, so that four and five nodes have the cap 1/3 too.

    >>> default_cap(15), default_cap(4), default_cap(4, secure=True)
    (0.3333333333333333, 0.5, 0.3333333333333333)
    """
    return 1 / 3 if secure and nodes > FEWEST_SUMMED else max(1 / 3, min(1.0, 2 / nodes))


def _solver_field() -> Any:
    def check(name: str, value: Any) -> AdjointSolver:
        if isinstance(value, str):
            return SOLVERS.get(value)()
        if not isinstance(value, AdjointSolver):
            raise InputError(
                f"{name} must be the name of a solver ({', '.join(SOLVERS.names())}) or a solver "
                f"such as ConjugateGradients(damping=1.0), not {value!r}"
            )
        return value

    return field(default=None, metadata={"check": check})


def _prior_field() -> Any:
    def check(name: str, value: Any) -> tuple[float, ...]:
        if isinstance(value, str):
            raise InputError(
                f"{name}={value!r} needs the nodes' rows: give it to fedkin.fit, or give one weight per node"
            )
        weights = tuple(float(weight) for weight in value)
        if not weights or not all(0 < weight < float("inf") for weight in weights):
            raise InputError(f"{name} must be one positive weight per node, not {value!r}")
        return weights

    return field(default=None, metadata={"check": check})


def _strength_field() -> Any:
    def check(name: str, value: Any) -> float:
        number = float(value) if isinstance(value, (int, float, np.number)) else math.nan
        if isinstance(value, bool) or not number >= 0:
            raise InputError(f"{name} must be zero or a positive number, not {value!r}")
        return number

    return field(default=None, metadata={"check": check})


@dataclass(frozen=True, kw_only=True)
class Bilevel(SvrgMethod):
    """Learn a weight for every node, so that the model does well on the owner's validation data.

    `None` leaves a setting open.

    Args:
        preset: Where open settings come from: `automatic` (from the data), or `paper`.
        learning_rate: The step size γ of training.
        period: The number τ of local steps between two synchronizations.
        rounds: The synchronizations of one training run within an outer step.
        refresh_probability: The probability q of renewing a reference point in a step.
        averaging: Whether training returns the weighted average of its iterates, as in Algorithm 1 of
            the paper, and not the last one.
        cap: The largest weight b of a node, from 1/K to 1. If open, 1/3, or 2/K with fewer than six nodes;
            1/3 also for four and five where sums are secure.
        own_cap: The same for the node that the owner is, in `fit_all`, where every owner is a node: not below
            `cap`, which it has if open.
        solver: How the hypergradient's linear system is solved: `ConjugateGradients()`,
            `LocalSvrgSolver()` (the paper's), `NeumannSeries()`, `OwnHessian()`, one of your own, or a
            name.
        outer: The outer loop. `single` moves model, h and weights together, with one exchange per step; it
            is what the automatic preset has, unless a setting is given that it does not read. Else a step
            is several exchanges: `adaptive` chooses its step, Algorithm 3 (`proximal`) and Algorithm 2
            (`accelerated`) have a fixed one.
        outer_learning_rate: That fixed step η.
        restarts: How many new models the single loop starts when the weights have settled, to keep the
            best (3 if open; none for linear models, whose minimum is unique).
        warm_start: Whether training continues from the last model (yes if open) or begins at zero.
        warm_start_adjoint: Whether the solver continues from the last h or begins at zero (if open).
        prior: Weights that are expected beforehand, one per node, such as shares of all rows: the
            learned ones leave them only as far as the validation rows demand. For linear models.
        prior_strength: How many validation rows the prior is worth (1 if open); infinite to keep the
            prior's weights and only train the model.
        tolerance: How much lower the validation loss may still be at convergence, as a share of it, for
            linear models (0.0001 if open, or 0.001 for large ones).

    >>> Bilevel(solver=ConjugateGradients(damping=1.0), cap=0.5).solver.damping
    1.0
    """

    name: ClassVar[str] = "bilevel"
    title: ClassVar[str] = "Bi-level"
    color: ClassVar[str] = "#D55E00"
    dark_color: ClassVar[str | None] = "#F5803A"
    marker: ClassVar[str] = "o"
    dashes: ClassVar[tuple[float, ...]] = ()
    tasks = (
        INNER_SVRG_ROUND,
        ADJOINT_SVRG_ROUND,
        DECREMENT,
        GRADIENT,
        HESSIAN_PRODUCT,
        CLASS_PRODUCT,
        SLOPE,
        SMOOTHNESS,
    )
    weighs_nodes: ClassVar[bool] = True
    tuning_grid: ClassVar[Mapping[str, Sequence[Any]]] = {
        "learning_rate": (0.05, 0.02, 0.01),
        "adjoint_learning_rate": (0.0005, 0.0002, 0.0001),
        "period": (10, 20),
        "outer_learning_rate": (0.025, 0.02, 0.015),
    }
    learning_rate_place: ClassVar[tuple[str, ...]] = ("differentiation", "inner")

    cap: float | None = share()
    own_cap: float | None = share()
    solver: AdjointSolver | None = _solver_field()
    outer: OuterName | None = choice(None, *get_args(OuterName))
    outer_learning_rate: float | None = positive()
    restarts: int | None = count(least=0)
    warm_start: bool | None = flag()
    warm_start_adjoint: bool | None = flag()
    prior: tuple[float, ...] | None = _prior_field()
    prior_strength: float | None = _strength_field()
    tolerance: float | None = share()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chosen_outer in ("single", "adaptive") and self.outer_learning_rate is not None:
            raise InputError(
                f"outer_learning_rate is chosen by the outer loop {self.chosen_outer!r} itself: leave it "
                "out, or choose outer='proximal' or 'accelerated'"
            )
        if self.outer == "single" and (given := self._settings_of_several_exchanges()):
            raise InputError(
                f"{given[0]} changes nothing with outer='single', which has one exchange per step: leave "
                "it out, or choose outer='adaptive'"
            )
        if self.restarts is not None and self.chosen_outer != "single":
            raise InputError(
                f"restarts is a setting of outer='single', not of {self.chosen_outer!r}: leave it out"
            )
        if self.prior_strength is not None and self.prior is None:
            raise InputError("prior_strength changes nothing without a prior: give prior, too")
        if self.prior is not None and self.chosen_outer != "single":
            raise InputError(
                f"prior is a setting of outer='single', not of {self.chosen_outer!r}: leave one out"
            )
        if self.warm_start_adjoint and not self.chosen_solver.takes_start:
            raise InputError(
                f"warm_start_adjoint changes nothing with the solver {self.chosen_solver.name!r}, which "
                "always starts at zero: leave it out, or choose the solver 'cg' or 'svrg'"
            )

    @classmethod
    def setting_names(cls) -> tuple[str, ...]:
        """Return the names of all settings, including the solvers'."""
        own = super().setting_names()
        after = own.index("solver") + 1
        of_solvers = (name for solver in SOLVERS.all() for name in solver.shorthand)
        return tuple(dict.fromkeys([*own[:after], *of_solvers, *own[after:]]))

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Make the method from its settings and those of the solver, which is named."""
        own = set(super().setting_names())
        solver = settings.get("solver")
        kind = type(solver) if isinstance(solver, AdjointSolver) else None
        if kind is None:
            kind = SOLVERS.get(solver) if isinstance(solver, str) else None
        if kind is None:
            kind = type(_default_solver(settings.get("preset", "automatic")))
        extra = {
            name: value
            for name, value in settings.items()
            if name not in own and (name in cls.setting_names() or name in kind.shorthand)
        }
        rest = {name: value for name, value in settings.items() if name not in extra}
        if extra:
            if isinstance(solver, AdjointSolver):
                raise InputError(
                    f"{next(iter(extra))} is a setting of the solver: give it to the solver object"
                )
            rest["solver"] = kind.from_shorthand(extra)
        return super().from_settings(rest)

    def typed_settings(self, names: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of these names, each in its proper type."""
        solver = self.chosen_solver
        found = {}
        for name in names:
            if name == "solver":
                found[name] = names[name] if isinstance(names[name], str) else solver.name
            elif name in solver.shorthand:
                found[name] = getattr(solver, solver.shorthand[name])
            else:
                found[name] = getattr(self, name)
        return found

    @property
    def chosen_outer(self) -> OuterName:
        """The outer loop, for models that have it."""
        if self.outer is not None:
            return self.outer
        if self.preset == "paper":
            return "proximal"
        return "adaptive" if self._settings_of_several_exchanges() else "single"

    def _settings_of_several_exchanges(self) -> list[str]:
        """Return the settings given that only steps of several exchanges read."""
        return [name for name in OF_SEVERAL_EXCHANGES if getattr(self, name) is not None]

    @property
    def chosen_solver(self) -> AdjointSolver:
        """The solver, whose own settings may still be open."""
        return self.solver or _default_solver(self.preset)

    def takes_newton_steps(self, objective: Objective) -> bool:
        """Whether the single loop works with the weighted Hessian, as it can for linear models."""
        given = [name for name in OF_ROUNDS if getattr(self, name) is not None]
        if self.restarts == 0:  # what a linear model has anyway
            given.remove("restarts")
        linear = isinstance(objective.model, LinearModel) and objective.size <= MOST_PARAMETERS
        return self.chosen_outer == "single" and linear and not given

    def steps_for(self, objective: Objective) -> int:
        """Return more where steps are single exchanges, so that convergence ends the run."""
        return MOST_EXCHANGES if self.chosen_outer == "single" else self.default_steps

    def default_keep(self, objective: Objective) -> Keep:
        """The best of the single loop's models in rounds of local steps, which do not end at convergence."""
        if self.chosen_outer == "single" and not self.takes_newton_steps(objective):
            return "best"
        return super().default_keep(objective)

    def check(self, nodes: int) -> None:
        """Refuse a cap that does not suit the number of nodes."""
        if self.cap is not None:
            check_cap(self.cap, nodes)
        cap = default_cap(nodes) if self.cap is None else self.cap
        if self.own_cap is not None and self.own_cap < cap:
            raise InputError(
                f"own_cap is {self.own_cap:g}, below the cap on other nodes' weights, {cap:.3g}: give a "
                "larger one, or a smaller cap"
            )
        if self.prior is not None and len(self.prior) != nodes:
            raise InputError(f"prior has {len(self.prior)} weights, but there are {nodes} nodes")

    def prepare(
        self, federation: Federation, center: Center, key: Key
    ) -> tuple[Algorithm[Any], Cost]:
        """Choose step sizes and lengths, asking the nodes for their curvature if need be."""
        self.check(len(federation.names))
        cap = self._chosen_cap(federation, center)
        if self.takes_newton_steps(federation.objective):
            small = is_small(federation.objective)
            usual = WHOLE_HESSIAN_TOLERANCE if small else SKETCHED_TOLERANCE
            tolerance = usual if self.tolerance is None else self.tolerance
            prior = self._chosen_prior(center)
            return NewtonBilevel(cap, tolerance, whole_hessian=small, prior=prior), Cost()
        for name in ("prior", "tolerance"):
            if getattr(self, name) is not None:
                raise InputError(
                    f"{name} is for linear models (logistic, ridge) of moderate size, without "
                    f"learning_rate, period, refresh_probability or restarts: leave {name} out"
                )
        if self.chosen_outer == "single":
            return self._single_loop(federation, cap), Cost()
        inner, cost = self.choose_training(federation, key)
        if self.preset == "paper" and self.rounds is None:
            inner = replace(inner, rounds=paper_rounds(federation, inner.period))
        differentiation = Differentiation(
            cap=cap,
            inner=inner,
            solver=self.chosen_solver.prepare(federation.objective, inner, self.preset),
            warm_start=self.warm_start is not False,
            warm_start_adjoint=bool(self.warm_start_adjoint),
        )
        if self.chosen_outer == "adaptive":
            # Secure sums over the same nodes at the same model, with two weights, would give vectors away.
            equally_long = nodes_may_lie(federation) and fewest_in_sum(federation) == 1
            return AdaptiveBilevel(differentiation, equally_long), cost
        rate = self.outer_learning_rate or DEFAULT_OUTER_LEARNING_RATE
        if self.chosen_outer == "proximal":
            return ProximalBilevel(differentiation, rate), cost
        return AcceleratedBilevel(differentiation, rate), cost

    def largest_share(self, nodes: int) -> float:
        """See `Method`."""
        cap = default_cap(nodes, secure=True) if self.cap is None else self.cap
        return max(cap, self.own_cap or 0.0)

    def _chosen_cap(self, federation: Federation, center: Center) -> Cap:
        """Return the cap: one for all nodes, or for each where the owner's own node has another."""
        nodes, secure = len(federation.names), fewest_in_sum(federation) > 1
        cap = self.cap if self.cap is not None else default_cap(nodes, secure=secure)
        if self.own_cap is None:
            return cap
        if center.own_node is None:
            raise InputError(
                "own_cap is for an owner that is a node, as all are in fit_all, fedkin map and studies with "
                "a partition: leave it out"
            )
        caps = [cap] * nodes
        caps[center.own_node] = self.own_cap
        return tuple(caps)

    def _chosen_prior(self, center: Center) -> Prior | None:
        if self.prior is None:
            return None
        strength = 1.0 if self.prior_strength is None else self.prior_strength
        return Prior(self.prior, strength * center.loss_unit / center.points)

    def _single_loop(self, federation: Federation, cap: Cap) -> SingleLoop:
        one_pass = min(max(federation.batches, SHORTEST_PERIOD), LONGEST_PERIOD)
        restarts = self.restarts
        if restarts is None:
            # The training problem of a linear model has one minimum, wherever it is begun.
            restarts = 0 if self.is_convex(federation.objective) else MOST_RESTARTS
        return SingleLoop(
            cap=cap,
            period=self.period or one_pass,
            learning_rate=self.learning_rate,
            refresh_probability=self.refresh_probability or 0.02,
            restarts=restarts,
        )


def _default_solver(preset: PresetName) -> AdjointSolver:
    return LocalSvrgSolver() if preset == "paper" else ConjugateGradients()
