import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkin.errors import InputError
from fedkin.theory.constants import Constants
from fedkin.theory.schedules import (
    Schedule,
    capped_simplex_diameter,
    error_constants,
    farthest_from_equal,
    largest_learning_rate,
    local_svrg_bound,
    outer_smoothness,
)

BY_HAND = Constants(
    lipschitz=3.0, smoothness=4.0, hessian_lipschitz=5.0, strong_convexity=2.0, radius=1.0
)


def test_outer_smoothness_by_hand():
    # 2·3·4/2 + 5·9/4 = 23.25; K = 9: 9·23.25·3/2 + 9·4·9/4 = 313.875 + 81.
    assert outer_smoothness(BY_HAND, 9) == pytest.approx(394.875)


def test_the_printed_outer_smoothness_is_too_small():
    """`eq:LF` has √K in its first term: a counterexample.

    K = 36 nodes ½(θ ∓ 1)², a center ½(θ + 1)², weights near equal ones.

    θ(w) = Σ±w_k stays near 0, so ℓ_0 is hardly more than 1, ℓ_1 = μ = 1 and ℓ_2 = 0. The paper's
    constant is then (2√K + K) ℓ_0² = 48, but ∇F changes √2·K = 50.9 times as fast as w along ±1.
    """
    nodes = 36
    signs = np.where(np.arange(nodes) % 2, -1.0, 1.0)

    def gradient(weights):  # −∇L_k H⁻¹ ∇L_0, as in the paper's lemma, with H = 1
        theta = weights @ signs
        return -(theta - signs) * (theta + 1)

    reach = 1e-4
    equal = np.full(nodes, 1 / nodes)
    moved = equal + reach * signs / nodes
    assert moved.sum() == pytest.approx(1)
    change = np.linalg.norm(gradient(moved) - gradient(equal)) / np.linalg.norm(moved - equal)
    l0 = 1 + reach  # |θ − (±1)| and |θ + 1| on all of these weights
    constants = Constants(l0, 1.0, 0.0, 1.0, reach)
    printed = math.sqrt(nodes) * 2 * l0 * l0 + nodes * l0**2  # eq:LF with ℓ_1 = μ = 1, ℓ_2 = 0
    assert change > printed
    assert change <= outer_smoothness(constants, nodes)


@given(seed=st.integers(0, 10**6), nodes=st.integers(2, 5))
@settings(deadline=None, max_examples=30)
def test_outer_smoothness_bounds_random_federations(seed, nodes):
    """Quadratic nodes with different Hessians: ∇F by its formula, ℓ_0 on all θ(w) that are met."""
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(nodes + 1, 2, 2))
    hessians = roots @ np.swapaxes(roots, 1, 2) + 0.3 * np.eye(2)
    centers = rng.normal(size=(nodes + 1, 2))
    gradients_seen = []

    def gradient(weights):
        total = np.einsum("k,kij->ij", weights, hessians[1:])
        theta = np.linalg.solve(total, np.einsum("k,kij,kj->i", weights, hessians[1:], centers[1:]))
        slopes = np.einsum("kij,kj->ki", hessians, theta - centers)
        gradients_seen.extend(np.linalg.norm(slopes, axis=1))
        return -slopes[1:] @ np.linalg.solve(total, slopes[0])

    begin, end = rng.dirichlet(np.ones(nodes), size=2)
    path = [begin + share * (end - begin) for share in np.linspace(0, 1, 40)]
    values = [gradient(weights) for weights in path]
    step = np.linalg.norm(path[1] - path[0])
    fastest = max(np.linalg.norm(b - a) / step for a, b in itertools.pairwise(values))
    eigenvalues = np.linalg.eigvalsh(hessians)
    constants = Constants(max(gradients_seen), eigenvalues.max(), 0.0, eigenvalues[1:].min(), 1.0)
    assert fastest <= outer_smoothness(constants, nodes)


def test_largest_learning_rate_by_hand():
    def gamma(**options):
        return largest_learning_rate(2.0, 0.1, **options)

    # 3/(80·2) is the smallest of the three with q large and τ = 1.
    assert gamma(period=1, refresh_probability=0.5) == pytest.approx(3 / 160)
    # q/(4μ) with a small q.
    assert gamma(period=1, refresh_probability=0.004) == pytest.approx(0.01)
    # τ = 3, q = ½: 1/(2·√(5e·2·(12 + 8 + 32))).
    assert gamma(period=3, refresh_probability=0.5) == pytest.approx(
        0.5 / math.sqrt(5 * math.e * 2 * 52)
    )
    assert gamma(period=1, refresh_probability=1.0) == pytest.approx(3 / 160)
    with pytest.raises(InputError, match=r"\(q\) below 1"):
        gamma(period=2, refresh_probability=1.0)
    with pytest.raises(InputError, match="period"):
        gamma(period=0, refresh_probability=0.5)


