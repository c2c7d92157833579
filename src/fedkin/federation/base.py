"""The one seam between the center and the nodes."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Protocol

import numpy as np

from fedkin.models.objective import Objective
from fedkin.types import Array, Key

Replies = dict[str, Array]
"""Named replies; the first axis of each runs over the nodes."""


@dataclass(frozen=True)
class Cost:
    """What communication and computation have cost; costs add up."""

    synchronizations: int = 0
    """Rounds of communication of the center with all nodes."""
    bytes_up: int = 0
    """Bytes of the arrays that nodes sent to the center, over all nodes."""
    bytes_down: int = 0
    """Bytes of the arrays that the center sent to nodes, over all nodes."""
    node_points: tuple[int, ...] = ()
    """Gradients or Hessian-vector products of single points of each node, as the algorithm counts them; the
    center, where it computes too, comes after the nodes."""

    @property
    def points(self) -> int:
        """What the busiest node has computed: the data points processed in parallel."""
        return max(self.node_points, default=0)

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.synchronizations + other.synchronizations,
            self.bytes_up + other.bytes_up,
            self.bytes_down + other.bytes_down,
            tuple(
                mine + theirs
                for mine, theirs in zip_longest(self.node_points, other.node_points, fillvalue=0)
            ),
        )


class Federation(Protocol):
    """The nodes, as the center sees them: it may ask, and nothing else."""

    @property
    def objective(self) -> Objective:
        """The model that the nodes train."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the nodes."""
        ...

    @property
    def batches(self) -> int:
        """The largest number of mini-batches that a node has: steps of one pass over its data."""
        ...

    @property
    def present(self) -> np.ndarray:
        """Which nodes take part (bools): the others have been dropped, and their weight is 0."""
        ...

    def begin_step(self, step: int) -> None:
        """Get ready for an outer step: the time to take nodes in that have come back."""
        ...

    def end_step(self) -> tuple[str, ...]:
        """Return, in sentences, what went wrong with nodes since the step began."""
        ...

    def call(
        self,
        task: str,
        message: Mapping[str, Array | float],
        *,
        key: Key,
        node_weights: Array | None = None,
        start: bool = False,
        **options: Any,
    ) -> tuple[Replies, Cost]:
        """Ask all nodes to do a task: one synchronization.

        Args:
            task: A name from `fedkin.methods.tasks.TASKS`.
            message: Named arrays and numbers, sent to every node alike.
            key: Where the nodes' randomness comes from; node k uses `fold_in(key, k)`.
            node_weights: How much each node counts. They stay with the center, which needs them where a
                node does not answer: the weighted mean of the others stands in for its reply, so that
                every weighted sum comes out as if the weights had been renormalized over the others.
                None for equal weights.
            start: Whether this is the first of a series of calls (see `nodes.tasks.Task.begin`).
            **options: Settings of the task that are part of the compiled code, such as a number of steps.

        Returns:
            The replies, stacked over nodes, and what the call has cost.
        """
        ...

    def export_state(self) -> dict[str, Any]:
        """Return all that the nodes remember, for a checkpoint."""
        ...

    def import_state(self, state: Mapping[str, Any]) -> None:
        """Make the nodes remember what `export_state` returned."""
        ...
