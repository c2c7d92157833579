"""Secure sums with nodes that drop out, lie, or send garbage: nothing is lost, and no sum is wrong."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federation.attended import NOTHING, AttendedSimulation
from federations import problem, regression_nodes
from fedkin.errors import DivergedError, InputError
from fedkin.federation.attendance import MOST_SPOILED, TooFewNodesError
from fedkin.federation.base import PerNode, Revealed, WeightedSum
from fedkin.federation.owners import Ask
from fedkin.federation.secure.exchange import LostSumError
from fedkin.federation.secure.orders import WORDS
from fedkin.methods.bilevel.node import GRADIENT, HESSIAN_PRODUCT, SLOPE
from fedkin.methods.local_svrg.node import INNER_SVRG_ROUND
from fedkin.models.linear import Ridge

SIZES = [30, 25, 35, 28, 31]
WEIGHTS = (0.1, 0.2, 0.3, 0.15, 0.25)
NUMBERS = {"learning_rate": 0.01, "refresh_probability": 0.1, "averaging_rate": 0.0}


def made(fail=lambda node, call: None, **more):
    nodes, validation = regression_nodes(SIZES)
    world = problem(Ridge(l2=0.1), nodes, validation)
    return AttendedSimulation(world.federation, fail, secure=True, **more), world.federation


def requests(weights=WEIGHTS):
    at = jnp.linspace(-1.0, 1.0, 5)
    both = jnp.array([weights, weights[::-1]])
    return {
        "train": WeightedSum(
            INNER_SVRG_ROUND,
            {"point": jnp.stack([at, 2 * at]), **NUMBERS},
            weights=both,
            begin=True,
            steps=2,
            reply="point",
        ),
        "gradient": WeightedSum(GRADIENT, {"theta": at}, weights=jnp.array(weights), begin=True),
        "product": WeightedSum(HESSIAN_PRODUCT, {"vector": at}, weights=jnp.array(weights)),
        "slope": PerNode(SLOPE, {"vector": at}),
    }


def renormalized(weights, left):
    kept = np.where(left, weights, 0.0)
    return kept * np.sum(weights) / kept.sum()


KEY = jax.random.key(3)


def assert_same(found, expected, nodes=slice(None)):
    for name, replies in expected.replies.items():
        for part, array in replies.items():
            mine, theirs = np.asarray(found.replies[name][part]), np.asarray(array)
            if name == "slope":
                mine, theirs = mine[nodes], theirs[nodes]
            np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-6, err_msg=name)


def test_an_exchange_replies_what_a_plain_one_replies_and_costs_one_synchronization():
    secure, plain = made()
    found, expected = (each.exchange(key=KEY, **requests()) for each in (secure, plain))
    assert_same(found, expected)
    assert found.cost.synchronizations == 1
    assert found.cost.node_points == expected.cost.node_points
    assert secure.end_step() == ()


@given(st.sets(st.integers(0, 4), max_size=2), st.integers(0, 1))
@settings(max_examples=12, deadline=None)
def test_whoever_is_missing_costs_one_repeated_exchange_and_no_computation(missing, late):
    """The sums are those of the others; they compute once."""
    secure, plain = made(
        lambda node, call: NOTHING if node in missing and call == 1 + late else None
    )
    expected_weights = renormalized(WEIGHTS, [node not in missing for node in range(5)])
    reverse = renormalized(WEIGHTS[::-1], [node not in missing for node in range(5)])
    for call in range(2):
        key = jax.random.fold_in(KEY, call)
        found = secure.exchange(key=key, **requests())
        expected = requests(tuple(expected_weights)) if missing and call == late else requests()
        if missing and call == late:
            both = jnp.asarray([expected_weights, reverse], jnp.float32)
            expected["train"] = expected["train"].with_weights(both)
        whole = plain.exchange(key=key, **expected)
        left = sorted(set(range(5)) - missing) if call == late else list(range(5))
        assert_same(found, whole, left)
        again = bool(missing) and call == late
        assert found.cost.synchronizations == 1 + again
        points = np.array(plain.exchange(key=key, **requests()).cost.node_points)
        arrived = np.array(found.cost.node_points)
        np.testing.assert_array_equal(arrived[left], points[left])


def test_a_node_of_three_that_fails_once_is_waited_for_and_nothing_is_given_away():
    nodes, validation = regression_nodes(SIZES[:3])
    world = problem(Ridge(l2=0.1), nodes, validation)
    secure = AttendedSimulation(
        world.federation,
        lambda node, call: NOTHING if (node, call) == (1, 1) else None,
        secure=True,
    )
    at = jnp.linspace(-1.0, 1.0, 5)
    request = WeightedSum(GRADIENT, {"theta": at}, weights=jnp.ones(3) / 3, begin=True)
    found = secure.exchange(key=KEY, gradient=request)
    expected = world.federation.exchange(key=KEY, gradient=request)
    assert_same(found, expected)
    assert secure.asked == [[0, 1, 2], [0, 1, 2]]


def test_without_three_nodes_a_run_ends_with_what_to_do():
    secure, _ = made(lambda node, call: NOTHING if node < 3 else None)
    with pytest.raises((TooFewNodesError, LostSumError), match="--resume"):
        secure.exchange(key=KEY, **requests())
    weights = jnp.array([0.5, 0.5, 0.0, 0.0, 0.0])
    request = WeightedSum(HESSIAN_PRODUCT, {"vector": jnp.ones(5)}, weights=weights)
    gradient = requests()["gradient"]
    with pytest.raises(InputError, match=r"node 1, node 2 .*smaller cap .*--plain-sums"):
        made()[0].exchange(key=KEY, gradient=gradient, product=request)


def test_single_vectors_are_refused_in_one_sentence():
    request = Revealed(GRADIENT, {"theta": jnp.ones(5)}, begin=True)
    with pytest.raises(
        InputError, match="needs the vectors of single nodes, which secure sums hide"
    ):
        made()[0].exchange(key=KEY, gradient=request)


GARBAGE = {
    "words cut off": (lambda own: own | {WORDS: own[WORDS][:, 1:]}, "shape"),
    "floats": (lambda own: own | {WORDS: own[WORDS].astype(np.float32)}, "float32"),
    "no words": (lambda own: {k: v for k, v in own.items() if k != WORDS}, "words"),
    "plain": (lambda own: {"gradient": np.ones((1, 5), np.float32)}, "words"),
    "norm too large": (
        lambda own: {k: v if k == WORDS else v * 0 + np.float32(1e30) for k, v in own.items()},
        "norm",
    ),
    "norm nan": (
        lambda own: {k: v if k == WORDS else v * np.float32(np.nan) for k, v in own.items()},
        "not finite",
    ),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_is_left_out_like_silence(kind):
    change, reason = GARBAGE[kind]
    secure, plain = made(lambda node, call: change if (node, call) == (2, 1) else None)
    request = requests()["gradient"]
    found = secure.exchange(key=KEY, gradient=request)
    left = renormalized(WEIGHTS, [True, True, False, True, True])
    expected = plain.exchange(key=KEY, gradient=request.with_weights(jnp.asarray(left)))
    assert_same(found, expected)
    (note,) = secure.end_step()
    assert "node 3 was left out" in note
    assert reason in note


def test_a_node_that_moves_a_model_much_farther_than_the_others_is_left_out():
    def far(assignment, replies):
        return dict(replies) | {"point": replies["point"] + 1e3}

    secure, _ = made(lies={2: far})
    found = secure.exchange(key=KEY, train=requests()["train"])
    assert np.abs(found.train["point"]).max() < 10
    assert any("as far as the node in the middle" in note for note in secure.end_step())


def test_a_method_that_diverges_at_all_nodes_sees_it():
    at = jnp.full(5, 1e30)
    secure, _ = made()
    request = WeightedSum(
        INNER_SVRG_ROUND,
        {"point": at, **NUMBERS, "learning_rate": 1e3},
        weights=jnp.array(WEIGHTS),
        begin=True,
        steps=50,
        reply="point",
    )
    assert np.isnan(secure.exchange(key=KEY, train=request).train["point"]).all()
    weights = jnp.array([np.nan, 0.5, 0.5, 0.0, 0.0])
    with pytest.raises(DivergedError, match="weights are not finite"):
        secure.exchange(key=KEY, gradient=requests()["gradient"].with_weights(weights))


def test_several_owners_have_sums_of_their_own():
    secure, plain = made()
    owners = [[0, 1, 2, 3], [1, 2, 3, 4]]
    at = jnp.linspace(-1.0, 1.0, 5)

    def asks(engine):
        return [
            Ask(
                engine.add_owner(nodes),
                KEY,
                {
                    "g": WeightedSum(
                        GRADIENT, {"theta": at * n}, weights=jnp.ones(4) / 4, begin=True
                    )
                },
            )
            for n, nodes in enumerate(owners, 1)
        ]

    found, expected = (each.exchange_all(asks(each)).replies for each in (secure, plain))
    for mine, theirs in zip(found, expected, strict=True):
        assert_same(mine, theirs)


def scrambled(own):
    """Words of the right form that are not masked as they should be."""
    random = np.random.default_rng(0)
    return own | {WORDS: random.integers(0, 2**64, own[WORDS].shape, np.uint64)}


def test_wrong_words_are_noticed_and_once_cost_one_exchange():
    secure, plain = made(lambda node, call: scrambled if (node, call) == (2, 1) else None)
    request = requests()["gradient"]
    found = secure.exchange(key=KEY, gradient=request)
    assert_same(found, plain.exchange(key=KEY, gradient=request))
    assert found.cost.synchronizations == 2


def test_wrong_words_that_stay_wrong_end_the_run_and_do_not_poison_it():
    secure, _ = made(lambda node, call: scrambled if node == 2 else None)
    with pytest.raises(LostSumError, match="do not add up"):
        secure.exchange(key=KEY, gradient=requests()["gradient"])


def test_a_node_whose_norms_grow_with_each_repetition_does_not_end_the_run():
    def longer(call):
        def change(own):
            return {
                k: v if k == WORDS else v * 0 + np.float32(2.0 ** (14 * call - 80))
                for k, v in own.items()
            }

        return change

    secure, plain = made(lambda node, call: longer(call) if node == 2 and call > 1 else None)
    small = {"vector": jnp.full(5, 1e-20)}
    begin = requests()["gradient"]
    for engine in (secure, plain):
        engine.exchange(key=KEY, gradient=begin)
    request = WeightedSum(HESSIAN_PRODUCT, small, weights=jnp.array(WEIGHTS))
    secure.book.norms[secure._only.trail.number, "product"] = {"product": 1e-20}
    found = secure.exchange(key=KEY, product=request)
    left = renormalized(WEIGHTS, [True, True, False, True, True])
    expected = plain.exchange(key=KEY, product=request.with_weights(jnp.asarray(left)))
    np.testing.assert_allclose(found.product["product"], expected.product["product"], rtol=1e-4)


def test_a_node_that_fails_again_and_again_is_dropped_before_the_others_refuse():
    """It never fails three times in a row: every other message is answered."""
    turns = itertools.cycle([NOTHING, None])
    secure, _ = made(lambda node, call: next(turns) if node == 2 else None)
    costs, request = [], requests()["gradient"]
    for step in range(30):
        secure.begin_step(step)
        costs.append(secure.exchange(key=KEY, gradient=request).cost.synchronizations)
    assert sum(costs) == 30 + MOST_SPOILED
    assert secure.present.tolist() == [True, True, False, True, True]
    assert any("dropped for good" in note for note in secure.end_step())
