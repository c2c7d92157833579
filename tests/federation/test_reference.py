"""The fast engine against plain loops over nodes and mini-batches, in single precision.

The loops share nothing with the engine but the drawn numbers: their network is XLA's convolutions on
images in rows and columns, their gradients and Hessian products are of one mini-batch of one node.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from federations import remembered, reveal
from fedkin.data.batches import divide
from fedkin.federation.simulation import SimulatedFederation
from fedkin.methods.bilevel.node import ADJOINT_SVRG_ROUND, HESSIAN_PRODUCT
from fedkin.methods.ditto.node import DITTO_SHARED_ROUND
from fedkin.methods.local_svrg.node import INNER, INNER_SVRG_ROUND
from fedkin.methods.pfedme.node import PFEDME_ROUND
from fedkin.models.cnn import CNN
from fedkin.models.objective import Objective
from fedkin.nodes.draws import draw_batches, draw_batches_and_coins
from reference import reference_loss

# Shares of three, the last one filled up; from one to six mini-batches, some of them not full.
SIZES = (120, 39, 60, 7, 100, 20, 40, 80, 39, 60)
STEPS = 6
RATE = 0.02
REFRESH = 0.3
KEYS = jax.random.split(jax.random.key(5), 2)
KEY = KEYS[0]
NETWORKS = [CNN((28, 28, 1), channels=2), CNN((32, 32, 3), channels=5)]


class Loops:
    """The federation twice: as the engine has it, and as lists of mini-batches of images."""

    def __init__(self, model):
        rng = np.random.default_rng(0)
        nodes = []
        for size in SIZES:
            labels = rng.integers(0, 10, size).astype(np.int32)
            images = rng.integers(0, 100, (size, *model.image_shape), np.uint8)
            images[np.arange(size), labels] += 100
            nodes.append((images, labels))
        prepared = [(np.asarray(model.prepare(jnp.asarray(x))), y) for x, y in nodes]
        self.objective = Objective.create(model, jnp.asarray(prepared[0][0][:2]))
        self.federation = SimulatedFederation(self.objective, prepared, batch_size=20, seed=0)
        self.batches = [
            _mini_batches(images, labels, node) for node, (images, labels) in enumerate(nodes)
        ]
        self.theta = self.objective.init(jax.random.key(1))

        def loss(theta, *batch):
            return reference_loss(model, self.objective, theta, *batch)

        self.gradient = jax.jit(jax.grad(loss))
        self.product = jax.jit(
            lambda theta, vector, *batch: jax.jvp(
                lambda point: jax.grad(loss)(point, *batch), (theta,), (vector,)
            )[1]
        )

    def full(self, node, function):
        """The mean over a node's mini-batches."""
        return sum(function(*batch) for batch in self.batches[node]) / len(self.batches[node])

    def svrg(self, sent, gradient):
        """Algorithm 1 for one node after the other: the ends of rounds from the points sent."""
        ends = []
        for node in range(len(SIZES)):
            y, full = sent[0], self.full(node, lambda *batch: gradient(sent[0], *batch))
            own_ends = []
            for x, key in zip(sent, KEYS, strict=True):
                for index, coin in zip(*self.svrg_draws(node, key), strict=True):
                    batch = self.batches[node][index]
                    moved = x - RATE * (gradient(x, *batch) - gradient(y, *batch) + full)
                    if coin:
                        y, point = x, x
                        full = self.full(node, lambda *batch, point=point: gradient(point, *batch))
                    x = moved
                own_ends.append(x)
            ends.append(own_ends)
        return np.swapaxes(np.asarray(ends), 0, 1)

    def svrg_draws(self, node, key):
        count = len(self.batches[node])
        batches, coins = draw_batches_and_coins(
            jax.random.fold_in(key, node), STEPS, count, REFRESH
        )
        return np.asarray(batches), np.asarray(coins)


def _mini_batches(images, labels, node):
    """Mini-batches in which every point of the node counts alike, however many there are in one."""
    parts = divide(len(labels), 20, 0, node)
    return [(images[rows], labels[rows], len(parts) / len(labels)) for rows in parts]


@pytest.fixture(scope="module", params=NETWORKS, ids=["gray", "color"])
def loops(request):
    return Loops(request.param)


def relative_error(ours, plain):
    return np.linalg.norm(np.asarray(ours) - plain) / np.linalg.norm(plain)


