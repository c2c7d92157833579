"""Both engines and the PyTorch loop compute the same with each network."""

import pytest

pytest.importorskip("torch", reason="needs the extra bench")

import numpy as np

from benchmarks.contests import run_contest
from benchmarks.larger import LARGER, LargerContests, LargerProblem
from benchmarks.work import Limits

# `tests/test_torch_twins.py` compares the named network of federated averaging by whole runs, and
# `test_contests.py` the paper's networks. What is left are the others, and that the engines take their part.
COMPARED = {"cnn-fedavg in Flax": 4, "resnet": 4, "Fashion-MNIST": 25}
"""The networks, and how many images a mini-batch has."""


def problem_of(network):
    batch_size = COMPARED[network]
    return LargerProblem(
        network, nodes=2, points=2 * batch_size, own_points=batch_size, batch_size=batch_size
    )


@pytest.mark.parametrize("network", COMPARED)
def test_all_ways_give_the_same_numbers(network):
    problem = problem_of(network)
    contests = LargerContests(problem)
    assert contests.keeps_gradients == (network == "Fashion-MNIST")
    np.testing.assert_array_equal(contests.loop.flat(contests.start), problem.theta)
    for contest in contests:
        theirs = contest.torch()
        for own in (contest.fedkin(), contest.module()):
            assert np.linalg.norm(own - theirs) < 1e-3 * np.linalg.norm(theirs), contest.name


def test_an_outcome_has_the_times_of_all_ways(monkeypatch):
    monkeypatch.setattr("benchmarks.contests.TURN_SECONDS", 0.0)
    problem = problem_of("Fashion-MNIST")
    contest = LargerContests(problem).gradient()
    found = run_contest(problem, contest, Limits(flops=1e11, bandwidth=1e10), repeats=1)
    assert found.module_ratio == pytest.approx(found.torch_seconds / found.module_seconds)
    assert set(LARGER) > set(COMPARED)
