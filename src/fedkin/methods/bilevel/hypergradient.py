r"""The gradient of the validation loss with respect to the node weights (`eq:approxgrade`).

.. math:: \partial F / \partial w_k \approx -\nabla L_k(\theta)^\top h,
          \qquad \Big(\sum_k w_k \nabla^2 L_k(\theta) + \lambda I\Big) h = \nabla L_0(\theta)

A solver for h is a frozen object of settings. Three are here: the paper's Local-SVRG, conjugate gradients
and the truncated Neumann series. A node replies with the *number* :math:`-\nabla L_k(\theta)^\top h`; its
gradient stays where it is.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.errors import DivergedError, InputError
from fedkin.federation.base import Cost, Federation, PerNode, WeightedSum
from fedkin.methods.base import PresetName
from fedkin.methods.bilevel.node import ADJOINT_SVRG_ROUND, HESSIAN_PRODUCT, SLOPE
from fedkin.methods.local_svrg.center import LocalSvrg
from fedkin.methods.settings import Settings, count, from_zero, positive
from fedkin.methods.weights import fill_unknown
from fedkin.models.base import LinearModel
from fedkin.models.objective import Objective
from fedkin.numerics import linear_solve
from fedkin.numerics.linear_solve import LinearSolution
from fedkin.registry import Registry
from fedkin.types import Array, Key, Vector

MOST_HALVINGS = 40
LARGEST_DAMPING = 1e6

MOVE_CEILING = 10.0
"""An adjoint that moves this many times farther in a round than γτ‖∇L_0‖ counts as divergence."""


class Hypergradient(NamedTuple):
    """The gradient with respect to the weights, and how it was obtained."""

    gradient: Array
    """∂F/∂w_k for each node."""
    adjoint: Vector
    """The vector h."""
    rate_factor: float
    """What the solver's learning rate had to be multiplied with so far."""
    cost: Cost
    diagnostics: dict[str, float]
    warnings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class AdjointSolver(Settings, ABC):
    """A way of solving for h and of asking each node for −∇L_k(θ)ᵀh. Derive from it to write your own.

    docs/extend.md has a complete example.

    >>> [solver.name for solver in SOLVERS.all()][:3]
    ['cg', 'svrg', 'neumann']
    """

    name: ClassVar[str]
    """What it is called in files and on the command line."""
    shorthand: ClassVar[Mapping[str, str]] = {}
    """The names that its settings have among the method's own, in files and keywords."""
    takes_start: ClassVar[bool] = True
    """Whether a solve can begin at a given h."""

    @classmethod
    def from_shorthand(cls, settings: Mapping[str, Any]) -> Self:
        """Make a solver of the settings that belong to it."""
        for name in settings:
            if name not in cls.shorthand:
                raise InputError(
                    f"{name} is not a setting of the solver {cls.name!r}: leave it out"
                )
        return cls.from_settings({cls.shorthand[name]: v for name, v in settings.items()})

    def prepare(
        self, objective: Objective, training: LocalSvrg, preset: PresetName
    ) -> "AdjointSolver":
        """Choose what is open.

        Args:
            objective: The model.
            training: How the model is trained.
            preset: Where open settings come from.
        """
        return self

    @abstractmethod
    def __call__(
        self,
        federation: Federation,
        node_weights: Array,
        theta: Vector,
        target: Vector,
        key: Key,
        *,
        start: Vector | None = None,
        rate_factor: float = 1.0,
    ) -> Hypergradient:
        """Compute the hypergradient at θ, where `target` is ∇L_0(θ).

        Args:
            federation: The nodes.
            node_weights: The weights w.
            theta: The model, (nearly) the inner minimizer for these weights.
            target: The gradient ∇L_0(θ).
            key: Randomness for the nodes.
            start: The first iterate for h; zero if not given.
            rate_factor: Multiplies the solver's learning rate, where it has one.
        """
        ...


SOLVERS: Registry[type[AdjointSolver]] = Registry("solver", "fedkin.solvers")
"""All known solvers for h."""


SolverClass = TypeVar("SolverClass", bound=type[AdjointSolver])


def register_solver(solver: SolverClass) -> SolverClass:
    """Make a solver for h known by its name; may be used as a decorator.

    Other processes do not see it: for them, name the solver as `package.module:Class`, or declare an
    entry point in the group `fedkin.solvers`.

    >>> register_solver(ConjugateGradients).name
    'cg'
    """
    SOLVERS.add(solver.name, solver)
    return solver


