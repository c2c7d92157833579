import jax.numpy as jnp
import numpy as np
import pytest

from fedkin.numerics.linear_solve import (
    conjugate_gradients,
    damped_conjugate_gradients,
    neumann_series,
)

pytestmark = pytest.mark.usefixtures("float64")


def system(eigenvalues, seed=0):
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(len(eigenvalues),) * 2))[0]
    return basis * np.array(eigenvalues) @ basis.T, rng.normal(size=len(eigenvalues))


class Counted:
    """A product with a companion, a linear map of its own, that counts its calls."""

    def __init__(self, matrix, companion):
        self.matrix, self.companion, self.calls = jnp.asarray(matrix), jnp.asarray(companion), 0

    def __call__(self, vector):
        self.calls += 1
        return self.matrix @ vector, self.companion @ vector


@pytest.fixture
def companion():
    return np.random.default_rng(1).normal(size=(3, 6))


@pytest.mark.parametrize("damping", [0.0, 0.7])
@pytest.mark.parametrize("start", [None, np.ones(6)])
def test_conjugate_gradients_solve_a_definite_system_in_as_many_products_as_unknowns(
    damping, start, companion
):
    matrix, target = system([0.1, 0.5, 1, 2, 5, 10])
    product = Counted(matrix, companion)
    start = None if start is None else jnp.asarray(start)
    found = conjugate_gradients(product, jnp.asarray(target), damping=damping, start=start)
    exact = np.linalg.solve(matrix + damping * np.eye(6), target)
    np.testing.assert_allclose(found.solution, exact, rtol=1e-8)
    np.testing.assert_allclose(found.companion, companion @ exact, rtol=1e-8)
    assert found.reason == "converged"
    assert found.products == product.calls <= 6 + (start is not None) + 1
    assert found.residual <= 1e-10


def test_conjugate_gradients_stop_at_the_last_good_iterate_of_an_indefinite_system(companion):
    matrix, target = system([-3.0, 0.5, 1, 2, 5, 10])
    found = conjugate_gradients(Counted(matrix, companion), jnp.asarray(target))
    assert found.reason == "negative curvature"
    residual = np.linalg.norm(target - matrix @ found.solution) / np.linalg.norm(target)
    assert residual == pytest.approx(found.residual)
    assert residual <= 10
    np.testing.assert_allclose(found.companion, companion @ found.solution, atol=1e-10)


def test_enough_damping_makes_the_indefinite_system_solvable(companion):
    matrix, target = system([-3.0, 0.5, 1, 2, 5, 10])
    found = conjugate_gradients(Counted(matrix, companion), jnp.asarray(target), damping=4.0)
    assert found.reason == "converged"
    np.testing.assert_allclose(
        found.solution, np.linalg.solve(matrix + 4 * np.eye(6), target), rtol=1e-8
    )


def test_conjugate_gradients_report_the_iteration_limit(companion):
    matrix, target = system([0.1, 0.5, 1, 2, 5, 10])
    found = conjugate_gradients(Counted(matrix, companion), jnp.asarray(target), iterations=2)
    assert (found.reason, found.products) == ("iteration limit", 2)
    error = found.solution - np.linalg.solve(matrix, target)
    assert error @ matrix @ error < target @ np.linalg.solve(matrix, target)  # better than zero


def test_a_residual_that_explodes_ends_the_iteration(companion):
    """Positive along the first direction, but nearly singular: the step is a thousand times too long."""
    matrix = np.diag([1.0, -0.998, 1, 1, 1, 1])
    target = np.array([1.0, 1, 0, 0, 0, 0])
    found = conjugate_gradients(Counted(matrix, companion), jnp.asarray(target))
    assert found.reason == "residual grew"
    np.testing.assert_array_equal(found.solution, np.zeros(6))


def test_not_a_number_is_noticed(companion):
    found = conjugate_gradients(Counted(np.full((6, 6), np.nan), companion), jnp.ones(6))
    assert found.reason == "not finite"
    np.testing.assert_array_equal(found.solution, np.zeros(6))


def test_a_zero_target_needs_no_product(companion):
    product = Counted(np.eye(6), companion)
    found = conjugate_gradients(product, jnp.zeros(6))
    assert (found.reason, product.calls) == ("converged", 0)


def test_neumann_series_tends_to_the_solution_at_its_rate(companion):
    matrix, target = system([0.5, 0.7, 0.9, 1, 1.2, 1.5])
    exact = np.linalg.solve(matrix, target)
    found = neumann_series(Counted(matrix, companion), jnp.asarray(target), step=1.0, terms=200)
    np.testing.assert_allclose(found.solution, exact, rtol=1e-8)
    np.testing.assert_allclose(found.companion, companion @ exact, rtol=1e-8)
    # The slowest mode shrinks by max |1 - eigenvalue| = 1/2 a term: 1e-10 takes about 33 terms.
    assert found.reason == "converged"
    assert 25 <= found.products <= 36


