"""Both engines and the PyTorch loop compute the same with each network."""

from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="needs the extra bench")

import numpy as np

from benchmarks.contests import run_contest
from benchmarks.larger import LargerContests, LargerProblem
from benchmarks.work import Limits
from fedkin.errors import FedkinError

# `tests/test_torch_twins.py` compares the named network of federated averaging by whole runs, and
# `test_contests.py` the paper's networks: here are the others.


def contests_of(network, batch_size):
    points = 2 * batch_size
    return LargerContests(
        LargerProblem(network, nodes=2, points=points, own_points=batch_size, batch_size=batch_size)
    )


@pytest.mark.parametrize("network", ["cnn-fedavg in Flax", "resnet"])
def test_all_ways_give_the_same_numbers(network):
    contests = contests_of(network, batch_size=4)
    assert not contests.keeps_gradients
    start = contests.problem.theta
    np.testing.assert_array_equal(contests.loop.flat(contests.start), start)
    for contest in contests:
        theirs = contest.torch()
        for own in (contest.fedkin(), contest.module()):
            assert np.linalg.norm(own - theirs) < 1e-3 * np.linalg.norm(theirs), contest.name


def test_an_outcome_has_the_times_of_all_ways(monkeypatch):
    monkeypatch.setattr("benchmarks.contests.TURN_SECONDS", 0.0)
    contests = contests_of("Fashion-MNIST", batch_size=25)
    assert contests.keeps_gradients
    contest, limits = contests.gradient(), Limits(flops=1e11, bandwidth=1e10)
    found = run_contest(contests.problem, contest, limits, repeats=1)
    assert found.module_ratio == pytest.approx(found.torch_seconds / found.module_seconds)
    wrong = replace(contest, module=lambda: 1.01 * contest.torch())
    with pytest.raises(FedkinError, match="differ by"):
        run_contest(contests.problem, wrong, limits, repeats=1)
