"""The work of nodes whose data are in this process: a task for some nodes, as compiled code.

The nodes that have something to do are divided into shares, a few nodes per share, and threads run the
shares with single-threaded code. Nodes need nothing of each other between two synchronizations, and the
arrays of a step are so small that splitting each operation among cores costs more than it saves. The
shares do not depend on the number of cores, so the numbers do not either, to the last bit.
"""

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.compilation import Call, compile_side_by_side
from fedkin.data.batches import OWN_FIELDS, NodeData
from fedkin.federation.portions import Portion, Stack
from fedkin.federation.series import Beginning, Item
from fedkin.federation.shares import Division, Shares
from fedkin.federation.slot_contents import SlotContents
from fedkin.federation.task import EVALUATIONS, Slot, Task
from fedkin.models.named import BUILT_IN_MODELS
from fedkin.models.objective import Objective
from fedkin.types import Array, Key

BYTES_AT_ONCE = 1_300_000
"""The mini-batches of the nodes that are computed together may take this much memory as floats: few
enough for a core's cache, enough to make the cost of starting an operation small."""


class LocalWork:
    """Runs tasks on the data of some nodes, and remembers their state.

    Args:
        objective: The model that the nodes train.
        data: The points of all these nodes.
        threads: How many threads run the shares; None for one per core.
        first_number: The number of the first node, where these are some of the nodes of a larger
            federation. With the seed and the key it decides what a node draws.
    """

    def __init__(
        self,
        objective: Objective,
        data: NodeData,
        *,
        threads: int | None = None,
        first_number: int = 0,
    ) -> None:
        self._objective = objective
        self._data = data
        self._first_number = np.int32(first_number)
        nodes = data.batches.size
        self._division = Division(nodes, _nodes_at_once(objective, data))
        self._contents: dict[str, SlotContents] = {}
        threads = threads or cores()
        self._pool = ThreadPoolExecutor(threads) if threads > 1 and nodes > 1 else None

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
        """Run a task for some items.

        Args:
            task: The task.
            options: Its options.
            items: Which nodes work for which models.
            message: Numbers and vectors; vectors of two axes have a row per model.
            key: Node k uses `fold_in(key, k)`.
            beginnings: For each slot that begins somewhere, where, and its vectors.
            models: The models that the rows of vectors are for, in increasing order; None if row m is for
                model m.

        Returns:
            The replies with a row per item, and the evaluations of each item.
        """
        every = np.asarray(items, np.int32).reshape(-1, 2)
        rows = every[:, 0] if models is None else np.searchsorted(models, every[:, 0])
        numbers = every[:, 1] + self._first_number
        portion = Portion(every, rows, numbers, message, key, beginnings)
        (found,) = self.compute_together(task, options, [portion])
        return found

    def compute_together(
        self, task: Task, options: Mapping[str, Any], portions: Sequence[Portion]
    ) -> list[tuple[dict[str, np.ndarray], np.ndarray]]:
        """Run a task for the items of several messages, as if they were one.

        Returns:
            For each message what `compute` returns. The numbers are the same to the last bit.
        """
        every = Stack(portions)
        shares = self._divide(np.arange(len(every)), every)
        settings = tuple(sorted(options.items()))
        # Models of one owner mostly begin alike: then a team has one state between them.
        one_state = task.only_reads and shares.team > 1 and all(slot.shared for slot in task.slots)
        work = partial(_run_task, self._objective, task, settings, shares.team)
        begin_evaluations = self._begin(task, partial(work, one_state), every, shares)
        one_state = one_state and self._have_one_state(task, every, shares)
        work = partial(work, one_state)
        calls = [self._task_arguments(task, share, every, work) for share in shares.places]
        done = self._run(work, calls, task.is_fedkins_own)
        if not task.only_reads:
            self._keep(task.slots, every, shares, [contents for contents, _ in done])
        replies = {
            name: self._join([reply[name] for _, reply in done], shares, len(every))
            for name in done[0][1]
        }
        evaluations = begin_evaluations + replies.pop(EVALUATIONS)
        return [
            ({name: array[own] for name, array in replies.items()}, evaluations[own])
            for own in every.slices
        ]

    def _begin(self, task: Task, work: partial, every: Stack, following: Shares) -> np.ndarray:
        """Begin the slots that have to; return the evaluations of each item."""
        evaluations = np.zeros(len(every), int)
        for slots, chosen in every.patterns(task):
            first, like = every.alike(slots, chosen)
            shares = self._divide(chosen[first], every)
            begin = partial(_run_begin, self._objective, slots, shares.team)
            calls = [self._begin_arguments(task, slots, share, every) for share in shares.places]
            # Compiled at the same time as what follows, which takes the longest.
            next_call = self._task_arguments(task, following.places[0], every, work)
            own = task.is_fedkins_own
            compile_side_by_side(
                [self._code(begin, calls[0], own), self._code(work, next_call, own)]
            )
            begun = self._run(begin, calls, own)
            self._keep(slots, every, shares, [contents for contents, _ in begun])
            counted = self._join([count for _, count in begun], shares, len(every))
            evaluations[chosen] += counted[chosen[first]][like]
            for slot in slots:
                self._slot(slot).share(every.items[chosen[first][like]], every.items[chosen])
        return evaluations

    def copy_models(self, models: Mapping[int, int]) -> None:
        """Let further models begin with what nodes remember for some models: `models` has their numbers."""
        for contents in self._contents.values():
            contents.copy(models)

    def forget_models(self, models: Collection[int]) -> None:
        """Forget what nodes remember for some models."""
        for contents in self._contents.values():
            contents.forget(models)

    def export_arrays(self, models: Mapping[int, int] | None = None) -> dict[str, np.ndarray]:
        """Return the content of all slots as named arrays.

        Args:
            models: The number that each model has in the arrays; None for all models with their own.
        """
        return {
            f"slot/{name}/{part}": array
            for name, contents in self._contents.items()
            for part, array in contents.export_arrays(models).items()
        }

    def import_arrays(
        self,
        arrays: Mapping[str, np.ndarray],
        slots: Mapping[str, Slot],
        models: Mapping[int, int] | None = None,
    ) -> None:
        """Replace the content of slots by what `export_arrays` returned.

        Args:
            arrays: The arrays.
            slots: All slots that may occur, by name.
            models: The number that each model of the arrays gets here; others keep what they have. None if
                the numbers are the same and there are no others.

        Raises:
            KeyError: If a slot is not among those given, or an array is missing.
        """
        if models is None:
            self._contents.clear()
        else:
            self.forget_models(set(models.values()))
        names = {name.split("/")[1] for name in arrays if name.startswith("slot/")}
        for name in sorted(names):
            prefix = f"slot/{name}/"
            own = {
                key.removeprefix(prefix): array
                for key, array in arrays.items()
                if key.startswith(prefix)
            }
            self._slot(slots[name]).import_arrays(own, models)

    def _slot(self, slot: Slot) -> "SlotContents":
        if slot.name not in self._contents:
            empty = slot.empty(self._objective, self._data)
            self._contents[slot.name] = SlotContents(empty)
        return self._contents[slot.name]

    def _divide(self, places: np.ndarray, every: Stack) -> Shares:
        return self._division.divide(places, every.owners, every.items[:, 1])

    def _begin_arguments(
        self, task: Task, slots: tuple[Slot, ...], share: np.ndarray, every: Stack
    ) -> tuple:
        # What a slot held before matters for its shapes only.
        contents = {slot.name: self._slot(slot).empty_share(len(share)) for slot in slots}
        message = every.message(task, share) | every.begin_vectors(slots, share)
        return (self._data, every.items[share, 1], contents, message)

    def _have_one_state(self, task: Task, every: Stack, shares: Shares) -> bool:
        """Tell whether the items of each team have the same state between them."""
        teams = every.items[np.concatenate(shares.places).reshape(-1, shares.team)]
        return all(self._slot(slot).are_one(teams) for slot in task.slots)

    def _task_arguments(self, task: Task, share: np.ndarray, every: Stack, work: partial) -> tuple:
        *_, team, one_state = work.args
        items = every.items[share]
        holders = items[::team] if one_state else items
        contents = {slot.name: self._slot(slot).of(holders) for slot in task.slots}
        keys, message = every.keys.of(share), every.message(task, share)
        return (self._data, items[:, 1], every.numbers[share], contents, keys, message)

    def _keep(
        self,
        slots: Sequence[Slot],
        every: Stack,
        shares: Shares,
        contents: list[dict[str, Any]],
    ) -> None:
        for slot in slots:
            held = [own[slot.name] for own in contents]
            self._slot(slot).replace([every.items[share] for share in shares.places], held)

    def _run(self, function: partial, calls: list[tuple], own: bool) -> list[Any]:
        """Call a function once for each share, each in a thread."""
        (compiled,) = compile_side_by_side([self._code(function, calls[0], own)])
        if self._pool is None or len(calls) == 1:
            return [compiled(*arguments) for arguments in calls]
        double_precision = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]

        def call(arguments: tuple) -> Any:
            with jax.enable_x64(double_precision):  # a setting of the thread
                return jax.block_until_ready(compiled(*arguments))

        return list(self._pool.map(call, calls))

    def _code(self, function: partial, arguments: tuple, own: bool) -> Call:
        """Say which code is needed."""
        lasting = own and type(self._objective.model) in BUILT_IN_MODELS
        return Call(function, arguments, lasting=lasting)

    @staticmethod
    def _join(results: Sequence[Array], shares: Shares, count: int) -> np.ndarray:
        """Put the results of the shares in the order of the items."""
        every = np.concatenate([np.asarray(result) for result in results])
        joined = np.zeros((count, *every.shape[1:]), every.dtype)
        joined[np.concatenate(shares.places)] = every  # what fills up a share is the same again
        return joined


