"""Steps on the capped simplex against SciPy's solvers."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize

from fedkin import project_capped_simplex
from fedkin.errors import InputError
from fedkin.numerics.simplex_steps import Secants, largest_decrease, minimize_quadratic, project


@st.composite
def capped_weights(draw):
    """Weights of a capped simplex, drawn at random, with the cap."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    nodes = draw(st.integers(2, 8))
    cap = draw(st.sampled_from([1 / nodes, 1.2 / nodes, 2 / nodes, 0.5, 1.0]))
    cap = min(max(cap, 1 / nodes), 1.0)
    return project(rng.normal(size=nodes) * draw(st.sampled_from([0.1, 1.0])), cap), cap, rng


@given(capped_weights(), st.sampled_from([1e-3, 1.0, 100.0, 1e6]))
def test_a_projection_is_feasible_and_nearest(drawn, scale):
    weights, cap, rng = drawn
    point = scale * rng.normal(size=len(weights))
    found = project(point, cap)
    assert found.sum() == pytest.approx(1, abs=1e-9)
    assert (found >= 0).all()
    assert (found <= cap).all()
    # Nearest: the point lies behind the plane through its projection, seen from every feasible vector.
    assert (point - found) @ (weights - found) <= 1e-9 * scale * len(weights)


@given(capped_weights())
def test_the_largest_decrease_is_that_of_linear_programming(drawn):
    weights, cap, rng = drawn
    slopes = rng.normal(size=len(weights))
    lowest = linprog(
        slopes, A_eq=np.ones((1, len(weights))), b_eq=[1.0], bounds=[(0, cap)] * len(weights)
    )
    found = largest_decrease(slopes, weights, cap)
    assert found == pytest.approx(slopes @ weights - lowest.fun, abs=1e-9)


@given(capped_weights(), st.sampled_from([0.01, 0.3, 1.0]))
def test_slopes_that_are_off_never_allow_more_than_the_bound(drawn, relative_error):
    weights, cap, rng = drawn
    slopes = rng.normal(size=len(weights))
    bound = largest_decrease(slopes, weights, cap, relative_error)
    for _ in range(20):
        # The worst slopes are at the ends of their intervals.
        off = slopes + relative_error * np.abs(slopes) * rng.choice([-1, 1], len(weights))
        assert largest_decrease(off, weights, cap) <= bound + 1e-9


def test_equal_slopes_may_hide_a_decrease():
    assert largest_decrease(np.ones(2), np.full(2, 0.5), 1.0, 0.5) >= 0.5


@given(capped_weights(), st.sampled_from([1e-4, 1e-2, 1.0]))
def test_where_a_quadratic_is_lowest_no_exchange_of_weight_lowers_it(drawn, least):
    """Also where the curvature is very different in different directions."""
    start, cap, rng = drawn
    nodes = len(start)
    root = rng.normal(size=(nodes, max(1, nodes // 3)))
    matrix, slopes = root @ root.T + least * np.eye(nodes), rng.normal(size=nodes)
    found = minimize_quadratic(slopes, lambda vector: matrix @ vector, start, cap)
    assert found.sum() == pytest.approx(1, abs=1e-9)
    gradient = slopes + matrix @ (found - start)
    assert largest_decrease(gradient, found, cap) <= 1e-7 * max(1.0, np.abs(gradient).max())


@settings(max_examples=25)
@given(capped_weights())
def test_a_quadratic_is_minimized_over_the_capped_simplex(drawn):
    start, cap, rng = drawn
    nodes = len(start)
    root = rng.normal(size=(nodes, nodes))
    matrix, slopes = root @ root.T + 0.1 * np.eye(nodes), rng.normal(size=nodes)

    def value(weights):
        move = weights - start
        return slopes @ move + 0.5 * move @ matrix @ move

    found = minimize_quadratic(slopes, lambda vector: matrix @ vector, start, cap)
    best = minimize(
        value,
        start,
        method="SLSQP",
        bounds=[(0, cap)] * nodes,
        constraints={"type": "eq", "fun": lambda weights: weights.sum() - 1},
        options={"ftol": 1e-12, "maxiter": 500},
    )
    assert value(found) <= best.fun + 1e-6


def test_secants_of_a_quadratic_reproduce_its_curvature_along_the_moves():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(4, 4))
    matrix = root @ root.T + np.eye(4)
    secants = Secants(1.0, np.zeros((0, 4)), np.zeros((0, 4)))
    for move in rng.normal(size=(3, 4)):
        secants = secants.add(move, matrix @ move, most=10)
    # BFGS satisfies the secant equation of the newest pair.
    np.testing.assert_allclose(secants.curvature()(move), matrix @ move, rtol=1e-9)


def test_a_move_of_negative_curvature_leaves_the_model_convex():
    secants = Secants(1.0, np.zeros((0, 2)), np.zeros((0, 2)))
    secants = secants.add(np.array([1.0, -1.0]), np.array([-3.0, 3.0]), most=10)
    product = secants.curvature()
    matrix = np.stack([product(row) for row in np.eye(2)])
    assert (np.linalg.eigvalsh(matrix) > 0).all()


@pytest.mark.usefixtures("float64")
@given(
    st.lists(st.floats(-3, 3), min_size=2, max_size=8),
    st.lists(st.floats(0.05, 1), min_size=8, max_size=8),
)
@example(
    [0.0, 3.0, 1.0], [1.0, 0.99999, 1.0, *[1.0] * 5]
)  # the first cap almost holds all the weight
@settings(max_examples=60, deadline=None)
def test_nodes_may_have_different_caps(point, caps):
    """Both projections find the multiplier that bisection finds; the gap is linear programming's."""
    point, caps = np.array(point), np.array(caps[: len(point)])
    caps = np.minimum(caps * max(1.0, 1.02 / caps.sum()), 1.0)
    if caps.sum() < 1:
        caps = np.ones_like(caps)
    low, high = point.min() - 2, point.max()
    for _ in range(100):
        middle = (low + high) / 2
        if np.clip(point - middle, 0, caps).sum() > 1:
            low = middle
        else:
            high = middle
    expected = np.clip(point - low, 0, caps)
    np.testing.assert_allclose(project(point, caps), expected, atol=1e-9)
    np.testing.assert_allclose(project_capped_simplex(point, caps), expected, atol=1e-9)
    bounds = list(zip(np.zeros_like(caps), caps, strict=True))
    best = linprog(point, A_eq=np.ones((1, len(point))), b_eq=[1], bounds=bounds)
    gap = largest_decrease(point, expected, caps)
    assert gap == pytest.approx(point @ expected - best.fun, abs=1e-7)
    # With B = I, and the start as the center, the minimum is the projection.
    start = np.clip(caps, 0, None) / caps.sum()
    found = minimize_quadratic(start - point, lambda vector: vector, start, caps)
    np.testing.assert_allclose(found, expected, atol=1e-7)


@pytest.mark.parametrize("caps", [[0.5, 0.4], [0.5, 0.6, 0.1], [1.2, 0.5], [-0.1, 1.0]])
def test_caps_that_leave_no_weights_are_refused(caps):
    with pytest.raises(InputError, match="the caps on 2 nodes' weights"):
        project_capped_simplex([0.5, 0.5], caps)