def test_neumann_series_notices_that_its_step_is_too_large(companion):
    matrix, target = system([0.5, 0.7, 0.9, 1, 1.2, 5.0])
    found = neumann_series(Counted(matrix, companion), jnp.asarray(target), step=1.0, terms=50)
    assert found.reason == "residual grew"
    assert found.products < 10
    assert found.residual <= 1


# The solve of a node, in compiled code.


def solve(matrix, target, damping, iterations):
    matrix = jnp.asarray(matrix)
    return damped_conjugate_gradients(
        lambda vector: matrix @ vector, jnp.asarray(target), damping, iterations
    )


@pytest.mark.parametrize("damping", [0.0, 0.7])
def test_a_node_s_solve_is_exact_after_as_many_iterations_as_unknowns(damping):
    matrix, target = system([0.1, 0.5, 1, 2, 5, 10])
    found = solve(matrix, target, damping, 6)
    exact = np.linalg.solve(matrix + damping * np.eye(6), target)
    np.testing.assert_allclose(found.solution, exact, rtol=1e-8)
    assert bool(found.convex)
    assert found.residual < 1e-10
    # Further iterations change nothing: the residual is nothing but rounding.
    more = solve(matrix, target, damping, 40)
    np.testing.assert_allclose(more.solution, exact, rtol=1e-8)
    assert bool(more.convex)


def test_a_node_s_solve_that_is_cut_short_reports_its_residual():
    matrix, target = system([0.1, 0.5, 1, 2, 5, 10])
    found = solve(matrix, target, 0.3, 3)
    residual = target - matrix @ found.solution - 0.3 * found.solution
    assert found.residual == pytest.approx(np.linalg.norm(residual) / np.linalg.norm(target))
    assert 1e-3 < found.residual < 1


@pytest.mark.parametrize("damping", [0.0, 1.2])
@pytest.mark.parametrize("seed", range(3))
def test_the_curvature_met_bounds_the_largest_eigenvalue_from_below(seed, damping):
    """It is that of the matrix without damping, and close to it where the target is steep."""
    matrix, target = system([*np.linspace(0, 1, 29), 20.0], seed)
    found, steep = (
        solve(matrix, each, damping, 8).curvature for each in (target, matrix @ matrix @ target)
    )
    assert 20 / 5 < found <= 20 + 1e-9
    assert 0.9 * 20 < steep <= 20 + 1e-9


def test_negative_curvature_at_once_leaves_a_step_along_the_target():
    # bᵀ(A + λ)b = -8 and λ‖b‖² = 4: the step is ‖b‖² / (8 + 4) = 1/3.
    found = solve([[-3.0]], [2.0], 1.0, 5)
    assert not bool(found.convex)
    assert found.solution.tolist() == pytest.approx([2 / 3])
    assert found.curvature == pytest.approx(3)
    matrix, target = system([-30.0, 0.5, 1, 2, 5, 10])
    assert target @ matrix @ target < 0
    found = solve(matrix, target, 0.1, 8)
    assert not bool(found.convex)
    along = found.solution @ target / (target @ target)
    assert along > 0
    np.testing.assert_allclose(found.solution, along * target)


def test_negative_curvature_later_ends_the_iterations_where_they_are():
    matrix, target = np.diag([-1.0, 2.0, 3.0]), np.array([0.1, 1.0, 1.0])
    found, first = solve(matrix, target, 0.0, 10), solve(matrix, target, 0.0, 1)
    assert (bool(first.convex), bool(found.convex)) == (True, False)
    shorter = [solve(matrix, target, 0.0, iterations) for iterations in (1, 2, 3)]
    last_good = [each for each in shorter if bool(each.convex)][-1]
    np.testing.assert_allclose(found.solution, last_good.solution)
    residual = np.linalg.norm(target - matrix @ found.solution) / np.linalg.norm(target)
    assert found.residual == pytest.approx(residual)


def test_no_curvature_at_all_moves_nothing_to_infinity():
    """As at the first look at a network, which is not damped."""
    for matrix, damping in ((np.zeros((2, 2)), 0.0), (-np.eye(2), 1.0)):
        found = solve(matrix, [3.0, 4.0], damping, 4)
        assert not bool(found.convex)
        assert np.linalg.norm(found.solution) <= 5 / max(damping, 1)


def test_a_node_s_solve_of_a_zero_target_is_zero():
    found = solve(np.diag([1.0, -2.0]), [0.0, 0.0], 0.5, 4)
    assert found.solution.tolist() == [0, 0]
    assert (float(found.residual), bool(found.convex)) == (0, True)
