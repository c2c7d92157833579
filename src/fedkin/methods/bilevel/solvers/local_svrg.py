"""The paper's solver for h: Local-SVRG."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import jax
import jax.numpy as jnp

from fedkin.errors import DivergedError
from fedkin.federation.base import Cost, PerNode, WeightedSum
from fedkin.methods.base import PresetName
from fedkin.methods.bilevel.hypergradient import AdjointSolver, AdjointSystem, Hypergradient
from fedkin.methods.bilevel.node import ADJOINT_SVRG_ROUND, SLOPE
from fedkin.methods.local_svrg.center import LocalSvrg
from fedkin.methods.settings import count, positive
from fedkin.methods.weights import fill_unknown
from fedkin.models.objective import Objective
from fedkin.types import Vector

MOST_HALVINGS = 40

MOVE_CEILING = 10.0
"""An adjoint that moves this many times farther in a round than γτ‖∇L_0‖ counts as divergence."""


@dataclass(frozen=True, kw_only=True)
class LocalSvrgSolver(AdjointSolver):
    """The paper's solver: Local-SVRG on the quadratic `eq:QP_matrixinverse`.

    If the iteration diverges, the solve begins again: first from zero, if it had begun elsewhere (a
    start that does not suit the new system looks like divergence), then with half the learning rate.

    Args:
        learning_rate: The step size γ_h; if open, 0.0005 with the paper's preset, else training's.
        rounds: The number of synchronizations; training's if open.
        training: The whole solve, in place of the two above; made by `prepare` if not given.

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
        """Take over from training what is open; a solver that knows its training is left as it is."""
        if self.training is not None:
            return self
        usual = 0.0005 if preset == "paper" else training.learning_rate
        learning_rate, rounds = self.learning_rate or usual, self.rounds or training.rounds
        solve = replace(training, learning_rate=learning_rate, rounds=rounds, tolerance=None)
        return LocalSvrgSolver(learning_rate=learning_rate, rounds=rounds, training=solve)

    def __call__(
        self, system: AdjointSystem, *, start: Vector | None = None, rate_factor: float = 1.0
    ) -> Hypergradient:
        """Compute the hypergradient. See `AdjointSolver`."""
        assert self.training is not None, "call prepare first"
        rate = self.training.learning_rate
        cost, first_factor = Cost(), rate_factor
        for retries in range(MOST_HALVINGS + 1):
            found, own_cost = solve_by_svrg(
                replace(system, key=jax.random.fold_in(system.key, retries)),
                jnp.zeros_like(system.target) if start is None else start,
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
        reply = system.federation.exchange(slope=PerNode(SLOPE, {"vector": found}), key=system.key)
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
        gradient = fill_unknown(reply.slope["slope"], system.node_weights)
        return Hypergradient(gradient, found, rate_factor, cost + reply.cost, diagnostics, warnings)


def solve_by_svrg(
    system: AdjointSystem, start: Vector, settings: LocalSvrg
) -> tuple[Vector | None, Cost]:
    r"""Solve :math:`\sum_k w_k \nabla^2 L_k(\theta) h = \nabla L_0(\theta)` (`eq:QP_matrixinverse`).

    In one step of a stable iteration h moves by at most γ times the residual. So a round that moves it
    much farther than γτ‖∇L_0(θ)‖ shows that γ is too large, long before numbers overflow.

    Returns:
        The solution, or None if the iteration diverged; and what it cost.
    """
    point, cost = start, Cost()
    ceiling = (
        MOVE_CEILING * settings.learning_rate * settings.period * jnp.linalg.norm(system.target)
    )
    for number in range(settings.rounds):
        begin = {"theta": system.theta, "target": system.target} if number == 0 else {}
        asked_for = settings.reply_of_round(number)
        reply = system.federation.exchange(
            solve=WeightedSum(
                ADJOINT_SVRG_ROUND,
                settings.message(point) | begin,
                weights=system.node_weights,
                begin=number == 0,
                steps=settings.period,
                reply=asked_for,
            ),
            key=jax.random.fold_in(system.key, number),
        )
        cost += reply.cost
        moved = reply.solve["point"]
        # The average of all iterates may lie as far from the last as all rounds together have moved.
        farthest = ceiling * settings.rounds if asked_for == "average" else ceiling
        if not jnp.linalg.norm(moved - point) <= farthest:
            return None, cost
        point = moved
    return point, cost
