"""What `exchange` means, as a loop over models and nodes: the reference for all engines."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.federation.base import Cost, Reply, WeightedSum


class PlainFederation:
    """Asks one node after the other, for one model after the other.

    Args:
        objective: The model that the nodes train.
        data: The points of all nodes.
    """

    def __init__(self, objective, data):
        self.objective, self.data, self.ask_all = objective, data, False
        self._contents = {}  # of the current series, by slot and then by model and node
        self._vectors = {}  # that it began with, by slot
        self._compiled = {}

    def exchange(self, *, key, **requests):
        nodes = self.data.batches.size
        points, sent, bytes_up, asked_nodes = np.zeros(nodes, int), {}, 0, set()
        begun_now = set()
        for request in requests.values():
            for slot in request.task.slots if request.begin else ():
                if slot.name not in begun_now:
                    begun_now.add(slot.name)
                    self._contents[slot.name] = {}
                    self._vectors[slot.name] = {n: request.message[n] for n in slot.vectors}
        replies = {}
        for name, request in requests.items():
            found = {}
            for model, node in np.argwhere(self._asked(request, nodes)).tolist():
                asked_nodes.add(node)
                reply, evaluations = self._ask(request, model, node, key, sent)
                points[node] += int(evaluations)
                bytes_up += sum(np.asarray(each).nbytes for each in reply.values())
                for part, value in reply.items():
                    found.setdefault(part, {})[model, node] = np.asarray(value)
            replies[name] = {part: _combine(request, own, nodes) for part, own in found.items()}
        cost = Cost(1, bytes_up, sum(sent.values()), tuple(points.tolist()), len(asked_nodes))
        return Reply(replies, cost)

    def _asked(self, request, nodes):
        asked = np.ones((request.models or 1, nodes), bool)
        if isinstance(request, WeightedSum):
            return asked if self.ask_all else np.atleast_2d(request.weights) != 0
        chosen = getattr(request, "nodes", None)
        return asked if chosen is None else asked & chosen

    def _ask(self, request, model, node, key, sent):
        task, own = request.task, self.data.of_node(node)

        def receive(name, value):
            array = jnp.asarray(value)
            row = array[model] if array.ndim == 2 else array
            # Whatever is the same object, or the same number of the same name, arrives once.
            what = (name, float(row)) if row.ndim == 0 else (id(value), array.ndim == 2 and model)
            sent[node, what] = row.nbytes
            return row

        message = {
            name: receive(name, request.message[name]) for name in (*task.vectors, *task.numbers)
        }
        state, evaluations = {}, 0
        for slot in task.slots:
            contents = self._contents[slot.name]
            if (model, node) not in contents:
                vectors = {n: receive(n, v) for n, v in self._vectors[slot.name].items()}
                empty = slot.empty(self.objective, self.data)
                begin = self._compile(slot, {}, partial(slot.begin, self.objective))
                contents[model, node], count = begin(own, empty, message | vectors)
                evaluations += count
            state[slot.name] = contents[model, node]
        work = partial(task.function, self.objective, **request.options)
        state, reply = self._compile(task, request.options, work)(
            own, state, jax.random.fold_in(key, node), message
        )
        for slot in task.slots:
            self._contents[slot.name][model, node] = state[slot.name]
        reply = dict(reply)
        return reply, evaluations + reply.pop("evaluations")

    def _compile(self, what, options, function):
        return self._compiled.setdefault((what, *sorted(options.items())), jax.jit(function))


def _combine(request, found, nodes):
    """Add up, or put what single nodes replied into a table."""
    models, shape = request.models or 1, next(iter(found.values())).shape
    if isinstance(request, WeightedSum):
        weights = np.atleast_2d(request.weights)
        result = np.zeros((models, *shape))
        for (model, node), value in found.items():
            result[model] += weights[model, node] * value
    else:
        result = np.full((models, nodes, *shape), np.nan)
        for place, value in found.items():
            result[place] = value
    return result[0] if request.models is None else result
