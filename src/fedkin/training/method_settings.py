"""From a method's name and a few settings to an algorithm that is ready to run.

Every setting may be left open. What is open is chosen from the data (`automatic`), or taken from the
paper (`paper`).
"""

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, cast, get_args

import jax

from fedkin.errors import InputError
from fedkin.federation.base import Cost, Federation
from fedkin.federation.center import Center
from fedkin.methods.base import Algorithm
from fedkin.methods.bilevel.hypergradient import (
    AdjointSolver,
    ConjugateGradientSolver,
    NeumannSolver,
    SvrgSolver,
)
from fedkin.methods.bilevel.outer import AcceleratedBilevel, AdaptiveBilevel, ProximalBilevel
from fedkin.methods.ditto.center import Ditto
from fedkin.methods.fedavg import FedAvg, LocalTrain
from fedkin.methods.local_svrg.center import LocalSvrg
from fedkin.methods.personalized import check_pull
from fedkin.methods.pfedme.center import PFedMe
from fedkin.models.base import LinearModel
from fedkin.numerics.simplex import check_cap
from fedkin.types import Key

MethodName = Literal["bilevel", "fedavg", "local", "ditto", "pfedme"]
SolverName = Literal["cg", "svrg", "neumann"]
OuterName = Literal["adaptive", "proximal", "accelerated"]
PresetName = Literal["automatic", "paper"]

SMOOTHNESS_MARGIN = 2.0
"""Step size = 1 / (this x the largest curvature of a mini-batch): SVRG's usual safety, and a margin
for the power iteration, which finds that curvature from below."""

BILEVEL_ONLY = (
    "cap",
    "solver",
    "damping",
    "solver_iterations",
    "adjoint_learning_rate",
    "outer",
    "outer_learning_rate",
    "warm_start",
    "warm_start_adjoint",
)

DEFAULT_PROXIMAL = {"ditto": 0.1, "pfedme": 5.0}
"""The methods that personalize a shared model, and their λ: the middle of the paper's grid for Ditto. For
pFedMe its lowest value: of the two ends of the grid it had the better best validation accuracy within 100
synchronizations of a trial (Fashion-MNIST, setting 2, one seed, γ = 0.05); 10 was not tried."""

LARGEST_PULL = 0.75
"""An open step size γ keeps γλ at this or below: the largest product on the paper's grids, 0.05 x 15."""


