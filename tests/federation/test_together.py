"""Several owners at one engine: each gets what it would have got alone; what is alike is done once."""

import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedkin.errors import InputError
from fedkin.federation.base import PerNode, WeightedSum
from fedkin.federation.simulation import SimulatedFederation
from fedkin.federation.task import slots_of
from fedkin.federation.together import SHARED_COST, Meeting
from fedkin.methods.bilevel.node import SLOPE
from fedkin.methods.local_svrg.node import INNER_SVRG_ROUND
from fedkin.models.linear import Logistic
from fedkin.models.objective import Objective

NODES = 3


def points(node, rows=12):
    draw = np.random.default_rng(node)
    inputs = draw.normal(size=(rows, 2)).astype(np.float32)
    return inputs, (inputs[:, 0] > 0.2 * node).astype(np.int32)


def federation(nodes=range(NODES), **settings):
    objective = Objective.create(Logistic(classes=2), np.zeros((2, 2), np.float32))
    return SimulatedFederation(
        objective, [points(n) for n in nodes], batch_size=4, seed=3, **settings
    )


def train(point, weights, *, begin, rate=0.1):
    numbers = {"learning_rate": rate, "refresh_probability": 0.3, "averaging_rate": 0.0}
    return WeightedSum(
        INNER_SVRG_ROUND,
        {"point": point, **numbers},
        weights=jnp.asarray(weights),
        begin=begin,
        steps=3,
        reply="point",
    )


def rounds(view, weights, key, count, rate=0.1, others_from=None):
    """Train for some rounds with slopes asked for on the way; return everything seen."""
    seen, cost = [], None
    theta = jnp.zeros(view.objective.size)
    for number in range(count):
        requests = {"train": train(theta, weights, begin=number == 0, rate=rate)}
        if others_from is not None and number >= others_from:
            requests["slope"] = PerNode(
                SLOPE, {"vector": jnp.ones_like(theta), "theta": theta}, begin=True
            )
        reply = view.exchange(key=jax.random.fold_in(jax.random.key(key), number), **requests)
        theta = reply.train["point"]
        cost = reply.cost if cost is None else cost + reply.cost
        seen.append(np.asarray(theta))
        if "slope" in requests:
            seen.append(np.asarray(reply.slope["slope"]))
    return seen, cost


JOBS = [
    {"weights": [0.5, 0.5, 0.0], "key": 1, "count": 4},
    {"weights": [0.2, 0.3, 0.5], "key": 2, "count": 2, "rate": 0.3},
    {"weights": [0.0, 0.0, 1.0], "key": 1, "count": 5, "others_from": 2},
    {"weights": [0.5, 0.5, 0.0], "key": 1, "count": 4, "others_from": 3},
]


@pytest.fixture(scope="module")
def alone():
    return [rounds(federation(), **job) for job in JOBS]


def share(jobs, engine=None, nodes=None):
    engine = engine or federation()
    meeting = Meeting()
    views = [meeting.view(engine, None if nodes is None else nodes[n]) for n in range(len(jobs))]
    outcomes = meeting.run(
        [lambda v=v, j=j: rounds(v, **j) for v, j in zip(views, jobs, strict=True)]
    )
    return outcomes, meeting.cost(engine)


def assert_same(found, expected):
    (seen, cost), (expected_seen, expected_cost) = found, expected
    assert cost == expected_cost
    for own, other in zip(seen, expected_seen, strict=True):
        np.testing.assert_array_equal(own, other)


def test_everybody_gets_the_same_to_the_last_bit_and_pays_the_same(alone):
    outcomes, cost = share(JOBS)
    for found, expected in zip(outcomes, alone, strict=True):
        assert_same(found, expected)
    assert cost.synchronizations == 5  # those of the longest


def test_what_owners_ask_for_alike_is_computed_once_until_they_differ(alone):
    """The first and the last owner of JOBS differ from the fourth exchange on."""
    outcomes, cost = share([JOBS[0], JOBS[3], JOBS[0]])
    for found, expected in zip(outcomes, (alone[0], alone[3], alone[0]), strict=True):
        assert_same(found, expected)
    one, other = alone[0][1], alone[3][1]
    before = rounds(federation(), **{**JOBS[0], "count": 3})[1]
    assert np.array_equal(
        cost.node_points,
        np.add(one.node_points, other.node_points) - np.array(before.node_points),
    )
    assert cost.bytes_up == one.bytes_up + other.bytes_up - before.bytes_up


