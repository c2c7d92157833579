"""fedkin and the PyTorch loop compute the same with networks of usual size."""

import pytest

pytest.importorskip("torch", reason="needs the extra bench")

import numpy as np

from benchmarks.larger import LARGER, LargerContests, LargerProblem


@pytest.mark.parametrize("network", LARGER)
def test_both_ways_give_the_same_numbers(network):
    contests = LargerContests(LargerProblem(network, nodes=2))
    back = contests.loop.flat(contests.start)
    np.testing.assert_array_equal(back, contests.problem.theta)
    for contest in contests:
        ours, theirs = contest.fedkin(), contest.torch()
        assert np.linalg.norm(ours - theirs) < 1e-4 * np.linalg.norm(theirs), contest.name
