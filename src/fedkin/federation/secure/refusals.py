"""Why something cannot be summed securely, in sentences that say what to do."""

from collections.abc import Collection

from fedkin.errors import InputError
from fedkin.federation.base import Federation, Request, Revealed
from fedkin.federation.secure.orders import FEWEST_SUMMED

PLAIN = "--plain-sums"


def fewest_in_sum(federation: Federation) -> int:
    """Return how many nodes with a weight a sum has at least."""
    return FEWEST_SUMMED if getattr(federation, "secure", False) else 1


def refuse_revealed(request: Request) -> None:
    """Refuse a request for single nodes' vectors."""
    if isinstance(request, Revealed):
        raise single_vectors_needed(request.task.name)


def single_vectors_needed(name: str) -> InputError:
    """Return the error for a method or a task that needs more than sums."""
    return InputError(
        f"{name} needs the vectors of single nodes, which secure sums hide: choose a method that needs sums "
        f"only, such as bilevel, or plain sums ({PLAIN})"
    )


def too_few_in_sum(names: Collection[str], nodes: int) -> InputError:
    """Return the error for weights that leave too few nodes in a sum.

    Args:
        names: The nodes that have a weight.
        nodes: The number of all nodes.
    """
    remedy = (
        f"set a smaller cap on the weights, at most {1 / FEWEST_SUMMED:.2g}"
        if nodes > FEWEST_SUMMED
        else "take part with more nodes"
    )
    return InputError(
        f"only {', '.join(names) or 'nobody'} would be in a sum, and fewer than {FEWEST_SUMMED} nodes would "
        f"give their vectors away: {remedy}, or choose plain sums ({PLAIN})"
    )
