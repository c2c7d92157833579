"""Other starts of the search for weights, where the validation loss is not convex in them."""

import numpy as np

from fedkin.methods.bilevel.newton_state import Evidence, NewtonState, Visit
from fedkin.numerics.simplex_steps import project

OTHER_STARTS = 2
"""How many other starts are tried."""

PATIENCE = 10
"""A start that has led to nothing lower after this many exchanges is given up."""

SAME = 0.02
"""Weights that differ by no more than this from those of a minimum lead there again."""


def unknown_visit(theta: np.ndarray, weights: np.ndarray) -> Visit:
    """Return a visit of which nothing is known yet."""
    return Visit(theta, weights, np.zeros_like(weights), float("inf"), 0.0)


def other_starts(weights: np.ndarray, cap: float | np.ndarray) -> np.ndarray:
    """Return other weights to start from, as rows, given those of a minimum.

    First, what nodes between zero and the cap hold together goes to one of them that is not the first;
    last, everybody gets what the cap has left, as far as the cap allows.

    >>> other_starts(np.array([0.5, 0.3, 0.2, 0.0]), 0.5).tolist()
    [[0.5, 0.0, 0.5, 0.0], [0.0, 0.2, 0.3, 0.5]]
    >>> other_starts(np.array([0.6, 0.4, 0.0]), np.array([0.7, 0.4, 0.4])).round(9).tolist()
    [[0.4, 0.2, 0.4]]
    """
    caps = np.broadcast_to(cap, weights.shape)
    free = np.flatnonzero((weights > 1e-6) & (weights < caps - 1e-6))
    held = weights[free].sum()
    found = []
    order = sorted(free, key=lambda node: -weights[node])
    for chosen in order[1:OTHER_STARTS]:
        start, left = np.where(np.isin(np.arange(len(weights)), free), 0.0, weights), held
        for node in (chosen, *(other for other in order if other != chosen)):
            start[node] = min(caps[node], left)
            left -= start[node]
        found.append(start)
    room = caps - weights
    if room.sum() > 0:
        shares = room / room.sum()
        # Where caps leave less than 1 in all, a share of that may be above one of them.
        found.append(project(shares, caps) if (shares > caps).any() else shares)
    return np.array(found).reshape(-1, len(weights))


def is_hopeless(state: NewtonState, seen: Evidence, settled: bool) -> bool:
    """Tell whether a start leads to nothing lower than the lowest minimum so far.

    Args:
        state: The state, after the exchange.
        seen: What the exchange has shown.
        settled: Whether the model is near enough to θ(w) to judge the weights.
    """
    lowest = state.lowest
    if not np.isfinite(lowest.loss):
        return False
    if state.iteration - state.started > PATIENCE and seen.loss >= lowest.loss:
        return True
    again = np.abs(state.node_weights - lowest.node_weights).max() <= SAME
    return settled and (bool(again) or seen.loss - seen.gap > lowest.loss)


def start_again(
    state: NewtonState,
    seen: Evidence,
    stop: str | None,
    cap: float | np.ndarray,
    tolerance: float,
) -> tuple[NewtonState, str | None]:
    """Go to the next start after one has ended; after the last, return to the lowest minimum.

    Args:
        state: The state at the end.
        seen: What the last exchange has shown.
        stop: Why the search has ended; None if it was given up.
        cap: The largest weight.
        tolerance: Differences below this share of the validation loss do not count.
    """
    first = not np.isfinite(state.lowest.loss)
    converged = stop is not None and stop.startswith("converged")
    if first and not (converged and state.bent):
        return state, stop
    lowest, starts = state.lowest, state.starts
    if first:
        starts = other_starts(state.node_weights, cap)
    if first or (converged and seen.loss < (1 - tolerance) * lowest.loss):
        lowest = Visit(state.theta, state.node_weights, seen.slopes, seen.loss, 0.0)
    if len(starts) == 0:
        ended = state._replace(theta=lowest.theta, node_weights=lowest.node_weights)
        return ended, (
            f"converged: the validation loss {lowest.loss:.4g} is the lowest minimum that was found from "
            "several starts"
        )
    theta, weights = state.theta, starts[0]
    unknown = unknown_visit(theta, weights)
    empty = state.secants.moves[:0]
    return state._replace(
        node_weights=weights,
        candidate=weights,
        accepted=unknown,
        trained=unknown,
        secants=state.secants._replace(scale=0.0, moves=empty, changes=empty),
        radius=1.0,
        sidestep=False,
        taken_back=False,
        flat=0,
        lowest=lowest,
        starts=starts[1:],
        started=state.iteration,
    ), None
