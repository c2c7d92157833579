"""The single loop for networks: one exchange moves the model, the vector h and the weights together.

Each exchange takes a round of training, a solve for h on the nodes, and the slopes along the last h. Nothing
is solved to its end; all three follow each other. A product of the whole Hessian per exchange would
leave h behind: a network's Hessian has a few large eigenvalues, in whose directions the gradient of the
validation loss is mostly noise of training. So every node solves for h with its own Hessian, on a few
mini-batches, and the center averages. Among nodes that are alike the average is close to the solution
with the average Hessian; the weights soon leave only such nodes.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.federation.base import Federation, PerNode, Reply, Request, WeightedSum
from fedkin.federation.center import Center
from fedkin.methods.base import Info
from fedkin.methods.bilevel.node import ADJOINT_SOLVE, SLOPE
from fedkin.methods.bilevel.weight_search import WeightSearch, shifted_weight
from fedkin.methods.local_svrg.node import INNER_SVRG_ROUND
from fedkin.numerics.simplex import project_capped_simplex
from fedkin.types import Array, Key, Vector

CURVATURE_STEP = 1.5
"""The step size times the largest curvature: above 2 the steepest direction would diverge."""
FIRST_STEP = 0.25
"""The same for the first round: curvature mostly grows within it."""
DAMPING_SHARE = 0.06
"""The damping is at least this part of the largest curvature."""
SOLVER_ITERATIONS = 8
"""Iterations of a node's solve for h."""
SOLVER_BATCHES = 10
"""Mini-batches that a node takes for them."""
SOLVING_NODES = 15
"""At most this many nodes solve for h in an exchange, drawn by their weights: enough for an average."""
TURNS = 4
"""Nodes without weight are asked for their slope in every fourth exchange, a fourth of them at a time."""
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
SETTLED = 0.05
"""The weights have settled when three exchanges shift no more than this part of the whole weight."""
FIRST_RESTART = 10
"""The exchanges before other models are begun: until then training alone makes the most progress."""
FIRST_COMPARISON, NEXT_COMPARISON = 8, 4
"""The rounds of training after which the worst of several models is given up, and between further ones."""

TINY = 1e-12


class SingleLoopState(NamedTuple):
    """What the single loop carries from one exchange to the next."""

    search: WeightSearch
    theta: Vector
    adjoint: Vector
    """The vector h of the last exchange."""
    adjoint_known: bool
    """Whether it belongs to this model."""
    curvatures: Array
    """The largest curvatures of the weighted nodes in the last exchanges; NaN before the first look."""
    curvature: float
    """The largest median of them since the weights have stopped shifting; a single outlier does not count."""
    learning_rate: float
    caution: float
    """What the step size is multiplied with after steps that were taken back."""
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
    rivals: Array
    """Models that were begun when the weights had settled, a row for each."""
    alive: Array
    """Which of them still take part."""
    rivals_age: int
    """Rounds that they have been trained for; -1 before they are begun."""


