"""fedkin and the PyTorch loop compute the same."""

from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="needs the extra bench")

import numpy as np

from benchmarks import work
from benchmarks.contests import Contests, run_contest
from benchmarks.problem import NETWORKS, BenchProblem
from fedkin.errors import FedkinError

LIMITS = work.Limits(flops=1e11, bandwidth=1e10)


def made(network):
    return Contests(BenchProblem(network, nodes=2, points=40, own_points=40, batch_size=20))


@pytest.fixture(scope="module")
def contests():
    return made("Fashion-MNIST")


@pytest.mark.slow
def test_both_ways_give_the_same_numbers(contests):
    names = []
    for contest in contests:
        ours, theirs = contest.fedkin(), contest.torch()
        assert ours.shape == theirs.shape
        assert np.linalg.norm(ours - theirs) < 1e-3 * np.linalg.norm(theirs), contest.name
        assert np.ptp(ours) > 0
        names.append(contest.name)
    assert len(set(names)) == len(names) == 6


def test_the_other_network_has_the_same_gradients_and_products():
    """All that the other contests consist of."""
    others = made("CIFAR-10")
    assert set(NETWORKS) == {"Fashion-MNIST", "CIFAR-10"}
    for contest in (others.svrg(keep=False), others.adjoint()):
        ours, theirs = contest.fedkin(), contest.torch()
        assert np.linalg.norm(ours - theirs) < 1e-3 * np.linalg.norm(theirs), contest.name


def test_an_outcome_says_what_was_measured(contests, monkeypatch):
    monkeypatch.setattr("benchmarks.contests.TURN_SECONDS", 0.01)
    contest = contests.ditto()
    outcome = run_contest(contests.problem, contest, LIMITS, repeats=1)
    assert outcome.ratio > 1
    assert outcome.points_per_second == pytest.approx(
        (2 * 20 + 25) * 20 / (outcome.fedkin_seconds * contest.units)
    )
    assert outcome.bandwidth_share > 0
    assert outcome.matmul_share > 0


@pytest.mark.parametrize("wrong", [1.01, np.nan])
def test_ways_that_disagree_are_not_compared(contests, wrong):
    contest = contests.ditto()
    false = replace(contest, fedkin=lambda: wrong * contest.torch())
    with pytest.raises(FedkinError, match="differ by"):
        run_contest(contests.problem, false, LIMITS, repeats=1)
