"""The bounds by hand: with ν = 2, δ = e^−2 (so log 1/δ = 2), and sizes that make the roots come out."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkin.errors import InputError
from fedkin.theory import bounds
from fedkin.theory.bounds import Situation

BY_HAND = Situation(
    valid=64,
    train=480,
    nodes=6,
    similar=2,
    cap=0.5,
    distance=3.0,
    covering=2.0,
    failure=math.exp(-2),
    lipschitz=6.0,
    strong_convexity=9.0,
    error_bound_power=2.0,
)
# (ν + log 1/δ)/n_valid = 4/64 = 1/16.  Kb²(ν + K + log 1/δ)/n_train = 6·¼·10/480 = 1/32.
# ℓ_0/√μ = 2.


def test_theorem_1_by_hand():
    assert bounds.theorem_1(BY_HAND) == pytest.approx(1 / 4 + 2 * 32**-0.25)
    assert bounds.theorem_1(BY_HAND, constant=3) == pytest.approx(3 * bounds.theorem_1(BY_HAND))


def test_theorem_2_by_hand():
    error = (1 / 16) ** 0.25 + math.sqrt(2) * 32**-0.125
    assert bounds.weight_distance(BY_HAND) == pytest.approx(error)
    points = 480 / (0.25 * 2 + 4 * error**2)
    assert bounds.effective_points(BY_HAND, error) == pytest.approx(points)
    terms = bounds.theorem_2(BY_HAND)
    assert terms.sampling == pytest.approx(math.sqrt(6 / points))
    assert terms.choice == pytest.approx(error * 4 / (0.5 * math.sqrt(points)))
    assert terms.dissimilarity == pytest.approx(6 * error)
    assert terms.total == pytest.approx(sum(terms))
    scaled = bounds.theorem_2(BY_HAND, constant=2, weight_constant=0.5)
    assert scaled.dissimilarity == pytest.approx(terms.dissimilarity / 2)
    smaller = 480 / (0.5 + 4 * (error / 2) ** 2)
    assert scaled.sampling == pytest.approx(2 * math.sqrt(6 / smaller))


def test_corollaries_by_hand():
    assert bounds.corollary_1(BY_HAND) == pytest.approx(480**-0.5 + 3 * (64**-0.25 + 480**-0.125))
    # Jb²(ν + J + log 1/δ)/n_train = 2·¼·6/480 = 1/160.
    assert bounds.corollary_2(BY_HAND) == pytest.approx(160**-0.5 + 3 * (16**-0.25 + 32**-0.125))
    assert not bounds.corollaries_apply(BY_HAND)
    assert bounds.corollaries_apply(BY_HAND.replace(valid=1e9, train=1e16, lipschitz=1.0))


def test_propositions_by_hand():
    assert bounds.local_training(BY_HAND) == pytest.approx(2 / 4)
    assert bounds.equal_weights(BY_HAND) == pytest.approx(
        2 * math.sqrt(10 / (6 * 480)) + 2 * math.sqrt(4) / 6 * 3
    )


def test_limits():
    # Infinitely much data: nothing is left of any bound but equal weights' bias.
    endless = BY_HAND.replace(valid=1e40, train=1e80)
    for bound in (bounds.theorem_1, bounds.corollary_1, bounds.corollary_2):
        assert bound(endless) < 1e-8
    assert bounds.theorem_2(endless).total < 1e-7
    assert bounds.local_training(endless) < 1e-15
    assert bounds.equal_weights(endless) == pytest.approx(2 * math.sqrt(4) / 6 * 3)
    # Only similar nodes and equal weights: the two bounds have the same sampling term, up to the 2.
    alike = BY_HAND.replace(similar=6, cap=1 / 6, distance=0.0)
    assert bounds.equal_weights(alike) == pytest.approx(2 * bounds.theorem_2(alike).sampling)
    # A perfect ε leaves the sampling of b²J nodes.
    assert bounds.effective_points(BY_HAND, 0.0) == pytest.approx(480 / 0.5)
    # r = 1: ε is Theorem 1's bound.
    assert bounds.weight_distance(BY_HAND.replace(error_bound_power=1.0)) == pytest.approx(
        bounds.theorem_1(BY_HAND)
    )


SITUATIONS = st.builds(
    lambda valid, train, others, similar, cap, distance, covering, power: Situation(
        valid=valid,
        train=train,
        nodes=similar + others,
        similar=similar,
        cap=1 / similar + cap * (1 - 1 / similar),
        distance=distance,
        covering=covering,
        error_bound_power=power,
    ),
    st.floats(1, 1e6),
    st.floats(1, 1e6),
    st.integers(1, 40),
    st.integers(1, 10),
    st.floats(0, 1),
    st.floats(0, 10),
    st.floats(0.1, 100),
    st.floats(1, 6),
)


@given(SITUATIONS)
@settings(deadline=None)
def test_more_data_never_hurt_and_distance_never_helps(situation):
    every = [
        bounds.theorem_1,
        lambda s: bounds.theorem_2(s).total,
        bounds.corollary_1,
        bounds.corollary_2,
        bounds.local_training,
        bounds.equal_weights,
        bounds.weight_distance,
    ]
    for bound in every:
        here = bound(situation)
        assert here > 0
        assert bound(situation.replace(valid=2 * situation.valid)) <= here * (1 + 1e-12)
        assert bound(situation.replace(train=2 * situation.train)) <= here * (1 + 1e-12)
        assert bound(situation.replace(distance=situation.distance + 1)) >= here * (1 - 1e-12)
        assert bound(situation.replace(failure=0.01)) >= here * (1 - 1e-12)
        assert bound(situation.replace(covering=situation.covering + 1)) >= here * (1 - 1e-12)


@given(SITUATIONS, st.floats(1e-3, 1))
@settings(deadline=None)
def test_the_first_two_terms_of_theorem_2_merge_as_corollary_2_says(situation, share):
    # Where ε ≤ b√J/(K − J): N_ε ≥ n/(2b²J), and both terms are at most √2 times Corollary 2's first. C_w is
    # chosen such that ε is that limit, or a share of it: no situation is left out.
    others = situation.nodes - situation.similar
    limit = situation.cap * math.sqrt(situation.similar) / others
    weight_constant = share * limit / bounds.weight_distance(situation) * (1 - 1e-12)
    assert bounds.corollaries_apply(situation, weight_constant=weight_constant)
    assert not bounds.corollaries_apply(situation, weight_constant=1.01 * weight_constant / share)
    terms = bounds.theorem_2(situation, weight_constant=weight_constant)
    first = bounds.corollary_2(situation.replace(distance=0.0))
    assert terms.sampling <= math.sqrt(2) * first * (1 + 1e-9)
    assert terms.choice <= math.sqrt(2) * first * (1 + 1e-9)
    # And they are no other terms: at a vanishing ε the first is Corollary 2's, and the second none.
    perfect = bounds.theorem_2(situation, weight_constant=1e-30)
    assert perfect.sampling == pytest.approx(first)
    assert perfect.choice <= 1e-20 * first


HUGE = 1e300


@given(SITUATIONS)
@settings(deadline=None)
def test_every_term_alone(situation):
    """One quantity made huge leaves one term of a bound, whose power of everything else can be read off."""
    r = situation.error_bound_power
    log = math.log(1 / situation.failure)
    nu, k, j, b = situation.covering, situation.nodes, situation.similar, situation.cap
    validation = (nu + log) / situation.valid
    training = k * b**2 * (nu + k + log) / situation.train
    # A distance of 10³⁰⁰: what multiplies G.
    far = situation.replace(distance=HUGE)
    error = validation ** (0.5 / r) + training ** (0.25 / r)
    assert bounds.theorem_2(far).total / HUGE == pytest.approx(2 * error)
    assert bounds.corollary_2(far) / HUGE == pytest.approx(error)
    assert bounds.corollary_1(far) / HUGE == pytest.approx(
        situation.valid ** (-0.5 / r) + situation.train ** (-0.25 / r)
    )
    assert bounds.equal_weights(far) / HUGE == pytest.approx(2 * math.sqrt(k - j) / k)
    # A Lipschitz constant of 10³⁰⁰: the training term. No training error: the validation term.
    steep = situation.replace(lipschitz=HUGE)
    assert bounds.theorem_1(steep) / HUGE == pytest.approx(training**0.25)
    assert bounds.weight_distance(steep) / HUGE ** (1 / r) == pytest.approx(training ** (0.25 / r))
    flat = situation.replace(lipschitz=0.0)
    assert bounds.theorem_1(flat) == pytest.approx(math.sqrt(validation))
    assert bounds.weight_distance(flat) == pytest.approx(validation ** (0.5 / r))


@given(SITUATIONS, st.floats(0.01, 0.99))
@settings(deadline=None)
def test_border_with_local_training_is_where_the_rates_cross(situation, below):
    border = bounds.border_with_local_training(situation)
    rate = situation.valid**-0.5
    assert (border > 0) == (situation.train > situation.valid)
    if border > 0:
        assert bounds.corollary_1(situation.replace(distance=border)) == pytest.approx(rate)
        assert bounds.corollary_1(situation.replace(distance=below * border)) < rate
    # With endless training data, the paper's condition G = n_valid^−(1/2 − 1/2r).
    power = situation.error_bound_power
    endless = bounds.border_with_local_training(situation.replace(train=1e300))
    assert endless == pytest.approx(situation.valid ** -(0.5 - 0.5 / power), rel=1e-6)


def test_the_border_falls_with_validation_data_and_rises_with_training_data():
    sizes = np.array([10.0, 30, 100, 300, 1000])
    falling = bounds.border_with_local_training(Situation(valid=sizes, train=10_000, nodes=8))
    assert (np.diff(falling) < 0).all()
    rising = bounds.border_with_local_training(Situation(valid=10, train=100 * sizes, nodes=8))
    assert (np.diff(rising) > 0).all()


def test_equal_weights_have_the_better_bound_for_a_small_distance():
    # The paper calls their bound "strictly worse for any value of G": only in its order of growth.
    situation = Situation(valid=1e9, train=1e12, nodes=10, similar=2, cap=0.5)
    border = bounds.border_with_equal_weights(situation)
    assert 0 < border < math.inf
    sampling = 2 * bounds.corollary_2(situation.replace(distance=0.0))
    for distance, bilevel_is_better in ((border / 2, False), (2 * border, True)):
        bilevel = sampling + 2 * bounds.weight_distance(situation) * distance
        equal = bounds.equal_weights(situation.replace(distance=distance))
        assert (bilevel < equal) == bilevel_is_better
    # With little data Bi-level's slope in G is the larger, and no G is large enough.
    assert bounds.border_with_equal_weights(situation.replace(valid=10, train=100)) == math.inf


@given(SITUATIONS)
@settings(deadline=None)
def test_equal_weights_never_have_the_larger_sampling_term(situation):
    near = situation.replace(distance=0.0)
    assert bounds.equal_weights(near) <= 2 * bounds.corollary_2(near) * (1 + 1e-9)


def test_a_cap_that_similar_nodes_cannot_fill_is_refused_where_it_matters():
    """bJ < 1: W* is empty, and all that rests on Assumption 2' says nothing."""
    narrow = BY_HAND.replace(cap=0.25)
    for bound in (
        bounds.theorem_2,
        bounds.weight_distance,
        bounds.corollary_1,
        bounds.corollary_2,
        bounds.corollaries_apply,
        bounds.border_with_local_training,
        bounds.border_with_equal_weights,
        lambda situation: bounds.effective_points(situation, 0.1),
    ):
        with pytest.raises(InputError, match="bJ"):
            bound(narrow)
        with pytest.raises(InputError, match="bJ"):  # one of several is enough
            bound(BY_HAND.replace(cap=np.array([0.25, 0.5])))
    # The others do not ask for similar nodes. 1/J itself is allowed, whatever its last digit.
    for bound in (bounds.theorem_1, bounds.local_training, bounds.equal_weights):
        assert bound(narrow) > 0
    assert bounds.corollary_2(BY_HAND.replace(similar=3, cap=1 / 3)) > 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"valid": 0}, "n_valid"),
        ({"train": -1}, "n_train"),
        ({"similar": 7}, "cannot exceed"),
        ({"similar": 0}, "at least 1"),
        ({"cap": 0.1}, "1/K"),
        ({"failure": 1.0}, "δ"),
        ({"distance": -1.0}, "G"),
        ({"error_bound_power": 0.5}, "r"),
        ({"cap": math.nan}, "1/K"),
        ({"cap": 1.1}, "1/K"),
        ({"covering": -1.0}, "ν_H"),
        ({"lipschitz": math.nan}, "ℓ_0"),
        ({"strong_convexity": 0.0}, "μ"),
    ],
)
def test_impossible_situations_are_refused(wrong, message):
    with pytest.raises(InputError, match=message):
        BY_HAND.replace(**wrong)
