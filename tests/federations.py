"""Small federations with known answers, shared by the tests."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.data.batches import NodeData
from fedkin.federation.base import Cost, Federation, Revealed
from fedkin.federation.center import Center
from fedkin.federation.simulation import SimulatedFederation
from fedkin.federation.task import Slot, Task
from fedkin.models.base import Model
from fedkin.models.objective import Objective


class Problem(NamedTuple):
    objective: Objective
    federation: SimulatedFederation
    center: Center
    nodes: list
    validation: tuple


def problem(
    model: Model, nodes: list, validation: tuple, batch_size: int = 10, seed: int = 0
) -> Problem:
    prepared = [(np.asarray(model.prepare(jnp.asarray(x))), np.asarray(y)) for x, y in nodes]
    own = np.asarray(model.prepare(jnp.asarray(validation[0]))), np.asarray(validation[1])
    objective = Objective.create(model, jnp.asarray(prepared[0][0][:2]))
    return Problem(
        objective,
        SimulatedFederation(objective, prepared, batch_size=batch_size, seed=seed),
        Center(objective, *own, batch_size=batch_size, seed=seed),
        prepared,
        own,
    )


def reveal(
    federation: Federation, task: Task, message: dict | None = None, *, key, begin=False, **options
) -> tuple[dict, Cost]:
    """Ask all nodes for their own replies, stacked; also return what that cost."""
    reply = federation.exchange(
        nodes=Revealed(task, message, begin=begin, **options),  # pyright: ignore
        key=key,
    )
    return dict(reply.nodes), reply.cost


def remembered(federation: SimulatedFederation, slot: Slot) -> Any:
    """Return what the nodes remember in a slot, a row per node, in the slot's own arrangement."""
    template, structure = jax.tree.flatten(slot.empty(federation.objective, federation.data))
    arrays = federation.export_state()
    leaves = [arrays[f"slot/{slot.name}/{place}"] for place in range(len(template))]
    return jax.tree.unflatten(structure, leaves)


def own_data(stacked: NodeData, node: int) -> NodeData:
    return stacked.of_node(node)


def regression_nodes(sizes, features=4, seed=0, noise=0.5):
    """Nodes of different sizes, input scales and true parameters, and a validation set."""
    rng = np.random.default_rng(seed)
    target = rng.normal(size=features)
    nodes = []
    for number, size in enumerate(sizes):
        inputs = rng.normal(size=(size, features)) * (1 + 0.3 * number)
        truth = target + 0.5 * rng.normal(size=features)
        nodes.append((inputs, inputs @ truth + noise * rng.normal(size=size)))
    inputs = rng.normal(size=(25, features))
    return nodes, (inputs, inputs @ target + noise * rng.normal(size=25))


def classification_nodes(sizes, features=3, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    target = rng.normal(size=(features, classes))

    def draw(size, truth):
        inputs = rng.normal(size=(size, features))
        labels = np.argmax(inputs @ truth + rng.gumbel(size=(size, classes)), axis=1)
        return inputs, labels.astype(np.int32)

    nodes = [draw(size, target + rng.normal(size=target.shape)) for size in sizes]
    return nodes, draw(25, target)
