import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkin.numerics.communities import find_groups, modularity


def numbered(groups, count):
    found = np.empty(count, int)
    for number, group in enumerate(groups):
        found[group] = number
    return found


def partitions(count):
    """All partitions of 0 … count − 1, as numbers of groups."""
    for numbers in itertools.product(range(count), repeat=count):
        if all(
            number <= max(numbers[:place], default=-1) + 1 for place, number in enumerate(numbers)
        ):
            yield np.array(numbers)


@given(st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_few_partitions_are_better_than_the_one_found(seed):
    """There is no guarantee, but on five nodes the search should come close to the best of all 52."""
    weights = np.random.default_rng(seed).dirichlet(np.full(5, 0.5), size=5)
    found = modularity(weights, numbered(find_groups(weights), 5))
    best = max(modularity(weights, each) for each in partitions(5))
    assert found >= 0.85 * best - 1e-12


@given(st.integers(0, 10_000), st.integers(2, 5), st.integers(2, 6))
@settings(max_examples=30, deadline=None)
def test_separate_blocks_are_found_in_any_order(seed, blocks, size):
    draw = np.random.default_rng(seed)
    membership = draw.permutation(np.repeat(np.arange(blocks), size))
    weights = np.where(
        membership[:, None] == membership, draw.uniform(0.5, 1, (len(membership),) * 2), 0
    )
    weights /= weights.sum(axis=1, keepdims=True)
    found = {frozenset(group) for group in find_groups(weights)}
    assert found == {frozenset(np.flatnonzero(membership == block)) for block in range(blocks)}


def test_blocks_with_some_weight_elsewhere_are_found():
    membership = np.repeat([0, 1, 2], 5)
    weights = np.where(membership[:, None] == membership, 0.9 / 5, 0.1 / 10)
    assert find_groups(weights) == [list(range(5)), list(range(5, 10)), list(range(10, 15))]


@pytest.mark.parametrize("weights", [np.eye(3), np.zeros((3, 3))])
def test_nodes_that_learn_alone_are_groups_of_one(weights):
    assert find_groups(weights) == [[0], [1], [2]]


def test_equal_weights_make_one_group():
    assert find_groups(np.full((6, 6), 1 / 6)) == [[0, 1, 2, 3, 4, 5]]