def test_local_svrg_bound_by_hand():
    common = {
        "smoothness": 2.0,
        "strong_convexity": 0.5,
        "refresh_probability": 0.5,
        "start_distance": 3.0,
        "heterogeneity": 7.0,
    }
    # τ = 1: no drift. (1/γ)(1 − γμ)^(T+1) (4 + 32 (γℓ_1)²/(3q)) ‖x⁰ − x*‖².
    found = local_svrg_bound(**common, learning_rate=0.01, period=1, steps=9)
    assert found == pytest.approx(100 * 0.995**10 * (4 + 32 * 0.0004 / 1.5) * 9)
    # τ = 3 after endless steps: 22.5e·ℓ_1 γ²(τ−1)²·7 alone.
    endless = local_svrg_bound(**common, learning_rate=0.001, period=3, steps=10**6)
    assert endless == pytest.approx(22.5 * math.e * 2 * 1e-6 * 4 * 7)
    first = local_svrg_bound(**common, learning_rate=0.001, period=3, steps=0)
    factor = 4 + 32 * 4e-6 / 1.5 + 30 * math.e * 8e-9 * 2 * 2.5 / 0.5
    assert first - endless == pytest.approx(1000 * 0.9995 * factor * 9)
    with pytest.raises(InputError, match="γ_0"):
        local_svrg_bound(**common, learning_rate=0.1, period=1, steps=9)


def test_error_constants_by_hand():
    found = error_constants(BY_HAND, 9, refresh_probability=0.5)
    both = 2 * 9 * (9 + 23.25**2)
    assert found.c1 == pytest.approx(2 * both / 2 * 2.25)  # max{R², ℓ_0²/μ²} = 9/4
    assert found.c2 == pytest.approx(4 + 64 / 3 * 9 / 6400)
    assert found.c3 == pytest.approx(30 * math.e * 5 * 27 / 512_000)
    assert found.c4 == pytest.approx(45 * math.e / 2 * both * 4 * 9 * 9)
    assert found.combined(1) == pytest.approx(found.c1 * found.c2)
    assert found.combined(3) == pytest.approx(found.c1 * (found.c2 + 2 * found.c3) + 4 * found.c4)


@given(
    l0=st.floats(0.1, 5),
    l1=st.floats(1, 5),
    l2=st.floats(0, 2),
    mu=st.floats(0.05, 1),
    nodes=st.integers(1, 20),
    period=st.integers(1, 8),
    q=st.floats(0.01, 0.9),
    problem=st.sampled_from(["convex", "non-convex"]),
    iteration=st.integers(0, 50),
    scale=st.sampled_from([0.1, 1.0, 10.0]),
)
@settings(deadline=None)
def test_the_schedule_reaches_the_error_that_it_allows(
    l0, l1, l2, mu, nodes, period, q, problem, iteration, scale
):
    """The lemma's claim: with its γ and T_s the bound of `eq:lemmaineq1` is at most 1/(s+1)⁴ or ²."""
    constants = Constants(l0, l1, l2, mu, 1.0)
    schedule = Schedule(constants, nodes, 1.0, problem, period, q, scale)
    gamma, steps = schedule.learning_rate_and_steps(iteration)
    assert 0 < gamma <= schedule.largest_learning_rate * (1 + 1e-12)
    power = 4 if problem == "convex" else 2
    allowed = scale**2 / (iteration + 1) ** power
    assert schedule.allowed_error(iteration) ** 2 == pytest.approx(allowed)
    taken = schedule.inner(iteration).rounds * period
    assert taken >= steps
    reached = schedule.error_constants.squared_error(mu, gamma, period, taken)
    assert reached <= allowed * (1 + 1e-9)
    if period == 1 and steps > 1:
        # Not wasteful: the theory's T_s and no more (its proof loses (1 − γμ)^T against e^(−γμT) only).
        spared = schedule.error_constants.c1 / gamma * schedule.error_constants.c2
        assert spared * math.exp(-gamma * mu * steps) == pytest.approx(allowed)


def schedule(problem="convex", period=1, nodes=9, cap=0.5, **changes):
    return Schedule(BY_HAND, nodes, cap, problem, period, **changes)


def test_the_error_needed_shrinks_and_the_work_grows():
    for problem, period in (("convex", 1), ("convex", 4), ("non-convex", 1), ("non-convex", 4)):
        made = schedule(problem, period)
        rounds = [made.inner(s).rounds for s in range(20)]
        assert rounds == sorted(rounds)
        assert made.rounds(20) == 2 * sum(rounds)
    # τ = 1 grows like a logarithm: the same number more for each doubling; τ > 1 like (s+1)² log s.
    one = schedule()
    assert one.inner(39).rounds - one.inner(19).rounds == pytest.approx(
        one.inner(79).rounds - one.inner(39).rounds, abs=2
    )
    many = schedule(period=4)
    assert many.inner(79).learning_rate == pytest.approx(many.inner(39).learning_rate / 4)
    assert schedule("non-convex", 4).inner(79).learning_rate == pytest.approx(
        schedule("non-convex", 4).inner(39).learning_rate / 2
    )


