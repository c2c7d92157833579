"""Well-formed requests, derived from what tasks declare."""

import numpy as np

from fedkin.flower.wire import NUMBERS, SUM

HEADER = {"kind": "exchange", "attempt": "one", "step": 0, "key": "0000000000000001"}
"""The values of an exchange apart from its requests."""


def middle(least, largest):
    """A number in a range, and not on its border."""
    return min(least + 0.1, (least + largest) / 2)


def request(task, name="ask", *, begin=True, models=None, series=1):
    """Return the values of a request for a task, and the names of its vectors.

    Each vector is an array of its own, called by the name of the request and the vector.
    """
    written = "" if models is None else ",".join(map(str, models))
    values = {
        "task": task.name,
        "form": SUM if task.vector_replies else NUMBERS,
        "models": written,
        **{f"number.{number}": middle(*ends) for number, ends in task.numbers.items()},
        **{f"option.{option}": allowed[0] for option, allowed in task.options.items()},
        **{f"series.{slot.name}": series for slot in task.slots},
        **{f"begin.{slot.name}": written for slot in task.slots if begin},
    }
    vectors = [*task.vectors, *(task.begin_vectors if begin else ())]
    values |= {f"vector.{vector}": f"{name}/{vector}" for vector in vectors}
    places = [f"{name}/{vector}" for vector in vectors]
    rows = {} if models is None else {f"rows-of.{place}": written for place in places}
    return {f"{name}.{key}": value for key, value in values.items()} | rows, places


def exchange(task, size, name="ask", *, begin=True, models=None, series=1):
    """Return the values and vectors of an exchange with one request."""
    values, places = request(task, name, begin=begin, models=models, series=series)
    shape = (size,) if models is None else (len(models), size)
    vectors = {place: np.full(shape, 0.01, np.float32) for place in places}
    return {"requests": name, **values}, vectors