@dataclass(frozen=True, kw_only=True)
class LocalSvrgSolver(AdjointSolver):
    """The paper's solver: Local-SVRG on the quadratic `eq:QP_matrixinverse`.

    If the iteration diverges, the solve begins again: first from zero, if it had begun elsewhere (a
    start that does not suit the new system looks like divergence), then with half the learning rate.

    Args:
        learning_rate: The step size γ_h; if open, 0.0005 with the paper's preset, else training's.
        rounds: The number of synchronizations; training's if open.
        training: What else the solve takes over from training; filled in by `prepare`.

    >>> LocalSvrgSolver(learning_rate=0.0005).learning_rate
    0.0005
    """

    name: ClassVar[str] = "svrg"
    shorthand: ClassVar[Mapping[str, str]] = {
        "adjoint_learning_rate": "learning_rate",
        "solver_iterations": "rounds",
    }

    learning_rate: float | None = positive()
    rounds: int | None = count()
    training: LocalSvrg | None = None

    def prepare(
        self, objective: Objective, training: LocalSvrg, preset: PresetName
    ) -> "LocalSvrgSolver":
        """Take over from training what is open."""
        usual = 0.0005 if preset == "paper" else training.learning_rate
        learning_rate, rounds = self.learning_rate or usual, self.rounds or training.rounds
        solve = replace(training, learning_rate=learning_rate, rounds=rounds, tolerance=None)
        return LocalSvrgSolver(learning_rate=learning_rate, rounds=rounds, training=solve)

    def __call__(
        self,
        federation: Federation,
        node_weights: Array,
        theta: Vector,
        target: Vector,
        key: Key,
        *,
        start: Vector | None = None,
        rate_factor: float = 1.0,
    ) -> Hypergradient:
        """Compute the hypergradient. See `AdjointSolver`."""
        assert self.training is not None, "call prepare first"
        rate = self.training.learning_rate
        cost, first_factor = Cost(), rate_factor
        for retries in range(MOST_HALVINGS + 1):
            found, own_cost = solve_by_svrg(
                federation,
                node_weights,
                theta,
                target,
                jnp.zeros_like(target) if start is None else start,
                jax.random.fold_in(key, retries),
                replace(self.training, learning_rate=rate * rate_factor),
            )
            cost += own_cost
            if found is not None:
                break
            if start is None:
                rate_factor /= 2
            start = None
        else:
            raise DivergedError(
                f"solving for the hypergradient diverged even with the learning rate "
                f"γ_h = {rate * rate_factor:.3g}: is the data finite and scaled?"
            )
        reply = federation.exchange(slope=PerNode(SLOPE, {"vector": found}), key=key)
        warnings = ()
        if rate_factor < first_factor:
            warnings = (
                f"solving for the hypergradient diverged with γ_h = {rate * first_factor:.3g}; "
                f"continued with γ_h = {rate * rate_factor:.3g}",
            )
        diagnostics = {
            "adjoint_norm": float(jnp.linalg.norm(found)),
            "adjoint_retries": float(retries),
            "adjoint_learning_rate": rate * rate_factor,
        }
        gradient = fill_unknown(reply.slope["slope"], node_weights)
        return Hypergradient(gradient, found, rate_factor, cost + reply.cost, diagnostics, warnings)


def solve_by_svrg(
    federation: Federation,
    node_weights: Array,
    theta: Vector,
    target: Vector,
    start: Vector,
    key: Key,
    settings: LocalSvrg,
) -> tuple[Vector | None, Cost]:
    r"""Solve :math:`\sum_k w_k \nabla^2 L_k(\theta) h = \nabla L_0(\theta)` (`eq:QP_matrixinverse`).

    In one step of a stable iteration h moves by at most γ times the residual. So a round that moves it
    much farther than γτ‖∇L_0(θ)‖ shows that γ is too large, long before numbers overflow.

    Returns:
        The solution, or None if the iteration diverged; and what it cost.
    """
    point, cost = start, Cost()
    ceiling = MOVE_CEILING * settings.learning_rate * settings.period * jnp.linalg.norm(target)
    for number in range(settings.rounds):
        begin = {"theta": theta, "target": target} if number == 0 else {}
        asked_for = settings.reply_of_round(number)
        reply = federation.exchange(
            solve=WeightedSum(
                ADJOINT_SVRG_ROUND,
                settings.message(point) | begin,
                weights=node_weights,
                begin=number == 0,
                steps=settings.period,
                reply=asked_for,
            ),
            key=jax.random.fold_in(key, number),
        )
        cost += reply.cost
        moved = reply.solve["point"]
        # The average of all iterates may lie as far from the last as all rounds together have moved.
        farthest = ceiling * settings.rounds if asked_for == "average" else ceiling
        if not jnp.linalg.norm(moved - point) <= farthest:
            return None, cost
        point = moved
    return point, cost


