"""The contract of `exchange`, for every engine: the same replies, costs and memory as a plain loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from federation.attended import AttendedSimulation
from federation.in_torch import with_torch
from federation.plain import PlainFederation
from fedkin.errors import InputError
from fedkin.federation.base import PerNode, Revealed, RevealedEach, WeightedSum
from fedkin.federation.simulation import SimulatedFederation
from fedkin.federation.task import slots_of
from fedkin.federation.wrapper import WrappedFederation
from fedkin.flower.messenger import Messenger
from fedkin.methods.bilevel.node import (
    ADJOINT_SVRG_ROUND,
    DECREMENT,
    GRADIENT,
    HESSIAN_PRODUCT,
    SLOPE,
)
from fedkin.methods.local_svrg.node import INNER_SVRG_ROUND
from fedkin.methods.step_size import SMOOTHNESS
from fedkin.studies.cell import draw_problem, simulate
from flower.fake_grid import FakeGrid
from flower.trials import NAMES, config, engines, settings

SIZE = 650
TASKS = (
    INNER_SVRG_ROUND,
    ADJOINT_SVRG_ROUND,
    DECREMENT,
    GRADIENT,
    HESSIAN_PRODUCT,
    SLOPE,
    SMOOTHNESS,
)


def attend(run, data):
    return lambda objective: AttendedSimulation(simulate(run, data)(objective))


def wrap(run, data):
    return lambda objective: WrappedFederation(simulate(run, data)(objective))


def over_flower(directory):
    nodes = [settings(name, state=str(directory / name), reveal=True) for name in NAMES]
    return engines(Messenger(FakeGrid(nodes), interval=0.01))


# Each takes a directory that its nodes may use, and returns what chooses the engine of a run.
ENGINES = {
    "simulation": lambda directory: simulate,
    "wrapped": lambda directory: wrap,
    "attended": lambda directory: attend,
    "flower": over_flower,
    "torch": lambda directory: with_torch,
}


@pytest.fixture(params=ENGINES)
def make(request, tmp_path):
    """Make a federation of three nodes; the second time, the same nodes with no memory but their disk."""
    return lambda: (
        draw_problem(config("fedavg"), engine=ENGINES[request.param](tmp_path)).problem.federation
    )


@pytest.fixture(scope="module")
def nodes_at_hand():
    made = draw_problem(config("fedavg")).problem.federation
    assert isinstance(made, SimulatedFederation)
    return made


@pytest.fixture
def plain(nodes_at_hand):
    return PlainFederation(nodes_at_hand.objective, nodes_at_hand.data)


def vector(seed, *rows):
    return 0.1 * jax.random.normal(jax.random.key(seed), (*rows, SIZE))


def training(point, weights, *, begin=False):
    message = {
        "point": point,
        "learning_rate": 0.05,
        "refresh_probability": 0.3,
        "averaging_rate": 0.01,
    }
    return WeightedSum(
        INNER_SVRG_ROUND,
        message,
        weights=jnp.asarray(weights),
        begin=begin,
        steps=4,
        reply="point",
    )


def same(federation, plain, number=0, **requests):
    """Compare one exchange, and return the reply."""
    key = jax.random.fold_in(jax.random.key(5), number)
    found, expected = (each.exchange(key=key, **requests) for each in (federation, plain))
    assert found.cost == expected.cost
    for name, replies in expected.replies.items():
        own = found.replies[name]
        assert set(own) == set(replies)
        for part, array in replies.items():
            assert isinstance(own[part], jax.Array)
            np.testing.assert_allclose(own[part], array, rtol=1e-4, atol=1e-6, err_msg=part)
    return found


def test_a_federation_describes_itself(make, nodes_at_hand):
    made = make()
    assert made.names == NAMES
    assert made.batches == nodes_at_hand.batches
    assert made.objective.size == SIZE
    assert made.present.all()
    assert not made.ask_all
    made.begin_step(0)
    assert made.end_step() == ()


def test_a_series_of_sums(make, plain):
    """A node whose weight is zero at times is not asked then, and continues where it was."""
    made, point = make(), vector(0)
    for number, weights in enumerate(([0.5, 0.3, 0.2], [0.6, 0.4, 0.0], [0.2, 0.3, 0.5])):
        reply = same(made, plain, number, train=training(point, weights, begin=number == 0))
        assert reply.cost.nodes_asked == np.count_nonzero(weights)
        point = reply.train["point"]
    assert made.end_step() == ()


def test_a_node_that_was_not_asked_at_the_beginning_begins_late(make, plain):
    made, point = make(), vector(0)
    same(made, plain, 0, train=training(point, [0.5, 0.5, 0.0], begin=True))
    same(made, plain, 1, train=training(vector(1), [0.2, 0.3, 0.5]))


def test_a_new_series_begins_everywhere(make, plain):
    made = make()
    for number in range(2):
        same(made, plain, number, train=training(vector(number), [0.2, 0.3, 0.5], begin=True))


def test_requests_of_one_exchange_share_arrays_and_beginnings(make, plain):
    """As a solve for h does: products of the nodes that count, slopes of all in the end."""
    made, weights = make(), jnp.array([0.7, 0.0, 0.3])
    theta, counted = vector(0), np.array([True, False, True])
    for number in range(2):
        begin = {"theta": theta} if number == 0 else {}
        message = {"vector": vector(1 + number), **begin}
        reply = same(
            made,
            plain,
            hessian=WeightedSum(HESSIAN_PRODUCT, message, weights=weights, begin=number == 0),
            slope=PerNode(SLOPE, message, begin=number == 0, nodes=counted),
        )
        np.testing.assert_array_equal(np.isnan(reply.slope["slope"]), ~counted)
        vectors = 2 if number == 0 else 1
        assert reply.cost.bytes_down == 2 * vectors * SIZE * 4
    rest = same(made, plain, slope=PerNode(SLOPE, {"vector": vector(1)}, nodes=~counted))
    assert rest.cost.bytes_down == 2 * SIZE * 4  # the vector, and θ for a node that begins late
    assert np.isfinite(rest.slope["slope"][1])


def test_a_task_with_several_slots(make, plain):
    made, weights = make(), jnp.array([0.2, 0.3, 0.5])
    numbers = {"learning_rate": 0.05, "refresh_probability": 0.3, "averaging_rate": 0.0}
    message = {"theta": vector(0), "target": vector(1), "point": vector(2), **numbers}
    for number in range(2):
        same(
            made,
            plain,
            number,
            solve=WeightedSum(
                ADJOINT_SVRG_ROUND,
                message,
                weights=weights,
                begin=number == 0,
                steps=3,
                reply="average",
            ),
        )
        message = {"point": vector(3), **numbers}
    # It shares the linearization with slopes.
    same(made, plain, slope=PerNode(SLOPE, {"vector": vector(4)}))


def test_gradients_and_losses_are_summed_alike(make, plain):
    made, theta = make(), vector(0)
    for weights in ([0.2, 0.3, 0.5], [0.6, 0.0, 0.4]):
        request = WeightedSum(GRADIENT, {"theta": theta}, weights=jnp.array(weights), begin=True)
        reply = same(made, plain, gradient=request)
        assert reply.gradient["gradient"].shape == (SIZE,)
        assert reply.cost.node_points == tuple(
            200 if weight else 0 for weight in weights
        )  # one pass over 200 images


def test_an_exchange_of_the_single_loop(make, plain):
    """Training, slopes and what their errors follow from: one θ, which travels once."""
    made, theta = make(), vector(0)
    weights, asked = [0.7, 0.0, 0.3], np.array([True, True, False])
    for number in range(2):
        reply = same(
            made,
            plain,
            number,
            train=training(theta, weights, begin=True),
            slope=PerNode(SLOPE, {"vector": vector(2), "theta": theta}, begin=True, nodes=asked),
            decrement=PerNode(
                DECREMENT,
                {"theta": theta, "damping": 0.3},
                begin=True,
                nodes=asked,
                iterations=3,
                batches=2,
            ),
        )
        assert (np.asarray(reply.decrement["decrement"])[asked] > 0).all()
        vectors_down = 3 + 2  # θ for all, h for those that are asked for slopes
        numbers_down = 3 * 2 + 2
        assert reply.cost.bytes_down == 4 * (vectors_down * SIZE + numbers_down)
        # A pass for the slope; the solve: three products with two mini-batches of 50.
        assert reply.cost.node_points[1] == 200 + 300
        theta = reply.train["point"]


def test_all_nodes_are_asked_where_the_paper_counts_them(make, plain):
    made = make()
    request = training(vector(0), [0.5, 0.5, 0.0], begin=True)
    few = same(made, plain, train=request)
    made.ask_all = plain.ask_all = True
    everyone = same(made, plain, train=request)
    np.testing.assert_allclose(everyone.train["point"], few.train["point"], rtol=1e-6)
    assert (few.cost.nodes_asked, everyone.cost.nodes_asked) == (2, 3)
    assert 2 * everyone.cost.bytes_up == 3 * few.cost.bytes_up
    assert (few.cost.node_points[2], everyone.cost.node_points[2] > 0) == (0, True)


def test_several_models_at_once(make, plain):
    """A node works only for the models that count on it, and begins late for each of them alone."""
    made, points = make(), vector(0, 3)
    rounds = (
        [[0.5, 0.5, 0.0], [0.0, 0.4, 0.6], [0.2, 0.3, 0.5]],
        [[0.3, 0.3, 0.4], [0.0, 0.4, 0.6], [0.0, 0.0, 1.0]],
        [[0.3, 0.3, 0.4], [0.4, 0.6, 0.0], [0.5, 0.0, 0.5]],
    )
    for number, weights in enumerate(rounds):
        reply = same(made, plain, number, train=training(points, weights, begin=number == 0))
        points = reply.train["point"]
        assert points.shape == (3, SIZE)
        assert reply.train["loss"].shape == (3,)


def test_one_of_several_models_is_what_it_is_alone(make, plain):
    made, points = make(), vector(0, 2)
    together = same(
        made, plain, train=training(points, [[0.5, 0.5, 0.0], [0.1, 0.2, 0.7]], begin=True)
    )
    alone = same(make(), plain, train=training(points[1], [0.1, 0.2, 0.7], begin=True))
    np.testing.assert_allclose(together.train["point"][1], alone.train["point"], rtol=1e-5)


def test_requests_for_different_models_share_arrays_too(make, plain):
    """Each node gets the rows that it needs, once, whatever number of requests need them."""
    made, weights = make(), jnp.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]])
    message = {"theta": vector(0, 2), "vector": vector(1, 2)}
    reply = same(
        made,
        plain,
        hessian=WeightedSum(HESSIAN_PRODUCT, message, weights=weights, begin=True),
        slope=PerNode(SLOPE, message, begin=True),
    )
    assert reply.slope["slope"].shape == (2, 3)
    assert reply.cost.bytes_down == 3 * 2 * 2 * SIZE * 4


def test_products_with_several_vectors_begin_at_one_model(make, plain):
    federation = make()
    weights = jnp.array([0.7, 0.3, 0.0])
    for number in range(2):
        theta = vector(number)
        same(
            federation,
            plain,
            number,
            hessian=WeightedSum(
                HESSIAN_PRODUCT, {"vector": vector(5, 3)}, weights=jnp.tile(weights, (3, 1))
            ),
            gradient=WeightedSum(GRADIENT, {"theta": theta}, weights=weights, begin=True),
            slope=PerNode(SLOPE, {"vector": vector(6)}),
        )


def test_numbers_of_nodes_that_are_not_asked_are_unknown(make, plain):
    made, chosen = make(), np.array([False, True, True])
    if not made.objective.in_jax:
        with pytest.raises(InputError, match="linear models"):
            made.exchange(bound=PerNode(SMOOTHNESS), key=jax.random.key(0))
        return
    reply = same(made, plain, bound=PerNode(SMOOTHNESS, nodes=chosen))
    np.testing.assert_array_equal(np.isnan(reply.bound["smoothness"]), ~chosen)
    assert reply.cost.nodes_asked == 2


def test_revealed_vectors_are_those_of_single_nodes(make, plain):
    made, message = make(), {"theta": vector(0), "vector": vector(1)}
    reply = same(made, plain, each=Revealed(HESSIAN_PRODUCT, message, begin=True))
    products = reply.each["product"]
    assert products.shape == (3, SIZE)
    weights = jnp.array([0.2, 0.3, 0.5])
    summed = same(
        made, plain, sum=WeightedSum(HESSIAN_PRODUCT, message, weights=weights, begin=True)
    )
    np.testing.assert_allclose(summed.sum["product"], weights @ products, rtol=1e-4, atol=1e-7)
    rows = {"theta": vector(0, 2), "vector": vector(1, 2)}
    reply = same(made, plain, each=Revealed(HESSIAN_PRODUCT, rows, begin=True))
    assert reply.each["product"].shape == (2, 3, SIZE)


def test_nodes_may_be_sent_vectors_of_their_own(make):
    """Node k gets row k and nothing else: the replies are the diagonal of what all rows give."""
    made, rows = make(), {"theta": vector(0, 3), "vector": vector(1, 3)}
    key = jax.random.key(0)
    every = made.exchange(each=Revealed(HESSIAN_PRODUCT, rows, begin=True), key=key)
    own = made.exchange(each=RevealedEach(HESSIAN_PRODUCT, rows, begin=True), key=key)
    for name, array in every.each.items():
        diagonal = np.asarray(array)[np.arange(3), np.arange(3)]
        np.testing.assert_allclose(own.each[name], diagonal, rtol=1e-5, atol=1e-7)
    assert 3 * own.cost.bytes_up == every.cost.bytes_up
    assert 3 * own.cost.bytes_down == every.cost.bytes_down
    with pytest.raises(InputError, match="needs a row of its vectors for each of 3 nodes, not 2"):
        made.exchange(
            each=RevealedEach(
                HESSIAN_PRODUCT, {name: row[:2] for name, row in rows.items()}, begin=True
            ),
            key=key,
        )


def test_randomness_is_the_keys(make, plain):
    made, request = make(), training(vector(0), [0.2, 0.3, 0.5], begin=True)
    first, again, other = (same(made, plain, number, train=request) for number in (0, 0, 1))
    np.testing.assert_array_equal(first.train["point"], again.train["point"])
    assert np.any(np.asarray(first.train["point"] != other.train["point"]))


def test_a_series_continues_after_a_restart(make, plain):
    """What is lasting is there again, bit for bit, and costs nothing; the rest begins again by itself."""
    first = make()
    first.begin_step(0)
    point = same(first, plain, 0, train=training(vector(0), [0.2, 0.3, 0.5], begin=True)).train[
        "point"
    ]
    message = {"theta": vector(1), "vector": vector(2)}
    same(first, plain, slope=PerNode(SLOPE, message, begin=True))
    state = first.export_state()
    second = make()
    second.import_state(state, slots_of(TASKS))
    second.begin_step(1)
    later = same(second, plain, 1, train=training(point, [0.2, 0.3, 0.5]))
    first.begin_step(1)
    undisturbed = first.exchange(
        train=training(point, [0.2, 0.3, 0.5]), key=jax.random.fold_in(jax.random.key(5), 1)
    )
    np.testing.assert_array_equal(later.train["point"], undisturbed.train["point"])
    slopes = [
        each.exchange(slope=PerNode(SLOPE, {"vector": vector(2)}), key=jax.random.key(0))
        for each in (second, plain)
    ]
    np.testing.assert_allclose(*(reply.slope["slope"] for reply in slopes), rtol=1e-4)
    assert second.end_step() == ()


def test_what_never_began_cannot_be_continued(make):
    message = {"vector": vector(0)}
    with pytest.raises(InputError, match="hessian_product was asked for before its series began"):
        make().exchange(
            hessian=WeightedSum(HESSIAN_PRODUCT, message, weights=jnp.ones(3) / 3),
            key=jax.random.key(0),
        )
