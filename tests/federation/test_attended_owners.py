"""Several owners of a federation whose nodes may fail: the same numbers, and who waits for whom."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from federation.attended import NOTHING, AttendedSimulation
from federation.test_together import JOBS, NODES, assert_same, federation, rounds, share
from fedkin.federation.attendance import DROPS, STRIKES, LostOwnerError
from fedkin.federation.base import PerNode
from fedkin.federation.owners import ALONE
from fedkin.federation.together import Meeting
from fedkin.methods.bilevel.node import SLOPE

OWNERS = JOBS[:3]


@pytest.fixture(scope="module")
def alone():
    return [rounds(federation(), **job) for job in OWNERS]


def attended(fail=lambda node, call: None, back=lambda node, step: False, **more):
    return AttendedSimulation(federation(), fail, back, **more)


def test_every_owner_gets_what_it_would_get_alone(alone):
    engine = attended()
    outcomes, cost = share(OWNERS, engine)
    for found, expected in zip(outcomes, alone, strict=True):
        assert_same(found, expected)
    assert cost.synchronizations == engine.calls == 5  # those of the longest


def test_owners_that_ask_alike_are_served_once(alone):
    engine = attended()
    outcomes, cost = share([OWNERS[0]] * 3, engine)
    for found in outcomes:
        assert_same(found, alone[0])
    assert cost == alone[0][1]


def test_a_lost_node_is_lost_for_all_owners():
    """Each gets what it would get from the others, its weight shared out among them."""
    engine = attended(lambda node, call: NOTHING if node == 2 else None)
    weights = np.array([[0.5, 0.2, 0.3], [0.2, 0.2, 0.6]])
    jobs = [{"weights": own, "key": 1, "count": 5} for own in weights]
    outcomes, _ = share(jobs, engine)
    for own, (seen, _) in zip(weights, outcomes, strict=True):
        left = np.array([own[0], own[1], 0]) / own[:2].sum()
        expected, _ = rounds(federation(), weights=left, key=1, count=5)
        for array, other in zip(seen, expected, strict=True):
            np.testing.assert_allclose(array, other, rtol=1e-5, atol=1e-6)
    assert engine.asked == [[0, 1, 2]] * STRIKES + [[0, 1]] * 2
    assert any("dropped" in note for note in engine.end_step())


def slope_alone(view):
    theta = jnp.zeros(view.objective.size)
    request = PerNode(SLOPE, {"vector": jnp.ones_like(theta), "theta": theta}, begin=True)
    return float(view.exchange(slope=request, key=jax.random.key(0)).slope["slope"][0])


def hold(engine, count=5):
    """Two owners: the first trains with all nodes, the second, which is node 2, asks itself."""
    meeting = Meeting()
    first = meeting.view(engine)
    second = meeting.view_of(engine, engine.add_owner([2], ALONE))
    job = {"weights": [0.5, 0.5, 0.0], "key": 1, "count": count}
    return meeting.run([lambda: rounds(first, **job), lambda: slope_alone(second)])


def test_an_owner_waits_for_the_node_that_it_is(alone):
    """It does not answer twice; meanwhile the other owner continues."""
    engine = attended(lambda node, call: NOTHING if node == 2 and call <= 2 else None)
    (seen, _), found = hold(engine)
    expected, _ = rounds(federation(), weights=[0.5, 0.5, 0.0], key=1, count=5)
    np.testing.assert_array_equal(seen[-1], expected[-1])
    assert found == pytest.approx(slope_alone(Meeting().view(federation([2]))), rel=1e-5)
    assert engine.asked == [[0, 1, 2]] * 3 + [[0, 1]] * 2


def test_an_owner_whose_node_comes_back_gets_its_answer():
    """Also after everybody else has finished."""
    looks = []

    def back(node, step):
        looks.append(node)
        return len(looks) > 4

    engine = attended(
        lambda node, call: NOTHING if node == 2 and call <= STRIKES else None,
        back,
        wait_for_owners=60,
    )
    _, found = hold(engine, count=4)
    assert isinstance(found, float)
    assert any("is back" in note for note in engine.end_step())


def test_an_owner_whose_node_does_not_come_back_is_told_so():
    engine = attended(lambda node, call: NOTHING if node == 2 else None, wait_for_owners=0.1)
    (seen, _), found = hold(engine)
    assert len(seen) == 5
    assert isinstance(found, LostOwnerError)
    assert "its own question has no answer" in str(found)


def test_an_owner_gives_up_on_its_node_when_it_fails_again_and_again():
    """It can be reached every time, but never answers."""
    engine = attended(
        lambda node, call: NOTHING if node == 2 else None,
        lambda node, step: True,
        wait_for_owners=60,
    )
    _, found = hold(engine, count=2)
    assert isinstance(found, LostOwnerError)
    assert "again and again" in str(found)
    assert "in time" in str(found)
    assert sum(2 in asked for asked in engine.asked) == DROPS * STRIKES


def test_a_node_that_is_back_counts_from_an_owners_next_step_on():
    engine = attended(
        lambda node, call: NOTHING if node == 2 and call <= STRIKES else None,
        lambda node, step: True,
    )
    meeting = Meeting()
    view = meeting.view(engine)
    present = []

    def job():
        for _ in range(STRIKES + 1):
            slope_of_all(view)
            present.append(view.present.tolist())
        view.begin_step(1)
        present.append(view.present.tolist())

    meeting.run([job])
    away = [True, True, False]
    assert present == [[True] * NODES] * (STRIKES - 1) + [away, away, [True] * NODES]


def slope_of_all(view):
    theta = jnp.zeros(view.objective.size)
    request = PerNode(SLOPE, {"vector": jnp.ones_like(theta), "theta": theta}, begin=True)
    return view.exchange(slope=request, key=jax.random.key(0)).slope["slope"]
