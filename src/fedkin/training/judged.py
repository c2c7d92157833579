"""What becomes of the nodes of a run that has ended: one that harms, or lies, is excluded from the next."""

import numpy as np

from fedkin.errors import FedkinError
from fedkin.federation.attended_exchange import FEWEST_NODES
from fedkin.federation.center import Center
from fedkin.federation.excluding import ExcludingFederation
from fedkin.methods.bilevel.mismatch import STOPPED_BY_MISMATCH
from fedkin.methods.weights import Cap, equal_weights
from fedkin.training.false_slopes import false_slope_sentence, find_false_slope
from fedkin.training.leave_out import claims_of, judge
from fedkin.training.runner import RunState
from fedkin.types import Key, Vector


def exclude_somebody(
    federation: ExcludingFederation,
    center: Center,
    state: RunState,
    start: Vector,
    cap: Cap,
    key: Key,
    owner: str,
) -> tuple[bool, tuple[str, ...]]:
    """Find out who lies, or let the owner's rows judge; exclude one node at most.

    Args:
        federation: The nodes.
        center: The owner's rows.
        state: The run, whose cost grows.
        start: The model that it began with.
        cap: The largest weight of a node.
        key: Where randomness comes from.
        owner: Whose rows judge, in words.

    Returns:
        Whether a node is out that the run has counted on, so that it has to start over; and what went wrong.
    """
    if np.count_nonzero(federation.present) <= FEWEST_NODES:
        return False, ()
    there = federation.present.copy()
    theta = start
    learned = False  # whether the last model is better than the first
    if state.last_theta is not None:
        try:
            before, now = center.losses([start, state.last_theta])
        except FedkinError as error:  # the owner's rows may be at a node
            return False, (_not_judged(error),)
        learned = now <= before
        theta = state.last_theta if learned else start
    weights = state.history[-1].node_weights if state.history else None
    if weights is None:
        weights = np.asarray(equal_weights(federation.present))
    claims = claims_of(federation.slopes, weights)
    lied = state.stopped == STOPPED_BY_MISMATCH  # somebody does for certain, whoever it is
    harmful, notes = None, ()
    try:
        if lied:
            liar, cost = find_false_slope(federation, center, theta, weights, cap, key)
            state.cost += cost
            if liar is not None:
                federation.exclude(liar, false_slope_sentence(federation.names[liar], owner))
            if exclude_silent(federation, there):
                return True, ()
        found = judge(federation, center, theta, weights, cap, key)
        state.cost += found.cost
        if lied and exclude_silent(federation, there):
            # Training has shown who it was. The search for weights had hardly begun, so honest nodes that
            # are unlike the owner may still have a weight: the run starts over and decides.
            return True, ()
        harmful = found.harmful(np.ones_like(claims) if lied else claims)
        if harmful is not None:
            why = found.sentence(federation.names[harmful], harmful, owner)
            federation.exclude(harmful, why)
    except FedkinError as error:
        notes = (_not_judged(error),)
    # Whoever has just been dropped may be why nothing was learned.
    lost = not learned and exclude_silent(federation, there)
    return lost or harmful is not None, notes


def exclude_silent(federation: ExcludingFederation, there: np.ndarray) -> bool:
    """Exclude the nodes that were dropped while they were judged; tell whether any node is out.

    The next run would else welcome them back, and a liar that is silent when it is judged would have every
    run start over.

    Args:
        federation: The nodes.
        there: Which nodes were present before.
    """
    gone = np.flatnonzero(there & ~federation.present)
    for node in gone[~federation.excluded[gone]]:
        name = federation.names[node]
        federation.exclude(
            int(node),
            f"{name} gets no weight: it gave no usable answer when nodes were judged; the run starts over "
            f"without {name}",
        )
    return bool(len(gone))


def _not_judged(error: FedkinError) -> str:
    return f"at the end, nodes could not be left out one by one: {error}"
