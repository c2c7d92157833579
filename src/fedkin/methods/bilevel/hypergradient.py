r"""The gradient of the validation loss with respect to the node weights (`eq:approxgrade`).

.. math:: \partial F / \partial w_k \approx -\nabla L_k(\theta)^\top h,
          \qquad \Big(\sum_k w_k \nabla^2 L_k(\theta) + \lambda I\Big) h = \nabla L_0(\theta)

A solver for h is a frozen object of settings; `solvers/` has four. A node replies with the *number*
:math:`-\nabla L_k(\theta)^\top h`; its gradient stays where it is.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import jax.numpy as jnp
import numpy as np

from fedkin.errors import InputError
from fedkin.federation.base import Cost, Federation, PerNode, WeightedSum
from fedkin.federation.center import Center
from fedkin.methods.base import PresetName
from fedkin.methods.bilevel.node import HESSIAN_PRODUCT, SLOPE
from fedkin.methods.local_svrg.center import LocalSvrg
from fedkin.methods.settings import Settings
from fedkin.methods.weights import fill_unknown
from fedkin.models.objective import Objective
from fedkin.numerics.linear_solve import LinearSolution
from fedkin.registry import Registry
from fedkin.types import Array, Key, Vector


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


@dataclass(frozen=True)
class AdjointSystem:
    """The linear system whose solution is h, and the nodes that know its matrix.

    Args:
        federation: The nodes.
        node_weights: The weights w.
        theta: The model, (nearly) the inner minimizer for these weights.
        target: The gradient ∇L_0(θ).
        key: Randomness for the nodes.
        center: The owner's data, where a solver works with them.
    """

    federation: Federation
    node_weights: Array
    theta: Vector
    target: Vector
    key: Key
    center: Center | None = None


@dataclass(frozen=True, kw_only=True)
class AdjointSolver(Settings, ABC):
    """A way of solving for h and of asking each node for −∇L_k(θ)ᵀh. Derive from it to write your own.

    docs/extend.md has a complete example.

    >>> from fedkin.methods.bilevel.solvers import ConjugateGradients
    >>> issubclass(ConjugateGradients, AdjointSolver), ConjugateGradients.name
    (True, 'cg')
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
        self, system: AdjointSystem, *, start: Vector | None = None, rate_factor: float = 1.0
    ) -> Hypergradient:
        """Compute the hypergradient.

        Args:
            system: The linear system for h.
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

    >>> from fedkin.methods.bilevel.solvers import ConjugateGradients
    >>> register_solver(ConjugateGradients).name
    'cg'
    """
    SOLVERS.add(solver.name, solver)
    return solver


class HessianProducts:
    """Products with the weighted Hessian at one θ, one exchange per product, and what they cost.

    With each product the nodes that count report their slopes along the same vector. Slopes are linear
    in the vector, so the solver knows those along its solution without asking for them. Nodes of
    weight zero are asked once, at the end.

    Args:
        system: The linear system.
    """

    def __init__(self, system: AdjointSystem) -> None:
        self.cost = Cost()
        self.node_weights = system.node_weights
        self._federation = system.federation
        self._theta = system.theta
        self._key = system.key
        self._begun = False
        counted = np.asarray(system.node_weights) != 0
        self._asked = np.ones_like(counted) if system.federation.ask_all else counted

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


def from_linear_solution(
    solution: LinearSolution, products: HessianProducts, rate_factor: float
) -> Hypergradient:
    """Put together what a solver around products found."""
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
