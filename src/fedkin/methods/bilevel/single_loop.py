"""The single loop for networks: one exchange moves the model, the vector h and the weights together.

Each exchange takes a round of training and the slopes along h. The center solves for h by itself, with the
Hessian of the validation loss in place of the weighted one of the nodes: nodes like the owner have the same
Hessian up to chance, and the weights soon leave only such nodes. So h costs no communication, belongs to the
very model that the slopes are taken at, and can be solved for again with more damping where the loss is not
convex.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from fedkin.federation.base import Federation, PerNode, Reply, Request, WeightedSum
from fedkin.federation.center import Center
from fedkin.federation.task import RATE
from fedkin.methods.base import Info
from fedkin.methods.bilevel.node import DECREMENT, MOST_DAMPING, SLOPE
from fedkin.methods.bilevel.rivals import Rivals
from fedkin.methods.bilevel.weight_search import WeightSearch, shifted_weight
from fedkin.methods.local_svrg.node import INNER_SVRG_ROUND
from fedkin.methods.weights import Cap, Roster
from fedkin.numerics.linear_solve import DampedSolution
from fedkin.numerics.simplex import project_capped_simplex
from fedkin.types import Array, Key, Vector

CURVATURE_STEP = 1.5
"""The step size times the largest curvature: above 2 the steepest direction would diverge."""
FIRST_STEP = 0.5
"""The same for the first round: curvature mostly grows within it."""
DAMPING_SHARE = 0.06
"""The damping is at least this part of the largest curvature."""
SOLVER_ITERATIONS = 8
"""Iterations of the solve for h."""
MOST_SOLVES = 10
"""How often the damping is raised for it; from 0.06 of the curvature to all of it takes five."""
DECREMENT_ITERATIONS = 5
"""Iterations of a node's own solve."""
DECREMENT_BATCHES = 5
"""Mini-batches that a node takes for it."""
TURNS = 4
"""Nodes without weight are asked for their slope in every fourth exchange; so are all nodes while the weights
rest."""
IMPROVEMENT = 2e-3
"""A validation loss lower by this part is a new minimum."""
TOO_HIGH = 1.3
"""Once the weights have settled, a validation loss this many times the lowest so far means that the last
steps were too long. Before, it goes up and down with the nodes that still count."""
DIVERGED = 3.0
"""The same while the weights still shift, as a multiple of the loss of the initial model."""
PATIENCE = 15
"""Exchanges without a new minimum before the step size is halved."""
HALVINGS = 3
"""How often the step size is halved before training ends."""
SHIFTING = 0.02
"""A shift of more than this part of the whole weight makes another problem, with its own curvature."""
FORGIVING = 0.25
"""After a shift of this part of the whole weight, steps that were too long before may suit again."""
SETTLED = 0.05
"""The weights have settled when three exchanges shift no more than this part of the whole weight."""
FIRST_RESTART = 10
"""The exchanges before other models are begun: until then training alone makes the most progress."""

TINY = 1e-12


class SingleLoopState(NamedTuple):
    """What the single loop carries from one exchange to the next."""

    search: WeightSearch
    theta: Vector
    curvatures: Array
    """The largest curvatures of the validation loss in the last exchanges; NaN before the first."""
    curvature: float
    """The largest median of them since the weights have stopped shifting; a single outlier does not count."""
    learning_rate: float
    caution: float
    """What the step size is multiplied with after steps that were taken back."""
    cautious_with: Array
    """The weights when that was last necessary."""
    damping: float
    halvings: int
    """How often the step size has been halved because the validation loss stood still."""
    trained_with: Array
    """The weights of the last round of training."""
    first_loss: float
    """The validation loss of the initial model."""
    best_loss: float
    best_theta: Vector
    best_weights: Array
    """The weights that the best model was trained with."""
    exchanges: int
    since_best: int
    """Exchanges since the validation loss had its minimum."""
    shifts: Array
    """The parts of the whole weight that the last three exchanges shifted."""
    rivals: Rivals
    roster: Roster
    """Who takes part, and the weights of those who are away."""


