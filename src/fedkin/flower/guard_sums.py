"""What a node accepts about the sums that its replies are for."""

import math
from collections.abc import Mapping

from fedkin.federation.secure.fixed_point import LARGEST_EXPONENT, SMALLEST_EXPONENT
from fedkin.federation.secure.orders import SumOrder, SumRow
from fedkin.federation.task import Task
from fedkin.flower.wire import (
    EXPONENT,
    MEMBERS,
    TOTALS,
    WEIGHTS,
    Refusal,
    RefusedError,
    Value,
    read_members,
    with_prefix,
)


def read_order(task: Task, values: Mapping[str, Value], models: tuple[int, ...] | None) -> SumOrder:
    """Read what a request says about its sums, which anybody may have written.

    Args:
        task: The task.
        values: The values of the request.
        models: Its models; None if it has no axis of models.
    """
    rows = 1 if models is None else len(models)
    weights = _numbers(WEIGHTS, values.get(WEIGHTS), rows)
    totals = _numbers(TOTALS, values.get(TOTALS), rows)
    members = read_members(values.get(MEMBERS), rows)
    replies = {*task.vector_replies, *task.number_replies}
    exponents = with_prefix(values, EXPONENT)
    if set(exponents) != replies:
        raise RefusedError(
            Refusal.INVALID, f"{task.name} needs the exponents of {sorted(replies)} to be masked"
        )
    found: dict[str, int] = {}
    for name, value in exponents.items():
        if type(value) is not int or not SMALLEST_EXPONENT <= value <= LARGEST_EXPONENT:
            raise RefusedError(
                Refusal.INVALID,
                f"the exponent of {name} is not from {SMALLEST_EXPONENT} to {LARGEST_EXPONENT}",
            )
        found[name] = value
    if any(abs(weight) > total for weight, total in zip(weights, totals, strict=True)):
        raise RefusedError(Refusal.INVALID, "a weight is larger than all weights together")
    told = zip(members, weights, totals, strict=True)
    return SumOrder(tuple(SumRow(*row) for row in told), found)


def _numbers(name: str, written: Value | None, rows: int) -> list[float]:
    if (
        not isinstance(written, list)
        or len(written) != rows
        or not all(math.isfinite(each) for each in written)
    ):
        raise RefusedError(Refusal.INVALID, f"{name} must have a finite number for each model")
    return written
