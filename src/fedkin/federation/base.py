"""The one seam between the center and the nodes: `Federation.exchange`.

One exchange is one synchronization. The center says what it needs and gets no more: vectors as weighted
sums over nodes, numbers of single nodes. Whoever needs single nodes' vectors has to say `Revealed`
(or `RevealedEach`, where nodes are also sent different vectors).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Protocol, cast

import jax
import numpy as np

from fedkin.errors import InputError
from fedkin.federation.task import Slot, Task
from fedkin.models.objective import Objective
from fedkin.types import Array, Key


@dataclass(frozen=True)
class Cost:
    """What communication and computation have cost. Costs add up."""

    synchronizations: int = 0
    """Rounds of communication between the center and the nodes."""
    bytes_up: int = 0
    """Bytes of the arrays that nodes sent to the center, over all nodes."""
    bytes_down: int = 0
    """Bytes of the arrays that the center sent to nodes, over all nodes."""
    node_points: tuple[int, ...] = ()
    """Gradients or Hessian-vector products of single points that each node has computed, as the algorithm
    counts them. The center, where it computes too, comes after the nodes."""
    nodes_asked: int = 0
    """How many nodes were asked, added up over synchronizations."""

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
            self.nodes_asked + other.nodes_asked,
        )


class Request:
    """What all requests have in common.

    Args:
        task: What the nodes compute.
        message: Named vectors and numbers, the same for every node. Vectors may have a leading axis of
            models; the replies then have one too.
        begin: Whether this is the first request of a series (see `Slot`). The message then also has the
            task's `begin_vectors`.
        **options: Settings of the task, such as a number of steps.
    """

    def __init__(
        self,
        task: Task,
        message: Mapping[str, Array | float] | None = None,
        *,
        begin: bool = False,
        **options: Any,
    ) -> None:
        self.task = task
        self.message = dict(message or {})
        self.begin = begin
        self.options = options
        self.models = self._count_models()
        self._check_names()

    def asked(self, nodes: int, *, ask_all: bool) -> np.ndarray:
        """Return which nodes compute for which models, as bools of shape (models, nodes)."""
        found = self._choose(nodes, ask_all=ask_all)
        if found.shape[1] != nodes:
            raise InputError(
                f"{self.task.name} has weights for {found.shape[1]} nodes, but there are {nodes}"
            )
        if not found.any():
            why = ": all weights are zero" if isinstance(self, WeightedSum) else ""
            raise InputError(f"{self.task.name} asks no node{why}")
        return found

    def _choose(self, nodes: int, *, ask_all: bool) -> np.ndarray:
        return np.ones((self.models or 1, nodes), bool)

    def _count_models(self) -> int | None:
        """Return the length of the axis of models; None if there is none."""
        lengths = {
            None if np.ndim(value) < 2 else int(np.shape(value)[0])
            for name, value in self.message.items()
            if name in {*self.task.vectors, *self.task.begin_vectors}
        }
        if len(lengths) > 1:
            raise InputError(f"the vectors for {self.task.name} disagree on the number of models")
        return lengths.pop() if lengths else None

    def _check_names(self) -> None:
        task = self.task
        expected = {*task.vectors, *task.numbers, *(task.begin_vectors if self.begin else ())}
        if set(self.message) != expected:
            raise InputError(
                f"{task.name} needs {sorted(expected)} in its message, not {sorted(self.message)}"
            )
        for name in task.numbers:
            if np.ndim(self.message[name]) > 0:
                raise InputError(f"{name} of {task.name} must be one number")
        if set(self.options) != set(task.options):
            raise InputError(
                f"{task.name} needs the options {sorted(task.options)}, not {sorted(self.options)}"
            )


class WeightedSum(Request):
    """Ask for Σ_k w_k v_k of every vector v_k, and likewise of every number, that the nodes reply with.

    Nodes whose weight is exactly zero are not asked: they compute nothing and send nothing. The sum is
    the same.

    Args:
        weights: The weight of each node, or a row of them for each model.
        compares_moves: Whether a node is left out that moves a model much farther than the others.
    """

    def __init__(
        self,
        task: Task,
        message: Mapping[str, Array | float] | None = None,
        *,
        weights: Array,
        begin: bool = False,
        compares_moves: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(task, message, begin=begin, **options)
        self.weights = weights
        self.compares_moves = compares_moves
        rows = None if np.ndim(weights) < 2 else int(np.shape(weights)[0])
        if self.models is None and not task.vectors:
            self.models = rows
        if rows != self.models:
            raise InputError(
                f"{task.name}: {rows or 'no'} rows of weights for {self.models or 'no'} rows of vectors"
            )

    def with_weights(self, weights: Array) -> "WeightedSum":
        """Return the same request with other weights."""
        return WeightedSum(
            self.task,
            self.message,
            weights=weights,
            begin=self.begin,
            compares_moves=self.compares_moves,
            **self.options,
        )

    def _choose(self, nodes: int, *, ask_all: bool) -> np.ndarray:
        # Weights that are NaN count: the sum then shows that something has diverged.
        counted = np.atleast_2d(np.asarray(self.weights)) != 0
        return np.ones_like(counted) if ask_all else counted


class PerNode(Request):
    """Ask nodes for numbers of their own. What does not arrive is NaN.

    Args:
        nodes: Which nodes are asked, as bools; None for all.
    """

    def __init__(
        self,
        task: Task,
        message: Mapping[str, Array | float] | None = None,
        *,
        nodes: np.ndarray | None = None,
        begin: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(task, message, begin=begin, **options)
        self.nodes = nodes
        if task.vector_replies:
            raise InputError(
                f"{task.name} replies with vectors: ask for their WeightedSum, or say Revealed"
            )

    def _choose(self, nodes: int, *, ask_all: bool) -> np.ndarray:
        everyone = super()._choose(nodes, ask_all=ask_all)
        return everyone if self.nodes is None else everyone & np.asarray(self.nodes, bool)


class Revealed(Request):
    """Ask every node for its own vectors, for methods that compare single nodes' models.

    A node's owner has to allow it, and it is impossible where sums are secure. What does not arrive is NaN.
    """


class RevealedEach(Revealed):
    """Send every node vectors of its own, and ask for what it makes of them.

    The vectors have a row for each node, and so have the replies. Besides that, it is `Revealed`.
    """

    def _choose(self, nodes: int, *, ask_all: bool) -> np.ndarray:
        if self.models != nodes:
            raise InputError(
                f"{self.task.name} needs a row of its vectors for each of {nodes} nodes, not "
                f"{self.models or 'one for all'}"
            )
        return np.eye(nodes, dtype=bool)


class Reply:
    """The replies of one exchange, by the names of the requests, and what the exchange has cost.

    `reply.train["point"]` is the reply `point` to the request called `train`.
    """

    def __init__(self, replies: Mapping[str, Mapping[str, Array]], cost: Cost) -> None:
        self.replies = dict(replies)
        self.cost = cost

    def __getattr__(self, name: str) -> Mapping[str, Array]:
        try:
            return self.__dict__["replies"][name]
        except KeyError:
            raise AttributeError(f"no request was called {name!r}") from None


class Federation(Protocol):
    """The nodes, as the center sees them: it may ask, and nothing else."""

    @property
    def ask_all(self) -> bool:
        """Whether nodes of weight zero are asked too, as in the paper's own count."""
        ...

    @ask_all.setter
    def ask_all(self, value: bool) -> None: ...

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
        """The largest number of mini-batches that a node has: the steps of one pass over its data."""
        ...

    @property
    def present(self) -> np.ndarray:
        """Which nodes take part (bools). The others have been dropped, and their weight is 0."""
        ...

    def begin_step(self, step: int) -> None:
        """Get ready for an outer step; nodes that have come back rejoin now."""
        ...

    def end_step(self) -> tuple[str, ...]:
        """Return, in sentences, what went wrong with nodes since the step began."""
        ...

    def exchange(self, *, key: Key, **requests: Request) -> Reply:
        """Ask the nodes: one synchronization, however many requests there are.

        Args:
            key: Where the nodes' randomness comes from; node k uses `fold_in(key, k)`.
            **requests: `WeightedSum`, `PerNode` or `Revealed` requests, under names of the caller's choice.
        """
        ...

    def export_state(self) -> dict[str, np.ndarray]:
        """Return, as named arrays, what the engine needs to continue after a restart."""
        ...

    def import_state(self, arrays: Mapping[str, np.ndarray], slots: Mapping[str, Slot]) -> None:
        """Continue with what `export_state` returned.

        Args:
            arrays: The arrays.
            slots: The slots of the method's tasks by name, for their arrangement.
        """
        ...


def as_array(value: Array | float | np.ndarray) -> Array:
    """Give numbers the type of all others, so that they never need other compiled code."""
    array = np.asarray(value)
    # Compiled code takes NumPy's arrays as they are.
    return cast(Array, array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False))