def test_an_owner_may_ask_some_nodes_in_its_own_order():
    """Its nodes have the numbers of its own federation, which decide mini-batches and draws."""
    engine = federation([0, 1, 2, 4], numbers=[0, 1, 2, 2])
    job = {"weights": [0.2, 0.3, 0.5], "key": 5, "count": 3}
    outcomes, _ = share([job, job], engine, nodes=[[0, 1, 2], [0, 1, 3]])
    assert_same(outcomes[0], rounds(federation([0, 1, 2]), **job))
    assert_same(outcomes[1], rounds(federation([0, 1, 4]), **job))


def test_a_wrong_request_ends_only_its_own_owner(alone):
    wrong = {"weights": [0.0, 0.0, 0.0], "key": 1, "count": 3}
    outcomes, _ = share([JOBS[0], wrong, JOBS[1]])
    assert isinstance(outcomes[1], InputError)
    assert "all weights are zero" in str(outcomes[1])
    assert_same(outcomes[0], alone[0])
    assert_same(outcomes[2], alone[1])


def test_an_owner_that_asks_nothing_keeps_nobody_waiting(alone):
    meeting, engine = Meeting(), federation()
    view = meeting.view(engine)
    found, nothing = meeting.run([lambda: rounds(view, **JOBS[0]), lambda: "nothing"])
    assert nothing == "nothing"
    assert_same(found, alone[0])


def test_any_other_error_ends_all_and_is_raised():
    meeting, engine = Meeting(), federation()
    view = meeting.view(engine)
    other = meeting.view(engine)

    def broken():
        rounds(other, **{**JOBS[0], "count": 2})
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError, match="a bug"):
        meeting.run([lambda: rounds(view, **{**JOBS[0], "count": 50}), broken])
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("owner ")]


def test_an_owner_continues_from_its_own_state():
    """The state of one of several owners fits a federation of its own, and the other way round."""
    job = {**JOBS[0], "count": 2}

    def work(view, exported):
        rounds(view, **job)
        exported.append(view.export_state())

    exported = []
    meeting, engine = Meeting(), federation()
    views = [meeting.view(engine), meeting.view(engine)]
    meeting.run(
        [lambda: work(views[0], exported), lambda: rounds(views[1], **{**JOBS[2], "count": 2})]
    )
    single = federation()
    rounds(single, **job)
    expected = single.export_state()
    assert exported[0].keys() == {*expected, SHARED_COST}
    for name, array in expected.items():
        np.testing.assert_array_equal(exported[0][name], array)
    slots = slots_of([INNER_SVRG_ROUND])
    request = train(jnp.ones(single.objective.size), [0.5, 0.5, 0.0], begin=False)
    later = Meeting()
    engine = federation()
    view = later.view(engine)
    view.import_state(exported[0], slots)
    (reply,) = later.run([lambda: view.exchange(key=jax.random.key(9), train=request)])
    expected_reply = single.exchange(key=jax.random.key(9), train=request)
    np.testing.assert_array_equal(reply.train["point"], expected_reply.train["point"])


def test_who_leaves_carries_out_the_exchange_of_the_others_in_their_precision(float64):
    """Precision is a setting of a thread, and the last to leave is not the one that asks."""
    objective = Objective.create(Logistic(classes=2), np.zeros((2, 2)))
    exact = [(inputs.astype(np.float64), labels) for inputs, labels in map(points, range(NODES))]
    engine, meeting = SimulatedFederation(objective, exact, batch_size=4, seed=3), Meeting()
    views = [meeting.view(engine) for _ in range(2)]

    def leave():
        rounds(views[1], **JOBS[0] | {"count": 1})
        time.sleep(0.3)  # until the other one waits

    (seen, _), _ = meeting.run([lambda: rounds(views[0], **JOBS[0]), leave])
    assert [point.dtype for point in seen] == [np.float64] * 4
