"""`fit(schedule="theory")`: it reaches the ε that was asked for, and refuses what it cannot do."""

import numpy as np
import pytest

import fedkin
from fedkin.errors import InputError
from fedkin.models.linear import Ridge
from fedkin.theory.constants import constants_of_data
from fedkin.theory.schedules import Schedule

L2 = 1.0


def circle(points=10):
    angles = np.arange(points) * 2 * np.pi / points
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def two_nodes(size=1.0):
    """Ridge solutions (1, 0) and (−1, 0) on the same inputs; the center's data are the first node's.

    The Hessian is H = ½I + λI everywhere, so F(w) = ½(Aw)ᵀH(Aw) − … is a convex quadratic.
    """
    inputs = circle()
    moment = inputs.T @ inputs / len(inputs)
    hessian = moment + L2 * np.eye(2)
    solutions = size * np.array([[1.0, 0.0], [-1.0, 0.0]])
    nodes = [(inputs, inputs @ np.linalg.solve(moment, hessian @ each)) for each in solutions]

    def outer_loss(weights):
        theta = weights @ solutions
        labels = nodes[0][1]
        return 0.5 * np.mean((inputs @ theta - labels) ** 2) + 0.5 * L2 * theta @ theta

    return nodes, outer_loss


@pytest.mark.slow
def test_reaches_the_requested_accuracy():
    """The example of docs/theory.md: half the gap that equal weights have."""
    nodes, outer_loss = two_nodes()
    cap = 0.505
    best = outer_loss(
        np.array([cap, 1 - cap])
    )  # the first node is the center's: all that is allowed
    first = outer_loss(np.array([0.5, 0.5]))
    epsilon = 0.5 * (first - best)
    result = fedkin.fit(
        nodes,
        nodes[0],
        model=Ridge(l2=L2, intercept=False),
        schedule="theory",
        epsilon=epsilon,
        cap=cap,
        batch_size=1,
    )
    weights = np.array(list(result.weights.values()))
    assert outer_loss(weights) - best <= epsilon
    assert result.stopped.startswith("finished")
    promised = result.history["promised"].to_numpy()
    assert promised[-1] <= epsilon < promised[-2]
    # The model that is returned is the inner solution at these weights.
    assert result.theta == pytest.approx([weights[0] - weights[1], 0], abs=1e-2)


def test_local_steps_follow_the_schedule():
    """τ = 2: as many rounds as the theory says, of steps so short that the drift of the nodes is not felt.

    Two outer steps of it are those of Algorithm 2 with exact gradients, which can be computed by hand.
    """
    nodes, outer_loss = two_nodes(size=0.1)
    model = Ridge(l2=L2, intercept=False)
    result = fedkin.fit(
        nodes,
        nodes[0],
        model=model,
        schedule="theory",
        epsilon=0.01,
        period=2,
        cap=0.6,
        batch_size=1,
        steps=2,
    )
    schedule = Schedule(constants_of_data(model, nodes, nodes[0]), 2, 0.6, period=2)
    plans = [schedule.inner(iteration) for iteration in range(2)]
    # γ_0 at first, and then the shorter steps that local ones ask for: 1/M_s.
    assert plans[0].learning_rate == pytest.approx(schedule.largest_learning_rate)
    assert plans[1].learning_rate < 0.5 * plans[0].learning_rate
    # Three solves an outer step (θ and h where it differentiates, θ where it ends), one number each, and
    # the constants once.
    taken = result.history["synchronizations"].to_numpy()[-1]
    assert taken == pytest.approx(3 * sum(plan.rounds for plan in plans), rel=0.01)
    equal = np.full(2, 0.5)
    weights = aggregate = equal
    for s in range(2):
        middle = 2 / (s + 2) * weights + s / (s + 2) * aggregate
        nearby = 1e-4 * np.array([1.0, -1.0])
        slope = (outer_loss(middle + nearby) - outer_loss(middle - nearby)) / 4e-4
        gradient = np.array([slope, -slope])  # along the simplex, all that a projected step sees
        weights = weights - schedule.outer_learning_rate * (s + 1) / 4 * gradient
        aggregate = middle - schedule.outer_learning_rate * gradient
    found = np.array(list(result.weights.values()))
    assert np.linalg.norm(aggregate - equal) > 1e-3
    np.testing.assert_allclose(found - equal, aggregate - equal, rtol=0.02)
    assert result.history["promised"].to_numpy()[-1] == pytest.approx(
        schedule.promised(2), rel=1e-3
    )


def test_algorithm_3_can_be_begun():
    nodes, _ = two_nodes()
    result = fedkin.fit(
        nodes,
        nodes[0],
        model=Ridge(l2=L2, intercept=False),
        schedule="theory",
        epsilon=0.1,
        outer="proximal",
        steps=1,
        cap=0.6,
    )
    assert len(result.history) == 1
    assert result.stopped == "stopped: reached the limit of 1 outer steps"
    # Equal weights still: Algorithm 3 returns one of the iterates it differentiated at.
    assert list(result.weights.values()) == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs epsilon"),
        ({"epsilon": 0.0}, "epsilon must be a positive number"),
        ({"epsilon": 0.1, "learning_rate": 0.1}, "learning_rate is chosen by schedule"),
        ({"epsilon": 0.1, "solver": "cg"}, "solver is chosen by schedule"),
        ({"epsilon": 0.1, "outer": "adaptive"}, "no adaptive steps"),
        ({"epsilon": 0.1, "preset": "paper"}, "exclude each other"),
        ({"epsilon": 0.1, "method": "fedavg"}, "for the method 'bilevel'"),
        ({"epsilon": 0.1, "cap": 0.1}, "between 1/2"),
        ({"epsilon": 0.1, "model": "mlp", "task": "regression"}, "ridge and logistic"),
        ({"epsilon": 1e-6}, "take a larger epsilon"),
        ({"epsilon": 0.1, "refresh_probability": 0.0}, "refresh_probability"),
        ({"epsilon": 0.1, "period": 2, "refresh_probability": 1.0}, "below 1"),
    ],
)
def test_wrong_settings_are_refused(options, message):
    nodes, _ = two_nodes()
    options = {"model": "ridge"} | options
    with pytest.raises(InputError, match=message):
        fedkin.fit(nodes, nodes[0], schedule="theory", **options)


def test_a_misspelt_schedule_and_a_lonely_epsilon_are_refused():
    nodes, _ = two_nodes()
    with pytest.raises(InputError, match="choose 'theory'"):
        fedkin.fit(nodes, nodes[0], model="ridge", schedule="theorie", epsilon=0.1)
    with pytest.raises(InputError, match="schedule='theory'"):
        fedkin.fit(nodes, nodes[0], model="ridge", epsilon=0.1)