@dataclass(frozen=True, kw_only=True)
class ConjugateGradients(AdjointSolver):
    """Damped conjugate gradients: one synchronization per iteration, and none for the slopes.

    If the very first direction has negative curvature there is no iterate to fall back to; then the
    solve begins again with ten times the damping.

    Args:
        damping: The number λ added to the Hessian. A network's Hessian is indefinite and needs some. If
            open, 0 for linear models, else 1.
        iterations: The largest number of iterations; if open, 20 for linear models, else 8.
        tolerance: The relative residual to stop at.

    >>> ConjugateGradients(damping=1.0).damping
    1.0
    """

    name: ClassVar[str] = "cg"
    shorthand: ClassVar[Mapping[str, str]] = {
        "damping": "damping",
        "solver_iterations": "iterations",
    }

    damping: float | None = from_zero()
    iterations: int | None = count()
    tolerance: float = positive(1e-2)

    def prepare(
        self, objective: Objective, training: LocalSvrg, preset: PresetName
    ) -> "ConjugateGradients":
        """Choose damping and iterations by the model."""
        damping, iterations = _by_model(objective, self.damping, self.iterations)
        return replace(self, damping=damping, iterations=iterations)

    def __call__(
        self,
        federation: Federation,
        node_weights: Array,
        theta: Vector,
        target: Vector,
        key: Key,
        *,
        start: Vector | None = None,
        rate_factor: float = 1.0,
    ) -> Hypergradient:
        """Compute the hypergradient. See `AdjointSolver`."""
        given, iterations = _by_model(federation.objective, self.damping, self.iterations)
        products = HessianProducts(federation, node_weights, theta, key)

        def solve(damping: float) -> LinearSolution:
            return linear_solve.conjugate_gradients(
                products,
                target,
                damping=damping,
                iterations=iterations,
                tolerance=self.tolerance,
                start=start,
            )

        damping, warnings = given, ()
        solution = solve(damping)
        while _found_nothing(solution) and damping < LARGEST_DAMPING:
            damping = max(10 * damping, 0.1)
            warnings = (
                f"the Hessian has negative curvature with damping {given:g}; "
                f"used {damping:g} in this outer step",
            )
            solution = solve(damping)
        found = _from_linear_solution(solution, products, rate_factor)
        return found._replace(warnings=warnings + found.warnings)


@dataclass(frozen=True, kw_only=True)
class NeumannSeries(AdjointSolver):
    """The truncated Neumann series: one synchronization per term, and none for the slopes.

    Args:
        step: The number α, below 2 / (largest eigenvalue + damping); training's step size if open.
        terms: The largest number of terms; if open, 20 for linear models, else 8.
        damping: The number λ added to the Hessian; if open, 0 for linear models, else 1.
        tolerance: The relative residual to stop at.

    >>> NeumannSeries(step=0.1, terms=5).terms
    5
    """

    name: ClassVar[str] = "neumann"
    shorthand: ClassVar[Mapping[str, str]] = {
        "adjoint_learning_rate": "step",
        "solver_iterations": "terms",
        "damping": "damping",
    }
    takes_start: ClassVar[bool] = False

    step: float | None = positive()
    terms: int | None = count()
    damping: float | None = from_zero()
    tolerance: float = positive(1e-2)

    def prepare(
        self, objective: Objective, training: LocalSvrg, preset: PresetName
    ) -> "NeumannSeries":
        """Choose damping and terms by the model, and the step by training's."""
        damping, terms = _by_model(objective, self.damping, self.terms)
        return replace(self, step=self.step or training.learning_rate, terms=terms, damping=damping)

    def __call__(
        self,
        federation: Federation,
        node_weights: Array,
        theta: Vector,
        target: Vector,
        key: Key,
        *,
        start: Vector | None = None,
        rate_factor: float = 1.0,
    ) -> Hypergradient:
        """Compute the hypergradient. See `AdjointSolver`; the series always starts at zero."""
        assert start is None, "the Neumann series always starts at zero"
        assert self.step is not None, "call prepare first"
        damping, terms = _by_model(federation.objective, self.damping, self.terms)
        products = HessianProducts(federation, node_weights, theta, key)
        solution = linear_solve.neumann_series(
            products,
            target,
            step=self.step * rate_factor,
            terms=terms,
            damping=damping,
            tolerance=self.tolerance,
        )
        return _from_linear_solution(solution, products, rate_factor)


