"""All nodes in one process."""

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from fedkin.data.batches import NodeData, stack_nodes
from fedkin.errors import FedkinError, InputError
from fedkin.federation.base import Cost, Reply
from fedkin.federation.owned_engine import OwnedEngine
from fedkin.federation.owners import (
    Ask,
    Owner,
    OwnerExchange,
    SharedReply,
    Trail,
    leaders,
    likeness_of,
)
from fedkin.federation.portions import Portion
from fedkin.federation.series import Beginning, Item
from fedkin.federation.task import Slot, Task
from fedkin.federation.work import LocalWork
from fedkin.models.objective import Objective
from fedkin.types import Array, Key


class Work(Protocol):
    """Runs tasks on the data of some nodes in this process, and remembers their state."""

    def compute(
        self,
        task: Task,
        options: Mapping[str, Any],
        items: Sequence[Item],
        message: Mapping[str, Array],
        key: Key,
        beginnings: Mapping[str, Beginning],
        models: Sequence[int] | None = None,
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Run a task for some items. See `LocalWork.compute`."""
        ...

    def compute_together(
        self, task: Task, options: Mapping[str, Any], portions: Sequence[Portion]
    ) -> list[tuple[dict[str, np.ndarray], np.ndarray]]:
        """Run a task for the items of several messages. See `LocalWork.compute_together`."""
        ...

    def forget_models(self, models: Collection[int]) -> None:
        """Forget what nodes remember for some models."""
        ...

    def copy_models(self, models: Mapping[int, int]) -> None:
        """Let further models begin with what nodes remember for some models."""
        ...

    def export_arrays(self, models: Mapping[int, int] | None = None) -> dict[str, np.ndarray]:
        """Return the content of all slots of all items as named arrays."""
        ...

    def import_arrays(
        self,
        arrays: Mapping[str, np.ndarray],
        slots: Mapping[str, Slot],
        models: Mapping[int, int] | None = None,
    ) -> None:
        """Replace the content of slots by what `export_arrays` returned."""
        ...


def local_work(
    objective: Objective, data: NodeData, *, threads: int | None = None, first_number: int = 0
) -> Work:
    """Return what runs tasks on the data of nodes in this process: by JAX, or by PyTorch for its modules."""
    if objective.in_jax:
        return LocalWork(objective, data, threads=threads, first_number=first_number)
    from fedkin.federation.torch_work import TorchWork
    from fedkin.models.torch_module import TorchObjective

    assert isinstance(objective, TorchObjective)
    return TorchWork(objective, data, threads=threads, first_number=first_number)


class SimulatedFederation(OwnedEngine):
    """Nodes whose data are all at hand.

    Args:
        objective: The model that the nodes train.
        nodes: Each node's prepared inputs and its labels.
        names: The names of the nodes; `node 1`, `node 2`, … if they are not given.
        batch_size: The number of points in a mini-batch.
        seed: Decides how each node's points are divided into mini-batches.
        threads: How many threads work for the nodes; None for one per core.
        ask_all: Whether nodes of weight zero are asked too.
        numbers: With the seed, the number of a node decides how its points are divided; 0, 1, … if they
            are not given. Nodes that are never asked by the same owner may have the same.
        group: Mini-batches are made of groups of at least this many points. See `divide`.
        work: Makes what runs tasks, given the model and the data of all nodes; `local_work` if not given.
    """

    def __init__(
        self,
        objective: Objective,
        nodes: Sequence[tuple[np.ndarray, np.ndarray]],
        *,
        names: Sequence[str] | None = None,
        batch_size: int = 50,
        seed: int,
        threads: int | None = None,
        ask_all: bool = False,
        numbers: Sequence[int] | None = None,
        group: int = 1,
        work: Callable[[Objective, NodeData], Work] | None = None,
    ) -> None:
        if not nodes:
            raise InputError("a federation needs at least one node")
        self.objective = objective
        self.names = tuple(names or (f"node {number}" for number in range(1, len(nodes) + 1)))
        inputs, labels = zip(*nodes, strict=True)
        data = stack_nodes(inputs, labels, batch_size, seed, numbers, group)
        self._work = work(objective, data) if work else local_work(objective, data, threads=threads)
        self.data = getattr(self._work, "data", data)  # PyTorch has its own
        self.present = np.ones(len(nodes), bool)
        self.batches = int(self.data.batches.max())
        self._models = itertools.count()
        self._owners = itertools.count()
        super().__init__(self.add_owner())
        self._only.likeness = None
        self.ask_all = ask_all

    def exchange_all(self, asks: Sequence[Ask]) -> SharedReply:
        """Let the nodes do what several owners ask for, in one exchange."""
        found: dict[int, OwnerExchange | FedkinError] = {}
        same = leaders(asks, self._split)
        for place in sorted(set(same)):
            try:
                found[place] = OwnerExchange(asks[place], lambda: next(self._models))
            except FedkinError as error:
                found[place] = error
        while kind := self._commonest_kind(found):
            portions = {}
            for place, own in found.items():
                if isinstance(own, OwnerExchange) and own.next_kind == kind:
                    try:
                        portions[place] = own.portion()
                    except FedkinError as error:
                        found[place] = error
            if portions:
                task, options = kind
                done = self._work.compute_together(task, dict(options), list(portions.values()))
                for place, (replies, counts) in zip(portions, done, strict=True):
                    own = found[place]
                    assert isinstance(own, OwnerExchange)
                    own.finish(replies, counts)
        replies = {
            place: own.reply() if isinstance(own, OwnerExchange) else own
            for place, own in found.items()
        }
        return SharedReply([replies[place] for place in same], self._cost(found, replies))

    def add_owner(self, nodes: Sequence[int] | None = None) -> Owner:
        """Make room for another owner.

        Args:
            nodes: The nodes that it may ask, in its own order; None for all.
        """
        places = np.arange(len(self.names)) if nodes is None else np.asarray(nodes, int)
        return Owner(next(self._owners), places, Trail(), likeness_of(places))

    def present_for(self, owner: Owner) -> np.ndarray:
        """Return which nodes of an owner take part: all do."""
        return self.present[owner.nodes]

    def admit(self, owner: Owner) -> None:
        """Nothing to do: no node has ever left."""

    def batches_of(self, nodes: np.ndarray) -> int:
        """Return the largest number of mini-batches that some nodes have."""
        return int(np.asarray(self.data.batches)[nodes].max())

    def export_owner(self, owner: Owner) -> dict[str, np.ndarray]:
        """Return what nodes remember for an owner, as if it were the only one."""
        models = {number: model for model, number in owner.trail.models.items()}
        return self._work.export_arrays(models) | owner.trail.series.export_arrays()

    @property
    def evaluate_foreign(self) -> Callable[..., Any] | None:
        """What evaluates functions of the model and the first node's data, where it is not JAX."""
        return getattr(self._work, "evaluate", None)

    def begin_step(self, step: int) -> None:
        """Nothing to prepare: all nodes are at hand."""

    def end_step(self) -> tuple[str, ...]:
        """Return nothing: nothing goes wrong with nodes at hand."""
        return ()

    def export_state(self) -> dict[str, np.ndarray]:
        """Return what the nodes remember, and which series it belongs to."""
        return self.export_owner(self._only)

    def import_state(self, arrays: Mapping[str, np.ndarray], slots: Mapping[str, Slot]) -> None:
        """Continue with what `export_state` returned."""
        self.import_owner(self._only, arrays, slots)

    def _commonest_kind(self, found: Mapping[int, OwnerExchange | FedkinError]):
        """Return the task and options that most owners have next; None if all are done."""
        kinds = [own.next_kind for own in found.values() if isinstance(own, OwnerExchange)]
        waiting = [kind for kind in kinds if kind is not None]
        return max(waiting, key=waiting.count, default=None)

    def _continued(self, arrays: Mapping[str, np.ndarray], slots: Mapping[str, Slot]) -> Trail:
        items = [array for name, array in arrays.items() if name.endswith("/items")]
        models = sorted({int(model) for own in items for model in own[:, 0]})
        trail = Trail(models={model: next(self._models) for model in models})
        trail.series.import_arrays(arrays)
        self._work.import_arrays(arrays, slots, trail.models)
        return trail

    def _forget(self, trail: Trail) -> None:
        self._work.forget_models(set(trail.models.values()))

    def _split(self, trail: Trail) -> Trail:
        models = {model: next(self._models) for model in trail.models}
        self._work.copy_models({trail.models[model]: models[model] for model in models})
        return Trail(trail.series.copy(), models)

    def _cost(
        self,
        found: Mapping[int, OwnerExchange | FedkinError],
        replies: Mapping[int, Reply | FedkinError],
    ) -> Cost:
        """Add up what was computed and sent for the owners; what they asked for alike counts once."""
        points, asked = np.zeros(len(self.names), int), np.zeros(len(self.names), bool)
        up = down = 0
        for place, own in found.items():
            reply = replies[place]
            if isinstance(own, OwnerExchange) and isinstance(reply, Reply):
                nodes, evaluations = own.evaluations
                points[nodes] += evaluations
                asked[own.nodes_asked] = True
                up, down = up + reply.cost.bytes_up, down + reply.cost.bytes_down
        return Cost(1, up, down, tuple(points.tolist()), int(asked.sum()))
