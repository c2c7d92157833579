"""`fit(schedule="theory")`: it reaches the ε that was asked for, and refuses what it cannot do."""

import numpy as np
import pytest

import fedkin
from fedkin.errors import InputError
from fedkin.models.linear import Ridge

L2 = 1.0


def circle(points=6):
    angles = np.arange(points) * 2 * np.pi / points
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def two_nodes():
    """Ridge solutions (1, 0) and (−1, 0) on the same inputs; the centre's data are the first node's.

    The Hessian is H = ½I + λI everywhere, so F(w) = ½(Aw)ᵀH(Aw) − … is a convex quadratic.
    """
    inputs = circle()
    moment = inputs.T @ inputs / len(inputs)
    hessian = moment + L2 * np.eye(2)
    solutions = np.array([[1.0, 0.0], [-1.0, 0.0]])
    nodes = [(inputs, inputs @ np.linalg.solve(moment, hessian @ each)) for each in solutions]

    def outer_loss(weights):
        theta = weights @ solutions
        labels = nodes[0][1]
        return 0.5 * np.mean((inputs @ theta - labels) ** 2) + 0.5 * L2 * theta @ theta

    return nodes, outer_loss


@pytest.mark.slow
def test_reaches_the_requested_accuracy():
    nodes, outer_loss = two_nodes()
    cap = 0.52
    best = outer_loss(
        np.array([cap, 1 - cap])
    )  # the first node is the centre's: all that is allowed
    first = outer_loss(np.array([0.5, 0.5]))
    epsilon = 0.8 * (first - best)  # equal weights, where it begins, do not fulfil it
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


def test_algorithm_3_and_local_steps_can_be_begun():
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
