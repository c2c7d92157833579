r"""One exchange per step for convex models: θ, h and w move together, with the weighted Hessian at hand.

An exchange at the model θ with candidate weights u returns :math:`g = \sum_k u_k \nabla L_k(\theta)`, the
Hessian :math:`H = \sum_k u_k \nabla^2 L_k(\theta)` as products with the vectors of a basis, and of each
node the slope :math:`-\nabla L_k(\theta)^\top h`, where h comes from the Hessian before. Then

- :math:`d = -H^{-1} g` leads from θ to θ(u), up to second order. If θ = θ(w), then θ + αd is the model at
  w + α(u − w). The center knows the validation loss along this line, which is convex in α, and takes the
  best α: a line search without further exchanges.
- :math:`\sum_k w_k \cdot` slope is what is left of the inner problem at w, as it affects the validation
  loss to first order. F is known with this correction, and a step that has raised it is taken back.
- The slopes are the gradient of F at w. The next candidate minimizes a quadratic model of F (BFGS).

Exchanges with u = w only improve θ; they precede every decision that needs an accurate F.
"""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from fedkin.errors import DivergedError
from fedkin.federation.base import Cost, Federation, PerNode, Request, WeightedSum
from fedkin.federation.center import Center
from fedkin.federation.task import Task
from fedkin.methods.base import Info
from fedkin.methods.bilevel.curvature import Curvature, Place
from fedkin.methods.bilevel.endings import FLAT, converged, no_longer_falls
from fedkin.methods.bilevel.mismatch import MISMATCHES, STOPPED_BY_MISMATCH, mismatch_of
from fedkin.methods.bilevel.newton_state import (
    Evidence,
    NewtonState,
    Visit,
    as_float64,
    as_sent,
    longest_share,
    search_line,
    trusted_share,
)
from fedkin.methods.bilevel.node import CLASS_PRODUCT, GRADIENT, HESSIAN_PRODUCT, SLOPE
from fedkin.methods.bilevel.prior import Prior
from fedkin.methods.bilevel.sketch import Sketch
from fedkin.methods.bilevel.starts import is_hopeless, start_again, unknown_visit
from fedkin.methods.weights import Cap, Roster, cap_among, fill_unknown, raised_cap
from fedkin.numerics.line_search import SIDESTEP
from fedkin.numerics.simplex_steps import (
    Secants,
    largest_decrease,
    minimize_quadratic,
    project,
)
from fedkin.types import Key, Vector

PAIRS = 12
"""How many moves of the weights the model of F remembers."""

NOTICEABLE = 1e-4
"""Moves of the weights below this say more about rounding than about curvature."""

ROUGH = 0.02
"""A change of θ whose Newton decrement is above this share of the validation loss is not taken to be small
enough for statements of first order."""

SETTLED = 0.002
"""A model with a decrement below this share is near enough to θ(w) to judge the weights by it."""

PROMISING = 0.05
"""Nor is a decrement below this share of what better weights could gain in the way."""

SHORT = 0.3
"""After a line search that took less than this of the way, θ is improved before the next candidate."""

TAKEN_BACK = 0.25
"""The share of a step that is kept when it has raised the validation loss."""

ROUNDING = 1e-12
"""A weight below this is zero."""

BENT = 0.1
"""A negative curvature of the validation loss below this share of the first one is no rounding error."""


