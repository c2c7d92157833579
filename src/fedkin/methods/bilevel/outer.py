"""Learning the node weights: Algorithm 2, Algorithm 3, and a variant that chooses its own steps."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.federation.base import Federation
from fedkin.federation.center import Center
from fedkin.methods.base import Info
from fedkin.methods.bilevel.hypergradient import AdjointSolver, AdjointSystem, Hypergradient
from fedkin.methods.local_svrg.center import (
    LocalSvrg,
    SvrgSolution,
    solve_inner,
    solve_side_by_side,
)
from fedkin.methods.weights import Cap, Roster, cap_among, project_weights
from fedkin.numerics.simplex import project_capped_simplex
from fedkin.numerics.simplex_steps import largest_decrease
from fedkin.types import Array, Key, Vector

SUFFICIENT_DECREASE = 1e-4
"""The share of the decrease predicted by the gradient that a step must achieve (Armijo)."""

CONVERGED_GAP = 5e-4
"""The adaptive loop has converged where no weights promise more than this share of the validation loss."""


class BilevelState(NamedTuple):
    """What Algorithms 2 and 3 carry from one outer iteration to the next."""

    node_weights: Array
    """The weights w."""
    aggregate_weights: Array
    """The weights w_ag of Algorithm 2; in Algorithm 3 they are the same as w."""
    theta: Vector
    """The model, where the next inner solve starts."""
    adjoint: Vector
    """The vector h of the last iteration."""
    rate_factor: float
    """What the adjoint solver's learning rate has been multiplied with after divergence."""
    iteration: int
    """The number s of outer iterations done."""
    roster: Roster
    """Who takes part, and the weights w of those who are away."""


@dataclass(frozen=True)
class Differentiation:
    """How the hypergradient at given weights is computed: the settings of lines 5-12.

    Args:
        cap: The largest weight b of a node.
        inner: The solve for θ.
        solver: The solver for h.
        warm_start: Begin the inner solve at the last model; False begins at zero, as the analysis does.
        warm_start_adjoint: Begin the solve for h at the last h instead of at zero.
    """

    cap: Cap
    inner: LocalSvrg
    solver: AdjointSolver
    warm_start: bool = True
    warm_start_adjoint: bool = False

    def init(self, theta: Vector, nodes: int) -> BilevelState:
        """Begin with equal weights."""
        node_weights = project_capped_simplex(jnp.full(nodes, 1 / nodes), self.cap)
        return BilevelState(
            node_weights,
            node_weights,
            theta,
            jnp.zeros_like(theta),
            1.0,
            0,
            Roster.of_all(node_weights),
        )

    def train(
        self, theta: Vector, node_weights: Array, key: Key, federation: Federation
    ) -> SvrgSolution:
        """Solve the inner problem at these weights, approximately, from θ or from zero."""
        start = theta if self.warm_start else jnp.zeros_like(theta)
        return solve_inner(federation, node_weights, start, key, self.inner)

    def hypergradient_at(
        self,
        theta: Vector,
        target: Vector,
        node_weights: Array,
        state: BilevelState,
        key: Key,
        federation: Federation,
        center: Center,
    ) -> Hypergradient:
        """Return the gradient of F at these weights, whose model is θ; `target` is ∇L_0(θ)."""
        return self.solver(
            AdjointSystem(federation, node_weights, theta, target, key, center),
            start=state.adjoint if self.warm_start_adjoint and state.iteration > 0 else None,
            rate_factor=state.rate_factor,
        )

    def differentiate(
        self,
        state: BilevelState,
        node_weights: Array,
        key: Key,
        federation: Federation,
        center: Center,
    ) -> tuple[SvrgSolution, float, Hypergradient]:
        """Return θ(w), the validation loss F(w) and the hypergradient, all approximate."""
        inner_key, adjoint_key = jax.random.split(key)
        solution = self.train(state.theta, node_weights, inner_key, federation)
        loss, target = center.loss_and_gradient(solution.point)
        hypergradient = self.hypergradient_at(
            solution.point, target, node_weights, state, adjoint_key, federation, center
        )
        return solution, loss, hypergradient


@dataclass(frozen=True)
class ProximalBilevel:
    """Algorithm 3 (`alg:fedbl_nc`): projected steps along the hypergradient, for non-convex F.

    Args:
        differentiation: How the hypergradient is computed.
        outer_learning_rate: The step size η.
    """

    differentiation: Differentiation
    outer_learning_rate: float

    def init(self, theta: Vector, nodes: int) -> BilevelState:
        """Begin with equal weights."""
        return self.differentiation.init(theta, nodes)

    def step(
        self, state: BilevelState, key: Key, federation: Federation, center: Center
    ) -> tuple[BilevelState, Info]:
        """Take one outer iteration: w ← P(w − η g)."""
        cap = self.differentiation.cap
        node_weights = state.roster.readmit(state.node_weights, cap, federation.present)
        solution, loss, hypergradient = self.differentiation.differentiate(
            state, node_weights, key, federation, center
        )
        moved = project_weights(
            node_weights - self.outer_learning_rate * hypergradient.gradient,
            cap,
            federation.present,
        )
        state = BilevelState(
            moved,
            moved,
            solution.point,
            hypergradient.adjoint,
            hypergradient.rate_factor,
            state.iteration + 1,
            state.roster.after(node_weights, federation.present),
        )
        return state, _info(solution, node_weights, loss, hypergradient)


