"""Partitions: what METHOD states about each holds for every seed, and bad requests are refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from labeled_rows import labeled

from fedkin.data.labeled import LabeledData, load_labeled, pool
from fedkin.data.partitions import Dirichlet, Group, Groups, Natural, Pathological
from fedkin.data.sources import load_images
from fedkin.errors import InputError

SEEDS = st.integers(0, 2**32)
few = settings(max_examples=60, deadline=None)


def counts_of(data, nodes) -> np.ndarray:
    """How many rows of each class (column) each node (row) has."""
    return np.array(
        [np.bincount(data.labels[node.rows], minlength=len(data.classes)) for node in nodes]
    )


def is_partition(data, nodes) -> bool:
    """Whether every row is on exactly one node."""
    return sorted(np.concatenate([node.rows for node in nodes])) == list(range(len(data)))


def same(one, other) -> bool:
    return all(np.array_equal(a.rows, b.rows) for a, b in zip(one, other, strict=True))


@few
@given(
    sizes=st.lists(st.integers(20, 60), min_size=1, max_size=6),
    nodes=st.integers(1, 5),
    alpha=st.sampled_from([0.3, 1.0, 100.0]),
    seed=SEEDS,
)
def test_dirichlet_is_a_partition_with_the_minimum_and_the_limit(sizes, nodes, alpha, seed):
    data = labeled(*sizes)
    drawn = Dirichlet(alpha, nodes, minimum=2).draw(data, seed)
    assert [node.name for node in drawn] == [f"node-{number + 1}" for number in range(nodes)]
    assert is_partition(data, drawn)
    counts = counts_of(data, drawn)
    assert counts.sum(axis=1).min() >= 2
    before = np.cumsum(counts, axis=1) - counts
    full = before >= len(data) / nodes
    assert not counts[full].any(), "a node with N/K rows gets no more of the next class"
    assert same(drawn, Dirichlet(alpha, nodes, minimum=2).draw(data, seed))


def test_dirichlet_shares_have_the_mean_and_the_variance_of_the_distribution():
    """Before any node is full, which the first class never makes one: Beta(α, (K − 1) α) for one node."""
    alpha, nodes, size = 0.5, 4, 1000
    data = labeled(size, 9 * size)
    first = np.array(
        [
            counts_of(data, Dirichlet(alpha, nodes, minimum=1).draw(data, seed))[0, 0] / size
            for seed in range(400)
        ]
    )
    mean = 1 / nodes
    variance = mean * (1 - mean) / (nodes * alpha + 1)
    assert abs(first.mean() - mean) < 4 * (variance / 400) ** 0.5
    assert abs(first.var() / variance - 1) < 0.3


def test_a_small_alpha_concentrates_and_a_large_one_evens_out():
    data = labeled(*[200] * 5)
    extreme, mild = (
        counts_of(data, Dirichlet(alpha, 5, minimum=1).draw(data, 0)) for alpha in (0.05, 1e5)
    )
    assert np.mean(extreme.max(axis=1) / extreme.sum(axis=1)) > 0.8
    assert np.abs(mild - 40).max() <= 3


@few
@given(
    sizes=st.lists(st.integers(12, 30), min_size=1, max_size=7),
    nodes=st.integers(1, 12),
    classes_per_node=st.integers(1, 7),
    arrangement=st.sampled_from(["blocks", "random"]),
    even=st.booleans(),
    seed=SEEDS,
)
def test_pathological_gives_every_node_exactly_c_classes(
    sizes, nodes, classes_per_node, arrangement, even, seed
):
    data = labeled(*sizes)
    partition = Pathological(classes_per_node, nodes, arrangement, even)
    if classes_per_node > len(sizes) or classes_per_node * nodes < len(sizes):
        with pytest.raises(InputError, match=r"classes_per_node is|cannot have all"):
            partition.draw(data, seed)
        return
    drawn = partition.draw(data, seed)
    assert is_partition(data, drawn), "all rows of a class are distributed"
    counts = counts_of(data, drawn)
    assert ((counts > 0).sum(axis=1) == classes_per_node).all()
    holders = (counts > 0).sum(axis=0)
    assert holders.max() - holders.min() <= 1
    if even:
        for of_class in counts.T:
            shares = of_class[of_class > 0]
            assert shares.max() - shares.min() <= 1
    assert same(drawn, partition.draw(data, seed))


def test_blocks_are_groups_that_share_their_classes_and_random_ones_are_not():
    data = labeled(*[40] * 10)

    def class_sets(arrangement: str) -> list[tuple[int, ...]]:
        drawn = Pathological(2, 20, arrangement).draw(data, 0)
        return [tuple(np.flatnonzero(row)) for row in counts_of(data, drawn)]

    blocks = class_sets("blocks")
    assert [blocks[place : place + 4] for place in range(0, 20, 4)] == [
        [blocks[place]] * 4 for place in range(0, 20, 4)
    ]
    assert len(set(blocks)) == 5
    assert len(set(class_sets("random"))) > 10


def test_uneven_shares_differ():
    data = labeled(*[1000] * 2)
    counts = counts_of(data, Pathological(1, 8, even=False).draw(data, 0))
    shares = counts[counts > 0]
    assert shares.max() > 1.5 * shares.min()


@pytest.mark.parametrize(
    "partition",
    [
        Dirichlet(0.5, 5),
        Pathological(2, 5),
        Pathological(2, 5, "random", even=False),
        Groups((Group(3), Group(2)), points_per_node=10),
        Groups((Group(3), Group(2)), points_per_node=10, replacement=True),
        Natural("site", nodes=3),
    ],
)
def test_another_seed_gives_another_partition(partition):
    sites = np.random.default_rng(0).integers(0, 8, 120)
    data = labeled(30, 30, 30, 30, columns={"site": sites})
    first, again, other = (partition.draw(data, seed) for seed in (3, 3, 4))
    assert same(first, again)
    sizes = [[len(node.rows) for node in drawn] for drawn in (first, other)]
    assert sizes[0] != sizes[1] or not same(first, other)


SITES = st.lists(st.sampled_from(["va", "zurich", "basel", "7", "007"]), min_size=2, max_size=40)


@few
@given(sites=SITES, seed=SEEDS)
def test_natural_nodes_are_the_values_of_the_column(sites, seed):
    data = labeled(len(sites), columns={"site": np.array(sites)})
    if len(set(sites)) == 1:
        with pytest.raises(InputError, match=f"single value, '{sites[0]}'"):
            Natural("site").draw(data, seed)
        return
    drawn = Natural("site").draw(data, seed)
    assert is_partition(data, drawn)
    assert {node.name for node in drawn} == set(sites)
    for node in drawn:
        assert {sites[row] for row in node.rows} == {node.name}


def test_natural_may_leave_sites_out():
    sites = np.repeat([1, 2, 3, 4], [2, 5, 6, 7])
    data = labeled(20, columns={"site": sites})
    assert [node.name for node in Natural("site", minimum=5).draw(data, 0)] == ["2", "3", "4"]
    chosen = {
        tuple(node.name for node in Natural("site", 2, 5).draw(data, seed)) for seed in range(20)
    }
    assert chosen == {("2", "3"), ("2", "4"), ("3", "4")}
    with pytest.raises(InputError, match=r"3 sites with at least 5 rows .*but 4 are needed"):
        Natural("site", nodes=4, minimum=5).draw(data, 0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array(["va", "", "va", "x"]), r"is empty in 1 of 4 rows \(first: row 2\)"),
        (np.array(["va", None, "?", "x"], object), r"is empty in 2 of 4 rows \(first: row 2\)"),
        (np.array([1.0, np.nan, 2.0, 2.0]), r"is empty in 1 of 4 rows"),
        (np.array([1, 1, 1, 1]), r"has a single value, '1': a federation needs at least two"),
    ],
)
def test_sites_that_are_missing_or_alone(values, message):
    data = labeled(4, columns={"hospital": values})
    with pytest.raises(InputError, match=f"column 'hospital' of the data {message}"):
        Natural("hospital").draw(data, 0)


def test_images_are_pooled_train_then_test():
    source = load_images("digits")
    data = load_labeled("digits")
    assert len(data) == len(source.train_labels) + len(source.test_labels) == 1797
    np.testing.assert_array_equal(data.inputs[:1198], source.train_images)
    np.testing.assert_array_equal(data.labels[1198:], source.test_labels)
    assert pool(source).checksum == source.checksum


data = labeled(6, 6, 6)
BAD = {
    "more nodes than rows": (
        lambda: Dirichlet(1, 19).draw(data, 0),
        "18 rows, too few for 19 nodes",
    ),
    "minimum too large": (
        lambda: Dirichlet(1, 4, minimum=5).draw(data, 0),
        "need 20: lower nodes, or minimum to 4 or less",
    ),
    "minimum never reached": (
        lambda: Dirichlet(0.001, 6, minimum=3).draw(data, 0),
        r"in 2,000 draws of Dirichlet\(0.001\) over 6 nodes .* raise alpha",
    ),
    "alpha of zero": (lambda: Dirichlet(0, 2), "alpha must lie between"),
    "alpha as text": (lambda: Dirichlet("a", 2), "alpha must be a positive number"),  # type: ignore[arg-type]
    "no node": (lambda: Dirichlet(1, 0), "nodes must be a whole number of at least 1, not 0"),
    "half a node": (lambda: Pathological(1, 2.5), "nodes must be a whole number"),  # type: ignore[arg-type]
    "negative seed": (lambda: Pathological(2, 2).draw(data, -1), "seed must be a whole number"),
    "c above the classes": (lambda: Pathological(4, 3).draw(data, 0), "has 3 classes: lower it"),
    "classes without a node": (
        lambda: Pathological(1, 2).draw(data, 0),
        "2 nodes with 1 classes each cannot have all 3 classes of the data: raise nodes to 3",
    ),
    "nodes without rows": (
        lambda: Pathological(2, 12).draw(data, 0),
        r"class 0 \(class 0\) of the data has 6 rows for the 8 nodes",
    ),
    "unknown arrangement": (lambda: Pathological(1, 3, "rows"), "'blocks' or 'random'"),  # type: ignore[arg-type]
    "no such column": (
        lambda: Natural("sit").draw(labeled(2, columns={"site": np.array([1, 2])}), 0),
        "no column 'sit'; did you mean 'site'",
    ),
    "no rows": (
        lambda: LabeledData(np.zeros((0, 1)), np.zeros(0, int), ("a",)),
        "the data has no rows",
    ),
    "labels out of range": (
        lambda: LabeledData(np.zeros((2, 1)), np.array([0, 2]), ("a", "b")),
        "run from 0 to 2, but there are 2 classes",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_impossible_requests_say_what_to_change(name):
    request, message = BAD[name]
    with pytest.raises(InputError, match=message):
        request()