def test_the_promise_by_hand():
    made = schedule()
    eta = 1 / (3 * 394.875)
    assert made.outer_learning_rate == pytest.approx(eta)
    # b = ½, K = 9: the corners have ‖w‖² = ½, so ‖w − equal‖² ≤ ½ − 1/9 and the diameter is 1.
    far = 0.5 - 1 / 9
    assert farthest_from_equal(9, 0.5) == pytest.approx(math.sqrt(far))
    assert capped_simplex_diameter(9, 0.5) == pytest.approx(1)
    # S = 2: H_2 = 3/2; Σ (s+2)/(s+1)³ = 2 + 3/8.
    assert made.promised(2) == pytest.approx(2 / 6 * (2 / eta * far + 1.5 + eta / 4 * (2 + 3 / 8)))
    other = schedule("non-convex")
    assert other.promised(2, initial_gap=0.7) == pytest.approx(
        math.sqrt(4 / (2 * eta) * 0.7 + 4 / (2 * eta) * 1.5 + 2 / 2 * (1 + 1 / 4))
    )
    assert other.promised(2) == pytest.approx(other.promised(2, initial_gap=2 * 1.0 * 3.0))
    known = schedule(known_outer_smoothness=10.0)
    assert known.outer_learning_rate == pytest.approx(1 / 30)


@pytest.mark.parametrize(
    ("problem", "period", "power"),
    [("convex", 1, -0.5), ("convex", 3, -1.5), ("non-convex", 1, -2.0), ("non-convex", 3, -4.0)],
)
def test_rounds_grow_with_the_powers_of_the_theorems(problem, period, power):
    """Õ hides logarithms: the local slope lies below the power, and nears it as ε falls."""
    made = schedule(problem, period)
    slopes = []
    for few, many in ((10**2, 10**4), (10**5, 10**7)):
        rounds = made.rounds(many) / made.rounds(few)
        accuracy = made.promised(many) / made.promised(few)
        slopes.append(math.log(rounds) / math.log(accuracy))
    assert slopes[1] <= power
    assert slopes[1] > slopes[0]
    assert slopes[1] >= power * 1.35


def test_iterations_are_the_fewest_that_suffice():
    made = schedule()
    for epsilon in (50.0, 3.0, 0.2):
        count = made.iterations(epsilon)
        assert made.promised(count) <= epsilon
        assert count == 1 or made.promised(count - 1) > epsilon
    for wrong in (0.0, -1.0, math.nan):
        with pytest.raises(InputError, match="epsilon"):
            made.iterations(wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"error_scale": 0.0}, "error_scale must be a positive number, not 0.0"),
        ({"problem": "concave"}, "outer_problem must be 'convex' or 'non-convex', not 'concave'"),
        ({"cap": 0.1}, "with 9 nodes it must be between 1/9"),
        ({"cap": 1.5}, "with 9 nodes it must be between 1/9"),
        ({"nodes": 0}, "nodes must be a whole number of at least 1"),
        ({"known_outer_smoothness": 0.0}, "known_outer_smoothness must be a positive number"),
        ({"known_outer_smoothness": math.nan}, "known_outer_smoothness must be a positive number"),
        ({"period": 0}, "period"),
        ({"refresh_probability": 0.0}, "refresh_probability"),
    ],
)
def test_impossible_schedules_are_refused(wrong, message):
    with pytest.raises(InputError, match=message):
        schedule(**wrong)


@given(seed=st.integers(0, 10**6), nodes=st.sampled_from([2, 3, 7]), share=st.floats(0, 1))
@settings(deadline=None, max_examples=10)
def test_distances_on_the_capped_simplex(seed, nodes, share):
    from fedkin.numerics.simplex import project_capped_simplex

    cap = 1 / nodes + share * (1 - 1 / nodes)
    rng = np.random.default_rng(seed)
    points = [np.asarray(project_capped_simplex(3 * rng.normal(size=nodes), cap)) for _ in range(6)]
    equal = np.full(nodes, 1 / nodes)
    for point in points:
        assert np.linalg.norm(point - equal) <= farthest_from_equal(nodes, cap) + 1e-5
        for other in points:
            assert np.linalg.norm(point - other) <= capped_simplex_diameter(nodes, cap) + 1e-5
    # A corner is as far as it gets.
    corner = np.zeros(nodes)
    corner[: math.floor(1 / cap + 1e-9)] = cap
    if corner.sum() < 1 - 1e-9:
        corner[math.floor(1 / cap + 1e-9)] = 1 - corner.sum()
    # Squared, because near zero the root turns a rounding error of 1e-12 into 1e-6.
    farthest = np.linalg.norm(corner - equal)
    assert farthest**2 == pytest.approx(farthest_from_equal(nodes, cap) ** 2, abs=1e-8)
