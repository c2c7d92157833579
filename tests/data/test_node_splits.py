"""Training, validation and test data of nodes: disjoint, of the right sizes, the same for the same seed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from labeled_rows import labeled

from fedkin.data.labeled import load_labeled
from fedkin.data.partitions import Dirichlet, Natural, Pathological, one_class_nodes, split_nodes
from fedkin.errors import InputError


def equal(one, other) -> bool:
    return all(
        np.array_equal(a, b)
        for mine, theirs in zip(one, other, strict=True)
        for a, b in zip(mine.rows, theirs.rows, strict=True)
    )


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(3, 40), min_size=2, max_size=5),
    test=st.floats(0.01, 0.99),
    validation=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**32),
)
def test_parts_are_disjoint_complete_and_of_the_right_size(sizes, test, validation, seed):
    sites = np.repeat(np.arange(len(sizes)), sizes)
    data = labeled(*sizes, columns={"site": sites})
    fractions = {"test_fraction": test, "validation_fraction": validation}
    nodes = split_nodes(data, Natural("site"), seed, **fractions)
    for number, node in enumerate(nodes):
        assert sorted(np.concatenate(node.rows)) == np.flatnonzero(sites == number).tolist()
        total = sizes[number]
        held = [len(points.labels) for points in (node.train, node.validation, node.test)]
        assert min(held) >= 1
        assert abs(held[2] - test * total) <= 0.5 or held[2] in (1, total - 2)
        left = total - held[2]
        assert abs(held[1] - validation * left) <= 0.5 or held[1] in (1, left - 1)
        for points, rows in zip((node.train, node.validation, node.test), node.rows, strict=True):
            np.testing.assert_array_equal(points.inputs[:, 0], rows)
            np.testing.assert_array_equal(points.labels, data.labels[rows])
    assert equal(nodes, split_nodes(data, Natural("site"), seed, **fractions))


def test_every_class_is_divided_in_the_same_proportions():
    data = labeled(400, 100, 40)
    sites = np.random.default_rng(0).integers(0, 2, len(data))
    data = labeled(400, 100, 40, columns={"site": sites})
    for node in split_nodes(data, Natural("site"), 0):
        whole = node.class_counts(3)
        for points, share in ((node.train, 0.6), (node.validation, 0.15), (node.test, 0.25)):
            assert np.abs(np.bincount(points.labels, minlength=3) - share * whole).max() <= 2


def test_the_rows_of_a_node_do_not_depend_on_the_fractions():
    data = load_labeled("digits")
    one, other = (
        split_nodes(data, Dirichlet(0.5, 5), 0, validation_fraction=share) for share in (0.2, 0.4)
    )
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_array_equal(mine.rows.test, theirs.rows.test)
        assert set(mine.rows.validation) < set(theirs.rows.validation)


def test_another_seed_gives_other_parts_of_the_same_natural_nodes():
    data = labeled(30, 30, columns={"site": np.arange(60) % 2})
    one, other = (split_nodes(data, Natural("site"), seed) for seed in (0, 1))
    assert not equal(one, other)


def test_nodes_that_cannot_be_split_are_named():
    sites = np.array(["va"] * 5 + ["basel", "zurich"] + ["basel"])
    data = labeled(4, 4, columns={"site": sites})
    with pytest.raises(InputError, match=r"too few rows .*: basel \(2\) and zurich \(1\)"):
        split_nodes(data, Natural("site"), 0)


def test_nodes_with_one_class_are_named_and_kept():
    data = labeled(20, 20)
    nodes = split_nodes(data, Pathological(1, 4), 0)
    assert one_class_nodes(nodes) == ["node-1", "node-2", "node-3", "node-4"]
    assert one_class_nodes(split_nodes(data, Pathological(2, 4), 0)) == []


@pytest.mark.parametrize("name", ["test_fraction", "validation_fraction"])
@pytest.mark.parametrize("value", [0, 1, -0.5, float("nan")])
def test_fractions_lie_between_0_and_1(name, value):
    with pytest.raises(InputError, match=f"{name} must lie between 0 and 1"):
        split_nodes(labeled(20), Dirichlet(1, 2), 0, **{name: value})
