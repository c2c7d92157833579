import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize

import fedkin
from fedkin import project_capped_simplex


def solve_qp(point, cap):
    """The projection as a quadratic program, by SciPy's sequential least squares."""
    size = len(point)
    answer = minimize(
        lambda w: 0.5 * np.sum((w - point) ** 2),
        np.full(size, 1 / size),
        jac=lambda w: w - point,
        bounds=[(0, cap)] * size,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": lambda w: np.ones(size)},
        method="SLSQP",
        options={"ftol": 1e-16, "maxiter": 1000},
    )
    return answer.x


def solve_dual(point, cap):
    """The projection by SciPy's root finder on the multiplier; works for any scale of the entries."""
    # Around the ceil(1/cap)-th largest entry, where the multiplier is, digits are not lost.
    pivot = np.sort(point)[::-1][min(int(np.ceil(1 / cap - 1e-9)), len(point)) - 1]
    shifted = point - pivot

    def excess(multiplier):
        return np.clip(shifted - multiplier, 0, cap).sum() - 1

    low, high = -2.0, 2.0
    multiplier = low if excess(low) <= 0 else brentq(excess, low, high, xtol=1e-15, rtol=1e-15)
    return np.clip(shifted - multiplier, 0, cap)


def random_case(rng):
    size = int(rng.choice([1, 2, 3, 7, 15, 40]))  # few shapes: each is compiled once
    kind = rng.integers(5)
    point = rng.normal(size=size)
    if kind == 1:
        point = np.round(point, 1)  # ties
    elif kind == 2:
        point = point * 10.0 ** rng.integers(-12, 12, size=size)  # huge and tiny, mixed
    elif kind == 3:
        point = point * 1e-9
    elif kind == 4:
        point = np.full(size, rng.normal())
    cap = [1.0, 1 / size, 1 / size + rng.random() * (1 - 1 / size)][rng.integers(3)]
    return point, cap


@pytest.mark.usefixtures("float64")
def test_projection_equals_an_independent_solution_over_1000_cases():
    rng = np.random.default_rng(0)
    for _ in range(1000):
        point, cap = random_case(rng)
        np.testing.assert_allclose(
            project_capped_simplex(point, cap), solve_dual(point, cap), atol=1e-9, rtol=0
        )


@pytest.mark.usefixtures("float64")
def test_projection_equals_the_quadratic_programme():
    rng = np.random.default_rng(1)
    for _ in range(100):
        size = int(rng.choice([2, 5, 12]))
        point, cap = rng.normal(size=size), 1 / size + rng.random() * (1 - 1 / size)
        np.testing.assert_allclose(
            project_capped_simplex(point, cap), solve_qp(point, cap), atol=1e-9, rtol=0
        )


@pytest.mark.parametrize("scale", [1e-8, 1e-3, 1.0, 1e3])
@pytest.mark.parametrize("cap", [1e-5, 2e-5, 1 / 3, 1.0])
def test_float32_is_feasible_with_100_000_nodes(scale, cap):
    point = (scale * np.random.default_rng(2).normal(size=100_000)).astype(np.float32)
    weights = np.asarray(project_capped_simplex(point, cap))
    assert weights.dtype == np.float32
    assert abs(weights.sum(dtype=np.float64) - 1) <= 1e-6
    assert weights.min() >= 0
    assert weights.max() <= np.float32(cap)


def test_float32_is_feasible_where_the_free_entries_are_far_from_the_pivot():
    point = np.full(100_000, -0.3, np.float32)
    point[:3] = [5, 5, 0]
    weights = np.asarray(project_capped_simplex(point, 1 / 3))
    assert abs(weights.sum(dtype=np.float64) - 1) <= 1e-6


numbers = st.floats(-100, 100, allow_subnormal=False)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(numbers, min_size=5, max_size=5),
    st.lists(numbers, min_size=5, max_size=5),
    st.floats(0.2, 1),
)
def test_projection_is_feasible_idempotent_and_non_expansive(first, second, cap):
    with jax.enable_x64(True):
        first, second = np.array(first), np.array(second)
        one = np.asarray(project_capped_simplex(first, cap))
        two = np.asarray(project_capped_simplex(second, cap))
        assert abs(one.sum() - 1) < 1e-12
        assert one.min() >= 0
        assert one.max() <= cap
        np.testing.assert_allclose(project_capped_simplex(one, cap), one, atol=1e-12)
        assert np.linalg.norm(one - two) <= np.linalg.norm(first - second) + 1e-12


@pytest.mark.usefixtures("float64")
def test_derivative_is_that_of_finite_differences_where_smooth():
    point = np.array([0.9, 0.31, 0.2, 0.17, -3.0])  # one entry at the cap, three free, one at zero
    jacobian = np.asarray(
        jax.jacobian(lambda v: project_capped_simplex(v, 0.5))(jnp.asarray(point))
    )
    step = 1e-6
    for column, direction in enumerate(np.eye(5)):
        ahead = project_capped_simplex(point + step * direction, 0.5)
        behind = project_capped_simplex(point - step * direction, 0.5)
        np.testing.assert_allclose(jacobian[:, column], (ahead - behind) / (2 * step), atol=1e-8)
    assert np.abs(jacobian).max() > 0.5


def test_vmap_and_jit_give_the_same():
    points = np.random.default_rng(3).normal(size=(7, 6)).astype(np.float32)
    together = jax.jit(jax.vmap(lambda v: project_capped_simplex(v, 0.4)))(points)
    np.testing.assert_allclose(
        together, [project_capped_simplex(point, 0.4) for point in points], atol=1e-7
    )


@pytest.mark.parametrize(
    ("point", "cap", "message"),
    [
        ([0.5, 0.5, 0.5], 0.3, r"between 1/3 = 0\.333333 and 1"),
        ([0.5, 0.5], 1.5, "between 1/2"),
        ([0.5, 0.5], float("nan"), "between 1/2"),
        ([0.5, float("nan")], 1.0, "NaN or infinite"),
        ([0.5, float("inf")], 1.0, "NaN or infinite"),
        ([], 1.0, "must be a non-empty vector"),
        ([[0.5], [0.5]], 1.0, "must be a non-empty vector"),
    ],
)
def test_bad_input_is_refused(point, cap, message):
    with pytest.raises(fedkin.InputError, match=message):
        project_capped_simplex(np.array(point), cap)
