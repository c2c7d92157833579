import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkin.numerics.ball import maximize_quadratic


@given(
    seed=st.integers(0, 10**6),
    size=st.integers(1, 5),
    radius=st.floats(0.1, 10),
    shift=st.floats(-5, 5),
)
@settings(deadline=None, max_examples=100)
def test_no_point_of_the_ball_is_better(seed, size, radius, shift):
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(size, size))
    matrix = matrix + matrix.T + shift * np.eye(size)
    vector = rng.normal(size=size) * 10 ** rng.uniform(-3, 1)
    best = maximize_quadratic(matrix, vector, radius)
    assert np.linalg.norm(best.point) <= radius * (1 + 1e-8)
    assert best.value == pytest.approx(
        0.5 * best.point @ matrix @ best.point + vector @ best.point, rel=1e-9, abs=1e-9
    )
    points = rng.normal(size=(2000, size))
    points *= (
        radius
        * rng.uniform(size=(2000, 1)) ** (1 / size)
        / np.linalg.norm(points, axis=1, keepdims=True)
    )
    values = 0.5 * np.sum(points @ matrix * points, axis=1) + points @ vector
    assert values.max() <= best.value + 1e-7 * (1 + abs(best.value))


def test_by_hand():
    # x² + x on [−2, 2]: 6 at x = 2.
    assert maximize_quadratic(np.array([[2.0]]), np.array([1.0]), 2.0).value == pytest.approx(6)
    # −x² + x: 1/4 at x = 1/2, inside.
    assert maximize_quadratic(np.array([[-2.0]]), np.array([1.0]), 2.0).value == pytest.approx(0.25)
    # The hard case: x² + y with x the top direction and nothing pushing along it, on the unit disc:
    # 1 − y² + y has its maximum 5/4 at y = 1/2.
    hard = maximize_quadratic(np.diag([2.0, 0.0]), np.array([0.0, 1.0]), 1.0)
    assert hard.value == pytest.approx(1.25, rel=1e-6)
    # A linear function: the radius times its length.
    assert maximize_quadratic(np.zeros((2, 2)), np.array([3.0, 4.0]), 2.0).value == pytest.approx(
        10
    )
