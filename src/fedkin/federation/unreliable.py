"""Nodes at hand that may fail, or report something else than what they have computed.

The same checks as over a network decide what becomes of them (`AttendedFederation`), so that failures and
attacks can be tried, and measured, in one process.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.data.batches import NodeData
from fedkin.federation.aggregate import Traffic
from fedkin.federation.attendance import AttendedFederation
from fedkin.federation.attended_exchange import Answer, Assignment, Block
from fedkin.federation.base import as_array
from fedkin.federation.secure.masks import describe, draw_secrets
from fedkin.federation.secure.node import mask_replies
from fedkin.federation.series import Beginning
from fedkin.federation.task import Slot
from fedkin.federation.work import LocalWork
from fedkin.models.objective import Objective

MOST_MODELS = 1_000
"""The largest number of models of an owner."""

NOTHING = "nothing"
"""What `fail` returns for a node that does not answer."""

Replies = Mapping[str, np.ndarray]
"""A node's replies to one request by name, with a row per model."""

Lie = Callable[[Assignment, Replies], Replies]
"""What a node reports in place of its replies to a request."""


class Simulated(Protocol):
    """Nodes whose data are at hand, such as `SimulatedFederation`."""

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
        """The largest number of mini-batches of a node."""
        ...

    @property
    def data(self) -> NodeData:
        """The points of all nodes."""
        ...


class UnreliableSimulation(AttendedFederation):
    """Nodes at hand that may fail or lie.

    Args:
        simulated: The nodes.
        fail: Called with the number of a node and of the message; returns None for a good answer,
            `NOTHING` for none, or a function that changes the replies to a request.
        back: Called with the number of a node and of the step: whether a dropped node is back.
        lies: By the number of a node, what it reports in place of what it has computed.
        **more: See `AttendedFederation`.
    """

    def __init__(
        self,
        simulated: Simulated,
        fail: Callable[[int, int], Any] = lambda node, call: None,
        back: Callable[[int, int], bool] = lambda node, step: True,
        lies: Mapping[int, Lie] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(simulated.objective, simulated.names, simulated.batches, **more)
        self.fail, self.back, self.lies = fail, back, dict(lies or {})
        self.calls, self.step = 0, 0
        self.asked: list[list[int]] = []
        """The nodes of every message."""
        self._work = LocalWork(simulated.objective, simulated.data)
        self._answered: dict[tuple[int, int, str], tuple[bytes, Replies]] = {}
        self._secrets = draw_secrets(len(self.names)) if self.secure else []

    def ask(self, blocks: Mapping[int, Mapping[int, Block]]) -> dict[int, dict[int, Answer]]:
        """Let each node answer. See `AttendedFederation.ask`."""
        self.calls += 1
        self.asked.append(sorted(blocks))
        return {
            node: {place: self._answer(node, block) for place, block in own.items()}
            for node, own in blocks.items()
        }

    def _answer(self, node: int, block: Block) -> Answer:
        nodes, replies, evaluations = len(self.names), {}, 0
        traffic, begun = Traffic(nodes), set()
        first = MOST_MODELS * block.trail.number  # the number of the owner's first model
        for name, own in block.assignments.items():
            items = [(model, node) for model in own.models]
            asked = np.zeros((own.request.models or 1, nodes), bool)
            asked[list(own.models), node] = True
            traffic.send(own.request, asked, items, own.begins)
            begins = {}
            for slot, (missing, vectors) in own.begins.items():
                fresh = missing & [(slot, model) not in begun for model in own.models]
                begun |= {(slot, model) for model in own.models}
                begins[slot] = Beginning(fresh, vectors)
            found, count = self._compute(node, first, block, own, begins)
            evaluations += count
            if node in self.lies:
                found = dict(self.lies[node](own, found))
            replies[name] = self._masked(node, name, own, found)
            traffic.receive(replies[name])
        changed = self.fail(node, self.calls)
        if changed == NOTHING:
            return Answer(None, "it did not answer in time", bytes_down=traffic.bytes_down)
        if changed is not None:
            replies = {name: changed(own) for name, own in replies.items()}
        return Answer(replies, None, evaluations, traffic.bytes_up, traffic.bytes_down)

    def _compute(
        self,
        node: int,
        first: int,
        block: Block,
        own: Assignment,
        begins: Mapping[str, Beginning],
    ) -> tuple[Replies, int]:
        """Return a node's replies, and what it has computed: nothing, where a sum is repeated."""
        task, message = own.request.task, own.request.message
        arrays = {part: as_array(value) for part, value in message.items()}
        parts = [np.asarray(array).tobytes() for array in arrays.values()]
        asked = describe(np.asarray(jax.random.key_data(block.key)).tobytes(), *parts)
        place = node, first, f"{task.name} {own.models}"
        if own.order is not None and self._answered.get(place, (b"", {}))[0] == asked:
            return self._answered[place][1], 0
        found, counts = self._work.compute(
            task,
            own.request.options,
            [(first + model, node) for model in own.models],
            {part: jnp.asarray(array) for part, array in arrays.items()},
            block.key,
            begins,
            models=range(first, first + (own.request.models or 1)),
        )
        self._answered[place] = asked, found
        return found, int(counts.sum())

    def _masked(self, node: int, name: str, own: Assignment, replies: Replies) -> Replies:
        """Return what leaves the node: masked, if it was asked for its part of a sum."""
        if own.order is None:
            return replies
        models = np.array(own.models)
        sent = {part: np.asarray(own.request.message[part]) for part in own.request.task.vectors}
        return mask_replies(
            own.request.task,
            own.order,
            replies,
            {part: array[models] if array.ndim == 2 else array for part, array in sent.items()},
            node,
            self._secrets[node],
            lambda members, rows: describe(
                f"{self.calls} {name} {members} {models[rows].tolist()}".encode()
            ),
        )

    def copy_memory(self, source: int, target: int) -> None:
        """See `AttendedFederation`."""
        first, other = MOST_MODELS * source, MOST_MODELS * target
        self._work.copy_models({first + model: other + model for model in range(MOST_MODELS)})

    def forget_memory(self, trail: int) -> None:
        """See `AttendedFederation`."""
        self._work.forget_models(range(MOST_MODELS * trail, MOST_MODELS * (trail + 1)))

    def find_returned(self, absent: Sequence[int]) -> list[int]:
        """See `AttendedFederation`."""
        return [node for node in absent if self.back(node, self.step)]

    def begin_step(self, step: int) -> None:
        """See `Federation`."""
        self.step = step
        super().begin_step(step)

    def export_state(self) -> dict[str, np.ndarray]:
        """See `Federation`."""
        return self._work.export_arrays() | self.series.export_arrays()

    def import_state(self, arrays: Mapping[str, np.ndarray], slots: Mapping[str, Slot]) -> None:
        """See `Federation`."""
        self._work.import_arrays(arrays, slots)
        self.series.import_arrays(arrays)
