"""An attended federation around data at hand, whose nodes may fail."""

import jax.numpy as jnp
import numpy as np

from fedkin.federation.aggregate import Traffic
from fedkin.federation.attendance import AttendedFederation
from fedkin.federation.attended_exchange import Answer
from fedkin.federation.base import as_array
from fedkin.federation.series import Beginning
from fedkin.federation.work import LocalWork

MOST_MODELS = 100
"""The largest number of models of an owner."""

NOTHING = "nothing"
"""What `fail` returns for a node that does not answer."""


class AttendedSimulation(AttendedFederation):
    """Nodes at hand that may fail.

    Args:
        simulated: The nodes.
        fail: Called with the number of a node and of the message; returns None for a good answer,
            `NOTHING` for none, or a function that changes the replies.
        back: Called with the number of a node and of the step: whether a dropped node is back.
    """

    def __init__(
        self, simulated, fail=lambda node, call: None, back=lambda node, step: True, **more
    ):
        super().__init__(simulated.objective, simulated.names, simulated.batches, **more)
        self.fail, self.back = fail, back
        self.calls, self.step = 0, 0
        self.asked = []  # the nodes of every message
        self._work = LocalWork(simulated.objective, simulated.data)

    def ask(self, blocks):
        self.calls += 1
        self.asked.append(sorted(blocks))
        return {
            node: {place: self._answer(node, block) for place, block in own.items()}
            for node, own in blocks.items()
        }

    def _answer(self, node, block):
        nodes, replies, evaluations = len(self.names), {}, 0
        traffic, begun = Traffic(nodes), set()
        first = MOST_MODELS * block.trail.number  # the number of the owner's first model
        for name, own in block.assignments.items():
            task, message = own.request.task, own.request.message
            items = [(model, node) for model in own.models]
            asked = np.zeros((own.request.models or 1, nodes), bool)
            asked[list(own.models), node] = True
            traffic.send(own.request, asked, items, own.begins)
            begins = {}
            for slot, (missing, vectors) in own.begins.items():
                fresh = missing & [(slot, model) not in begun for model in own.models]
                begun |= {(slot, model) for model in own.models}
                begins[slot] = Beginning(fresh, vectors)
            replies[name], counts = self._work.compute(
                task,
                own.request.options,
                [(first + model, node) for model in own.models],
                {part: jnp.asarray(as_array(value)) for part, value in message.items()},
                block.key,
                begins,
                models=range(first, first + (own.request.models or 1)),
            )
            evaluations += int(counts.sum())
            traffic.receive(replies[name])
        changed = self.fail(node, self.calls)
        if changed == NOTHING:
            return Answer(None, "it did not answer in time", bytes_down=traffic.bytes_down)
        if changed is not None:
            replies = {name: changed(own) for name, own in replies.items()}
        return Answer(replies, None, evaluations, traffic.bytes_up, traffic.bytes_down)

    def copy_memory(self, source, target):
        first, other = MOST_MODELS * source, MOST_MODELS * target
        self._work.copy_models({first + model: other + model for model in range(MOST_MODELS)})

    def forget_memory(self, trail):
        self._work.forget_models(range(MOST_MODELS * trail, MOST_MODELS * (trail + 1)))

    def find_returned(self, absent):
        return [node for node in absent if self.back(node, self.step)]

    def begin_step(self, step):
        self.step = step
        super().begin_step(step)

    def export_state(self):
        return self._work.export_arrays() | self.series.export_arrays()

    def import_state(self, arrays, slots):
        self._work.import_arrays(arrays, slots)
        self.series.import_arrays(arrays)
