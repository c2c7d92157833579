"""h from the Hessian of the owner's own rows: no products with the nodes' Hessians."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import jax.numpy as jnp

from fedkin.errors import InputError
from fedkin.federation.base import PerNode
from fedkin.methods.base import PresetName
from fedkin.methods.bilevel.hypergradient import AdjointSolver, AdjointSystem, Hypergradient
from fedkin.methods.bilevel.node import SLOPE
from fedkin.methods.bilevel.solvers.conjugate_gradients import by_model
from fedkin.methods.local_svrg.center import LocalSvrg
from fedkin.methods.settings import count, from_zero
from fedkin.methods.weights import fill_unknown
from fedkin.models.objective import Objective
from fedkin.types import Vector

LEAST_DAMPING = 0.1
"""For linear models: the owner has few rows, and along many directions they say nothing."""


@dataclass(frozen=True, kw_only=True)
class OwnHessian(AdjointSolver):
    r"""Solve :math:`(\nabla^2 L_0(\theta) + \lambda I) h = \nabla L_0(\theta)` by the owner's own Hessian.

    It stands in for the weighted Hessian of the nodes, which it resembles where the weighted nodes are like
    the owner. h is then not exact, and nor are the weights that training ends with. In return the nodes are
    asked for slopes only, once per outer step: what nodes that protect their rows can answer
    (docs/security.md).

    Args:
        damping: The number λ; if open, 0.1 for linear models, else 1.
        iterations: The largest number of iterations at the center; if open, 20 for linear models, else 8.

    >>> OwnHessian(damping=0.5).damping
    0.5
    """

    name: ClassVar[str] = "own"
    shorthand: ClassVar[Mapping[str, str]] = {
        "damping": "damping",
        "solver_iterations": "iterations",
    }
    takes_start: ClassVar[bool] = False

    damping: float | None = from_zero()
    iterations: int | None = count()

    def prepare(
        self, objective: Objective, training: LocalSvrg, preset: PresetName
    ) -> "OwnHessian":
        """Choose damping and iterations by the model."""
        usual, iterations = by_model(objective, None, self.iterations)
        damping = max(usual, LEAST_DAMPING) if self.damping is None else self.damping
        return replace(self, damping=damping, iterations=iterations)

    def __call__(
        self, system: AdjointSystem, *, start: Vector | None = None, rate_factor: float = 1.0
    ) -> Hypergradient:
        """Compute the hypergradient. See `AdjointSolver`; the solve always starts at zero."""
        assert start is None, "a solve with the owner's own Hessian always starts at zero"
        assert self.damping is not None, "call prepare first"
        assert self.iterations is not None, "call prepare first"
        if system.center is None:
            raise InputError("the solver 'own' needs the owner's rows: give the system its center")
        h = system.center.solve(
            system.theta, system.target, damping=self.damping, iterations=self.iterations
        ).solution
        reply = system.federation.exchange(
            slope=PerNode(SLOPE, {"vector": h, "theta": system.theta}, begin=True), key=system.key
        )
        gradient = fill_unknown(reply.slope["slope"], system.node_weights)
        diagnostics = {"adjoint_norm": float(jnp.linalg.norm(h))}
        return Hypergradient(gradient, h, rate_factor, reply.cost, diagnostics, ())