def call(loops, task, message, **options):
    return reveal(loops.federation, task, message, key=KEY, **options)[0]


def svrg_rounds(loops, task, sent, first):
    """Two rounds of the engine from the points sent; the first message has more."""
    settings = {"learning_rate": RATE, "refresh_probability": REFRESH, "averaging_rate": 0.0}
    ends = []
    for number, (point, key) in enumerate(zip(sent, KEYS, strict=True)):
        message = {"point": point} | settings | (first if number == 0 else {})
        replies, _ = reveal(
            loops.federation,
            task,
            message,
            key=key,
            steps=STEPS,
            reply="point",
            begin=number == 0,
        )
        ends.append(np.asarray(replies["point"]))
    return np.stack(ends)


def assert_same_moves(ours, plain, sent):
    """What was added to the point that was sent is the same, in every round and for every node."""
    moves = plain - np.asarray(sent)[:, None]
    errors = np.linalg.norm(ours - plain, axis=-1) / np.linalg.norm(plain, axis=-1)
    assert errors.max() < 1e-5
    assert (np.linalg.norm(moves, axis=-1) / np.linalg.norm(plain, axis=-1)).min() > 1e-3


def test_coins_come_up_in_all_the_ways_that_matter(loops):
    """Within a share some nodes refresh and others do not; a coin of a round is used in the next."""
    coins = np.array([[loops.svrg_draws(n, key)[1] for n in range(len(SIZES))] for key in KEYS])
    for share in (slice(0, 3), slice(3, 6), slice(6, 9)):
        up = coins[:, share].sum(axis=1)
        assert np.any((up > 0) & (up < 3))
    assert np.any(coins[:, 0:9].reshape(2, 3, 3, STEPS).sum(axis=2) == 2)
    assert np.any(coins[0, :, -1])


def test_rounds_of_training(loops):
    sent = [loops.theta, 0.9 * loops.theta]
    ours = svrg_rounds(loops, INNER_SVRG_ROUND, sent, {})
    assert_same_moves(ours, loops.svrg(sent, loops.gradient), sent)
    assert remembered(loops.federation, INNER).gradients.of_batches.shape[1] >= 6


def test_rounds_of_the_solve_for_h_and_a_hessian_product(loops):
    target = loops.full(0, lambda *batch: loops.gradient(loops.theta, *batch))

    def gradient(point, *batch):
        return loops.product(loops.theta, point, *batch) - target

    sent = [0.5 * target, 0.4 * target]
    ours = svrg_rounds(loops, ADJOINT_SVRG_ROUND, sent, {"theta": loops.theta, "target": target})
    assert_same_moves(ours, loops.svrg(sent, gradient), sent)

    ours = call(loops, HESSIAN_PRODUCT, {"theta": loops.theta, "vector": target}, begin=True)
    plain = np.stack(
        [
            loops.full(node, lambda *batch: loops.product(loops.theta, target, *batch))
            for node in range(len(SIZES))
        ]
    )
    assert relative_error(ours["product"], plain) < 1e-5


def test_a_round_of_ditto_and_of_pfedme(loops):
    ours = call(
        loops,
        DITTO_SHARED_ROUND,
        {"shared": loops.theta, "learning_rate": RATE},
        steps=STEPS,
    )
    plain = []
    for node, own in enumerate(loops.batches):
        x = loops.theta
        for index in draw_batches(jax.random.fold_in(KEY, node), STEPS, len(own)):
            x = x - RATE * loops.gradient(x, *own[index])
        plain.append(x)
    assert relative_error(ours["point"], np.stack(plain)) < 1e-5

    ours = call(
        loops,
        PFEDME_ROUND,
        {"shared": loops.theta, "learning_rate": RATE, "proximal": 10.0, "tolerance": 0.0},
        steps=3,
        iterations=4,
    )
    plain = []
    for node, own in enumerate(loops.batches):
        shared = loops.theta
        for index in draw_batches(jax.random.fold_in(KEY, node), 3, len(own)):
            theta = shared
            for _ in range(4):
                theta = theta - RATE * (
                    loops.gradient(theta, *own[index]) + 10.0 * (theta - shared)
                )
            shared = shared - RATE * 10.0 * (shared - theta)
        plain.append(shared)
    assert relative_error(ours["point"], np.stack(plain)) < 1e-5
