"""Several owners of a federation whose nodes may fail: the same numbers, and who waits for whom."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from federation.attended import NOTHING, AttendedSimulation
from federation.test_together import JOBS, NODES, assert_same, federation, rounds, share
from fedkin.errors import DivergedError, InputError
from fedkin.federation.attendance import DROPS, STRIKES, LostOwnerError
from fedkin.federation.base import PerNode, WeightedSum
from fedkin.federation.owners import ALONE
from fedkin.federation.together import Meeting
from fedkin.methods.bilevel.node import SLOPE
from fedkin.methods.local_svrg.node import INNER_SVRG_ROUND

OWNERS = JOBS


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


def test_an_owner_that_ends_or_waits_does_not_change_what_others_get(alone):
    """They asked alike so far; the others continue with what nodes remember."""
    short = {**JOBS[0], "count": 2}
    outcomes, _ = share([JOBS[0], short, JOBS[0]], attended())
    assert_same(outcomes[0], alone[0])
    assert_same(outcomes[2], alone[0])
    engine, meeting = attended(), Meeting()
    views = [meeting.view(engine), meeting.view(engine)]
    own = meeting.view_of(engine, engine.add_owner([2], ALONE))

    def wait():  # for an answer of its own node, between two rounds
        seen, _ = rounds(views[1], **short)
        slope_alone(own)
        return seen

    (found, _), seen = meeting.run([lambda: rounds(views[0], **JOBS[0]), wait])
    for array, other in zip(found, alone[0][0], strict=True):
        np.testing.assert_array_equal(array, other)
    np.testing.assert_array_equal(seen[-1], alone[0][0][1])


def test_nodes_forget_what_they_did_for_owners_that_have_ended():
    for engine in (attended(), federation()):
        share([JOBS[0], JOBS[0], JOBS[2]], engine)
        held = engine._work.export_arrays()
        assert all(len(items) == 0 for name, items in held.items() if name.endswith("/items"))


def bad_for(rate, number=np.nan):
    """Return an engine whose last node answers with one number to the owner of some learning rate."""

    class Diverging(AttendedSimulation):
        def _answer(self, node, block):
            answer = super()._answer(node, block)
            request = next(iter(block.assignments.values())).request
            if node == 2 and request.message["learning_rate"] == rate:
                nothing = {
                    name: {reply: np.full_like(array, number) for reply, array in own.items()}
                    for name, own in answer.replies.items()
                }
                return replace(answer, replies=nothing)
            return answer

    return Diverging(federation(), back=lambda node, step: False)


def test_numbers_that_are_bad_for_one_owner_are_no_strike_for_others():
    engine = bad_for(2.0)
    job = {"weights": [0.4, 0.3, 0.3], "key": 1, "count": 5}
    outcomes, _ = share([job, {**job, "rate": 2.0}], engine)
    assert_same(outcomes[0], rounds(federation(), **job))
    assert engine.present.all()
    assert "left out of one sum" in engine.end_step()[0]
    left, _ = rounds(federation(), weights=[4 / 7, 3 / 7, 0], key=1, count=5, rate=2.0)
    np.testing.assert_allclose(outcomes[1][0][-1], left[-1], rtol=1e-4, atol=1e-5)


def test_a_node_whose_numbers_are_bad_for_all_owners_is_dropped():
    engine = bad_for(0.1)
    jobs = [{"weights": [0.4, 0.3, 0.3], "key": key, "count": 5} for key in (1, 2)]
    share(jobs, engine)
    assert engine.present.tolist() == [True, True, False]


def test_an_owner_that_can_only_get_bad_numbers_has_diverged():
    """Its second model needs the node that fails it; it is not asked for ever."""
    engine, meeting = bad_for(2.0, 1e20), Meeting()
    views = [meeting.view(engine), meeting.view(engine)]
    theta = jnp.zeros((2, engine.objective.size))
    weights = jnp.asarray([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])

    def both():
        numbers = {"learning_rate": 2.0, "refresh_probability": 0.3, "averaging_rate": 0.0}
        message = {"point": theta, **numbers}
        options = {"weights": weights, "begin": True, "steps": 3, "reply": "point"}
        request = WeightedSum(INNER_SVRG_ROUND, message, **options)
        return views[0].exchange(train=request, key=jax.random.key(0))

    found, other = meeting.run([both, lambda: rounds(views[1], **JOBS[0])])
    assert isinstance(found, DivergedError)
    assert_same(other, rounds(federation(), **JOBS[0]))


@pytest.mark.parametrize(
    ("what", "error", "words"),
    [
        ({"weights": [np.nan, 0.5, 0.5]}, DivergedError, "try a smaller learning_rate"),
        ({"rate": 1e9}, InputError, r"learning_rate is 1e\+09; nodes accept 0 to 1000"),
    ],
)
def test_what_no_node_would_accept_ends_the_owner_that_asks_for_it(alone, what, error, words):
    """The numbers are not finite after the first exchange, or out of range; the others continue."""
    engine = attended()
    refused, other = share([{**JOBS[0], **what}, JOBS[0]], engine)[0]
    assert isinstance(refused, error)
    assert re.search(words, str(refused))
    assert_same(other, alone[0])


def test_an_absent_node_is_looked_for_less_and_less_often():
    """A node that is connected but silent delays every exchange that looks for it."""
    looks = []
    engine = attended(
        lambda node, call: NOTHING if node == 2 else None,
        lambda node, step: looks.append(engine.calls) or False,
    )
    share([{**JOBS[0], "weights": [0.4, 0.3, 0.3], "count": 40}], engine)
    assert [call - STRIKES for call in looks] == [0, 1, 3, 7, 15, 31]


def test_an_owner_with_nobody_else_left_counts_on_nodes_that_are_back(alone):
    engine, meeting = attended(), Meeting()
    view = meeting.view(engine)
    engine._admitted[view._owner][:] = False  # they have been lost and are back, within its step
    ((seen, _),) = meeting.run([lambda: rounds(view, **JOBS[0])])
    np.testing.assert_array_equal(seen[-1], alone[0][0][-1])


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