@dataclass(frozen=True)
class SingleLoop:
    """Learn weights and a network, one exchange per step, with step sizes from what has been seen.

    Once the weights have settled, new models are trained next to the first, in the same exchanges; one
    after the other the worst on the validation data is given up.

    Args:
        cap: The largest weight b of a node.
        period: The number τ of local steps in an exchange.
        learning_rate: The step size γ; None takes it from the curvature seen.
        refresh_probability: The probability q of renewing a reference point in a step.
        restarts: How many models are started when the weights have settled.
    """

    cap: Cap
    period: int
    learning_rate: float | None = None
    refresh_probability: float = 0.02
    restarts: int = 3

    def init(self, theta: Vector, nodes: int) -> SingleLoopState:
        """Begin with equal weights."""
        node_weights = project_capped_simplex(jnp.full(nodes, 1 / nodes), self.cap)
        return SingleLoopState(
            search=WeightSearch.begin(node_weights),
            theta=theta,
            curvatures=jnp.full(5, jnp.nan),
            curvature=0.0,
            learning_rate=0.0,
            caution=1.0,
            cautious_with=node_weights,
            damping=0.0,
            halvings=0,
            trained_with=node_weights,
            first_loss=math.inf,
            best_loss=math.inf,
            best_theta=theta,
            best_weights=node_weights,
            exchanges=0,
            since_best=0,
            shifts=jnp.ones(3),
            rivals=Rivals.none_yet(self.restarts, len(theta)),
            roster=Roster.of_all(node_weights),
        )

    def step(
        self, state: SingleLoopState, key: Key, federation: Federation, center: Center
    ) -> tuple[SingleLoopState, Info]:
        """Do one exchange."""
        state = _without_old_caution(self._among(state, federation.present))
        loss, target = center.loss_and_gradient(state.theta)
        warnings = ()
        taken_back = not loss <= _highest_loss(state)
        if taken_back:
            state, warning = _take_back(state)
            warnings = (warning,)
            loss, target = center.loss_and_gradient(state.theta)
        improving = loss < (1 - IMPROVEMENT) * state.best_loss
        state = _remember(state, loss, improving=improving)
        state, adjoint = self._solve(state, target, center)
        reply = self._exchange(state, adjoint, key, federation)
        following = state
        if _wants_slopes(state):
            # What the loss could lose in all directions together is the unit of slopes and errors.
            unit = max(float(target @ adjoint), TINY)
            slopes = reply.slope["slope"] / unit
            errors = _standard_errors(reply.decrement["decrement"], loss, center) / unit
            following = self._move(state, slopes, errors, federation, improving=improving)
        weights = state.search.node_weights
        trained, rivals = state.theta, state.rivals
        if np.asarray(weights)[federation.present].any():  # else all that were to train have left
            trained, rivals = self._trained(state, reply)
        shift = shifted_weight(weights, following.search.node_weights)
        arriving = following.search.arrived and not state.search.arrived
        following = following._replace(
            theta=trained,
            rivals=rivals,
            # Weights from before their arrival are no longer a place to return to.
            trained_with=following.search.node_weights if arriving else weights,
            exchanges=state.exchanges + 1,
            shifts=jnp.roll(state.shifts, 1).at[0].set(shift),
        )
        following = self._compare(following, key, federation, center)
        # A round that has diverged leaves no model; the next step takes it back.
        is_model = bool(jnp.isfinite(following.theta).all())
        info = Info(
            following.theta if is_model else following.best_theta,
            weights,
            reply.cost,
            self._diagnostics(state, loss, reply, taken_back=taken_back),
            warnings=warnings,
            stop=_stop(following),
        )
        return following, info

    def _among(self, state: SingleLoopState, present: np.ndarray) -> SingleLoopState:
        """Suit the nodes that take part now; where the weights change much, it is another problem."""
        weights = state.search.node_weights
        returned = state.roster.with_returned(weights, self.cap, present)
        search = state.search if returned is weights else state.search.returned(returned)
        search = search.among(present, self.cap)
        state = state._replace(roster=state.roster.after(search.node_weights, present))
        if shifted_weight(state.search.node_weights, search.node_weights) <= SHIFTING:
            return state._replace(search=search)
        return state._replace(
            search=search,
            learning_rate=state.learning_rate * FIRST_STEP / (2 * CURVATURE_STEP),
            halvings=0,
            since_best=0,
            best_loss=math.inf,
            best_theta=state.theta,
            best_weights=search.node_weights,
            trained_with=search.node_weights,
        )

    def _solve(
        self, state: SingleLoopState, target: Vector, center: Center
    ) -> tuple[SingleLoopState, Vector]:
        """Solve for h, and choose damping and step size by the curvature met."""
        solution, damping = _damped_solve(state, target, center)
        met = _curvature_met(solution, state)
        moving = float(state.shifts[0]) > SHIFTING and not state.search.arrived
        curvatures = jnp.full_like(state.curvatures, jnp.nan) if moving else state.curvatures
        curvatures = curvatures.at[state.exchanges % len(curvatures)].set(met)
        median = float(np.nanmedian(np.asarray(curvatures)))
        curvature = median if moving else max(state.curvature, median)
        rate = FIRST_STEP / max(curvature, TINY)
        if state.exchanges > 0:
            rate = min(2 * state.learning_rate, CURVATURE_STEP / max(curvature, TINY))
        state = state._replace(
            curvatures=curvatures,
            curvature=curvature,
            learning_rate=self.learning_rate or min(rate, RATE[1]),
            damping=damping,
        )
        return state, solution.solution

    def _move(
        self,
        state: SingleLoopState,
        slopes: Array,
        errors: Array,
        federation: Federation,
        *,
        improving: bool,
    ) -> SingleLoopState:
        search = state.search.move(
            slopes, errors, cap=self.cap, present=federation.present, improving=improving
        )
        arriving = search.arrived and not state.search.arrived
        best_weights = search.node_weights if arriving else state.best_weights
        return state._replace(search=search, best_weights=best_weights)

    def _exchange(
        self, state: SingleLoopState, adjoint: Vector, key: Key, federation: Federation
    ) -> Reply:
        weights = state.search.node_weights
        models = [state.theta, *state.rivals.models[state.rivals.places]]
        several = len(models) > 1
        train = WeightedSum(
            INNER_SVRG_ROUND,
            {
                "point": jnp.stack(models) if several else state.theta,
                "learning_rate": _rate(state),
                "refresh_probability": self.refresh_probability,
                "averaging_rate": 0.0,
            },
            weights=jnp.stack([weights] * len(models)) if several else weights,
            begin=True,
            steps=self.period,
            reply="point",
        )
        requests: dict[str, Request] = {"train": train}
        if _wants_slopes(state):
            asked = _asked_for_slopes(state, federation)
            requests["slope"] = PerNode(
                SLOPE, {"vector": adjoint, "theta": state.theta}, begin=True, nodes=asked
            )
            requests["decrement"] = PerNode(
                DECREMENT,
                {"theta": state.theta, "damping": state.damping},
                begin=True,
                nodes=asked,
                iterations=DECREMENT_ITERATIONS,
                batches=min(DECREMENT_BATCHES, federation.batches),
            )
        return federation.exchange(key=key, **requests)

    def _trained(self, state: SingleLoopState, reply: Reply) -> tuple[Vector, Rivals]:
        points = jnp.atleast_2d(reply.train["point"])
        return points[0], state.rivals.trained(points[1:])

    def _compare(
        self, state: SingleLoopState, key: Key, federation: Federation, center: Center
    ) -> SingleLoopState:
        """Start rivals when the weights have settled; give up the worst model when it is time."""
        rivals = state.rivals
        if not rivals.started:
            if not (self.restarts and state.exchanges >= FIRST_RESTART and _settled(state)):
                return state
            return state._replace(rivals=rivals.start(federation.objective, key))
        if not len(rivals.places):
            return state
        theta, rivals, overtaken = rivals.compare(state.theta, center)
        search = state.search
        if overtaken:
            search = search.restarted(search.node_weights)
        return state._replace(theta=theta, search=search, rivals=rivals, since_best=0)

    def _diagnostics(
        self, state: SingleLoopState, loss: float, reply: Reply, *, taken_back: bool
    ) -> dict[str, float]:
        return {
            "outer_loss": loss,
            "training_loss": float(jnp.atleast_1d(reply.train["loss"])[0]),
            "learning_rate": _rate(state),
            "curvature": state.curvature,
            "damping": state.damping,
            "largest_move": state.search.radius,
            "models": 1.0 + len(state.rivals.places),
            "taken_back": float(taken_back),
        }


