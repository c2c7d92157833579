"""Many functions side by side against an independent solver, one at a time."""

import numpy as np
import pytest
from scipy.optimize import minimize

from fedkin.numerics.lbfgs import minimize_many


def logistic_losses(functions, size, seed):
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(functions, 40, size)) * np.geomspace(0.2, 3, size)
    signs = np.sign(inputs @ random.normal(size=size) + random.normal(size=(functions, 40)))

    def evaluate(points, which):
        margins = signs[which] * np.einsum("cnd,cd->cn", inputs[which], points)
        slopes = -signs[which] / (1 + np.exp(margins)) / 40
        values = np.logaddexp(0, -margins).mean(axis=1) + 0.005 * (points**2).sum(axis=1)
        return values, np.einsum("cn,cnd->cd", slopes, inputs[which]) + 0.01 * points

    return evaluate


def test_minima_are_those_of_scipy():
    evaluate = logistic_losses(7, 12, seed=0)
    found = minimize_many(evaluate, np.zeros((7, 12)), small_slope=1e-7, most_evaluations=300)
    assert found.settled.all()
    for each in range(7):
        which = np.array([each])
        one = minimize(
            lambda x, which=which: [part[0] for part in evaluate(x[None], which)],
            np.zeros(12),
            jac=True,
            method="BFGS",
            options={"gtol": 1e-8},
        )
        np.testing.assert_allclose(found.points[each], one.x, atol=1e-5)


def test_functions_do_not_disturb_each_other():
    """Alone or together: the same points, and no more evaluations than the slowest needs."""
    evaluate = logistic_losses(5, 6, seed=1)
    calls = []

    def counted(points, which):
        calls.append(which)
        return evaluate(points, which)

    options = {"small_slope": 1e-6, "most_evaluations": 200}
    together = minimize_many(counted, np.zeros((5, 6)), **options)
    shared = len(calls)
    alone = []
    for each in range(5):
        calls.clear()
        alone.append(
            minimize_many(
                lambda points, which, each=each: counted(points, which + each),
                np.zeros((1, 6)),
                **options,
            ).points[0]
        )
        assert len(calls) <= shared
    np.testing.assert_allclose(together.points, alone, atol=1e-9)


def test_steps_that_lead_too_far_are_shortened():
    """exp(x) + exp(−x) from far away: the first steps would overflow."""

    def evaluate(points, which):
        with np.errstate(over="ignore"):
            value, slope = np.exp(points) + np.exp(-points), np.exp(points) - np.exp(-points)
        return value[:, 0], slope

    found = minimize_many(evaluate, np.array([[30.0]]), small_slope=1e-6, most_evaluations=300)
    assert found.settled.all()
    assert abs(found.points[0, 0]) < 1e-4


def test_too_few_evaluations_are_not_called_settled():
    evaluate = logistic_losses(3, 12, seed=2)
    found = minimize_many(evaluate, np.zeros((3, 12)), small_slope=1e-9, most_evaluations=4)
    assert not found.settled.any()


@pytest.mark.parametrize("start", [0.0, 5.0])
def test_rounding_ends_a_search(start):
    """With the digits of float32 the slope never becomes as small as asked for."""

    def evaluate(points, which):
        away = (points - 3.0).astype(np.float32)
        return 1e4 + (away**2).sum(axis=1, dtype=np.float32), 2 * away + 1e-3

    found = minimize_many(evaluate, np.full((1, 4), start), small_slope=1e-12, most_evaluations=500)
    assert found.settled.all()
    np.testing.assert_allclose(found.points, 3, atol=1e-2)
