import jax.numpy as jnp
import numpy as np
import pytest

from fedkin.numerics.linear_solve import conjugate_gradients, neumann_series

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
