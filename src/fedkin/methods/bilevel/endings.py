"""When the single loop for convex models ends, and what it says then."""

from fedkin.methods.bilevel.newton_state import Evidence, NewtonState

FLAT = 3
"""After this many evaluations without a decrease the quadratic model may decide that there is none."""

STUCK = 25
"""After this many, rounding is taken to be the reason."""


def converged(seen: Evidence, tolerance: float) -> str | None:
    """Say so where no weights promise a validation loss lower by more than the tolerance, a share of it."""
    allowed = tolerance * seen.loss
    if not _is_solved(seen, allowed) or seen.sure_gap > allowed:
        return None
    return (
        f"converged: to first order, no weights within the cap lower the validation loss "
        f"{seen.loss:.4g} by more than {max(seen.sure_gap, 0.0):.2g}"
    )


def no_longer_falls(
    state: NewtonState, seen: Evidence, promise: float, tolerance: float
) -> str | None:
    """Say why to stop where the validation loss no longer falls, though its slopes are not zero.

    Args:
        state: The state.
        seen: What the exchange has shown.
        promise: The decrease that a quadratic model of the validation loss promises.
        tolerance: The share of the validation loss that does not matter.
    """
    allowed = tolerance * seen.loss
    # The longer there is no decrease, the more the quadratic model has learned about it.
    enough = 0.1 * allowed if state.flat < 2 * FLAT else allowed
    if state.flat >= FLAT and _is_solved(seen, allowed) and promise <= enough:
        return (
            f"converged: the last steps have not lowered the validation loss {seen.loss:.4g}, and "
            f"its curvature promises {max(promise, 0.0):.2g} at most"
        )
    if state.flat >= STUCK:
        return (
            f"stopped: the validation loss {seen.loss:.4g} no longer falls, though its slopes would "
            f"allow {seen.gap:.2g}: the slopes are not known exactly enough"
        )
    return None


def _is_solved(seen: Evidence, allowed: float) -> bool:
    """Tell whether the model is trained well enough, and all slopes are known, to judge the weights."""
    trained = abs(seen.inner_error) <= 0.2 * allowed and seen.decrement <= allowed
    return trained and seen.complete
