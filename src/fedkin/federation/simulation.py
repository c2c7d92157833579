"""All nodes in one process."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from fedkin.data.batches import NodeData, stack_nodes
from fedkin.errors import InputError
from fedkin.federation.aggregate import Traffic, combine
from fedkin.federation.base import Cost, Reply, Request, as_array
from fedkin.federation.series import Beginning, Item, SeriesBook
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

    def export_arrays(self) -> dict[str, np.ndarray]:
        """Return the content of all slots of all items as named arrays."""
        ...

    def import_arrays(self, arrays: Mapping[str, np.ndarray], slots: Mapping[str, Slot]) -> None:
        """Replace the content of all slots by what `export_arrays` returned."""
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


class SimulatedFederation:
    """Nodes whose data are all at hand.

    Args:
        objective: The model that the nodes train.
        nodes: Each node's prepared inputs and its labels.
        names: The names of the nodes; `node 1`, `node 2`, … if they are not given.
        batch_size: The number of points in a mini-batch.
        seed: Decides how each node's points are divided into mini-batches.
        threads: How many threads work for the nodes; None for one per core.
        ask_all: Whether nodes of weight zero are asked too.
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
    ) -> None:
        if not nodes:
            raise InputError("a federation needs at least one node")
        self.objective = objective
        self.names = tuple(names or (f"node {number}" for number in range(1, len(nodes) + 1)))
        inputs, labels = zip(*nodes, strict=True)
        data = stack_nodes(inputs, labels, batch_size, seed)
        self._work = local_work(objective, data, threads=threads)
        self.data = getattr(self._work, "data", data)  # PyTorch has its own
        self.present = np.ones(len(nodes), bool)
        self.batches = int(self.data.batches.max())
        self.ask_all = ask_all
        self._series = SeriesBook()

    def exchange(self, *, key: Key, **requests: Request) -> Reply:
        """Let every node do what it is asked for. See `Federation.exchange`; here every node answers."""
        nodes = len(self.names)
        evaluations = np.zeros(nodes, int)
        traffic, started = Traffic(nodes), set()
        replies = {}
        for request in requests.values():
            self._series.start(request, started)
        for name, request in requests.items():
            asked = request.asked(nodes, ask_all=self.ask_all)
            items = [(int(model), int(node)) for model, node in np.argwhere(asked)]
            beginnings = self._series.beginnings(request, items)
            message = {name: as_array(value) for name, value in request.message.items()}
            traffic.send(request, asked, items, beginnings)
            found, counts = self._work.compute(
                request.task, request.options, items, message, key, beginnings
            )
            np.add.at(evaluations, [node for _, node in items], counts)
            for slot in request.task.slots:
                self._series.mark(slot, items)
            traffic.receive(found)
            replies[name] = combine(request, asked, items, found)
        cost = Cost(
            synchronizations=1,
            bytes_up=traffic.bytes_up,
            bytes_down=traffic.bytes_down,
            node_points=tuple(evaluations.tolist()),
            nodes_asked=traffic.nodes_asked,
        )
        return Reply(replies, cost)

    def evaluate(self, function: Callable, *arguments: Any, **options: Any) -> Any:
        """Return what a function makes of the model and the first node's data, without counting it.

        Args:
            function: A function `(objective, data, *arguments, **options)` of pure JAX, compiled with the
                objective and the options as constants.
            *arguments: Vectors and numbers.
            **options: Settings that are part of the compiled code.
        """
        run = getattr(self._work, "evaluate", None)
        if run is None:
            return function(self.objective, self.data.of_node(0), *arguments, **options)
        return run(function, *arguments, **options)

    def begin_step(self, step: int) -> None:
        """Nothing to prepare: all nodes are at hand."""

    def end_step(self) -> tuple[str, ...]:
        """Return nothing: nothing goes wrong with nodes at hand."""
        return ()

    def export_state(self) -> dict[str, np.ndarray]:
        """Return what the nodes remember, and which series it belongs to."""
        return self._work.export_arrays() | self._series.export_arrays()

    def import_state(self, arrays: Mapping[str, np.ndarray], slots: Mapping[str, Slot]) -> None:
        """Continue with what `export_state` returned."""
        self._work.import_arrays(arrays, slots)
        self._series.import_arrays(arrays)
