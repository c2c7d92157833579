from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest

from fedkin.federation.base import Cost
from fedkin.federation.center import Score
from fedkin.methods.base import Info
from fedkin.training.runner import Budget, begin, run


class Counted(NamedTuple):
    step: int


class Script:
    """An algorithm whose step s gives the model (s,), at a cost of seven synchronizations."""

    def __init__(self, stop_at=None, silent=False):
        self.stop_at, self.silent = stop_at, silent

    def init(self, theta, nodes):
        return Counted(0)

    def step(self, state, key, federation, center):
        cost = Cost(node_points=(100,)) if self.silent else Cost(7, 70, 700, (100, 3))
        info = Info(
            jnp.array([state.step]),
            None,
            cost,
            silent_rounds=7 if self.silent else 0,
            stop="enough" if state.step + 1 == self.stop_at else None,
        )
        return Counted(state.step + 1), info


class Judge:
    """A center that finds model (s,) as good as its list says."""

    def __init__(self, accuracies):
        self.accuracies = accuracies

    def validate(self, theta):
        accuracy, loss = self.accuracies[int(theta[0])]
        return Score(loss, accuracy)


class Nodes:
    names = ("a", "b")
    present = jnp.ones(2, bool)

    def begin_step(self, step):
        pass

    def end_step(self):
        return ()


def play(script, accuracies, budget, keep="best", seed=0):
    state = begin(script, Nodes(), jnp.zeros(1))
    return run(
        script, Nodes(), Judge(accuracies), state, jax.random.key(seed), budget=budget, keep=keep
    )


RISING = [(0.1 * step, 1.0) for step in range(10)]


@pytest.mark.parametrize("silent", [False, True])
def test_no_step_is_begun_that_would_exceed_the_budget_of_synchronizations(silent):
    outcome = play(Script(silent=silent), RISING, Budget(synchronizations=34))
    assert len(outcome.history) == 4  # 28; a fifth would make 35
    assert outcome.stopped == "stopped: used the budget of 34 synchronizations"
    assert outcome.cost.synchronizations == (0 if silent else 28)
    assert len(play(Script(silent=silent), RISING, Budget(synchronizations=35)).history) == 5


def test_the_budgets_of_points_and_steps_and_the_algorithm_itself_stop_a_run():
    assert play(Script(), RISING, Budget(points=399)).cost.points == 300
    assert (
        play(Script(), RISING, Budget(steps=2)).stopped
        == "stopped: reached the limit of 2 outer steps"
    )
    outcome = play(Script(stop_at=3), RISING, Budget(steps=9))
    assert (outcome.stopped, len(outcome.history)) == ("enough", 3)


def test_costs_add_up_along_the_history():
    outcome = play(Script(), RISING, Budget(steps=3))
    assert [row.cost for row in outcome.history] == [
        Cost(7 * n, 70 * n, 700 * n, (100 * n, 3 * n)) for n in (1, 2, 3)
    ]


def test_the_best_model_is_that_of_the_highest_accuracy_then_the_lowest_loss():
    scores = [(0.5, 1.0), (0.8, 0.9), (0.8, 0.4), (0.8, 0.5), (0.6, 0.1)]
    outcome = play(Script(), scores, Budget(steps=5))
    assert outcome.kept.step == 3
    assert float(outcome.kept_theta[0]) == 2
    assert float(outcome.last_theta[0]) == 4
    assert play(Script(), scores, Budget(steps=5), keep="last").kept.step == 5


def test_the_random_iterate_is_each_with_the_same_probability():
    kept = [
        play(Script(), RISING, Budget(steps=3), keep="random", seed=s).kept.step for s in range(300)
    ]
    for step in (1, 2, 3):
        # 300 draws of probability 1/3: standard deviation 8.2
        assert abs(kept.count(step) - 100) < 4.5 * 8.2