@dataclass(frozen=True)
class MethodSettings:
    """The settings of a method; None leaves a choice open.

    Args:
        preset: Where open choices come from: `automatic` (from the data) or `paper`.
        learning_rate: The step size γ of training.
        period: The number τ of local steps between synchronizations.
        rounds: Synchronizations of one training run within an outer step.
        refresh_probability: The probability q of renewing a reference point.
        averaging: Whether training returns the weighted average of its iterates, as in Algorithm 1,
            and not the last one.
        cap: The largest weight b of a node.
        solver: How the hypergradient's linear system is solved.
        damping: The number λ added to the Hessian (cg and neumann).
        solver_iterations: Iterations (cg), terms (neumann) or rounds (svrg) of that solver.
        adjoint_learning_rate: The step size γ_h (svrg) or α (neumann) of that solver.
        outer: The outer loop: `adaptive` steps, or Algorithm 3 (`proximal`) or 2 (`accelerated`) with a
            fixed step.
        outer_learning_rate: The step size η of `proximal` and `accelerated`.
        warm_start: Whether training goes on from the last model.
        warm_start_adjoint: Whether the solver goes on from the last solution.
        proximal: The strength λ of the pull toward the shared model (ditto and pfedme).
        personal_steps: Steps on the personal model in a synchronization (ditto).
    """

    preset: PresetName = "automatic"
    learning_rate: float | None = None
    period: int | None = None
    rounds: int | None = None
    refresh_probability: float | None = None
    averaging: bool | None = None
    cap: float | None = None
    solver: SolverName | None = None
    damping: float | None = None
    solver_iterations: int | None = None
    adjoint_learning_rate: float | None = None
    outer: OuterName | None = None
    outer_learning_rate: float | None = None
    warm_start: bool | None = None
    warm_start_adjoint: bool | None = None
    proximal: float | None = None
    personal_steps: int | None = None

    @staticmethod
    def methods_with(name: str) -> tuple[str, ...]:
        """Return the methods that have this setting."""
        return tuple(
            method for method in get_args(MethodName) if name not in _not_settings_of(method)
        )

    def __post_init__(self) -> None:
        _choice("preset", self.preset, PresetName)
        _choice("solver", self.solver, SolverName)
        _choice("outer", self.outer, OuterName)
        for name in ("learning_rate", "adjoint_learning_rate", "outer_learning_rate", "proximal"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and 0 < value < float("inf")):
                raise InputError(f"{name} must be a positive number, not {value!r}")
        for name in ("period", "rounds", "solver_iterations", "personal_steps"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int) and value >= 1):
                raise InputError(f"{name} must be a whole number from 1 on, not {value!r}")
        for name in ("averaging", "warm_start", "warm_start_adjoint"):
            if getattr(self, name) not in (None, True, False):
                raise InputError(f"{name} must be true or false, not {getattr(self, name)!r}")
        for name in ("cap", "refresh_probability"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and 0 < value <= 1):
                raise InputError(f"{name} must be a number above 0 and at most 1, not {value!r}")
        if self.damping is not None and not (
            _is_number(self.damping) and 0 <= self.damping < float("inf")
        ):
            raise InputError(f"damping must be a number from 0 on, not {self.damping!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _choice(name: str, value: str | None, choices: object) -> None:
    if value is not None and value not in get_args(choices):
        allowed = ", ".join(get_args(choices))
        raise InputError(f"{name}={value!r} is unknown; choose one of {allowed}")


def build(
    method: str, settings: MethodSettings, federation: Federation, center: Center, key: Key
) -> tuple[Algorithm, Cost]:
    """Make the algorithm, asking the nodes for their smoothness if the step size depends on it.

    Returns:
        The algorithm, and what asking has cost.
    """
    check(method, settings, len(federation.names))
    if method in DEFAULT_PROXIMAL:
        return _personalized(method, settings, federation, center, key)
    learners = center.alone if method == "local" else federation
    inner, cost = _inner(settings, learners, key)
    rounds = _paper_rounds(method, settings, inner.period, federation)
    inner = replace(inner, rounds=rounds or inner.rounds)
    if method == "local":
        return LocalTrain(inner), Cost()
    if method == "fedavg":
        return FedAvg(inner), cost
    return _bilevel(settings, inner, len(federation.names), federation), cost


def _paper_rounds(
    method: str, settings: MethodSettings, period: int, federation: Federation
) -> int | None:
    """Return the rounds of five passes over a node's data, the paper's T_s; None if they are not open.

    The other methods are evaluated after as many synchronizations as one outer iteration of Bi-level
    takes with the paper's solver: two such solves, and one for the hypergradient.
    """
    if settings.preset != "paper" or settings.rounds is not None:
        return None
    rounds = math.ceil(5 * federation.batches / period)
    return rounds if method == "bilevel" else 2 * rounds + 1


def default_cap(nodes: int) -> float:
    """Return 1/3, the paper's cap, or 2/K where so few nodes take part that 1/3 would bind them."""
    return max(1 / 3, min(1.0, 2 / nodes))


def _not_settings_of(method: str) -> tuple[str, ...]:
    """Name the settings that would change nothing."""
    names = () if method == "bilevel" else BILEVEL_ONLY
    names += ("refresh_probability", "averaging") if method in DEFAULT_PROXIMAL else ("proximal",)
    return names if method == "ditto" else (*names, "personal_steps")


def _refuse(settings: MethodSettings, names: tuple[str, ...], why: str) -> None:
    for name in names:
        if getattr(settings, name) is not None:
            raise InputError(f"{name} {why}: leave it out")


def _inner(settings: MethodSettings, learners: Federation, key: Key) -> tuple[LocalSvrg, Cost]:
    """Choose how the model is trained."""
    cost = Cost()
    model = learners.objective.model
    convex = _is_convex_automatic(settings, learners)
    learning_rate = settings.learning_rate
    if learning_rate is None and convex:
        curvature, cost = _curvature(learners, key)
        learning_rate = 1 / (SMOOTHNESS_MARGIN * curvature)
    period, rounds = _lengths(settings, convex)
    inner = LocalSvrg(
        learning_rate=learning_rate or _usual_learning_rate(settings),
        period=period,
        rounds=rounds,
        refresh_probability=settings.refresh_probability or 0.02,
        strong_convexity=model.l2 if isinstance(model, LinearModel) else 0.0,
        result="average" if settings.averaging else "last",
        tolerance=1e-3 if convex and not settings.averaging else None,
    )
    return inner, cost


def _personalized(
    method: str, settings: MethodSettings, federation: Federation, center: Center, key: Key
) -> tuple[Ditto | PFedMe, Cost]:
    """Choose the settings of Ditto or pFedMe.

    An open step size suits the nodes, the center's own data, and the pull, which adds λ to the curvature.
    """
    cost = Cost()
    proximal = settings.proximal or DEFAULT_PROXIMAL[method]
    convex = _is_convex_automatic(settings, federation)
    learning_rate = settings.learning_rate
    if learning_rate is None and convex:
        curvature, cost = _curvature(federation, key)
        curvature = max(curvature, _curvature(center.alone, key)[0])
        learning_rate = 1 / (SMOOTHNESS_MARGIN * (curvature + proximal))
    elif learning_rate is None:
        learning_rate = min(_usual_learning_rate(settings), LARGEST_PULL / proximal)
    period, rounds = _lengths(settings, convex)
    rounds = _paper_rounds(method, settings, period, federation) or rounds
    if method == "pfedme":
        return PFedMe(learning_rate, period, rounds, proximal), cost
    personal_steps = settings.personal_steps or 25
    return Ditto(learning_rate, period, rounds, proximal, personal_steps), cost


def _is_convex_automatic(settings: MethodSettings, learners: Federation) -> bool:
    """Tell whether training is convex, with settings chosen from the data."""
    return settings.preset == "automatic" and isinstance(learners.objective.model, LinearModel)


def _curvature(learners: Federation, key: Key) -> tuple[float, Cost]:
    """Ask for the largest curvature of a mini-batch."""
    replies, cost = learners.call("smoothness", {}, key=key)
    return float(replies["smoothness"].max()), cost


def _usual_learning_rate(settings: MethodSettings) -> float:
    return 0.02 if settings.preset == "paper" else 0.05


def _lengths(settings: MethodSettings, convex: bool) -> tuple[int, int]:
    """Choose the local steps between synchronizations, and the synchronizations of a step."""
    period = settings.period or (10 if convex else 20)
    rounds = settings.rounds or (40 if convex else 20)
    return period, rounds


def _bilevel(
    settings: MethodSettings, inner: LocalSvrg, nodes: int, federation: Federation
) -> Algorithm:
    paper = settings.preset == "paper"
    cap = settings.cap if settings.cap is not None else default_cap(nodes)
    common = {
        "cap": cap,
        "inner": inner,
        "solve": _solver(settings, inner, federation),
        "warm_start": settings.warm_start is not False,
        "warm_start_adjoint": bool(settings.warm_start_adjoint),
    }
    outer = settings.outer or ("proximal" if paper else "adaptive")
    if outer == "adaptive":
        return AdaptiveBilevel(**common)
    algorithm = ProximalBilevel if outer == "proximal" else AcceleratedBilevel
    return algorithm(**common, outer_learning_rate=settings.outer_learning_rate or 0.02)


def _solver(settings: MethodSettings, inner: LocalSvrg, federation: Federation) -> AdjointSolver:
    linear = isinstance(federation.objective.model, LinearModel)
    name = settings.solver or ("svrg" if settings.preset == "paper" else "cg")
    if name == "svrg":
        return SvrgSolver(
            LocalSvrg(
                learning_rate=settings.adjoint_learning_rate
                or (0.0005 if settings.preset == "paper" else inner.learning_rate),
                period=inner.period,
                rounds=settings.solver_iterations or inner.rounds,
                refresh_probability=inner.refresh_probability,
                strong_convexity=inner.strong_convexity,
                result=inner.result,
            )
        )
    # A convex model's Hessian is positive definite as it is; a network's needs damping.
    damping = settings.damping if settings.damping is not None else (0.0 if linear else 1.0)
    iterations = settings.solver_iterations or (20 if linear else 8)
    if name == "cg":
        return ConjugateGradientSolver(damping, iterations, tolerance=1e-2)
    step = settings.adjoint_learning_rate or inner.learning_rate
    return NeumannSolver(step, iterations, damping, tolerance=1e-2)


def setting_names() -> tuple[str, ...]:
    """Return the names of all settings, for messages about unknown ones."""
    return tuple(field.name for field in fields(MethodSettings))


def check(method: str, settings: MethodSettings, nodes: int) -> None:
    """Refuse what `build` would refuse, without any data: settings that do not go together."""
    _choice("method", method, MethodName)
    _refuse(settings, _not_settings_of(method), f"is not a setting of the method {method!r}")
    if settings.cap is not None:
        check_cap(settings.cap, nodes)
    if method in DEFAULT_PROXIMAL and settings.learning_rate is not None:
        check_pull(settings.learning_rate, settings.proximal or DEFAULT_PROXIMAL[method])
    solver = settings.solver or ("svrg" if settings.preset == "paper" else "cg")
    if solver == "svrg":
        _refuse(settings, ("damping",), "is not a setting of the solver 'svrg'")
    if solver == "cg":
        _refuse(settings, ("adjoint_learning_rate",), "is not a setting of the solver 'cg'")
    if (settings.outer or ("proximal" if settings.preset == "paper" else "adaptive")) == "adaptive":
        _refuse(settings, ("outer_learning_rate",), "is chosen by the adaptive outer loop itself")


def parameters(algorithm: Algorithm) -> dict[str, Any]:
    """Return what an algorithm was built with: what was given, and what was chosen where it was open."""
    return asdict(cast(Any, algorithm))


def initial_model_key(seed: int) -> Key:
    """Return the key of the initial model: the same for all methods with the same seed."""
    return jax.random.fold_in(jax.random.key(seed), 0)


def training_key(seed: int) -> Key:
    """Return the key of everything that is drawn during training."""
    return jax.random.fold_in(jax.random.key(seed), 1)


def building_key(seed: int) -> Key:
    """Return the key of what is asked of the nodes before training."""
    return jax.random.fold_in(jax.random.key(seed), 2)
