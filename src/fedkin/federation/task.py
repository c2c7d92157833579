"""What a node may be asked.

A task says everything about itself in one place: the function that a node runs, the state it keeps, the
vectors, numbers and options of a request, and the replies. The engines, a node's guard, the center's
checks of replies, what a node keeps on disk and the table in docs/federation.md are derived from it.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp

from fedkin.data.batches import NodeData
from fedkin.errors import InputError
from fedkin.models.objective import Objective
from fedkin.types import Array, Message

NodeState = dict[str, Any]
"""What a node remembers: the content of each slot by the slot's name."""

MOST_STEPS = 10_000
"""The most local steps or iterations that one request may ask for."""

STEPS = (1, MOST_STEPS)
"""The range of an option that counts steps or iterations."""
RATE = (0.0, 1e3)
"""The range of a step size."""
SHARE = (0.0, 1.0)
"""The range of a probability."""

EVALUATIONS = "evaluations"
"""The number in every reply that counts gradients or Hessian-vector products of single points."""


@dataclass(frozen=True, eq=False, repr=False)
class Slot:
    """A part of what a node remembers from one request to the next.

    A series of requests begins when a request says so; `begin` then fills the slot. A node that
    missed that request (its weight was zero, it was away) begins when it is next asked.

    Args:
        name: Tells the slot from others.
        empty: Makes the content before the first use, given the model and the data of all nodes at hand.
            It fixes the arrangement and the shapes.
        begin: Makes the content at the beginning of a series from the model, one node's data, the content
            so far (for its shapes) and the message; also counts the evaluations that this takes.
        vectors: The vectors of the message that only `begin` reads. They are sent once per series.
        lasting: Whether a series may continue over several outer steps, so that the content has to
            outlive a restart.
        shared: Whether `begin` reads nothing of the message but `vectors`. Models that begin with the same
            vectors then share the computation.
    """

    name: str
    empty: Callable[[Objective, NodeData], Any]
    begin: Callable[[Objective, NodeData, Any, Message], tuple[Any, Array]]
    vectors: tuple[str, ...] = ()
    lasting: bool = False
    shared: bool = False

    def __repr__(self) -> str:
        return f"Slot({self.name})"


@dataclass(frozen=True, eq=False, repr=False)
class Task:
    """Something that a node computes on its own data.

    Args:
        name: Tells the task from others.
        function: A pure function `(objective, data, state, key, message, **options)` that returns the
            state and the named replies, among them the number `evaluations`.
        slots: What it reads and writes of the node's state.
        vectors: The vectors of model size in every message.
        numbers: The numbers in every message, each with the smallest and the largest value allowed.
        options: Settings that are part of the compiled code: whole numbers with their range, or texts
            with all that are allowed.
        vector_replies: The replies that are vectors of model size.
        number_replies: The replies that are single numbers.
        only_reads: Whether the function returns the state as it got it. Models that begin alike share it.
        remote: Whether a node of a real federation may be asked; otherwise the task is for data at hand.
        reveals: What one reply tells about the node's rows, in a sentence for docs/security.md.
    """

    name: str
    function: Callable[..., Any]
    slots: tuple[Slot, ...] = ()
    vectors: tuple[str, ...] = ()
    numbers: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    options: Mapping[str, tuple[int, int] | tuple[str, ...]] = field(default_factory=dict)
    vector_replies: tuple[str, ...] = ()
    number_replies: tuple[str, ...] = ()
    only_reads: bool = False
    remote: bool = True
    reveals: str = ""

    def __repr__(self) -> str:
        return f"Task({self.name})"

    @property
    def begin_vectors(self) -> tuple[str, ...]:
        """The vectors that only the first message of a series has."""
        return tuple(dict.fromkeys(name for slot in self.slots for name in slot.vectors))

    @property
    def summary(self) -> str:
        """The first sentence of the function's docstring."""
        return (inspect.getdoc(self.function) or "").split("\n")[0]

    def check_counted(self, replies: Mapping[str, Any]) -> None:
        """Refuse a function that does not say how many evaluations it took."""
        if EVALUATIONS not in replies:
            raise InputError(
                f"the task {self.name} does not reply with '{EVALUATIONS}', the number of points whose "
                "gradient or Hessian-vector product it computed; add it to what the function returns "
                "(data.points for one pass over the node's rows)"
            )

    def check_unchanged(self, before: NodeState, after: NodeState) -> None:
        """Refuse a function that returns another state though the task only reads it."""
        if after is not before:
            raise InputError(
                f"the task {self.name} only reads the node's state, but returns another: let its function "
                "return the state that it got, or leave out only_reads"
            )

    @property
    def is_fedkins_own(self) -> bool:
        """Whether its code is fedkin's, so that its name tells what it computes in other processes."""
        functions = (self.function, *(slot.begin for slot in self.slots))
        return all(function.__module__.startswith("fedkin.") for function in functions)


def slots_of(tasks: Iterable[Task]) -> dict[str, Slot]:
    """Return all slots of some tasks by name."""
    return {slot.name: slot for task in tasks for slot in task.slots}


def zeros(objective: Objective) -> Array:
    """Return a vector of model size full of zeros, for empty slots."""
    return jnp.zeros(objective.size, jnp.result_type(float))
