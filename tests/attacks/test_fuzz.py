"""Whatever a node is asked, it answers, in time, and one wording is all that depends on its data."""

import pytest

from attacks.fuzz import fuzz, fuzzed_settings
from fedkin.flower.node import SEE_LOG

LONGEST = 60.0
"""Seconds for one answer on a busy machine; the owner's own limit is 600."""


@pytest.mark.parametrize(
    ("requests", "seed"), [(300, 1), pytest.param(10_000, 0, marks=pytest.mark.slow)]
)
def test_random_requests(requests, seed, tmp_path):
    outcome = fuzz(requests, seed, fuzzed_settings(tmp_path))
    assert outcome.failures == []
    assert outcome.data_wordings == {SEE_LOG}
    assert outcome.slowest < LONGEST
    assert sum(outcome.answered.values()) + sum(outcome.refused.values()) == requests
    # Both kinds come through, so that what lies behind the checks is tried too.
    assert min(outcome.answered[kind] for kind in ("join", "exchange")) >= requests / 100
    assert {"INVALID", "LIMIT", "DATA", "NOT_BEGUN"} <= set(outcome.refused)