def _rate(state: SingleLoopState) -> float:
    return state.caution * state.learning_rate / 2**state.halvings


def _damped_solve(
    state: SingleLoopState, target: Vector, center: Center
) -> tuple[DampedSolution, float]:
    """Solve for h with as little damping as makes the Hessian positive definite; return both."""
    damping, solves = state.damping / 1.3, 0
    while True:
        solution = center.solve(state.theta, target, damping=damping, iterations=SOLVER_ITERATIONS)
        solves += 1
        met = _curvature_met(solution, state)
        least = min(DAMPING_SHARE * max(met, state.curvature), MOST_DAMPING)
        enough = damping >= least and (bool(solution.convex) or damping >= met)
        if enough or solves == MOST_SOLVES:
            return solution, damping
        damping = min(max(2 * damping, least), MOST_DAMPING)


def _curvature_met(solution: DampedSolution, state: SingleLoopState) -> float:
    """Return the largest curvature that a solve has met; the one known before if it has overflowed."""
    met = float(solution.curvature)
    return met if math.isfinite(met) else state.curvature


def _standard_errors(decrements: Array, loss: float, center: Center) -> Array:
    r"""Return the standard errors of the slopes :math:`-\nabla L_k^\top H^{-1} \nabla L_0`.

    The gradient of the validation loss is a mean over points. Near a model that fits, the gradient of one
    point has the covariance H (for squared errors: times their variance), so the slope's variance is
    :math:`\nabla L_k^\top H^{-1} \nabla L_k / n_0`.
    """
    noise = 2 * loss if center.objective.model.task == "regression" else 1.0
    return jnp.sqrt(jnp.maximum(decrements, 0.0) * noise / center.points)


