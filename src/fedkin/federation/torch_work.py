"""The work of nodes whose data are in this process, for PyTorch modules (extra `torch`).

Tasks are the same as for models in JAX: each is traced once, and run for one node after the other on tensors
(`torch_program.py`). Nodes need nothing of each other, and PyTorch leaves Python's lock while it computes. So
threads work on different nodes, each with single-threaded operations, where these are long enough.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

from fedkin.data.batches import NodeData
from fedkin.errors import InputError
from fedkin.federation.base import as_array
from fedkin.federation.portions import Portion
from fedkin.federation.series import Beginning, Item
from fedkin.federation.task import EVALUATIONS, Slot, Task
from fedkin.federation.torch_program import Program, Value, Worker, as_value
from fedkin.federation.work import cores
from fedkin.models.torch_module import TorchObjective
from fedkin.models.torch_network import in_usual_mode
from fedkin.nodes.torch_oracles import TorchOracles, TorchPool
from fedkin.types import Array, Key


class _Traced(NamedTuple):
    """A function of some pytrees, ready to run on tensors."""

    program: Program
    results: Any
    """The arrangement of its results."""

    @classmethod
    def trace(cls, function: Callable, *arguments: Any) -> "_Traced":
        traced, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        return cls(Program(traced), jax.tree.structure(shapes))

    def __call__(self, worker: Worker, *arguments: Any) -> Any:
        with np.errstate(all="ignore"):  # as in JAX, numbers may overflow
            found = self.program(worker, jax.tree.leaves(arguments))
        return jax.tree.unflatten(self.results, found)


class TorchWork:
    """Runs tasks on the data of some nodes, and remembers their state. See `LocalWork`.

    Args:
        objective: The model that the nodes train.
        data: The points of all these nodes.
        threads: How many threads work for the nodes; None for one per core.
        first_number: The number of the first node.
    """

    @in_usual_mode
    def __init__(
        self,
        objective: TorchObjective,
        data: NodeData,
        *,
        threads: int | None = None,
        first_number: int = 0,
    ) -> None:
        self._objective = objective
        self._pool = TorchPool(objective, data)
        self.data = self._pool.places(data)
        self._first_number = first_number
        self._contents: dict[str, dict[Item, Any]] = {}
        self._traced: dict[Any, _Traced] = {}
        self._slot_shapes: dict[Slot, Any] = {}
        self._tracing = threading.Lock()
        self._thread = threading.local()
        nodes = len(self.data.batches)
        threads = 1 if objective.device.type != "cpu" else threads or cores()
        self._threads = ThreadPoolExecutor(threads) if threads > 1 and nodes > 1 else None

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
        every = np.asarray(items, np.int32).reshape(-1, 2)
        rows = every[:, 0] if models is None else np.searchsorted(models, every[:, 0])
        portion = Portion(every, rows, every[:, 1] + self._first_number, message, key, beginnings)
        (found,) = self.compute_together(task, options, [portion])
        return found

    @in_usual_mode
    def compute_together(
        self, task: Task, options: Mapping[str, Any], portions: Sequence[Portion]
    ) -> list[tuple[dict[str, np.ndarray], np.ndarray]]:
        """Run a task for the items of several messages. See `LocalWork.compute_together`."""
        jobs = [job for portion in portions for job in self._jobs(task, options, portion)]
        done = iter(self._for_each(lambda place: jobs[place](), len(jobs)))
        found = []
        for portion in portions:
            own = [next(done) for _ in portion.items]
            replies = {
                name: np.stack([_array(reply[name]) for reply, _ in own]) for name in own[0][0]
            }
            found.append((replies, np.array([count for _, count in own], int)))
        return found

    def _jobs(
        self, task: Task, options: Mapping[str, Any], portion: Portion
    ) -> list[Callable[[], tuple[dict[str, Any], int]]]:
        """Return what each item of a portion has to do."""
        beginnings = portion.beginnings
        begun = {n: v for each in beginnings.values() for n, v in each.vectors.items()}
        asked, begun = self._values(portion.message), self._values(begun)

        def run(place: int) -> tuple[dict[str, Any], int]:
            model, node = portion.items[place]
            item, row = (int(model), int(node)), int(portion.rows[place])
            own = _of_model(asked, row)
            first = own | _of_model(begun, row)
            evaluations = sum(
                self._begin(slot, task, item, first)
                for slot in task.slots
                if slot.name in beginnings and beginnings[slot.name].items[place]
            )
            own_key = jax.random.fold_in(portion.key, int(portion.numbers[place]))
            reply = self._run(task, options, item, own_key, own)
            return reply, evaluations + int(reply.pop(EVALUATIONS))

        return [partial(run, place) for place in range(len(portion.items))]

    @in_usual_mode
    def evaluate(self, function: Callable, *arguments: Any, **options: Any) -> Any:
        """Return a function of the model, the first node's data and some arrays, as JAX arrays."""
        own = self.data.of_node(0)
        given = [as_value(as_array(array), self._objective.device) for array in arguments]
        known = (function, *sorted(options.items()))
        whole = partial(function, self._objective, **options)
        traced = self._trace(known, whole, own, *map(_shape, given))
        with self._few_threads():
            found = traced(self._worker(), own, *given)
        return jax.tree.map(lambda value: jnp.asarray(_array(value)), found)

    def copy_models(self, models: Mapping[int, int]) -> None:
        """Let further models begin with what nodes remember for some models."""
        for contents in self._contents.values():
            contents |= {
                (models[model], node): content
                for (model, node), content in contents.items()
                if model in models
            }

    def forget_models(self, models: Collection[int]) -> None:
        """Forget what nodes remember for some models."""
        for name, contents in self._contents.items():
            self._contents[name] = {
                item: content for item, content in contents.items() if item[0] not in models
            }

    def export_arrays(self, models: Mapping[int, int] | None = None) -> dict[str, np.ndarray]:
        """Return the content of all slots of all items as named arrays. See `LocalWork`."""
        arrays = {}
        for name, contents in self._contents.items():
            items = sorted(item for item in contents if models is None or item[0] in models)
            if not items:
                continue
            rows = [[_array(leaf) for leaf in jax.tree.leaves(contents[item])] for item in items]
            named = [(model if models is None else models[model], node) for model, node in items]
            arrays[f"slot/{name}/items"] = np.array(named, np.int32).reshape(-1, 2)
            for place, column in enumerate(zip(*rows, strict=True)):
                arrays[f"slot/{name}/{place}"] = np.stack(column)
        return arrays

    @in_usual_mode
    def import_arrays(
        self,
        arrays: Mapping[str, np.ndarray],
        slots: Mapping[str, Slot],
        models: Mapping[int, int] | None = None,
    ) -> None:
        """Replace the content of slots by what `export_arrays` returned. See `LocalWork`."""
        if models is None:
            self._contents.clear()
        else:
            self.forget_models(set(models.values()))
        for name in sorted({key.split("/")[1] for key in arrays if key.startswith("slot/")}):
            leaves, structure = jax.tree.flatten(self._shapes_of(slots[name]))
            columns = [arrays[f"slot/{name}/{place}"] for place in range(len(leaves))]
            items = [
                (int(model) if models is None else models[int(model)], int(node))
                for model, node in arrays[f"slot/{name}/items"]
            ]
            for column, leaf in zip(columns, leaves, strict=True):
                if column.shape != (len(items), *leaf.shape):
                    raise ValueError(
                        f"an array of shape {column.shape} where {leaf.shape} is expected"
                    )
            device = self._objective.device
            self._contents.setdefault(name, {}).update(
                (
                    item,
                    jax.tree.unflatten(
                        structure, [as_value(column[row], device) for column in columns]
                    ),
                )
                for row, item in enumerate(items)
            )

    def _values(self, arrays: Mapping[str, Array]) -> dict[str, Value]:
        return {name: as_value(array, self._objective.device) for name, array in arrays.items()}

    def _begin(self, slot: Slot, task: Task, item: Item, message: Mapping[str, Value]) -> int:
        """Begin a slot, and count the evaluations that this takes."""
        names = (*task.vectors, *task.numbers, *slot.vectors)
        own = self.data.of_node(item[1])
        needed = {name: message[name] for name in names}
        content = self._contents.setdefault(slot.name, {}).get(item)
        if content is None:
            content = jax.tree.map(self._zeros, self._shapes_of(slot))
        begin = partial(slot.begin, self._objective)
        known = (slot, *sorted(names))
        traced = self._trace(known, begin, own, self._shapes_of(slot), _shapes(needed))
        content, count = traced(self._worker(), own, content, needed)
        self._contents[slot.name][item] = content
        return int(count)

    def _run(
        self,
        task: Task,
        options: Mapping[str, Any],
        item: Item,
        key: Key,
        message: Mapping[str, Value],
    ) -> dict[str, Value]:
        own = self.data.of_node(item[1])
        needed = {name: message[name] for name in (*task.vectors, *task.numbers)}
        state = {slot.name: self._contents[slot.name][item] for slot in task.slots}
        known = (task, *sorted(options.items()))
        function = partial(task.function, self._objective, **options)
        shapes = {slot.name: self._shapes_of(slot) for slot in task.slots}, key, _shapes(needed)
        traced = self._trace(known, function, own, *shapes)
        state, reply = traced(self._worker(), own, state, key, needed)
        task.check_counted(reply)
        for slot in task.slots:
            self._contents[slot.name][item] = state[slot.name]
        return reply

    def _trace(self, known: tuple, function: Callable, *arguments: Any) -> _Traced:
        """Trace a function, unless that has been done before."""
        with self._tracing:
            if known not in self._traced:
                try:
                    self._traced[known] = _Traced.trace(function, *arguments)
                except (InputError, AttributeError) as error:
                    name = getattr(known[0], "name", known[0])
                    raise InputError(f"{name} cannot run on a PyTorch module: {error}") from error
            return self._traced[known]

    def _for_each(self, run: Callable[[int], Any], count: int) -> list[Any]:
        """Run something for each item, in threads where that pays."""
        with self._few_threads() as threads:

            def alone(place: int) -> Any:
                torch.set_num_threads(threads)  # of the operations of this thread
                return run(place)

            if self._threads is None or count == 1 or not self._gradients_are_heavy:
                return [alone(place) for place in range(count)]
            return list(self._threads.map(alone, range(count)))

    @contextmanager
    def _few_threads(self) -> Iterator[int]:
        """Let operations have one thread, unless they are heavy and there is only one node."""
        before = torch.get_num_threads()
        try:
            torch.set_num_threads(1)
            if len(self.data.batches) == 1 and self._gradients_are_heavy:
                torch.set_num_threads(min(before, cores()))
            yield torch.get_num_threads()
        finally:
            torch.set_num_threads(before)

    @cached_property
    def _gradients_are_heavy(self) -> bool:
        # Counted, not timed: the number of threads that share an operation decides its last bits. Threads do
        # not pay below that work, because they mostly wait for Python's lock.
        return self._objective.is_heavy(self._pool.labels.shape[1])

    def _worker(self) -> Worker:
        if not hasattr(self._thread, "worker"):
            oracles = TorchOracles(self._objective.network(), self._pool)
            self._thread.worker = Worker(oracles, self._objective.device)
        return self._thread.worker

    def _shapes_of(self, slot: Slot) -> Any:
        """Return the arrangement and the shapes of a slot's content."""
        if slot not in self._slot_shapes:
            self._slot_shapes[slot] = jax.eval_shape(
                lambda: slot.empty(self._objective, self.data)  # pyright: ignore
            )
        return self._slot_shapes[slot]

    def _zeros(self, shape: jax.ShapeDtypeStruct) -> Value:
        return as_value(np.zeros(shape.shape, shape.dtype), self._objective.device)


def _of_model(message: Mapping[str, Value], row: int) -> dict[str, Value]:
    """Return a message with one model's rows of what has a row per model."""
    return {name: each[row] if np.ndim(each) == 2 else each for name, each in message.items()}


def _shape(value: Value) -> Any:
    """Return what tracing needs to know of a value."""
    if isinstance(value, torch.Tensor):
        return jax.ShapeDtypeStruct(tuple(value.shape), str(value.dtype).removeprefix("torch."))
    return jax.ShapeDtypeStruct(np.shape(value), value.dtype)


def _shapes(message: Mapping[str, Value]) -> dict[str, Any]:
    return {name: _shape(value) for name, value in message.items()}


def _array(value: Value) -> np.ndarray:
    return value.cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