@dataclass(frozen=True)
class NewtonBilevel:
    """The single loop for models whose loss is convex (ridge and logistic regression).

    Args:
        cap: The largest weight b of a node, or of each.
        tolerance: Stop when no weights within the cap promise a validation loss lower by more than this
            share of it, to first order, with θ and h solved as accurately.
        first_move: The largest change of a weight that the first candidate aims for.
        whole_hessian: Whether the whole Hessian is asked for in every exchange, or a few products.
        prior: The weights expected beforehand, if any.
    """

    cap: Cap
    tolerance: float = 1e-4
    first_move: float = 0.25
    whole_hessian: bool = True
    prior: Prior | None = None

    def init(self, theta: Vector, nodes: int) -> NewtonState:
        """Begin with equal weights, or with the prior's."""
        point = np.asarray(theta, np.float64)
        weights = np.full(nodes, 1 / nodes)
        if self.prior is not None:
            weights = project(self.prior.shares, np.asarray(self.cap))
        unknown = unknown_visit(point, weights)
        return NewtonState(
            theta=point,
            node_weights=weights,
            candidate=weights,
            curvature=Curvature.unknown() if self.whole_hessian else Sketch.unknown(len(point)),
            last_step=np.zeros_like(point),
            accepted=unknown,
            trained=unknown,
            secants=Secants(0.0, np.zeros((0, nodes)), np.zeros((0, nodes))),
            radius=1.0,
            sidestep=False,
            taken_back=False,
            flat=0,
            iteration=0,
            bent=False,
            lowest=unknown,
            starts=np.zeros((0, nodes)),
            started=0,
            mismatches=0,
            roster=Roster.of_all(jnp.asarray(weights)),
        )

    def step(
        self, state: NewtonState, key: Key, federation: Federation, center: Center
    ) -> tuple[NewtonState, Info]:
        """Take one exchange, and move θ, h and w by what it shows."""
        state = self._admit(state, federation.present)
        state, evidence, cost = self._exchange(state, key, federation, center)
        state = state._replace(iteration=state.iteration + 1)
        if evidence is None:
            return state, self._info(state, center, cost)
        if evidence.mismatch is not None:
            state = state._replace(mismatches=state.mismatches + 1)
        if state.mismatches >= MISMATCHES:
            return state, self._info(state, center, cost, evidence, STOPPED_BY_MISMATCH)
        following, stop = self._decide(state, evidence, federation.present, center)
        settled = evidence.decrement <= SETTLED * evidence.loss
        if stop is not None or is_hopeless(state, evidence, settled):
            cap = raised_cap(self.cap, federation.present)
            following, stop = start_again(following, evidence, stop, cap, self.tolerance)
        return following, self._info(following, center, cost, evidence, stop)

    def _admit(self, state: NewtonState, present: np.ndarray) -> NewtonState:
        """Begin again from the current model where nodes have come or gone."""
        given = jnp.asarray(state.node_weights)
        weights = as_float64(state.roster.readmit(given, self.cap, present))
        state = state._replace(roster=state.roster.after(jnp.asarray(weights), present))
        same = np.allclose(weights, state.node_weights, atol=1e-6)
        if same and not state.candidate[~present].any():
            return state
        unknown = unknown_visit(state.theta, weights)
        return state._replace(
            node_weights=weights,
            candidate=weights,
            accepted=unknown,
            trained=unknown,
            lowest=unknown,
            starts=state.starts[:0],
        )

    def _exchange(
        self, state: NewtonState, key: Key, federation: Federation, center: Center
    ) -> tuple[NewtonState, Evidence | None, Cost]:
        """Ask the nodes; return the state with the new Hessian, and what it all says."""
        theta = as_sent(state.theta)
        validation_loss, gradient = center.loss_and_gradient(theta)
        target = as_float64(gradient)
        place = Place(federation.objective, center, theta)
        before = state.curvature
        adjoint = None
        asked_along = []
        if state.iteration > 0:
            adjoint = as_float64(as_sent(before.solver(place)(target)))
            asked_along = [adjoint, state.last_step]
        directions = as_sent(before.questions(place, asked_along, key))
        class_directions = before.class_questions(place, state.candidate)
        weights = as_sent(state.candidate)
        # The products come first: the nodes then begin for all vectors at once.
        requests: dict[str, Request] = {
            "hessian": _products(HESSIAN_PRODUCT, directions, state.candidate)
        }
        if class_directions is not None:
            asked = as_sent(class_directions)
            requests["classes"] = _products(CLASS_PRODUCT, asked, state.candidate)
        requests["gradient"] = WeightedSum(GRADIENT, {"theta": theta}, weights=weights, begin=True)
        if adjoint is not None:
            requests["slope"] = PerNode(SLOPE, {"vector": as_sent(adjoint)})
        reply = federation.exchange(key=key, **requests)
        gradient = as_float64(reply.gradient["gradient"])
        if not (np.isfinite(gradient).all() and np.isfinite(reply.hessian["product"]).all()):
            raise DivergedError(
                "the gradients or Hessians of the nodes are not finite: the inputs are too large; "
                "standardize the features"
            )
        if class_directions is not None:
            before = before.learn_classes(
                place, state.candidate, as_float64(reply.classes["product"])
            )
        curvature = before.learn(
            place, as_float64(directions), as_float64(reply.hessian["product"])
        )
        solve = curvature.solver(place)
        direction = -solve(gradient)
        if adjoint is None:
            step = trusted_share(float(-gradient @ direction), place) * direction
            moved = state._replace(
                curvature=curvature, theta=state.theta + step, last_step=direction
            )
            return moved, None, reply.cost
        known = np.asarray(reply.slope["slope"], np.float64)
        weighted = (state.candidate != 0) | (state.node_weights != 0)
        if np.isnan(known[weighted]).any():
            # The sums of those who answered belong to other weights, also where a node was dropped in
            # this very exchange: ask again.
            return state, None, reply.cost
        slopes = as_float64(fill_unknown(jnp.asarray(known), jnp.asarray(state.node_weights)))
        mismatch = mismatch_of(known, state.candidate, gradient, adjoint, validation_loss)
        inner_error = float(slopes @ state.node_weights)
        prior_loss = 0.0
        if self.prior is not None:
            prior_loss = self.prior.loss(state.node_weights)
            slopes = slopes * (not self.prior.is_fixed) + self.prior.slopes(state.node_weights)
        cap = cap_among(self.cap, federation.present)
        own, among = state.node_weights[federation.present], slopes[federation.present]
        residual = target - curvature.image(place, adjoint)
        error = float(
            np.sqrt(max(residual @ solve(residual), 0.0) / max(target @ solve(target), 1e-30))
        )
        evidence = Evidence(
            training_loss=float(reply.gradient["loss"]),
            direction=direction,
            decrement=float(-gradient @ direction),
            trusted=trusted_share(float(-gradient @ direction), place),
            validation_loss=validation_loss,
            slopes=slopes,
            inner_error=inner_error,
            gap=largest_decrease(among, own, cap),
            sure_gap=largest_decrease(among, own, cap, error),
            complete=bool(np.isfinite(known[federation.present]).all()),
            prior_loss=prior_loss,
            mismatch=mismatch,
        )
        return state._replace(curvature=curvature, last_step=direction), evidence, reply.cost

    def _decide(
        self, state: NewtonState, seen: Evidence, present: np.ndarray, center: Center
    ) -> tuple[NewtonState, str | None]:
        """Return the state for the next exchange, and why there is none, if so."""
        polish = np.array_equal(state.candidate, state.node_weights)
        if polish and not seen.training_loss <= self._allowed_training_loss(state):
            # The Newton step was too long for this loss: halve it.
            halfway = (state.trained.theta + state.theta) / 2
            return state._replace(theta=halfway, curvature=state.curvature.doubt()), None
        trained = Visit(state.theta, state.node_weights, seen.slopes, seen.training_loss, 0.0)
        state = state._replace(trained=trained if polish else trained._replace(loss=float("inf")))
        if stop := converged(seen, self.tolerance) if polish else None:
            return state._replace(theta=state.theta + seen.direction), stop
        if polish and seen.decrement > max(SETTLED * seen.loss, PROMISING * seen.gap):
            # Not near enough to θ(w) to judge the weights.
            return state._replace(theta=state.theta + seen.trusted * seen.direction), None
        if self._has_risen(state, seen):
            return self._take_back(state), None
        return self._move(self._accept(state, seen), seen, polish, present, center)

    def _allowed_training_loss(self, state: NewtonState) -> float:
        """The training loss must not rise, but for rounding, while the weights stay."""
        before = state.trained
        if not np.array_equal(before.node_weights, state.node_weights):
            return float("inf")
        return before.loss + 1e-6 * abs(before.loss) if np.isfinite(before.loss) else float("inf")

    def _has_risen(self, state: NewtonState, seen: Evidence) -> bool:
        before = state.accepted
        if state.sidestep or np.array_equal(before.node_weights, state.node_weights):
            return False
        if state.taken_back:
            # A quarter of the step raises the loss too: more likely, the lower value was not exact.
            return False
        slack = 0.5 * before.inner_error + 0.1 * abs(seen.inner_error)
        return seen.loss > before.loss + 0.1 * self.tolerance * seen.loss + slack

    def _take_back(self, state: NewtonState) -> NewtonState:
        before = state.accepted
        move = state.node_weights - before.node_weights
        weights = before.node_weights + TAKEN_BACK * move
        return state._replace(
            theta=before.theta + TAKEN_BACK * (state.theta - before.theta),
            node_weights=weights,
            candidate=weights,
            taken_back=True,
            radius=max(TAKEN_BACK * float(np.abs(move).max()), NOTICEABLE),
        )

    def _accept(self, state: NewtonState, seen: Evidence) -> NewtonState:
        """Learn from the move since the weights accepted last."""
        before, secants, bent = state.accepted, state.secants, state.bent
        lower = seen.loss <= before.loss - 0.1 * self.tolerance * seen.loss
        move = state.node_weights - before.node_weights
        spread = float(np.abs(seen.slopes - seen.slopes.mean()).max())
        if np.isfinite(before.loss) and np.abs(move).max() > NOTICEABLE:
            change = seen.slopes - before.slopes
            change = change - change.mean()
            measured = float(move @ change) / float(move @ move)
            if len(secants.moves) == 0:
                secants = secants._replace(scale=max(abs(measured), 1e-3 * spread))
            # A prior makes minima that are far apart unlikely: other starts are not worth their exchanges.
            searching = self.whole_hessian and self.prior is None
            bent = bent or (searching and measured < -BENT * secants.scale)
            secants = secants.add(move, change, PAIRS)
        elif secants.scale == 0.0:
            secants = secants._replace(scale=max(spread / self.first_move, 1e-12))
        accepted = Visit(
            state.theta, state.node_weights, seen.slopes, seen.loss, abs(seen.inner_error)
        )
        return state._replace(
            accepted=accepted,
            secants=secants,
            bent=bent,
            flat=0 if lower else state.flat + 1,
            taken_back=False,
        )

    def _move(
        self,
        state: NewtonState,
        seen: Evidence,
        polish: bool,
        present: np.ndarray,
        center: Center,
    ) -> tuple[NewtonState, str | None]:
        """Move θ and w along the line that the exchange has opened, and choose the next candidate."""
        step, secants, radius = state.candidate - state.node_weights, state.secants, state.radius
        share, left = 1.0, None
        if not polish:
            longest = longest_share(state.node_weights, step, raised_cap(self.cap, present))
            prior = self._prior_slopes(state.node_weights, step)
            found = search_line(state.theta, seen, center, longest, prior)
            share, left = found.share, found.slope
            if len(secants.moves) == 0:
                measured = found.curvature / float(step @ step)
                secants = secants._replace(scale=max(measured, 1e-3 * secants.scale))
            reach = 2 * float(np.abs(share * step).max())
            radius = min(1.0, max(reach, 1e-3) if share < 1 else max(radius, reach))
        weights = _without_rounding(state.node_weights + share * step)
        theta = state.theta + share * seen.direction
        curvature = secants.curvature()
        slopes = seen.slopes + curvature(share * step)
        if left is not None:
            # The derivative along the step is known at its end: the model has to agree with it.
            image = curvature(step)
            slopes = slopes + image * (left - slopes @ step) / (step @ image)
        move, promise = self._candidate(slopes, secants, weights, present)
        allowed = self.tolerance * seen.loss
        if stop := no_longer_falls(state, seen, promise, self.tolerance) if polish else None:
            return state._replace(theta=theta), stop
        longest = float(np.abs(move).max())
        move = move * min(1.0, radius / longest) if longest > 0 else move
        rough = share**2 * seen.decrement > ROUGH * seen.loss
        unsettled = polish and abs(seen.inner_error) > 0.5 * promise and seen.decrement > allowed
        cap = cap_among(self.cap, present)
        done = largest_decrease(slopes[present], weights[present], cap) <= allowed
        # Slopes known so roughly need another h before they can choose a direction.
        unsure = seen.sure_gap > 2 * max(seen.gap, allowed)
        level = not polish and state.flat >= FLAT
        wait = rough or unsettled or done or unsure or level or share < SHORT
        return state._replace(
            theta=theta,
            node_weights=weights,
            candidate=weights if wait else _without_rounding(weights + move),
            secants=secants,
            radius=radius,
            sidestep=not polish and left is not None and share <= SIDESTEP,
        ), None

    def _prior_slopes(self, weights: np.ndarray, step: np.ndarray) -> tuple[float, float]:
        """Return the first and the second derivative of the prior's part along a step."""
        if self.prior is None:
            return 0.0, 0.0
        here, there = (self.prior.slopes(point) @ step for point in (weights, weights + step))
        return float(here), float(there - here)

    def _candidate(
        self, slopes: np.ndarray, secants: Secants, weights: np.ndarray, present: np.ndarray
    ) -> tuple[np.ndarray, float]:
        """Return the move that minimizes the model of F, and the decrease that the model promises."""
        curvature = secants.curvature()

        def among(move: np.ndarray) -> np.ndarray:
            whole = np.zeros_like(weights)
            whole[present] = move
            return curvature(whole)[present]

        cap = cap_among(self.cap, present)
        found = minimize_quadratic(slopes[present], among, weights[present], cap)
        move = np.zeros_like(weights)
        move[present] = found - weights[present]
        return move, float(-(slopes @ move + 0.5 * move @ curvature(move)))

    def _info(
        self,
        state: NewtonState,
        center: Center,
        cost: Cost,
        seen: Evidence | None = None,
        stop: str | None = None,
    ) -> Info:
        best = state.lowest if np.isfinite(state.lowest.loss) else state
        theta = as_sent(best.theta)
        diagnostics = {"outer_loss": center.loss_and_gradient(theta)[0]}
        if seen is not None:
            diagnostics |= {
                "training_loss": seen.training_loss,
                "hypergradient_norm": float(np.linalg.norm(seen.slopes)),
                "gap": seen.gap,
                "inner_error": seen.inner_error,
                "decrement": seen.decrement,
            }
        warnings = () if seen is None or seen.mismatch is None else (seen.mismatch,)
        return Info(theta, as_sent(best.node_weights), cost, diagnostics, warnings, stop)


def _without_rounding(weights: np.ndarray) -> np.ndarray:
    """Clear what a step to the very bound leaves by rounding; such a node would be asked for nothing.

    Over many steps that would add up, so the sum is made 1 again.
    """
    cleared = np.where(weights < ROUNDING, 0.0, weights)
    return cleared / cleared.sum()


def _products(task: Task, directions: Vector, weights: np.ndarray) -> WeightedSum:
    """Ask for weighted products with several directions."""
    rows = as_sent(np.tile(weights, (len(directions), 1)))
    return WeightedSum(task, {"vector": directions}, weights=rows)