@dataclass(frozen=True)
class AcceleratedBilevel:
    """Algorithm 2 (`alg:fedbl`): the accelerated method, for convex F.

    The result are the aggregate weights w_ag. The gradient is taken at the middle point w_md, so the
    model that belongs to w_ag is trained in addition, from the one at w_md.

    Args:
        differentiation: How the hypergradient is computed.
        outer_learning_rate: The step size η.
    """

    differentiation: Differentiation
    outer_learning_rate: float

    def init(self, theta: Vector, nodes: int) -> BilevelState:
        """Begin with equal weights."""
        return self.differentiation.init(theta, nodes)

    def step(
        self, state: BilevelState, key: Key, federation: Federation, center: Center
    ) -> tuple[BilevelState, Info]:
        """Take one outer iteration (Algorithm 2, lines 4-14)."""
        s, eta, cap = state.iteration, self.outer_learning_rate, self.differentiation.cap
        middle_key, aggregate_key = jax.random.split(key)
        present = federation.present
        node_weights = state.roster.readmit(state.node_weights, cap, present)
        aggregate = state.roster.readmit(state.aggregate_weights, cap, present)
        roster = state.roster.after(aggregate, present)
        middle = 2 / (s + 2) * node_weights + s / (s + 2) * aggregate
        solution, _, hypergradient = self.differentiation.differentiate(
            state, middle, middle_key, federation, center
        )
        gradient = hypergradient.gradient
        aggregate = project_weights(middle - eta * gradient, cap, federation.present)
        result = self.differentiation.train(solution.point, aggregate, aggregate_key, federation)
        state = BilevelState(
            project_weights(node_weights - eta * (s + 1) / 4 * gradient, cap, federation.present),
            aggregate,
            result.point,
            hypergradient.adjoint,
            hypergradient.rate_factor,
            s + 1,
            roster,
        )
        loss, _ = center.loss_and_gradient(result.point)
        result = result._replace(cost=solution.cost + result.cost)
        return state, _info(result, aggregate, loss, hypergradient)


class AdaptiveState(NamedTuple):
    """What the adaptive variant carries from one outer iteration to the next."""

    accepted: BilevelState
    """The weights accepted last, with their model, h and the iteration number."""
    candidate: Array
    """The weights to try next."""
    loss: float
    """F at the accepted weights; infinite before the first step."""
    gradient: Array
    """The hypergradient at the accepted weights."""
    outer_learning_rate: float
    """The step size η that made the candidate."""
    shortened: bool
    """Whether a longer step from the accepted weights has been rejected."""


