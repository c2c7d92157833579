"""From data and an ε to Bi-level with the theory's parameters: what `fit(schedule="theory")` runs."""

from dataclasses import fields

from fedkin.errors import InputError
from fedkin.federation.base import Cost, Federation
from fedkin.federation.center import Center
from fedkin.methods.bilevel.scheduled import ScheduledBilevel
from fedkin.models.linear import Logistic, Ridge
from fedkin.numerics.simplex import check_cap
from fedkin.theory.constants import NodeSummary, constants
from fedkin.theory.schedules import Schedule
from fedkin.training.method_settings import MethodSettings, default_cap
from fedkin.types import Key

MOST_SYNCHRONIZATIONS = 1_000_000
"""A plan beyond this is refused unless the user limits it: its worst-case constants ask for weeks."""

LEFT_TO_THE_USER = ("preset", "cap", "period", "refresh_probability", "outer")


def plan(
    method: str,
    settings: MethodSettings,
    epsilon: float | None,
    federation: Federation,
    center: Center,
    key: Key,
    *,
    limited: bool,
) -> tuple[ScheduledBilevel, Cost]:
    """Ask the nodes for their constants and make the algorithm.

    Args:
        method: Must be `bilevel`.
        settings: Only cap, period, refresh_probability and outer (`accelerated`, the default, for a
            convex F; `proximal` for any) may be given.
        epsilon: The ε to reach.
        federation: The nodes.
        center: The owner's own data.
        key: For the nodes' randomness; there is none in this.
        limited: Whether the user has limited the run, so that a long plan may begin.

    Returns:
        The algorithm, and what asking has cost.
    """
    _check(method, settings, epsilon, federation)
    assert epsilon is not None
    names = NodeSummary._fields
    replies, cost = federation.call("constants", {}, key=key)
    own, _ = center.alone.call("constants", {}, key=key)
    nodes = len(federation.names)
    schedule = Schedule(
        constants(
            NodeSummary(**{name: replies[name] for name in names}),
            NodeSummary(**{name: own[name][0] for name in names}),
        ),
        nodes,
        cap=settings.cap if settings.cap is not None else default_cap(nodes),
        outer_problem="non-convex" if settings.outer == "proximal" else "convex",
        period=1 if settings.period is None else settings.period,
        refresh_probability=(
            0.1 if settings.refresh_probability is None else settings.refresh_probability
        ),
    )
    algorithm = ScheduledBilevel(schedule, epsilon)
    if algorithm.rounds > MOST_SYNCHRONIZATIONS and not limited:
        found = schedule.constants
        raise InputError(
            f"for epsilon={epsilon:g} the theory asks for {algorithm.iterations:,} outer steps and about "
            f"{algorithm.rounds:.1e} synchronizations (ℓ_0 = {found.lipschitz:.3g}, "
            f"ℓ_1 = {found.smoothness:.3g}, μ = {found.strong_convexity:.3g}): take a larger epsilon or "
            "l2, scale the data down, or begin such a run with steps=… or synchronizations=…"
        )
    return algorithm, cost


def _check(
    method: str, settings: MethodSettings, epsilon: float | None, federation: Federation
) -> None:
    if method != "bilevel":
        raise InputError(f"schedule='theory' is for the method 'bilevel', not {method!r}")
    if epsilon is None:
        raise InputError(
            "schedule='theory' needs epsilon: how near the validation loss shall come to its minimum"
        )
    if not isinstance(federation.objective.model, (Ridge, Logistic)):
        raise InputError(
            "schedule='theory' needs constants that only the models ridge and logistic have"
        )
    if settings.preset != "automatic":
        raise InputError("schedule='theory' and preset='paper' exclude each other: leave one out")
    if settings.outer == "adaptive":
        raise InputError(
            "schedule='theory' has no adaptive steps: choose outer='accelerated' (Algorithm 2) or "
            "'proximal' (Algorithm 3)"
        )
    for field in fields(settings):
        if field.name not in LEFT_TO_THE_USER and getattr(settings, field.name) is not None:
            raise InputError(f"{field.name} is chosen by schedule='theory': leave it out")
    if settings.cap is not None:
        check_cap(settings.cap, len(federation.names))
