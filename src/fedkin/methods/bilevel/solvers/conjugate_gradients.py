"""Damped conjugate gradients for h."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import jax.numpy as jnp

from fedkin.methods.base import PresetName
from fedkin.methods.bilevel.hypergradient import (
    AdjointSolver,
    AdjointSystem,
    HessianProducts,
    Hypergradient,
    from_linear_solution,
)
from fedkin.methods.local_svrg.center import LocalSvrg
from fedkin.methods.settings import count, from_zero, positive
from fedkin.models.base import LinearModel
from fedkin.models.objective import Objective
from fedkin.numerics import linear_solve
from fedkin.numerics.linear_solve import LinearSolution
from fedkin.types import Vector

LARGEST_DAMPING = 1e6


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
        damping, iterations = by_model(objective, self.damping, self.iterations)
        return replace(self, damping=damping, iterations=iterations)

    def __call__(
        self, system: AdjointSystem, *, start: Vector | None = None, rate_factor: float = 1.0
    ) -> Hypergradient:
        """Compute the hypergradient. See `AdjointSolver`."""
        given, iterations = by_model(system.federation.objective, self.damping, self.iterations)
        products = HessianProducts(system)

        def solve(damping: float) -> LinearSolution:
            return linear_solve.conjugate_gradients(
                products,
                system.target,
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
        found = from_linear_solution(solution, products, rate_factor)
        return found._replace(warnings=warnings + found.warnings)


def _found_nothing(solution: LinearSolution) -> bool:
    return solution.reason == "negative curvature" and not bool(jnp.any(solution.solution))


def by_model(
    objective: Objective, damping: float | None, iterations: int | None
) -> tuple[float, int]:
    """Choose what is open: a convex model's Hessian is positive definite, a network's needs damping."""
    linear = isinstance(objective.model, LinearModel)
    if damping is None:
        damping = 0.0 if linear else 1.0
    return damping, iterations or (20 if linear else 8)
