"""The truncated Neumann series for h."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from fedkin.methods.base import PresetName
from fedkin.methods.bilevel.hypergradient import (
    AdjointSolver,
    AdjointSystem,
    HessianProducts,
    Hypergradient,
    from_linear_solution,
)
from fedkin.methods.bilevel.solvers.conjugate_gradients import by_model
from fedkin.methods.local_svrg.center import LocalSvrg
from fedkin.methods.settings import count, from_zero, positive
from fedkin.models.objective import Objective
from fedkin.numerics import linear_solve
from fedkin.types import Vector


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
        damping, terms = by_model(objective, self.damping, self.terms)
        return replace(self, step=self.step or training.learning_rate, terms=terms, damping=damping)

    def __call__(
        self, system: AdjointSystem, *, start: Vector | None = None, rate_factor: float = 1.0
    ) -> Hypergradient:
        """Compute the hypergradient. See `AdjointSolver`; the series always starts at zero."""
        assert start is None, "the Neumann series always starts at zero"
        assert self.step is not None, "call prepare first"
        damping, terms = by_model(system.federation.objective, self.damping, self.terms)
        products = HessianProducts(system)
        solution = linear_solve.neumann_series(
            products,
            system.target,
            step=self.step * rate_factor,
            terms=terms,
            damping=damping,
            tolerance=self.tolerance,
        )
        return from_linear_solution(solution, products, rate_factor)
