"""`WeightSearch`: from noisy slopes to weights."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedkin.methods.bilevel.weight_search import (
    FIRST_MOVE,
    LONGEST_MOVE,
    SHORTEST_LATE_MOVE,
    SHORTEST_MOVE,
    WeightSearch,
    shifted_weight,
)

CAP = 1 / 3
KIN = np.arange(15) < 5
ALL = np.ones(15, bool)


def begin(nodes=15):
    return WeightSearch.begin(jnp.full(nodes, 1 / nodes))


def move(search, slopes, *, errors=0.0, cap=CAP, present=None, improving=False):
    present = np.ones(len(slopes), bool) if present is None else present
    slopes = jnp.asarray(slopes)
    errors = jnp.broadcast_to(errors, slopes.shape)
    return search.move(slopes, errors, cap=cap, present=present, improving=improving)


def weights_of(search):
    return np.asarray(search.node_weights, np.float64)


def settle(slopes, moves=20, **options):
    """Follow the same slopes until the weights have arrived."""
    search = begin(len(slopes))
    for _ in range(moves):
        search = move(search, slopes, **options)
    assert search.arrived
    return search


@pytest.mark.parametrize("seed", range(5))
def test_kin_are_found_from_noisy_slopes_whose_sign_persists(seed):
    """At first the noise is twice as large as the difference between the groups."""
    rng, search = np.random.default_rng(seed), begin()
    for number in range(60):
        error = 4 / (1 + number / 2)
        search = move(search, np.where(KIN, -1.0, 1.0) + error * rng.normal(size=15), errors=error)
    assert weights_of(search)[KIN].sum() >= 0.95
    assert (weights_of(search)[~KIN] == 0).sum() >= 8


def test_without_noise_the_weights_arrive_in_a_few_moves_and_stay():
    search, share = begin(), []
    for _ in range(30):
        search = move(search, np.where(KIN, -1.0, 1.0))
        share.append(weights_of(search)[KIN].sum())
    assert min(share[7:]) == pytest.approx(1)
    assert search.arrived
    np.testing.assert_allclose(weights_of(search)[KIN], 0.2, atol=1e-6)


slope_numbers = st.floats(-1e6, 1e6) | st.just(float("nan"))


@settings(deadline=None, max_examples=50)  # the first example compiles
@example(
    rows=[
        [0.0, np.nan, np.nan, np.nan, 0.0, np.nan],
        [1.0, np.nan, np.nan, np.nan, np.nan, 0.0],
        [np.nan, np.nan, 0.0, np.nan, 1.0, np.nan],
    ],
    cap=0.24609375,
    absent=set(),
    improving=False,
)
@given(
    st.lists(st.lists(slope_numbers, min_size=6, max_size=6), min_size=1, max_size=8),
    st.floats(1 / 6, 1),
    st.sets(st.integers(0, 5), max_size=4),
    st.booleans(),
)
def test_weights_stay_in_the_capped_simplex(rows, cap, absent, improving):
    present = ~np.isin(np.arange(6), list(absent))
    search = begin(6).among(present, cap)
    largest = max(cap, 1 / np.count_nonzero(present))
    for slopes in rows:
        before, bound = search.node_weights, search.radius
        search = move(search, slopes, cap=cap, present=present, improving=improving)
        weights = weights_of(search)
        assert weights.sum() == pytest.approx(1, abs=1e-5)
        assert weights.min() >= 0
        assert weights.max() <= largest + 1e-5
        assert not weights[~present].any()
        # What is below a tenth of an equal share is given away, beyond the bound on the move.
        assert shifted_weight(before, search.node_weights) <= bound + 0.1 + 1e-5
        crumbs = (weights > 0) & (weights < 0.1 / 6 - 1e-6)
        # They stay where nobody may take them: all others are at the cap.
        assert not crumbs.any() or (weights[(weights > 0) & ~crumbs] >= largest - 1e-5).all()
        assert SHORTEST_LATE_MOVE <= search.radius <= LONGEST_MOVE


def test_crumbs_become_exact_zeros():
    # Just above a tenth of an equal share, and moved a little below it.
    crumb = 0.1 / 6 + 0.002
    start = jnp.array([crumb, 0.3, 0.3, 0.2, 0.1, 0.1 - crumb])
    search = move(WeightSearch.begin(start), [1.0, 0, 0, 0, 0, 0], cap=1.0)
    assert weights_of(search)[0] == 0
    assert weights_of(search).sum() == pytest.approx(1)
    assert (weights_of(search)[1:] > 0).all()


@pytest.mark.parametrize("radius", [SHORTEST_MOVE, SHORTEST_LATE_MOVE])
def test_a_node_without_weight_returns_only_after_several_favorable_slopes(radius):
    """Also where the bound on a move is far below what a node needs to keep its weight."""
    against = np.where(KIN, -1.0, 1.0)
    search = settle(against)._replace(radius=radius)
    assert weights_of(search)[7] == 0
    favorable = against.copy()
    favorable[7] = -3.0
    once = move(search, favorable)
    assert weights_of(once)[7] == 0
    assert weights_of(move(once, against))[7] == 0
    several = once
    for _ in range(5):
        several = move(several, favorable)
    assert weights_of(several)[7] > 0.1 / 15
    uncertain = search
    for _ in range(20):
        uncertain = move(uncertain, favorable, errors=2.0)
    assert weights_of(uncertain)[7] == 0


def test_slopes_within_their_errors_move_nothing():
    """In the mean over draws, slopes of pure noise take the weights nowhere far from where they were."""
    rng, search = np.random.default_rng(0), settle(np.where(KIN, -1.0, 1.0))
    for _ in range(100):
        search = move(search, rng.normal(size=15), errors=1.0, improving=True)
        assert weights_of(search)[KIN].sum() >= 0.93


def test_without_certain_slopes_the_weights_arrive_late():
    """An untrained model may not tell the nodes apart."""
    search = begin()
    for number in range(1, 11):
        search = move(search, np.where(KIN, -1.0, 1.0), errors=3.0)
        assert search.arrived == (number == 10)
    np.testing.assert_array_equal(weights_of(search), weights_of(begin()))
    assert search.radius == FIRST_MOVE


def test_nodes_of_unknown_slope_count_as_nodes_of_mean_slope():
    slopes = np.where(KIN, -1.0, 1.0)
    unknown = np.arange(15) == 6
    start = begin()
    moved = move(start, np.where(unknown, np.nan, slopes))
    # All others give or take; this one is moved by projection alone, like a node of mean slope.
    mean = np.average(slopes[~unknown])
    neutral = move(start, np.where(unknown, mean, slopes))
    np.testing.assert_allclose(weights_of(moved), weights_of(neutral), atol=1e-6)
    assert (np.asarray(moved.trust) > 0).tolist() == (~unknown).tolist()
    # A slope whose error is unknown says as little.
    unsure = move(start, slopes, errors=jnp.where(unknown, jnp.nan, 0.0))
    np.testing.assert_array_equal(weights_of(unsure), weights_of(moved))
    nothing = move(start, np.full(15, np.nan))
    assert nothing is start
    # Where only nodes without weight are known, there is nothing to compare them with.
    arrived = settle(slopes)
    assert move(arrived, np.where(KIN, np.nan, -1.0)) is arrived


def test_equal_slopes_move_nothing():
    start = begin()
    np.testing.assert_array_equal(weights_of(move(start, np.full(15, 3.0))), weights_of(start))


def test_a_node_that_leaves_has_no_weight_and_may_come_back():
    search = settle(np.where(KIN, -1.0, 1.0))
    present = np.arange(15) != 0
    without = search.among(present, CAP)
    assert weights_of(without)[0] == 0
    assert weights_of(without).sum() == pytest.approx(1)
    assert weights_of(without)[1:5].min() > 0.2
    assert without.arrived
    assert without.among(present, CAP) is without  # nothing has changed
    returned = without.among(ALL, CAP)
    assert weights_of(returned)[0] == 0
    wanted = np.where(KIN, -1.0, 1.0) - 2.0 * (np.arange(15) == 0)
    for _ in range(5):
        returned = move(returned._replace(radius=SHORTEST_MOVE), wanted)
    assert weights_of(returned)[0] > 0.01


def test_when_all_nodes_with_weight_leave_the_others_begin_equally():
    search = settle(np.where(KIN, -1.0, 1.0))
    left = search.among(~KIN, CAP)
    np.testing.assert_allclose(weights_of(left), np.where(KIN, 0, 0.1), atol=1e-6)


def test_the_bound_on_a_move_grows_while_moves_agree():
    search = begin()._replace(radius=0.1)
    for improving, factor in ((False, 1.0), (False, 1.3), (True, 1.7)):
        # The first move has no former direction to agree with.
        bound = search.radius
        search = move(search, np.where(KIN, -1.0, 1.0), improving=improving)
        assert search.radius == pytest.approx(factor * bound)
    assert shifted_weight(begin().node_weights, search.node_weights) > 0.3


def test_the_bound_on_a_move_shrinks_before_a_move_that_turns_back():
    search = begin()
    for _ in range(2):
        search = move(search, np.where(KIN, -1.0, 1.0))
    turned = move(search, np.where(KIN, 40.0, -40.0))
    assert turned.radius == pytest.approx(search.radius / 2)
    shift = shifted_weight(search.node_weights, turned.node_weights)
    assert shift == pytest.approx(search.radius / 2, abs=1e-5)


def test_after_arrival_the_bound_may_grow_again():
    search = settle(np.where(KIN, -1.0, 1.0))
    search = search._replace(radius=0.01, direction=jnp.zeros(15))
    toward = np.where(KIN, -1.0, 1.0) - 20.0 * (np.arange(15) == 1)
    once = move(search, toward)
    assert shifted_weight(search.node_weights, once.node_weights) == pytest.approx(0.01, abs=1e-4)
    assert move(once, toward).radius == pytest.approx(1.3 * once.radius)
    assert move(once, toward, improving=True).radius == pytest.approx(1.7 * once.radius)


def test_restarted_forgets_slopes_and_keeps_bounds():
    search = settle(np.where(KIN, -1.0, 1.0))._replace(radius=0.1)
    other = jnp.full(15, 1 / 15)
    again = search.restarted(other, 0.3)
    np.testing.assert_array_equal(again.node_weights, other)
    assert not np.asarray(again.favorable).any()
    assert not np.asarray(again.trends).any()
    assert not np.asarray(again.trust).any()
    assert again.arrived
    assert (again.radius, again.scale) == (pytest.approx(0.03), search.scale)
    assert search.restarted(other).radius == search.radius