def cores() -> int:
    """Count the cores this process may use; other devices than CPUs need no division of work."""
    if jax.default_backend() != "cpu":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _nodes_at_once(objective: Objective, data: NodeData) -> int:
    """Return how many nodes a share may have: one where a node's mini-batch is work enough for a core."""
    if objective.is_heavy(data.labels.shape[-1]):
        return 1
    floats = math.prod(data.inputs.shape[1:])
    return max(1, BYTES_AT_ONCE // (floats * jnp.dtype(jnp.result_type(float)).itemsize))


def _run_begin(
    objective: Objective,
    slots: tuple[Slot, ...],
    team: int,
    data: NodeData,
    places: Array,
    contents: dict[str, Any],
    message: dict[str, Array],
) -> tuple[dict[str, Any], Array]:
    def begin(
        data: NodeData, contents: dict[str, Any], message: dict[str, Array]
    ) -> tuple[dict[str, Any], Array]:
        begun, evaluations = {}, jnp.zeros_like(data.points)
        for slot in slots:
            begun[slot.name], count = slot.begin(objective, data, contents[slot.name], message)
            evaluations = evaluations + count
        return begun, evaluations

    return _for_each_item(begin, team, data, places, contents, message)


def _run_task(
    objective: Objective,
    task: Task,
    options: tuple[tuple[str, Any], ...],
    team: int,
    one_state: bool,
    data: NodeData,
    places: Array,
    numbers: Array,
    contents: dict[str, Any],
    keys: Array,
    message: dict[str, Array],
) -> tuple[dict[str, Any] | None, dict[str, Array]]:
    """Run a task for a share; the state is None if the task only reads it."""
    own_keys = jax.vmap(jax.random.fold_in)(jax.random.wrap_key_data(keys), numbers)

    def function(data: NodeData, state: dict[str, Any], key: Key, message: dict[str, Array]) -> Any:
        found, replies = task.function(objective, data, state, key, message, **dict(options))
        task.check_counted(replies)
        if not task.only_reads:
            return found, replies
        task.check_unchanged(state, found)
        return None, replies

    return _for_each_item(
        function, team, data, places, contents, own_keys, message, one_state=one_state
    )


def _for_each_item(
    function: Callable[..., Any],
    team: int,
    data: NodeData,
    places: Array,
    state: Any,
    *arguments: Any,
    one_state: bool = False,
) -> Any:
    """Call a function of data, state and further arguments, which are stacked, for each item of a share.

    Args:
        function: The function.
        team: How many items in a row are of the same node.
        data: The data of all nodes.
        places: The node of each item.
        state: The state of each item, or of each team.
        *arguments: The other arguments of each item.
        one_state: Whether the items of a team have one state between them.
    """
    own = data.of_node(places[::team])
    if len(places) == 1:
        found = function(own.of_node(0), *jax.tree.map(lambda leaf: leaf[0], (state, *arguments)))
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], found)
    axes = (OWN_FIELDS, 0, *[0] * len(arguments))
    if team == 1:
        return jax.vmap(function, in_axes=axes)(own, state, *arguments)

    def of_team(data: NodeData, state: Any, *arguments: Any) -> Any:
        own_axes = (None if one_state else 0, *[0] * len(arguments))
        return jax.vmap(partial(function, data), in_axes=own_axes)(state, *arguments)

    def by_team(stacked: Any) -> Any:
        # Not -1 for the first axis: gradients that are not kept have no entries.
        return jax.tree.map(
            lambda leaf: leaf.reshape(len(leaf) // team, team, *leaf.shape[1:]), stacked
        )

    states = state if one_state else by_team(state)
    found = jax.vmap(of_team, in_axes=axes)(own, states, *by_team(arguments))
    return jax.tree.map(lambda leaf: leaf.reshape(len(leaf) * team, *leaf.shape[2:]), found)
