"""Dishonest nodes: with the factor 1 nothing changes; with others their part of every sum does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from federations import classification_nodes, problem
from fedkin.federation.bad_updates import BadUpdates
from fedkin.federation.base import PerNode, Revealed, RevealedEach, WeightedSum
from fedkin.methods.bilevel.node import GRADIENT, SLOPE
from fedkin.methods.descent.node import DESCENT_ROUND
from fedkin.methods.local_svrg.node import INNER_SVRG_ROUND
from fedkin.models.linear import Logistic

pytestmark = pytest.mark.usefixtures("float64")

BAD = ("node 2", "node 4")
CHOSEN = np.array([False, True, False, True])
WEIGHTS = jnp.array([0.4, 0.3, 0.0, 0.3])
STEPS = {"steps": 3}


def federation():
    nodes, validation = classification_nodes((30, 17, 24, 20))
    return problem(Logistic(classes=3, l2=0.1), nodes, validation).federation


def point(size, seed=0, rows=None):
    shape = (size,) if rows is None else (rows, size)
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def descent(at):
    return {"point": at, "learning_rate": 0.3, "proximal": 0.0}


def svrg(at):
    numbers = {"learning_rate": 0.3, "refresh_probability": 0.1, "averaging_rate": 0.1}
    return {"point": at, **numbers}


def asked(size):
    """Requests of every kind, with one model and with two."""
    at, two, each = point(size), point(size, 1, rows=2), point(size, 2, rows=4)
    both = jnp.stack([WEIGHTS, WEIGHTS[::-1]])
    return {
        "sum": lambda: WeightedSum(DESCENT_ROUND, descent(at), weights=WEIGHTS, **STEPS),
        "sums": lambda: WeightedSum(DESCENT_ROUND, descent(two), weights=both, **STEPS),
        "shown": lambda: Revealed(DESCENT_ROUND, descent(at), **STEPS),
        "each": lambda: RevealedEach(DESCENT_ROUND, descent(each), **STEPS),
        "gradient": lambda: WeightedSum(GRADIENT, {"theta": at}, weights=WEIGHTS, begin=True),
    }


def same(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("ask_all", [False, True])
@pytest.mark.parametrize("name", ["sum", "sums", "shown", "each", "gradient"])
def test_the_factor_one_changes_neither_numbers_nor_costs(name, ask_all):
    honest, wrapped = federation(), BadUpdates(federation(), BAD, 1.0)
    honest.ask_all = wrapped.ask_all = ask_all
    key = jax.random.key(3)
    one, other = (
        each.exchange(key=key, it=asked(each.objective.size)[name]()) for each in (honest, wrapped)
    )
    assert one.it.keys() == other.it.keys()
    for part in one.it:
        assert one.it[part].shape == other.it[part].shape
        same(other.it[part], one.it[part])
    assert one.cost == other.cost


def test_series_begin_and_continue_as_without_it():
    results = []
    for each in (federation(), BadUpdates(federation(), BAD, 1.0)):
        at = point(each.objective.size)
        for number in range(2):
            request = WeightedSum(
                INNER_SVRG_ROUND,
                svrg(at),
                weights=WEIGHTS,
                begin=number == 0,
                reply="point",
                **STEPS,
            )
            at = each.exchange(key=jax.random.key(number), train=request).train["point"]
        results.append(at)
    same(*results)


def test_bad_nodes_exaggerate_what_they_have_done():
    inner = federation()
    size, key = inner.objective.size, jax.random.key(3)
    at, each = point(size), point(size, 2, rows=4)
    make, wrapped = asked(size), BadUpdates(inner, BAD, -4.0)

    def ask(engine, name):
        return engine.exchange(key=key, it=make[name]()).it

    honest = np.asarray(ask(inner, "shown")["point"])
    expected = np.where(CHOSEN[:, None], at - 4 * (honest - at), honest)
    assert np.abs(expected - honest)[1].max() > 0.1
    found = ask(wrapped, "shown")
    same(found["point"], expected)
    same(found["loss"], ask(inner, "shown")["loss"])
    same(ask(wrapped, "sum")["point"], np.asarray(WEIGHTS) @ expected)
    rows = np.asarray(ask(inner, "each")["point"])
    same(
        ask(wrapped, "each")["point"],
        np.where(CHOSEN[:, None], each - 4 * (rows - each), rows),
    )
    gradients = np.asarray(
        inner.exchange(key=key, it=Revealed(GRADIENT, {"theta": at}, begin=True)).it["gradient"]
    )
    lies = np.where(CHOSEN, -4.0, 1.0) * np.asarray(WEIGHTS)
    same(ask(wrapped, "gradient")["gradient"], lies @ gradients)


def test_numbers_stay_true():
    inner = federation()
    at = point(inner.objective.size)
    slopes = [
        each.exchange(
            key=jax.random.key(1), it=PerNode(SLOPE, {"vector": at, "theta": at}, begin=True)
        ).it["slope"]
        for each in (inner, BadUpdates(federation(), BAD, -4.0))
    ]
    same(*slopes)