@dataclass(frozen=True)
class SingleLoop:
    """Learn weights and a network, one exchange per step, with step sizes from what has been seen.

    The model is trained from the start on weights that are still wrong, and a small network may not
    recover from that. So once the weights have settled, some models are begun afresh next to it, in the
    same exchanges; one after the other the worst on the validation data is given up.

    Args:
        cap: The largest weight b of a node.
        period: The number τ of local steps in an exchange.
        learning_rate: The step size γ; None takes it from the curvature seen.
        refresh_probability: The probability q of renewing a reference point in a step.
        restarts: How many models are begun when the weights have settled.
    """

    cap: float
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
            adjoint=jnp.zeros_like(theta),
            adjoint_known=False,
            curvatures=jnp.full(5, jnp.nan),
            curvature=0.0,
            learning_rate=0.0,
            caution=1.0,
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
            rivals=jnp.zeros((self.restarts, len(theta))),
            alive=jnp.zeros(self.restarts, bool),
            rivals_age=-1,
        )

    def step(
        self, state: SingleLoopState, key: Key, federation: Federation, center: Center
    ) -> tuple[SingleLoopState, Info]:
        """Do one exchange."""
        state = state._replace(search=state.search.among(federation.present, self.cap))
        loss, target = center.loss_and_gradient(state.theta)
        highest = DIVERGED * state.first_loss
        if state.rivals_age >= 0 or _settled(state):
            highest = TOO_HIGH * state.best_loss
        taken_back = not loss <= highest
        if taken_back:
            state = _take_back(state)
            loss, target = center.loss_and_gradient(state.theta)
        improving = loss < (1 - IMPROVEMENT) * state.best_loss
        state = _remember(state, loss, improving=improving)
        if state.exchanges == 0:
            return self._look(state, loss, target, key, federation)
        weights = state.search.node_weights
        reply = self._exchange(state, target, key, federation)
        trained, rivals = self._trained(state, reply)
        following = self._follow(state, reply, improving=improving, present=federation.present)
        following = following._replace(theta=trained, rivals=rivals)
        following = self._compare(following, key, federation, center)
        info = Info(
            following.theta,
            weights,
            reply.cost,
            self._diagnostics(state, loss, reply, taken_back=taken_back),
            warnings=_warnings(taken_back, state),
            stop=_stop(following),
        )
        return following, info

    def _look(
        self,
        state: SingleLoopState,
        loss: float,
        target: Vector,
        key: Key,
        federation: Federation,
    ) -> tuple[SingleLoopState, Info]:
        """Ask for the curvature at the initial model, which the first step size depends on, and for h."""
        request = self._adjoint_request(state, target, key, federation)
        reply = federation.exchange(adjoint=request, key=key)
        curvature = float(reply.adjoint["curvature"])
        rate = self.learning_rate or FIRST_STEP / max(curvature, TINY)
        following = state._replace(
            adjoint=reply.adjoint["adjoint"],
            adjoint_known=True,
            curvatures=state.curvatures.at[0].set(curvature),
            curvature=curvature,
            learning_rate=rate,
            damping=DAMPING_SHARE * curvature,
            exchanges=1,
            first_loss=loss,
        )
        return following, Info(
            state.theta, state.search.node_weights, reply.cost, {"outer_loss": loss}
        )

    def _adjoint_request(
        self, state: SingleLoopState, target: Vector, key: Key, federation: Federation
    ) -> WeightedSum:
        return WeightedSum(
            ADJOINT_SOLVE,
            {"vector": target, "theta": state.theta, "damping": state.damping},
            weights=_solving_weights(state.search.node_weights, key),
            begin=True,
            iterations=SOLVER_ITERATIONS,
            batches=min(SOLVER_BATCHES, federation.batches),
        )

    def _exchange(
        self, state: SingleLoopState, target: Vector, key: Key, federation: Federation
    ) -> Reply:
        weights = state.search.node_weights
        models = [state.theta, *state.rivals[np.asarray(state.alive)]]
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
        requests: dict[str, Request] = {
            "train": train,
            "adjoint": self._adjoint_request(state, target, key, federation),
        }
        if state.adjoint_known:
            requests["slope"] = PerNode(
                SLOPE,
                {"vector": state.adjoint, "theta": state.theta},
                begin=True,
                nodes=_asked_for_slopes(state, federation),
            )
        return federation.exchange(key=key, **requests)

    def _trained(self, state: SingleLoopState, reply: Reply) -> tuple[Vector, Array]:
        points = jnp.atleast_2d(reply.train["point"])
        places = np.flatnonzero(np.asarray(state.alive))
        return points[0], state.rivals.at[places].set(points[1:])

    def _follow(
        self, state: SingleLoopState, reply: Reply, *, improving: bool, present: np.ndarray
    ) -> SingleLoopState:
        """Move h, the weights, the damping and the step size."""
        search = state.search
        if state.adjoint_known:
            slopes = reply.slope["slope"]
            search = search.move(slopes, cap=self.cap, present=present, improving=improving)
        shift = shifted_weight(state.search.node_weights, search.node_weights)
        place = state.exchanges % len(state.curvatures)
        moving = shift > SHIFTING
        curvatures = jnp.full_like(state.curvatures, jnp.nan) if moving else state.curvatures
        curvatures = curvatures.at[place].set(reply.adjoint["curvature"])
        median = float(np.nanmedian(np.asarray(curvatures)))
        curvature = median if moving else max(state.curvature, median)
        rate = min(2 * state.learning_rate, CURVATURE_STEP / max(curvature, TINY))
        is_convex = float(reply.adjoint["convex"]) > 0.5
        damping = state.damping / 1.3 if is_convex else 2 * state.damping
        return state._replace(
            search=search,
            adjoint=reply.adjoint["adjoint"],
            adjoint_known=True,
            curvatures=curvatures,
            curvature=curvature,
            learning_rate=self.learning_rate or rate,
            damping=min(max(damping, DAMPING_SHARE * curvature), curvature),
            trained_with=state.search.node_weights,
            exchanges=state.exchanges + 1,
            shifts=jnp.roll(state.shifts, 1).at[0].set(shift),
        )

    def _compare(
        self, state: SingleLoopState, key: Key, federation: Federation, center: Center
    ) -> SingleLoopState:
        """Begin rivals when the weights have settled; give up the worst model when it is time."""
        if state.rivals_age < 0:
            if not (self.restarts and state.exchanges >= FIRST_RESTART and _settled(state)):
                return state
            keys = jax.random.split(key, self.restarts)
            rivals = jnp.stack([federation.objective.init(each) for each in keys])
            alive = jnp.ones(self.restarts, bool)
            return state._replace(rivals=rivals, alive=alive, rivals_age=0)
        if not np.asarray(state.alive).any():
            return state
        state = state._replace(rivals_age=state.rivals_age + 1, since_best=0)
        age = state.rivals_age - FIRST_COMPARISON
        if age < 0 or age % NEXT_COMPARISON:
            return state
        places = np.flatnonzero(np.asarray(state.alive))
        losses = [center.loss_and_gradient(state.rivals[place])[0] for place in places]
        own = center.loss_and_gradient(state.theta)[0]
        losses = [loss if math.isfinite(loss) else math.inf for loss in losses]
        best = int(np.argmin(losses))
        if losses[best] < own:
            # The best rival takes the lead; the former leader is one of the others now.
            rivals = state.rivals.at[places[best]].set(state.theta)
            theta, losses[best] = state.rivals[places[best]], own
            search = state.search.restarted(state.search.node_weights)
            state = state._replace(theta=theta, rivals=rivals, search=search, adjoint_known=False)
        worst = places[int(np.argmax(losses))]
        return state._replace(alive=state.alive.at[worst].set(False))

    def _diagnostics(
        self, state: SingleLoopState, loss: float, reply: Reply, *, taken_back: bool
    ) -> dict[str, float]:
        return {
            "outer_loss": loss,
            "training_loss": float(jnp.atleast_1d(reply.train["loss"])[0]),
            "learning_rate": _rate(state),
            "curvature": float(reply.adjoint["curvature"]),
            "damping": state.damping,
            "adjoint_residual": float(reply.adjoint["residual"]),
            "largest_move": state.search.radius,
            "models": 1.0 + float(jnp.sum(state.alive)),
            "taken_back": float(taken_back),
        }


