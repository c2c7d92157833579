"""Models of several owners that a node computes together: each owner gets what it would get alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedkin.errors import InputError
from fedkin.federation.base import PerNode, WeightedSum
from fedkin.federation.owners import Ask, reply_or_error
from fedkin.federation.simulation import SimulatedFederation
from fedkin.federation.task import Task
from fedkin.methods.bilevel.node import DECREMENT, LINEARIZATION, SLOPE
from fedkin.methods.local_svrg.node import INNER_SVRG_ROUND
from fedkin.models.cnn import CNN
from fedkin.models.linear import Logistic
from fedkin.models.objective import Objective

OWNERS, CLASSES = 4, 3
MODELS = {
    "cnn": CNN((9, 9, 1), classes=CLASSES, l2=0.1),
    "logistic": Logistic(classes=CLASSES, l2=0.1),
}


def federation(name):
    model, nodes = MODELS[name], []
    for node, rows in enumerate((26, 19, 33)):
        draw = np.random.default_rng(node)
        images = draw.integers(0, 256, (rows, 9, 9, 1)).astype(np.uint8)
        inputs = np.asarray(model.prepare(images if name == "cnn" else images / np.float32(255)))
        nodes.append((inputs, draw.integers(0, CLASSES, rows).astype(np.int32)))
    objective = Objective.create(model, nodes[0][0])
    return SimulatedFederation(objective, nodes, batch_size=8, seed=1)


def requests(theta, owner, begin):
    weights = np.roll([0.5, 0.3, 0.2], owner)
    numbers = {"learning_rate": 0.02, "refresh_probability": 0.4, "averaging_rate": 0.0}
    vector = jnp.sin(jnp.arange(len(theta)) + owner)
    return {
        "train": WeightedSum(
            INNER_SVRG_ROUND,
            {"point": theta, **numbers},
            weights=jnp.asarray(weights),
            begin=begin,
            steps=5,
            reply="point",
        ),
        "slope": PerNode(SLOPE, {"vector": vector, "theta": theta}, begin=True),
        "decrement": PerNode(
            DECREMENT,
            {"theta": theta, "damping": 0.5 + 0.1 * owner},
            begin=True,
            iterations=3,
            batches=2,
        ),
    }


def starts(objective):
    theta = objective.init(jax.random.key(0))
    return [theta + 0.1 * jnp.cos(jnp.arange(len(theta)) * (1 + owner)) for owner in range(OWNERS)]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("name", list(MODELS))
def test_each_owner_gets_what_it_would_get_alone(name, alike):
    """Whether all owners draw the same mini-batches and coins, or each its own."""
    shared = federation(name)
    owners = [shared.add_owner() for _ in range(OWNERS)]
    thetas = starts(shared.objective)
    alone = [federation(name) for _ in range(OWNERS)]
    singles = list(thetas)
    for exchange in range(3):
        keys = [jax.random.key(10 * exchange + (0 if alike else n)) for n in range(OWNERS)]
        asked = [requests(theta, n, exchange == 0) for n, theta in enumerate(thetas)]
        found, _ = shared.exchange_all(list(map(Ask, owners, keys, asked)))
        replies = list(map(reply_or_error, found))
        thetas = [reply.train["point"] for reply in replies]
        for n, (reply, single) in enumerate(zip(replies, alone, strict=True)):
            expected = single.exchange(key=keys[n], **requests(singles[n], n, exchange == 0))
            for request, task_replies in expected.replies.items():
                for what, array in task_replies.items():
                    np.testing.assert_allclose(
                        reply.replies[request][what], array, rtol=1e-8, atol=1e-10
                    )
            assert reply.cost == expected.cost
            singles[n] = expected.train["point"]


def test_a_task_that_only_reads_may_not_change_the_state():
    def forget(objective, data, state, key, message):
        return {}, {"number": jnp.zeros(()), "evaluations": data.points}

    task = Task("forget", forget, (LINEARIZATION,), number_replies=("number",), only_reads=True)
    engine = federation("logistic")
    theta = engine.objective.init(jax.random.key(0))
    with pytest.raises(
        InputError, match="the task forget only reads the node's state, but returns"
    ):
        engine.exchange(key=jax.random.key(0), read=PerNode(task, {"theta": theta}, begin=True))
