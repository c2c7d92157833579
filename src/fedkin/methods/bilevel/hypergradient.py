r"""The gradient of the validation loss with respect to the node weights (`eq:approxgrade`).

.. math:: \partial F / \partial w_k \approx -\nabla L_k(\theta)^\top h,
          \qquad \Big(\sum_k w_k \nabla^2 L_k(\theta) + \lambda I\Big) h = \nabla L_0(\theta)

Three solvers for h, each a frozen object of settings: the paper's Local-SVRG, conjugate gradients and
the truncated Neumann series. A node answers with the *number* :math:`-\nabla L_k(\theta)^\top h`; its
gradient stays where it is.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from fedkin.errors import DivergedError
from fedkin.federation.base import Cost, Federation
from fedkin.methods.local_svrg import center as local_svrg
from fedkin.methods.local_svrg.center import LocalSvrg, combine
from fedkin.numerics import linear_solve
from fedkin.numerics.linear_solve import LinearSolution, Product
from fedkin.types import Array, Key, Vector

MOST_HALVINGS = 40
LARGEST_DAMPING = 1e6


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


class AdjointSolver(Protocol):
    """A way of solving for h and of asking each node for −∇L_k(θ)ᵀh."""

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


@dataclass(frozen=True)
class SvrgSolver:
    """The paper's solver: Local-SVRG on the quadratic `eq:QP_matrixinverse`.

    If the iteration diverges, the solve begins again: first from zero, if it had begun elsewhere (a
    start that does not suit the new system looks like divergence), then with half the learning rate.
    """

    settings: LocalSvrg

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
        cost, first_factor = Cost(), rate_factor
        for retries in range(MOST_HALVINGS + 1):
            solution, converged = local_svrg.solve_adjoint(
                federation,
                node_weights,
                theta,
                target,
                jnp.zeros_like(target) if start is None else start,
                jax.random.fold_in(key, retries),
                local_svrg.slower(self.settings, rate_factor),
            )
            cost += solution.cost
            if converged:
                break
            if start is None:
                rate_factor /= 2
            start = None
        else:
            raise DivergedError(
                f"solving for the hypergradient diverged even with the learning rate "
                f"γ_h = {self.settings.learning_rate * rate_factor:.3g}: is the data finite and scaled?"
            )
        replies, slope_cost = federation.call(
            "slope", {"vector": solution.point}, key=key, node_weights=node_weights
        )
        warnings = ()
        if rate_factor < first_factor:
            old, new = (self.settings.learning_rate * f for f in (first_factor, rate_factor))
            warnings = (
                f"solving for the hypergradient diverged with γ_h = {old:.3g}; "
                f"went on with γ_h = {new:.3g}",
            )
        diagnostics = {
            "adjoint_norm": float(jnp.linalg.norm(solution.point)),
            "adjoint_retries": float(retries),
            "adjoint_learning_rate": self.settings.learning_rate * rate_factor,
        }
        return Hypergradient(
            replies["slope"], solution.point, rate_factor, cost + slope_cost, diagnostics, warnings
        )


@dataclass(frozen=True)
class ConjugateGradientSolver:
    """Damped conjugate gradients: one synchronization an iteration, and none for the slopes.

    If the very first direction has negative curvature there is no iterate to fall back to; then the
    solve begins again with ten times the damping.

    Args:
        damping: The number λ; a network's Hessian is indefinite and needs one.
        iterations: The largest number of iterations.
        tolerance: The relative residual to stop at.
    """

    damping: float = 1.0
    iterations: int = 8
    tolerance: float = 1e-4

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
        asker = _Asker(federation, node_weights, theta, key)

        def solve(damping: float) -> LinearSolution:
            return linear_solve.conjugate_gradients(
                asker.product,
                target,
                damping=damping,
                iterations=self.iterations,
                tolerance=self.tolerance,
                start=start,
            )

        damping, warnings = self.damping, ()
        solution = solve(damping)
        while _found_nothing(solution) and damping < LARGEST_DAMPING:
            damping = max(10 * damping, 0.1)
            warnings = (
                f"the Hessian has negative curvature with damping {self.damping:g}; "
                f"used {damping:g} in this outer step",
            )
            solution = solve(damping)
        found = _from_linear_solution(solution, asker, rate_factor, len(node_weights))
        return found._replace(warnings=warnings + found.warnings)


@dataclass(frozen=True)
class NeumannSolver:
    """The truncated Neumann series: one synchronization a term, and none for the slopes.

    Args:
        step: The number α, below 2 / (largest eigenvalue + damping).
        terms: The largest number of terms.
        damping: The number λ added to the Hessian.
        tolerance: The relative residual to stop at.
    """

    step: float
    terms: int = 20
    damping: float = 0.0
    tolerance: float = 1e-4

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
        asker = _Asker(federation, node_weights, theta, key)
        solution = linear_solve.neumann_series(
            asker.product,
            target,
            step=self.step * rate_factor,
            terms=self.terms,
            damping=self.damping,
            tolerance=self.tolerance,
        )
        return _from_linear_solution(solution, asker, rate_factor, len(node_weights))


def _found_nothing(solution: LinearSolution) -> bool:
    return solution.reason == "negative curvature" and not bool(jnp.any(solution.solution))


class _Asker:
    """Asks the nodes for Hessian-vector products at one θ, and adds up what that costs."""

    def __init__(
        self, federation: Federation, node_weights: Array, theta: Vector, key: Key
    ) -> None:
        self.cost = Cost()
        self._federation = federation
        self._node_weights = node_weights
        self._theta: Vector | None = theta
        self._key = key
        self.product: Product = self._product

    def _product(self, vector: Vector) -> tuple[Vector, Array]:
        message: dict[str, Array | float] = {"vector": vector}
        first = self._theta is not None
        if self._theta is not None:
            message["theta"] = self._theta
            self._theta = None
        replies, cost = self._federation.call(
            "hessian_product",
            message,
            key=self._key,
            node_weights=self._node_weights,
            start=first,
        )
        self.cost += cost
        return combine(self._node_weights, replies["product"]), replies["slope"]


def _from_linear_solution(
    solution: LinearSolution, asker: _Asker, rate_factor: float, nodes: int
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
    gradient = jnp.broadcast_to(solution.companion, (nodes,))
    return Hypergradient(
        gradient, solution.solution, rate_factor, asker.cost, diagnostics, warnings
    )