def _wants_slopes(state: SingleLoopState) -> bool:
    """Whether this exchange asks for slopes: only now and then while the weights rest."""
    at_rest = state.search.arrived and float(state.shifts[0]) == 0
    return not at_rest or state.exchanges % TURNS == 0


def _asked_for_slopes(state: SingleLoopState, federation: Federation) -> np.ndarray:
    """Choose the nodes that have a weight, and the others: all in every fourth exchange, or in turn."""
    counted = np.asarray(state.search.node_weights) != 0
    turn = (np.arange(len(counted)) + state.exchanges) % TURNS == 0
    if federation.ask_all or (state.search.arrived and state.exchanges % TURNS == 0):
        return np.ones_like(counted)
    return counted if state.search.arrived else counted | turn


def _settled(state: SingleLoopState) -> bool:
    return state.search.arrived and float(jnp.sum(state.shifts)) < SETTLED


def _without_old_caution(state: SingleLoopState) -> SingleLoopState:
    """Forget that steps were too long where the weights are quite different now."""
    if shifted_weight(state.cautious_with, state.search.node_weights) < FORGIVING:
        return state
    return state._replace(caution=1.0, cautious_with=state.search.node_weights)


def _highest_loss(state: SingleLoopState) -> float:
    """Return the validation loss above which steps are taken back."""
    decided = state.rivals.started or _settled(state)
    if decided and math.isfinite(state.best_loss):
        return TOO_HIGH * state.best_loss
    return DIVERGED * state.first_loss


def _take_back(state: SingleLoopState) -> tuple[SingleLoopState, str]:
    """Return to the best model, take shorter steps from there, and say which.

    Where the weights have settled and changed since, they are to blame, and return too; otherwise
    the step size of training is.
    """
    shift = shifted_weight(state.best_weights, state.search.node_weights)
    if state.rivals.started and shift > SHIFTING:
        search = state.search.restarted(state.best_weights, 0.3)
        warning = (
            f"the last moves of the weights had raised the validation loss: {shift:.0%} of the weight "
            "returns to where it was, and the next moves are shorter"
        )
        return state._replace(theta=state.best_theta, search=search), warning
    weights = state.search.node_weights
    state = state._replace(
        theta=state.best_theta,
        search=state.search.restarted(weights),
        caution=state.caution / 2,
        cautious_with=weights,
    )
    warning = (
        "training had left the best model far behind: it continues from there with the step size "
        f"{_rate(state):.2g}"
    )
    return state, warning


def _remember(state: SingleLoopState, loss: float, *, improving: bool) -> SingleLoopState:
    if not improving:
        patience_over = state.since_best + 1 >= PATIENCE
        return state._replace(
            since_best=0 if patience_over else state.since_best + 1,
            halvings=state.halvings + patience_over,
        )
    if state.exchanges == 0:
        state = state._replace(first_loss=loss)
    return state._replace(
        best_loss=loss, best_theta=state.theta, best_weights=state.trained_with, since_best=0
    )


def _stop(state: SingleLoopState) -> str | None:
    if state.halvings <= HALVINGS:
        return None
    return (
        f"finished: the validation loss {state.best_loss:.4g} has not improved by "
        f"{IMPROVEMENT:.1%} in {PATIENCE} synchronizations, with the step size halved {HALVINGS} times"
    )