@dataclass(frozen=True)
class AdaptiveBilevel:
    """Algorithm 3 with a step size that follows the validation loss.

    A step solves the inner problem at the candidate weights. If the validation loss has fallen enough
    (Armijo's condition along the projected step), the candidate is accepted, the hypergradient there
    is computed, and η is doubled unless it had just been shortened; if not, η is divided by four and
    the next candidate starts from the accepted weights again, at the price of one inner solve and no
    hypergradient.

    A candidate's model continues from the accepted weights' model, so it has been trained for longer. Where
    nodes may lie, the accepted weights' model is trained on beside it, in the same exchanges, and both
    losses are compared: else longer training alone would pay for weights that do harm.

    Args:
        differentiation: How the hypergradient is computed.
        equally_long: Whether only weights are compared that were trained equally long.
        first_move: The largest change of a weight in the first step, before projection.
        tolerance: Stop when a step along the hypergradient promises a decrease of the validation loss
            below this fraction of it.
        smallest_move: Stop when a rejected step had changed no weight by more than this.
    """

    differentiation: Differentiation
    equally_long: bool = False
    first_move: float = 0.25
    tolerance: float = 1e-4
    smallest_move: float = 1e-3

    def init(self, theta: Vector, nodes: int) -> AdaptiveState:
        """Begin with equal weights as the first candidate."""
        accepted = self.differentiation.init(theta, nodes)
        nothing = jnp.zeros_like(accepted.node_weights)
        return AdaptiveState(
            accepted, accepted.node_weights, float("inf"), nothing, 0.0, shortened=False
        )

    def step(
        self, state: AdaptiveState, key: Key, federation: Federation, center: Center
    ) -> tuple[AdaptiveState, Info]:
        """Try the candidate weights."""
        cap = self.differentiation.cap
        inner_key, adjoint_key = jax.random.split(key)
        roster = state.accepted.roster
        candidate = roster.readmit(state.candidate, cap, federation.present)
        roster = roster.after(candidate, federation.present)
        # Where nodes have come or gone, the accepted weights cannot be returned to.
        same_nodes = np.array_equal(candidate, state.candidate)
        solution, before = self._train(state, candidate, inner_key, federation, center, same_nodes)
        loss, target = center.loss_and_gradient(solution.point)
        move = candidate - state.accepted.node_weights
        if same_nodes and loss > before + SUFFICIENT_DECREASE * float(state.gradient @ move):
            kept = state.accepted._replace(roster=roster)
            return self._reject(state._replace(accepted=kept), solution, loss, federation)
        hypergradient = self.differentiation.hypergradient_at(
            solution.point, target, candidate, state.accepted, adjoint_key, federation, center
        )
        gradient = hypergradient.gradient
        if state.accepted.iteration == 0:
            spread = float(jnp.max(jnp.abs(gradient - jnp.mean(gradient))))
            eta = self.first_move / spread if spread > 0 else 0.0
        else:
            eta = state.outer_learning_rate * (1 if state.shortened else 2)
        accepted = BilevelState(
            candidate,
            candidate,
            solution.point,
            hypergradient.adjoint,
            hypergradient.rate_factor,
            state.accepted.iteration + 1,
            roster,
        )
        following = project_weights(candidate - eta * gradient, cap, federation.present)
        promise = -float(gradient @ (following - candidate))
        stop = None
        if promise <= self.tolerance * loss:
            stop = _reason_to_stop(solution, loss, promise, gradient, candidate, cap, federation)
        info = _info(
            solution,
            candidate,
            loss,
            hypergradient,
            stop=stop,
            more={"outer_learning_rate": eta, "accepted": 1.0},
        )
        return AdaptiveState(accepted, following, loss, gradient, eta, shortened=False), info

    def _train(
        self,
        state: AdaptiveState,
        candidate: Array,
        key: Key,
        federation: Federation,
        center: Center,
        compared: bool,
    ) -> tuple[SvrgSolution, float]:
        """Train with the candidate; return also the loss at the accepted weights to compare it with."""
        accepted, differentiation = state.accepted, self.differentiation
        first = accepted.iteration == 0
        if first or not (self.equally_long and compared):
            solution = differentiation.train(accepted.theta, candidate, key, federation)
            return solution, state.loss
        rows = jnp.stack([candidate, accepted.node_weights])
        start = accepted.theta if differentiation.warm_start else jnp.zeros_like(accepted.theta)
        solution, (other,) = solve_side_by_side(federation, rows, start, key, differentiation.inner)
        return solution, center.losses([other])[0]

    def _reject(
        self, state: AdaptiveState, solution: SvrgSolution, loss: float, federation: Federation
    ) -> tuple[AdaptiveState, Info]:
        accepted = state.accepted
        move = float(jnp.max(jnp.abs(state.candidate - accepted.node_weights)))
        eta = state.outer_learning_rate / 4
        candidate = project_weights(
            accepted.node_weights - eta * state.gradient,
            self.differentiation.cap,
            federation.present,
        )
        stop = None
        if move <= self.smallest_move:
            stop = (
                f"stopped: moving the weights by {move:.2g} no longer lowers the validation loss, as "
                "exactly as training and solver make it known"
            )
        diagnostics = {
            "outer_loss": loss,
            "training_loss": solution.loss,
            "inner_rounds": float(solution.rounds),
            "outer_learning_rate": eta,
            "accepted": 0.0,
        }
        info = Info(accepted.theta, accepted.node_weights, solution.cost, diagnostics, stop=stop)
        return state._replace(candidate=candidate, outer_learning_rate=eta, shortened=True), info


def _reason_to_stop(
    solution: SvrgSolution,
    loss: float,
    promise: float,
    gradient: Array,
    node_weights: Array,
    cap: Cap,
    federation: Federation,
) -> str:
    """Say that the loop has converged only where training has settled and no other weights are better."""
    present = federation.present
    slopes, weights = np.asarray(gradient, np.float64), np.asarray(node_weights, np.float64)
    gap = largest_decrease(slopes[present], weights[present], cap_among(cap, present))
    next_step = (
        f"the next step promises to lower the validation loss {loss:.4g} "
        f"by {max(promise, 0.0):.2g} at most"
    )
    if not solution.settled:
        return f"stopped: {next_step}, but training has not settled: give it more rounds"
    if gap > CONVERGED_GAP * loss:
        return f"stopped: {next_step}, but by its slopes other weights may lower it by {gap:.2g}"
    return f"converged: {next_step}"


def _info(
    solution: SvrgSolution,
    node_weights: Array,
    loss: float,
    hypergradient: Hypergradient,
    *,
    stop: str | None = None,
    more: dict[str, float] | None = None,
) -> Info:
    diagnostics = {
        "outer_loss": loss,
        "training_loss": solution.loss,
        "inner_rounds": float(solution.rounds),
        "hypergradient_norm": float(jnp.linalg.norm(hypergradient.gradient)),
    }
    return Info(
        solution.point,
        node_weights,
        solution.cost + hypergradient.cost,
        diagnostics | hypergradient.diagnostics | (more or {}),
        hypergradient.warnings,
        stop,
    )