def _rate(state: SingleLoopState) -> float:
    return state.caution * state.learning_rate / 2**state.halvings


def _solving_weights(node_weights: Array, key: Key) -> Array:
    """Draw the nodes that solve for h, without replacement, by their weights; they count alike."""
    weights = np.asarray(node_weights)
    if np.count_nonzero(weights) <= SOLVING_NODES:
        return node_weights
    noise = np.asarray(jax.random.gumbel(jax.random.fold_in(key, len(weights)), weights.shape))
    with np.errstate(divide="ignore"):
        drawn = np.argsort(-(np.log(weights) + noise))[:SOLVING_NODES]
    return jnp.zeros_like(node_weights).at[drawn].set(1 / SOLVING_NODES)


def _asked_for_slopes(state: SingleLoopState, federation: Federation) -> np.ndarray:
    """Choose the nodes that have a weight, and a part of the others in turn."""
    counted = np.asarray(state.search.node_weights) != 0
    turn = (np.arange(len(counted)) + state.exchanges) % TURNS == 0
    return np.ones_like(counted) if federation.ask_all else counted | turn


def _settled(state: SingleLoopState) -> bool:
    return state.search.arrived and float(jnp.sum(state.shifts)) < SETTLED


def _take_back(state: SingleLoopState) -> SingleLoopState:
    """Return to the best model, and take shorter steps from there.

    Where the weights have settled and changed since, they are to blame, and return too; otherwise
    the step size of training is.
    """
    shift = shifted_weight(state.best_weights, state.search.node_weights)
    if state.rivals_age >= 0 and shift > SHIFTING:
        search, caution = state.search.restarted(state.best_weights, 0.3), state.caution
    else:
        search, caution = state.search.restarted(state.search.node_weights), state.caution / 2
    return state._replace(
        theta=state.best_theta, search=search, adjoint_known=False, caution=caution
    )


def _remember(state: SingleLoopState, loss: float, *, improving: bool) -> SingleLoopState:
    if not improving:
        patience_over = state.since_best + 1 >= PATIENCE
        return state._replace(
            since_best=0 if patience_over else state.since_best + 1,
            halvings=state.halvings + patience_over,
        )
    return state._replace(
        best_loss=loss, best_theta=state.theta, best_weights=state.trained_with, since_best=0
    )


def _warnings(taken_back: bool, state: SingleLoopState) -> tuple[str, ...]:
    if not taken_back or state.caution == 1:
        return ()
    return (
        f"training had left the best model far behind: it continues from there with the step size "
        f"{_rate(state):.2g}",
    )


def _stop(state: SingleLoopState) -> str | None:
    if state.halvings <= HALVINGS:
        return None
    return (
        f"finished: the validation loss {state.best_loss:.4g} has not improved by "
        f"{IMPROVEMENT:.1%} in {PATIENCE} synchronizations, with the step size halved {HALVINGS} times"
    )
