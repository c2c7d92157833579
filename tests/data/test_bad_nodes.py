"""Bad nodes: only what is named changes, by as much as is said, and the same every time."""

import numpy as np
import pytest
from pydantic import ValidationError

from fedkin.data.bad_nodes import BadNodes, with_bad_nodes
from fedkin.data.scenarios import paper_scenario, sample_federation
from fedkin.data.sources import load_images
from fedkin.errors import InputError

NODES = ("minority-2", "majority-1")


@pytest.fixture(scope="module")
def federation():
    return sample_federation(
        load_images("digits"), paper_scenario("digits", 1), "minority", 5, 3, 2
    )


def changed(before, after):
    return [
        (a.inputs != b.inputs).any(axis=(1, 2, 3)).mean() + 1j * (a.labels != b.labels).mean()
        for a, b in zip(before.nodes, after.nodes, strict=True)
    ]


@pytest.mark.parametrize("share", [0.2, 0.5, None])
@pytest.mark.parametrize("kind", ["flipped-labels", "noise-labels", "noise-inputs"])
def test_named_nodes_change_by_the_share_and_nothing_else_does(federation, kind, share):
    bad = BadNodes(kind=kind, nodes=NODES, share=share)
    worse = with_bad_nodes(federation, bad, 5)
    found = changed(federation, worse)
    chosen = np.array([name in NODES for name in federation.names])
    assert not np.any(np.array(found)[~chosen])
    # A random label is by chance the right one in one of ten rows.
    expected = {"noise-inputs": 1, "noise-labels": 0.9j, "flipped-labels": 1j}[kind] * (share or 1)
    for each in np.array(found)[chosen]:
        assert each == pytest.approx(expected, abs=0.06 if kind == "noise-labels" else 1e-9)
    assert worse.validation is federation.validation
    assert worse.test is federation.test
    assert [alike for alike, is_bad in zip(worse.similar, chosen, strict=True) if is_bad] == [
        False,
        False,
    ]
    assert sum(worse.similar) == 2
    again = with_bad_nodes(federation, bad, 5)
    for one, other in zip(worse.nodes, again.nodes, strict=True):
        np.testing.assert_array_equal(one.inputs, other.inputs)
        np.testing.assert_array_equal(one.labels, other.labels)


def test_flipped_labels_are_the_next_class_and_larger_shares_contain_smaller_ones(federation):
    some, more = (
        with_bad_nodes(federation, BadNodes(kind="flipped-labels", nodes=NODES, share=share), 1)
        for share in (0.2, 0.5)
    )
    before, few, many = (each.nodes[1].labels for each in (federation, some, more))
    assert set(many) == {*before, *((before + 1) % 10)}
    flipped = few != before
    np.testing.assert_array_equal(few[flipped], (before[flipped] + 1) % 10)
    assert (many[flipped] == few[flipped]).all()


def test_random_labels_do_not_depend_on_the_true_ones(federation):
    worse = with_bad_nodes(federation, BadNodes(kind="noise-labels", nodes=NODES), 2)
    counts = np.bincount(worse.nodes[1].labels, minlength=10)
    assert ((counts - 20) ** 2 / 20).sum() < 27.9  # chi-squared with 9 degrees of freedom, 0.1%
    agree = (worse.nodes[1].labels == federation.nodes[1].labels).mean()
    assert agree < 0.2


def test_absent_nodes_are_left_out(federation):
    fewer = with_bad_nodes(federation, BadNodes(kind="absent", nodes=NODES), 0)
    assert fewer.names == ("minority-1", "minority-3", "majority-2")
    assert fewer.similar == (True, True, False)
    assert fewer.nodes[1] is federation.nodes[2]


def test_dishonest_updates_change_no_data(federation):
    same = with_bad_nodes(federation, BadNodes(kind="sign-flipped-updates", nodes=NODES), 0)
    assert all(
        a.inputs is b.inputs and a.labels is b.labels
        for a, b in zip(same.nodes, federation.nodes, strict=True)
    )
    assert BadNodes(kind="sign-flipped-updates", nodes=NODES).update_factor == -1
    assert BadNodes(kind="scaled-updates", nodes=NODES).update_factor == 10
    assert BadNodes(kind="scaled-updates", nodes=NODES, factor=3).update_factor == 3


def test_what_contradicts_itself_is_refused(federation):
    with pytest.raises(InputError, match="no node 'minority-9'; did you mean minority-"):
        with_bad_nodes(federation, BadNodes(kind="absent", nodes=("minority-9",)), 0)
    with pytest.raises(InputError, match="all nodes would be absent"):
        with_bad_nodes(federation, BadNodes(kind="absent", nodes=federation.names), 0)
    wrong = [
        ({"kind": "absent", "share": 0.5}, "share is of no use"),
        ({"kind": "noise-labels", "factor": 2}, "factor is of no use"),
        ({"kind": "noise-labels", "nodes": ("a", "a")}, "one node twice"),
        ({"kind": "noise-labels", "share": 1.5}, "less than or equal to 1"),
    ]
    for fields, message in wrong:
        with pytest.raises(ValidationError, match=message):
            BadNodes(**{"nodes": NODES, **fields})
