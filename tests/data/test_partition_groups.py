"""Groups: probabilities, permutations and rotations of any number of groups."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from labeled_rows import labeled, squares

from fedkin.data.labeled import LabeledData, load_labeled
from fedkin.data.partitions import (
    Group,
    Groups,
    groups_of_scenario,
    load_groups,
    split_nodes,
)
from fedkin.data.scenarios import paper_scenario
from fedkin.errors import InputError


@settings(max_examples=40, deadline=None)
@given(
    members=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    points=st.integers(3, 8),
    replacement=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_every_node_has_its_points_and_no_row_is_drawn_twice(members, points, replacement, seed):
    data = labeled(*[60] * 3)
    groups = Groups(tuple(Group(count) for count in members), points, replacement=replacement)
    drawn = groups.draw(data, seed)
    assert len(drawn) == groups.node_count == sum(members)
    assert len({node.name for node in drawn}) == len(drawn)
    assert all(len(node.rows) == points for node in drawn)
    if not replacement:
        rows = np.concatenate([node.rows for node in drawn])
        assert len(set(rows)) == len(rows)


@pytest.mark.parametrize("replacement", [False, True])
def test_classes_occur_with_the_group_probabilities(replacement):
    data = labeled(*[2000] * 4)
    merged = ((0, 3), (1,), (2,))
    groups = Groups(
        (Group(1, (0.7, 0.3, 0.0)), Group(1, (0.1, 0.2, 0.7)), Group(1)),
        points_per_node=1000,
        merged_classes=merged,
        replacement=replacement,
    )
    expected = [(0.35, 0.3, 0, 0.35), (0.05, 0.2, 0.7, 0.05), (0.25,) * 4]
    for node, chances in zip(groups.draw(data, 0), expected, strict=True):
        shares = np.bincount(data.labels[node.rows], minlength=4) / 1000
        for share, chance in zip(shares, chances, strict=True):
            assert abs(share - chance) <= 4 * (chance * (1 - chance) / 1000) ** 0.5


def test_labels_are_permuted_and_images_turned_clockwise():
    data = squares(20, 20, 20)
    groups = Groups(
        tuple(
            Group(1, permutation={0: 2, 2: 0} if turn else {}, rotation=turn)
            for turn in (0, 90, 180, 270)
        ),
        points_per_node=10,
    )
    corners = {0: (0, 0), 90: (0, 1), 180: (1, 1), 270: (1, 0)}
    for node in split_nodes(data, groups, 0):
        images, labels = node.train
        np.testing.assert_array_equal(images[:, *corners[node.rotation], 0], node.rows.train)
        original = data.labels[node.rows.train]
        np.testing.assert_array_equal(labels, 2 - original if node.rotation else original)


def test_either_direction_is_drawn_once_for_all_nodes():
    data = squares(40)
    turns = [
        {
            node.rotation
            for node in Groups((Group(2, rotation="either"),), points_per_node=5).draw(data, seed)
        }
        for seed in range(12)
    ]
    assert all(len(each) == 1 for each in turns)
    assert set().union(*turns) == {90, 270}


def test_the_paper_s_settings_as_groups():
    data = load_labeled("digits")
    groups = groups_of_scenario(paper_scenario("digits", 4), 2, 3)
    nodes = split_nodes(data, groups, 0)
    assert [node.name for node in nodes] == [
        *("minority-1", "minority-2", "majority-1", "majority-2", "majority-3")
    ]
    assert [node.group for node in nodes] == ["minority"] * 2 + ["majority"] * 3
    assert nodes[0].rotation == 0
    assert nodes[0].permutation is None
    assert nodes[2].permutation == (1, 5, 0, 3, 4, 2, 6, 7, 8, 9)
    assert nodes[2].rotation in (90, 270)
    sizes = [len(node.train.labels) for node in nodes]
    assert abs(np.mean(sizes) - 200) < 4 * (333 * 0.6 * 0.4 / len(sizes)) ** 0.5


def test_no_node_trains_on_what_any_node_is_judged_by():
    groups = groups_of_scenario(paper_scenario("digits", 1))
    nodes = split_nodes(load_labeled("digits"), groups, 0)
    pools = [
        set(np.concatenate([getattr(node.rows, part) for node in nodes]))
        for part in ("train", "validation", "test")
    ]
    assert not pools[0] & pools[1]
    assert not pools[0] & pools[2]
    assert not pools[1] & pools[2]


OWN = """
points_per_node = 20
[[groups]]
name = "plain"
nodes = 2
[[groups]]
nodes = 3
probabilities = [0.5, 0.5, 0]
permutation = { 0 = 1, 1 = 0 }
rotation = 90
"""


def test_groups_of_a_file(tmp_path: Path):
    (tmp_path / "three.toml").write_text(OWN)
    groups = load_groups(tmp_path / "three.toml")
    assert groups == Groups(
        (Group(2, name="plain"), Group(3, (0.5, 0.5, 0.0), {0: 1, 1: 0}, 90)), 20, name="three"
    )
    assert groups.group_names == ("plain", "group2")


FILES = {
    "unknown key": (OWN.replace("rotation", "rotaton"), r"groups\.1\.rotaton: Unexpected keyword"),
    "no points": (OWN.replace("points_per_node = 20", ""), "points_per_node: is missing"),
    "odd angle": (OWN.replace("90", "45"), r"groups\.1.*rotation"),
    "not a permutation": (OWN.replace("1 = 0", "1 = 2"), "same labels on both sides"),
    "sum": (OWN.replace("[0.5, 0.5, 0]", "[0.5, 0.4, 0]"), "sum to 0.9, not 1"),
    "not TOML": ("points_per_node = ", "is not valid TOML"),
}


@pytest.mark.parametrize("name", FILES)
def test_mistakes_in_a_file_name_it_and_the_key(tmp_path: Path, name):
    content, message = FILES[name]
    (tmp_path / "own.toml").write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        load_groups(tmp_path / "own.toml")
    assert "own.toml" in str(caught.value)


data = squares(20, 20, 0)
wide = LabeledData(np.zeros((4, 2, 3, 1), np.uint8), np.array([0, 1, 0, 1]), ("a", "b"))
BAD = {
    "no groups": (lambda: Groups((), 5), "no groups"),
    "same name": (
        lambda: Groups((Group(1, name="a"), Group(1, name="a")), 5),
        "two groups have the same name",
    ),
    "label twice": (lambda: Groups((Group(1),), 5, ((0, 1), (1,))), "label 1 is in .* twice"),
    "too many rows": (
        lambda: Groups((Group(3, (1, 0, 0)),), 10).draw(data, 0),
        "need 30 rows of class class 0, but the data has 20: lower points_per_node",
    ),
    "empty class": (
        lambda: Groups((Group(1, (0, 0, 1)),), 5).draw(data, 0),
        "no row of class class 2, which group1 draws from",
    ),
    "wrong number of probabilities": (
        lambda: Groups((Group(1, (0.5, 0.5)),), 5).draw(data, 0),
        "group1 has 2 probabilities for 3 classes",
    ),
    "unknown class": (
        lambda: Groups((Group(1, permutation={0: 7, 7: 0}),), 5).draw(data, 0),
        "group1 names class 7, but the data has 3 classes",
    ),
    "turned rows": (
        lambda: Groups((Group(1, rotation=180),), 2).draw(labeled(5), 0),
        "has no images: leave out rotation",
    ),
    "turned oblong": (
        lambda: Groups((Group(1, rotation=90),), 2).draw(wide, 0),
        "3x2 pixels, but only square images",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_impossible_groups_say_what_to_change(name):
    request, message = BAD[name]
    with pytest.raises(InputError, match=message):
        request()
