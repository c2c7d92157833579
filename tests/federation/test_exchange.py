"""The seam: what is asked for, who is asked, what comes back and what it costs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from federations import classification_nodes, problem, reveal
from fedkin.errors import InputError
from fedkin.federation.base import PerNode, Revealed, WeightedSum
from fedkin.federation.task import Slot, Task
from fedkin.methods.bilevel.node import (
    ADJOINT_SVRG_ROUND,
    HESSIAN_PRODUCT,
    LINEARIZATION,
    SLOPE,
)
from fedkin.methods.ditto.node import DITTO_SHARED_ROUND
from fedkin.methods.local_svrg.node import INNER_SVRG_ROUND
from fedkin.methods.step_size import SMOOTHNESS
from fedkin.models.linear import Logistic

pytestmark = pytest.mark.usefixtures("float64")

SIZES = (30, 17, 23, 12, 20)
WEIGHTS = np.array([0.5, 0.0, 0.3, 0.2, 0.0])
KEY = jax.random.key(3)
NUMBER = 8  # bytes
ROUND = {"steps": 4, "reply": "point"}


def make(ask_all=False):
    made = problem(Logistic(classes=3, l2=0.1), *classification_nodes(SIZES))
    made.federation.ask_all = ask_all
    return made


def vectors(made, *rows, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(*rows, made.objective.size)))


def training(point):
    numbers = {"learning_rate": 0.1, "refresh_probability": 0.3, "averaging_rate": 0.01}
    return {"point": point, **numbers}


def train(made, point, weights, *, begin=True, key=KEY):
    request = WeightedSum(
        INNER_SVRG_ROUND,
        training(point),
        weights=jnp.asarray(weights),
        begin=begin,
        **ROUND,  # pyright: ignore
    )
    return made.federation.exchange(train=request, key=key)


def test_a_sum_is_the_weighted_sum_of_the_rows_that_nodes_would_reveal():
    point = vectors(make())
    rows, _ = reveal(
        make().federation, INNER_SVRG_ROUND, training(point), key=KEY, begin=True, **ROUND
    )
    weights = np.array([0.1, 0.2, 0.3, 0.15, 0.25])
    summed = train(make(), point, weights).train
    assert set(summed) == set(rows) == {"point", "loss"}
    for name, own in rows.items():
        assert own.shape[0] == 5
        np.testing.assert_allclose(summed[name], weights @ own, rtol=1e-12)


def test_nodes_of_weight_zero_are_not_asked_and_the_sum_is_the_same():
    point = vectors(make())
    some, everyone = (train(make(ask_all), point, WEIGHTS) for ask_all in (False, True))
    for name in ("point", "loss"):
        np.testing.assert_allclose(some.train[name], everyone.train[name], rtol=1e-12)
    size = point.size
    for reply, count in ((some, 3), (everyone, 5)):
        assert reply.cost.synchronizations == 1
        assert reply.cost.nodes_asked == count
        assert reply.cost.bytes_up == count * NUMBER * (size + 1)  # an iterate and a loss
        assert reply.cost.bytes_down == count * NUMBER * (size + 3)  # an iterate, three numbers
    assert [points > 0 for points in some.cost.node_points] == list(WEIGHTS > 0)
    assert min(everyone.cost.node_points) > 0
    for own, with_all in zip(some.cost.node_points, everyone.cost.node_points, strict=True):
        assert own in (0, with_all)


def test_several_requests_are_one_synchronization_and_what_they_share_travels_once():
    theta, vector = vectors(make(), 2)
    message = {"vector": vector, "theta": theta}
    weights = jnp.full(5, 0.2)
    made = make()
    both = made.federation.exchange(
        hessian=WeightedSum(HESSIAN_PRODUCT, message, weights=weights, begin=True),
        slope=PerNode(SLOPE, message, begin=True),
        key=KEY,
    )
    apart = make()
    hessian = apart.federation.exchange(
        hessian=WeightedSum(HESSIAN_PRODUCT, message, weights=weights, begin=True), key=KEY
    )
    slope = apart.federation.exchange(slope=PerNode(SLOPE, {"vector": vector}), key=KEY)
    np.testing.assert_array_equal(both.hessian["product"], hessian.hessian["product"])
    np.testing.assert_array_equal(both.slope["slope"], slope.slope["slope"])
    assert both.cost.synchronizations == 1
    assert both.cost.nodes_asked == 5
    size = theta.size
    assert both.cost.bytes_down == 5 * NUMBER * 2 * size  # θ and v, once each
    assert (hessian.cost + slope.cost).bytes_down == 5 * NUMBER * 3 * size
    assert both.cost.bytes_up == 5 * NUMBER * (size + 1)
    # ∇L_k(θ), which both need, is computed once; then the product.
    assert both.cost.node_points == tuple(2 * points for points in SIZES)


def test_only_equal_numbers_travel_once():
    points = vectors(make(), 2)

    def cost(rates):
        requests = {
            f"train_{place}": WeightedSum(
                DITTO_SHARED_ROUND,
                {"shared": point, "learning_rate": rate},
                weights=jnp.full(5, 0.2),
                steps=1,
            )
            for place, (point, rate) in enumerate(zip(points, rates, strict=True))
        }
        return make().federation.exchange(**requests, key=KEY).cost  # pyright: ignore

    assert cost((0.1, 0.1)).bytes_down == 5 * NUMBER * (2 * points.shape[1] + 1)
    assert cost((0.1, 0.2)).bytes_down == 5 * NUMBER * (2 * points.shape[1] + 2)


def test_what_was_not_asked_for_does_not_arrive():
    theta, vector = vectors(make(), 2)
    message = {"vector": vector, "theta": theta}
    nodes = np.array([True, False, True, False, False])
    request = PerNode(SLOPE, message, begin=True, nodes=nodes)
    reply = make().federation.exchange(slope=request, key=KEY)
    np.testing.assert_array_equal(np.isnan(reply.slope["slope"]), ~nodes)
    assert reply.cost.nodes_asked == 2
    assert reply.cost.bytes_up == 2 * NUMBER
    with pytest.raises(AttributeError, match="no request was called 'slopes'"):
        _ = reply.slopes


def _count(objective, data, state, key, message):
    """Reply with the number of points."""
    return state, {"points": data.points, "evaluations": jnp.zeros_like(data.points)}


COUNT = Task("count", _count, number_replies=("points",))


def test_whole_numbers_arrive_too():
    made = make()
    everyone = made.federation.exchange(count=PerNode(COUNT), key=KEY).count
    np.testing.assert_array_equal(everyone["points"], SIZES)
    nodes = np.arange(5) == 2
    some = made.federation.exchange(count=PerNode(COUNT, nodes=nodes), key=KEY).count
    np.testing.assert_array_equal(some["points"], np.where(nodes, SIZES, np.nan))


def test_weights_that_are_not_numbers_show_in_the_sum():
    """So that divergence is noticed: NaN is not zero."""
    made = make()
    assert np.isnan(train(made, vectors(made), np.full(5, np.nan)).train["point"]).all()


def test_a_request_that_asks_nobody_is_refused():
    made = make()
    with pytest.raises(InputError, match="inner_svrg_round asks no node: all weights are zero"):
        train(made, vectors(made), np.zeros(5))
    with pytest.raises(InputError, match="smoothness asks no node"):
        made.federation.exchange(bound=PerNode(SMOOTHNESS, nodes=np.zeros(5, bool)), key=KEY)


SHARED = {"shared": jnp.zeros(3), "learning_rate": 0.1}
REFUSED = {
    "vectors per node": (
        lambda: PerNode(DITTO_SHARED_ROUND, SHARED, steps=1),
        "ditto_shared_round replies with vectors: ask for their WeightedSum, or say Revealed",
    ),
    "a name too many": (
        lambda: Revealed(DITTO_SHARED_ROUND, {**SHARED, "pull": 1.0}, steps=1),
        r"needs \['learning_rate', 'shared'\] in its message, not .*'pull'",
    ),
    "a name missing": (
        lambda: Revealed(DITTO_SHARED_ROUND, {"shared": jnp.zeros(3)}, steps=1),
        r"in its message, not \['shared'\]",
    ),
    "no vector to begin with": (
        lambda: PerNode(SLOPE, {"vector": jnp.zeros(3)}, begin=True),
        r"slope needs \['theta', 'vector'\]",
    ),
    "a vector to begin with, too late": (
        lambda: PerNode(SLOPE, {"vector": jnp.zeros(3), "theta": jnp.zeros(3)}),
        r"slope needs \['vector'\]",
    ),
    "an option too many": (
        lambda: Revealed(DITTO_SHARED_ROUND, SHARED, steps=1, reply="point"),
        r"needs the options \['steps'\], not \['reply', 'steps'\]",
    ),
    "an option missing": (lambda: Revealed(DITTO_SHARED_ROUND, SHARED), r"the options \['steps'\]"),
    "rows of vectors": (
        lambda: PerNode(
            SLOPE, {"vector": jnp.zeros((2, 3)), "theta": jnp.zeros((3, 3))}, begin=True
        ),
        "the vectors for slope disagree on the number of models",
    ),
    "rows beside one vector": (
        lambda: PerNode(SLOPE, {"vector": jnp.zeros((2, 3)), "theta": jnp.zeros(3)}, begin=True),
        "disagree on the number of models",
    ),
    "rows of weights": (
        lambda: WeightedSum(
            DITTO_SHARED_ROUND,
            {**SHARED, "shared": jnp.zeros((2, 3))},
            weights=jnp.ones((3, 5)),
            steps=1,
        ),
        "3 rows of weights for 2 rows of vectors",
    ),
    "one row of weights for several models": (
        lambda: WeightedSum(
            DITTO_SHARED_ROUND,
            {**SHARED, "shared": jnp.zeros((2, 3))},
            weights=jnp.ones(5),
            steps=1,
        ),
        "no rows of weights for 2 rows of vectors",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_requests_that_cannot_be_meant_are_refused(name):
    request, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        request()


# Several models at once

ROWS = np.array([[0.5, 0.0, 0.3, 0.2, 0.0], [0.0, 0.0, 0.0, 0.6, 0.4], [0.2] * 5])


@pytest.mark.parametrize("ask_all", [False, True])
def test_models_trained_together_are_those_trained_apart_over_several_rounds(ask_all):
    made, apart = make(ask_all), [make(ask_all) for _ in ROWS]
    points = vectors(made, 3)
    for number in range(3):
        key = jax.random.key(number)
        together = train(made, points, ROWS, begin=number == 0, key=key)
        each = [
            train(own, point, row, begin=number == 0, key=key)
            for own, point, row in zip(apart, points, ROWS, strict=True)
        ]
        for name in ("point", "loss"):
            expected = jnp.stack([reply.train[name] for reply in each])
            np.testing.assert_allclose(together.train[name], expected, rtol=1e-12)
        # A node works for the models that count on it, and sends and gets no more.
        worked = np.sum([reply.cost.node_points for reply in each], axis=0)
        assert together.cost.node_points == tuple(worked)
        assert together.cost.bytes_up == sum(reply.cost.bytes_up for reply in each)
        pairs = 15 if ask_all else np.count_nonzero(ROWS)
        assert together.cost.bytes_down == NUMBER * (pairs * points.shape[1] + 5 * 3)
        assert together.cost.synchronizations == 1
        assert together.cost.nodes_asked == 5
        points = together.train["point"]


def test_one_model_in_a_row_is_that_model():
    made = make()
    point = vectors(made)
    alone, row = (train(make(), *each) for each in ((point, WEIGHTS), (point[None], WEIGHTS[None])))
    assert row.train["point"].shape == (1, point.size)
    assert row.train["loss"].shape == (1,)
    np.testing.assert_array_equal(row.train["point"][0], alone.train["point"])
    assert row.cost == alone.cost


def test_numbers_of_nodes_for_several_models():
    made = make()
    thetas, directions = vectors(made, 3), vectors(made, 3, seed=1)
    nodes = ROWS > 0
    message = {"vector": directions, "theta": thetas}
    found = made.federation.exchange(
        slope=PerNode(SLOPE, message, begin=True, nodes=nodes), key=KEY
    )
    for model in range(3):
        own = {"vector": directions[model], "theta": thetas[model]}
        alone = make().federation.exchange(slope=PerNode(SLOPE, own, begin=True), key=KEY)
        expected = np.where(nodes[model], alone.slope["slope"], np.nan)
        np.testing.assert_allclose(found.slope["slope"][model], expected, rtol=1e-12)
    # ∇L_k(θ) once for each model that a node is asked for.
    assert found.cost.node_points == tuple(nodes.sum(axis=0) * np.array(SIZES))
    rows, _ = reveal(made.federation, HESSIAN_PRODUCT, {"vector": directions}, key=KEY)
    assert rows["product"].shape == (3, 5, thetas.shape[1])


# Series

TARGET_ROUND = {"learning_rate": 0.05, "refresh_probability": 0.3, "averaging_rate": 0.0}


def adjoint_rounds(made, theta, target, weights, count=2):
    point = jnp.zeros_like(theta)
    for number in range(count):
        begin = {"theta": theta, "target": target} if number == 0 else {}
        request = WeightedSum(
            ADJOINT_SVRG_ROUND,
            {"point": point, **TARGET_ROUND, **begin},
            weights=jnp.asarray(weights),
            begin=number == 0,
            **ROUND,  # pyright: ignore
        )
        point = made.federation.exchange(solve=request, key=jax.random.key(number)).solve["point"]
    return point


def test_a_node_that_was_not_asked_when_a_series_began_begins_when_it_is_asked():
    made, full = make(), make(ask_all=True)
    theta, target, other = vectors(made, 3)
    for federation in (made, full):  # a series of before, at another θ, must not be continued
        adjoint_rounds(federation, other, target, np.full(5, 0.2))
    points = [adjoint_rounds(own, theta, target, WEIGHTS) for own in (made, full)]
    np.testing.assert_allclose(*points, rtol=1e-12)
    replies = [
        own.federation.exchange(slope=PerNode(SLOPE, {"vector": points[0]}), key=KEY)
        for own in (made, full)
    ]
    np.testing.assert_allclose(*(reply.slope["slope"] for reply in replies), rtol=1e-12)
    size = theta.size
    # The two nodes get θ now, and compute ∇L_k(θ); the others have it.
    assert replies[0].cost.bytes_down == NUMBER * (5 * size + 2 * size)
    assert replies[0].cost.node_points == tuple(np.where(WEIGHTS > 0, 0, SIZES))
    assert replies[1].cost.bytes_down == NUMBER * 5 * size
    assert replies[1].cost.points == 0
    again = made.federation.exchange(slope=PerNode(SLOPE, {"vector": points[0]}), key=KEY)
    assert again.cost.bytes_down == NUMBER * 5 * size


def test_a_series_that_never_began_cannot_be_continued():
    made = make()
    with pytest.raises(InputError, match="slope was asked for before its series began"):
        made.federation.exchange(slope=PerNode(SLOPE, {"vector": vectors(made)}), key=KEY)


def test_what_nodes_remember_of_several_models_can_be_taken_out_and_put_back():
    made, later = make(), make()
    points = train(made, vectors(made, 3), ROWS).train["point"]
    slots = {slot.name: slot for slot in INNER_SVRG_ROUND.slots}
    later.federation.import_state(made.federation.export_state(), slots)
    # The first row counts on other nodes now: those begin, the others continue.
    rows = np.roll(ROWS, 1, axis=1)
    both = [train(own, points, rows, begin=False) for own in (made, later)]
    np.testing.assert_array_equal(*(reply.train["point"] for reply in both))
    assert both[0].cost == both[1].cost
    fresh = train(make(), points, rows)
    assert np.any(fresh.train["point"] != both[0].train["point"])


def counting(objective, data, state, key, message):
    """Count how often the node was asked."""
    told = state["asked"] + 1
    return {"asked": told}, {"asked": told, "evaluations": jnp.zeros_like(data.points)}


ASKED = Slot(
    "asked",
    empty=lambda objective, data: jnp.zeros(()),
    begin=lambda objective, data, content, message: (
        jnp.zeros_like(content),
        jnp.zeros_like(data.points),
    ),
)
ASK_COUNT = Task("count", counting, slots=(ASKED,), number_replies=("asked",))


def test_nodes_asked_in_between_keep_their_state():
    """All, some, some, all: the state of those asked in between is the newest, not that of their share."""
    nodes, validation = classification_nodes((12,) * 8)
    federation = problem(Logistic(classes=3), nodes, validation).federation
    odd = np.arange(8) % 2 == 1
    for number, asked in enumerate((None, odd, odd, None)):
        request = PerNode(ASK_COUNT, nodes=asked, begin=number == 0)
        reply = federation.exchange(count=request, key=jax.random.key(number))
    np.testing.assert_array_equal(reply.count["asked"], np.where(odd, 4, 2))


def test_negative_weights_count():
    nodes, validation = classification_nodes((12, 12))
    federation = problem(Logistic(classes=3), nodes, validation).federation
    weights = jnp.array([2.0, -1.0])
    request = WeightedSum(ASK_COUNT, weights=weights, begin=True)
    assert float(federation.exchange(count=request, key=jax.random.key(0)).count["asked"]) == 1.0


def test_weights_of_another_number_of_nodes_are_refused():
    nodes, validation = classification_nodes((12, 12))
    federation = problem(Logistic(classes=3), nodes, validation).federation
    with pytest.raises(InputError, match="weights for 3 nodes, but there are 2"):
        federation.exchange(
            count=WeightedSum(ASK_COUNT, weights=jnp.ones(3), begin=True), key=jax.random.key(0)
        )


def test_a_task_that_only_reads_may_not_change_the_state():
    def forget(objective, data, state, key, message):
        return {}, {"number": jnp.zeros(()), "evaluations": data.points}

    task = Task("forget", forget, (LINEARIZATION,), number_replies=("number",), only_reads=True)
    made = make()
    request = PerNode(task, {"theta": vectors(made)}, begin=True)
    with pytest.raises(InputError, match="the task forget only reads the node's state, but"):
        made.federation.exchange(read=request, key=KEY)
