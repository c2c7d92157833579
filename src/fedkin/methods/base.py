"""What an algorithm of the center is: `init`, and `step(state, key) -> (state, info)`."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from fedkin.federation.base import Cost, Federation
from fedkin.federation.center import Center
from fedkin.types import Array, Key, Vector


@dataclass(frozen=True)
class Info:
    """What a step has to tell: the model to evaluate, what it cost, and diagnostics."""

    theta: Vector
    """The model as it stands after this step."""
    node_weights: Array | None
    """The weights that the model was trained with; None where nodes have no weights."""
    cost: Cost
    diagnostics: dict[str, float] = field(default_factory=dict)
    """Numbers worth a column in the history."""
    warnings: tuple[str, ...] = ()
    """What went wrong and was mended, in sentences."""
    stop: str | None = None
    """Why no further step is worth taking, or None."""
    silent_rounds: int = 0
    """Rounds of training that sent nothing, but count against a budget of synchronizations, so that
    methods without communication train as long as the others."""


class Algorithm(Protocol):
    """A method of learning. Its settings are frozen; its state is a NamedTuple of arrays."""

    def init(self, theta: Vector, nodes: int) -> Any:
        """Return the state before the first step, given the initial model and the number of nodes."""
        ...

    def step(
        self, state: Any, key: Key, federation: Federation, center: Center
    ) -> tuple[Any, Info]:
        """Take one outer step."""
        ...


class TrainingState(NamedTuple):
    """State of the methods that only train a model: FedAvg and Local-train."""

    theta: Vector
    rounds: int
    """Rounds taken so far."""