def _by_model(
    objective: Objective, damping: float | None, iterations: int | None
) -> tuple[float, int]:
    """Choose what is open: a convex model's Hessian is positive definite, a network's needs damping."""
    linear = isinstance(objective.model, LinearModel)
    if damping is None:
        damping = 0.0 if linear else 1.0
    return damping, iterations or (20 if linear else 8)


def _found_nothing(solution: LinearSolution) -> bool:
    return solution.reason == "negative curvature" and not bool(jnp.any(solution.solution))


class HessianProducts:
    """Products with the weighted Hessian at one θ, one exchange per product, and what they cost.

    With each product the nodes that count report their slopes along the same vector. Slopes are linear
    in the vector, so the solver knows those along its solution without asking for them. Nodes of
    weight zero are asked once, at the end.

    Args:
        federation: The nodes.
        node_weights: The weights w.
        theta: The model to differentiate at.
        key: Randomness for the nodes.
    """

    def __init__(
        self, federation: Federation, node_weights: Array, theta: Vector, key: Key
    ) -> None:
        self.cost = Cost()
        self.node_weights = node_weights
        self._federation = federation
        self._theta = theta
        self._key = key
        self._begun = False
        counted = np.asarray(node_weights) != 0
        self._asked = np.ones_like(counted) if federation.ask_all else counted

    def __call__(self, vector: Vector) -> tuple[Vector, Array]:
        """Return Σ_k w_k ∇²L_k(θ) v, and −∇L_k(θ)ᵀv of the nodes that count (NaN for others)."""
        begin = {} if self._begun else {"theta": self._theta}
        message = {"vector": vector, **begin}
        reply = self._federation.exchange(
            hessian=WeightedSum(
                HESSIAN_PRODUCT, message, weights=self.node_weights, begin=not self._begun
            ),
            slope=PerNode(SLOPE, message, begin=not self._begun, nodes=self._asked),
            key=self._key,
        )
        self._begun = True
        self.cost += reply.cost
        return reply.hessian["product"], reply.slope["slope"]

    def slopes(self, vector: Vector, known: Array) -> Array:
        """Return the slopes of all nodes along a vector, given those of the nodes that count."""
        known = jnp.broadcast_to(known, self.node_weights.shape)
        others = ~self._asked & self._federation.present
        if others.any() and self._begun:
            request = PerNode(SLOPE, {"vector": vector}, nodes=others)
            reply = self._federation.exchange(slope=request, key=self._key)
            self.cost += reply.cost
            known = jnp.where(jnp.asarray(self._asked), known, reply.slope["slope"])
        return fill_unknown(known, self.node_weights)


def _from_linear_solution(
    solution: LinearSolution, products: HessianProducts, rate_factor: float
) -> Hypergradient:
    warnings = ()
    if solution.reason in ("negative curvature", "not finite", "residual grew"):
        warnings = (
            f"solving for the hypergradient stopped early ({solution.reason}) with relative residual "
            f"{solution.residual:.2g}; a larger damping would help",
        )
    diagnostics = {
        "adjoint_norm": float(jnp.linalg.norm(solution.solution)),
        "adjoint_products": float(solution.products),
        "adjoint_residual": solution.residual,
    }
    gradient = products.slopes(solution.solution, solution.companion)
    return Hypergradient(
        gradient, solution.solution, rate_factor, products.cost, diagnostics, warnings
    )


for own in (ConjugateGradients, LocalSvrgSolver, NeumannSeries):
    register_solver(own)
