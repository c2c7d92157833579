"""How items are divided into shares and teams."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkin.federation.shares import TEAM, Division
from fedkin.federation.slot_contents import SlotContents


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), min_size=1, max_size=150),
    st.sampled_from([1, 4, 15, 60, 200]),
    st.sampled_from([1, 8, 100]),
)
def test_every_item_is_in_a_share_and_teams_are_of_one_owner_and_node(pairs, count, at_once):
    owners, nodes = np.array(pairs).T
    places = np.arange(len(pairs))[::2]
    shares = Division(count, at_once).divide(places, owners, nodes)
    assert {len(share) for share in shares.places} == {len(shares.places[0])}
    every = np.concatenate(shares.places)
    np.testing.assert_array_equal(np.unique(every), places)
    teams = every.reshape(-1, shares.team)
    for values in (owners[teams], nodes[teams]):
        assert (values == values[:, :1]).all()
    if at_once == 1:
        assert shares.team == 1


def test_models_of_one_owner_form_teams_and_those_of_several_owners_do_not():
    nodes = np.tile(np.arange(5), TEAM)
    division = Division(5, 100)
    assert division.divide(np.arange(5 * TEAM), np.zeros(5 * TEAM, int), nodes).team == TEAM
    assert division.divide(np.arange(5 * TEAM), np.repeat(np.arange(TEAM), 5), nodes).team == 1


def test_what_is_shared_is_kept_until_nobody_holds_it():
    contents = SlotContents({"number": np.zeros(())})
    items = np.array([[0, 0], [1, 0], [2, 0], [0, 1]])
    contents.replace([items[[0, 3]]], [{"number": np.array([5.0, 7.0])}])
    contents.share(items[[0, 0, 0]], items[:3])
    assert contents.of(items)["number"].tolist() == [5, 5, 5, 7]
    contents.replace([items[[0, 3]]], [{"number": np.array([1.0, 2.0])}])
    assert contents.of(items)["number"].tolist() == [1, 5, 5, 2]
    contents.forget([0, 1])
    assert contents.of(items)["number"].tolist() == [0, 0, 5, 0]
    contents.forget([2])
    assert contents._chunks == {}


@pytest.mark.usefixtures("float64")
def test_directions_passed_together_give_and_cost_what_single_ones_do():
    import jax
    import jax.numpy as jnp

    from federations import classification_nodes, problem
    from fedkin.federation.base import WeightedSum
    from fedkin.methods.bilevel.node import GRADIENT, HESSIAN_PRODUCT
    from fedkin.models.linear import Logistic

    nodes, validation = classification_nodes((30, 17, 25))
    made = problem(Logistic(classes=3, l2=0.1), nodes, validation)
    federation, size = made.federation, made.objective.size
    rng = np.random.default_rng(0)
    theta, directions = jnp.asarray(rng.normal(size=size)), rng.normal(size=(11, size))
    weights = jnp.array([0.5, 0.2, 0.3])

    def ask(vectors):
        rows = weights if vectors.ndim == 1 else jnp.tile(weights, (len(vectors), 1))
        return federation.exchange(
            key=jax.random.key(0),
            product=WeightedSum(HESSIAN_PRODUCT, {"vector": jnp.asarray(vectors)}, weights=rows),
            gradient=WeightedSum(GRADIENT, {"theta": theta}, weights=weights, begin=True),
        )

    together = ask(directions)
    alone = [ask(direction) for direction in directions]
    expected = [reply.product["product"] for reply in alone]
    np.testing.assert_allclose(together.product["product"], expected, rtol=1e-10)
    np.testing.assert_allclose(together.gradient["gradient"], alone[0].gradient["gradient"])
    # Each model begins and multiplies: two passes, whoever has shared the first.
    assert together.cost.node_points == (11 * 60, 11 * 34, 11 * 50)
    assert alone[0].cost.node_points == (60, 34, 50)
