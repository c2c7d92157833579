"""The paper's settings: right numbers, right draws, right nodes changed, nothing else."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkin.data.federated import FederatedData
from fedkin.data.images import ImageSource
from fedkin.data.scenarios import Scenario, load_scenario, paper_scenario, sample_federation
from fedkin.data.sources import load_images
from fedkin.errors import InputError

# The table of METHOD, section 6: merged classes, P of the minority, P of the majority, sizes.
GRAY = ([[2, 4, 6], [0, 3], [1, 8], [5, 7, 9]], [0.42, 0.08, 0.38, 0.12], [0.12, 0.38, 0.08, 0.42])
CIFAR = (
    [[1, 9], [0, 8], [2, 3, 4], [5, 6, 7]],
    [0.36, 0.04, 0.54, 0.06],
    [0.04, 0.36, 0.06, 0.54],
)
TABLE = {
    "mnist": (*GRAY, (4000, 500, 5000)),
    "fashion-mnist": (*GRAY, (4000, 500, 5000)),
    "cifar10": (*CIFAR, (4000, 500, 5000)),
    "downsampled-imagenet": (
        [[*range(8)], [*range(8, 16)], [*range(16, 28)], [*range(28, 40)]],
        *CIFAR[1:],
        (4000, 1500, 1000),
    ),
    "tiny-imagenet32": (
        [[*range(10)], [*range(10, 20)], [*range(20, 30)], [*range(30, 40)]],
        *CIFAR[1:],
        (4000, 1500, 1000),
    ),
    "digits": (*GRAY, (200, 60, 500)),
}


def cycle(*labels: int) -> dict[int, int]:
    return dict(itertools.pairwise([*labels, labels[0]]))


# Label → label of the majority, where it differs.
MOVES = {
    "mnist": {2: 0, 0: 1, 1: 5, 5: 2},
    "fashion-mnist": {2: 0, 0: 1, 1: 5, 5: 2},
    "digits": {2: 0, 0: 1, 1: 5, 5: 2},
    "cifar10": {1: 0, 0: 2, 2: 5, 5: 1},
    "tiny-imagenet32": cycle(0, 10, 20, 30, 1, 11, 21, 31, 2, 12, 22, 32),
    "downsampled-imagenet": cycle(0, 8, 16, 28, 1, 9, 17, 29, 2, 10, 18, 30),
}
ALL = [(name, number) for name in TABLE for number in (1, 2, 3, 4)]


@pytest.mark.parametrize(("name", "number"), ALL)
def test_settings_are_those_of_the_method(name: str, number: int) -> None:
    merged, minority, majority, sizes = TABLE[name]
    setting = paper_scenario(name, number)
    assert [list(each) for each in setting.merged_classes] == merged
    assert (list(setting.minority), list(setting.majority)) == (minority, majority)
    assert (setting.train_size, setting.validation_size, setting.test_size) == sizes
    assert setting.permutation == (MOVES[name] if number in (2, 4) else {})
    assert setting.rotation == (number in (3, 4))


def assert_frequencies(
    indices: np.ndarray, labels: np.ndarray, merged: list[list[int]], chances: list[float]
) -> None:
    """Every merged class and every class in it within four standard errors of its probability."""
    for group, chance in zip(merged, chances, strict=True):
        in_group = np.isin(labels, group).sum()
        expectations = [(group, chance)]
        expectations += [([one], chance * (labels == one).sum() / in_group) for one in group]
        for wanted, expected in expectations:
            found = np.isin(labels[indices], wanted).mean()
            standard_error = math.sqrt(expected * (1 - expected) / len(indices))
            assert abs(found - expected) <= 4 * standard_error, (wanted, found, expected)


def turned_clockwise(image: np.ndarray) -> np.ndarray:
    """What was the bottom of the left column is now the left of the top row."""
    size = len(image)
    turned = np.empty_like(image)
    for row in range(size):
        for column in range(size):
            turned[column, size - 1 - row] = image[row, column]
    return turned


QUARTER_TURNS = {"upright": 0, "clockwise": 1, "upside down": 2, "anticlockwise": 3}


def read_codes(images: np.ndarray) -> tuple[set[int], np.ndarray, set[str]]:
    """Of images of `coded_source`: which parts they are of, which indices, and how turned."""

    def pixels(row: int, column: int, turns: int) -> np.ndarray:
        for _ in range(turns):  # by which the pixel has moved, in a 4x4 image
            row, column = column, 3 - row
        return images[:, row, column, 0].astype(int)

    parts, ways, indices = set(), set(), np.full(len(images), -1)
    for way, turns in QUARTER_TURNS.items():
        so_turned = pixels(0, 0, turns) == 255
        if so_turned.any():
            ways.add(way)
            parts |= set(pixels(1, 1, turns)[so_turned].tolist())
            codes = pixels(1, 2, turns) * 200 + pixels(2, 1, turns)
            indices[so_turned] = codes[so_turned]
    return parts, indices, ways


@pytest.mark.parametrize("target", ["minority", "majority"])
@pytest.mark.parametrize(("name", "number"), ALL)
def test_every_image_and_label_of_a_federation(coded_source, name, number, target) -> None:
    """Read from the pixels alone: origin, frequencies, permutation and rotation of everybody."""
    merged, minority, majority, sizes = TABLE[name]
    source: ImageSource = coded_source(name, sum(len(each) for each in merged))
    data = sample_federation(source, paper_scenario(name, number), target, seed=5)
    moves = MOVES[name] if number in (2, 4) else {}

    assert len(data.nodes) == 15
    assert data.similar == tuple([target == "minority"] * 5 + [target == "majority"] * 10)
    holders = [(node, sizes[0], 1, k < 5) for k, node in enumerate(data.nodes)]
    holders.append((data.validation, sizes[1], 1, target == "minority"))
    holders.append((data.test, sizes[2], 2, target == "minority"))
    directions = set()
    for (images, labels), size, part, is_minority in holders:
        assert images.shape == (size, 4, 4, 1)
        assert images.dtype == np.uint8
        assert labels.dtype == np.int32
        parts, indices, ways = read_codes(images)
        assert parts == {part}
        original = source.train_labels if part == 1 else source.test_labels
        chances = minority if is_minority else majority
        assert_frequencies(indices, original, merged, chances)
        expected = original[indices].copy()
        for old, new in ({} if is_minority else moves).items():
            expected[original[indices] == old] = new
        assert np.array_equal(labels, expected)
        if is_minority or number in (1, 2):
            assert ways == {"upright"}
        else:
            directions |= ways
    if number in (3, 4):
        assert len(directions) == 1
        assert directions < {"clockwise", "anticlockwise"}
        assert data.description.rotation in directions
    else:
        assert data.description.rotation is None


@pytest.mark.parametrize("target", ["minority", "majority"])
@pytest.mark.parametrize(
    ("name", "number"), [(name, number) for name, number in ALL if name != "downsampled-imagenet"]
)
def test_federations_of_the_real_data(request, name: str, number: int, target) -> None:
    merged, minority, majority, sizes = TABLE[name]
    directory = None if name == "digits" else request.getfixturevalue("real_data")
    source = load_images(name, directory)
    data = sample_federation(source, paper_scenario(name, number), target, seed=number)
    moves = MOVES[name] if number in (2, 4) else {}
    relabel = np.array([moves.get(label, label) for label in range(len(source.classes))])
    description = data.description
    holders = [
        (node, each.indices, "train", sizes[0], k < 5)
        for k, (node, each) in enumerate(zip(data.nodes, description.nodes, strict=True))
    ]
    is_minority = target == "minority"
    holders.append((data.validation, description.validation, "train", sizes[1], is_minority))
    holders.append((data.test, description.test, "test", sizes[2], is_minority))
    for (images, labels), indices, part, size, in_minority in holders:
        original_images = getattr(source, f"{part}_images")
        original_labels = getattr(source, f"{part}_labels")
        chosen = np.array(indices)
        assert len(images) == len(labels) == len(chosen) == size
        assert_frequencies(chosen, original_labels, merged, minority if in_minority else majority)
        kept = original_labels[chosen]
        assert np.array_equal(labels, kept if in_minority else relabel[kept])
        for place in (0, size // 2, size - 1):
            expected = original_images[chosen[place]]
            if not in_minority and description.rotation:
                turns = {"clockwise": 1, "anticlockwise": 3}[description.rotation]
                for _ in range(turns):
                    expected = turned_clockwise(expected)
            assert np.array_equal(images[place], expected)


def all_bytes(data: FederatedData) -> list[bytes]:
    pairs = [*data.nodes, data.validation, data.test]
    return [array.tobytes() for pair in pairs for array in pair]


def test_same_seed_same_bytes_other_seed_other_bytes(coded_source) -> None:
    source, setting = coded_source("mnist", 10), paper_scenario("mnist", 4)
    one, again, other = (sample_federation(source, setting, "majority", seed) for seed in (3, 3, 4))
    assert all_bytes(one) == all_bytes(again)
    assert all(a != b for a, b in zip(all_bytes(one), all_bytes(other), strict=True))


def test_no_two_holders_share_their_draw(coded_source) -> None:
    source, setting = coded_source("mnist", 10), paper_scenario("mnist", 1)
    description = sample_federation(source, setting, "minority", 0).description
    draws = [node.indices[:500] for node in description.nodes] + [description.validation]
    assert len(set(draws)) == len(draws)


def test_both_directions_of_rotation_happen(coded_source) -> None:
    source, setting = coded_source("mnist", 10, 200, 200), paper_scenario("mnist", 3)
    small = {"train_size": 1, "validation_size": 1, "test_size": 1}
    directions = [
        sample_federation(source, setting, "minority", seed, **small).description.rotation
        for seed in range(100)
    ]
    # Fair coin, 100 throws: four standard deviations are 20.
    assert 30 <= directions.count("clockwise") <= 70


def test_a_change_for_one_does_not_change_another(coded_source) -> None:
    source, setting = coded_source("mnist", 10), paper_scenario("mnist", 4)
    usual = sample_federation(source, setting, "minority", 0, 2, 3, 100).description
    sizes = [100, 250, 100, 40, 100]
    changed = sample_federation(
        source, setting, "minority", 0, 2, 3, sizes, validation_size=30, test_size=20
    ).description
    for k, size in enumerate(sizes):
        if size == 100:
            assert changed.nodes[k] == usual.nodes[k]
    # More or less of the same draw, not another one.
    assert changed.nodes[1].indices[:100] == usual.nodes[1].indices
    assert changed.nodes[3].indices == usual.nodes[3].indices[:40]
    assert changed.validation == usual.validation[:30]
    assert changed.rotation == usual.rotation
    more = sample_federation(source, setting, "minority", 0, 4, 3, 100).description
    assert more.nodes[:2] == usual.nodes[:2]
    assert more.nodes[4:] == usual.nodes[2:]


@given(
    minority=st.integers(0, 4),
    majority=st.integers(0, 4),
    size=st.integers(1, 30),
    seed=st.integers(0, 2**70),
)
@settings(max_examples=40, deadline=None)
def test_any_group_sizes_and_any_seed(minority: int, majority: int, size: int, seed: int) -> None:
    source, setting = load_images("digits"), paper_scenario("digits", 4)
    arguments = (source, setting, "majority", seed, minority, majority, size)
    if minority + majority == 0:
        with pytest.raises(InputError, match="at least one is needed"):
            sample_federation(*arguments)
        return
    data = sample_federation(*arguments)
    assert data.similar == (False,) * minority + (True,) * majority
    assert len(set(data.names)) == len(data.names) == minority + majority
    assert all(len(labels) == size for _, labels in data.nodes)


def test_images_of_a_merged_class_are_equally_likely(coded_source) -> None:
    source, setting = coded_source("mnist", 10, 600, 600), paper_scenario("mnist", 1)
    data = sample_federation(source, setting, "minority", 0, 1, 0, 100_000)
    counts = np.bincount(data.description.nodes[0].indices, minlength=600)
    for merged in setting.merged_classes:
        of_class = counts[np.isin(source.train_labels, merged)]
        expected = of_class.mean()
        # Chi-squared with m - 1 degrees of freedom has mean m - 1 and variance 2 (m - 1).
        statistic, freedom = ((of_class - expected) ** 2 / expected).sum(), len(of_class) - 1
        assert abs(statistic - freedom) < 4 * math.sqrt(2 * freedom)


def test_probability_zero_is_never_drawn(coded_source) -> None:
    setting = Scenario(
        merged_classes=((0,), (1,), (2,)),
        minority=(0, 1, 0),
        majority=(1, 0, 0),
        train_size=2000,
        validation_size=2000,
        test_size=2000,
    )
    data = sample_federation(coded_source("own", 3), setting, "minority", 0, 1, 1)
    assert set(data.nodes[0][1]) == {1}
    assert set(data.nodes[1][1]) == {0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "middle"}, "not 'middle'"),
        ({"seed": -1}, "seed is -1"),
        ({"minority_nodes": -1}, "at least one is needed"),
        ({"train_size": 0}, "at least one image"),
        ({"train_size": [5, 5]}, "2 sizes for 15 nodes"),
        ({"validation_size": 0}, "at least one image"),
    ],
)
def test_impossible_draws(options: dict, message: str) -> None:
    arguments = {"target": "minority", "seed": 0} | options
    with pytest.raises(InputError, match=message):
        sample_federation(load_images("digits"), paper_scenario("digits", 1), **arguments)


def test_setting_that_does_not_fit_the_source(coded_source) -> None:
    with pytest.raises(InputError, match="names class 39, but small has 10 classes"):
        sample_federation(
            coded_source("small", 10), paper_scenario("tiny-imagenet32", 1), "minority", 0
        )


def test_class_without_images(coded_source) -> None:
    source = coded_source("gap", 10)
    source.test_labels[:] = np.where(np.isin(source.test_labels, [0, 3]), 1, source.test_labels)
    with pytest.raises(InputError, match="test part of gap has no image of the classes 0, 3"):
        sample_federation(source, paper_scenario("mnist", 1), "minority", 0)


def test_oblong_images_cannot_be_turned() -> None:
    images = np.zeros((20, 4, 6, 1), np.uint8)
    labels = np.arange(20, dtype=np.int32) % 10
    source = ImageSource("oblong", images, labels, images, labels, tuple("abcdefghij"))
    with pytest.raises(InputError, match="6x4 pixels, but only square"):
        sample_federation(source, paper_scenario("mnist", 3), "minority", 0)
    assert sample_federation(source, paper_scenario("mnist", 2), "minority", 0).nodes


@pytest.mark.parametrize("number", [0, 5, -1])
def test_no_such_setting(number: int) -> None:
    with pytest.raises(InputError, match=f"no setting {number}: choose 1, 2, 3 or 4"):
        paper_scenario("mnist", number)


def test_settings_of_an_unknown_data_set() -> None:
    with pytest.raises(InputError, match=r"did you mean cifar10\?.*TOML"):
        paper_scenario("cifar-10", 1)
    assert paper_scenario("cifar10-jpeg", 2) == paper_scenario("cifar10", 2)


OWN = """
merged_classes = [[0, 1], [2]]
minority = [0.9, 0.1]
majority = [0.25, 0.75]
permutation = { 0 = 2, 2 = 0 }
rotation = true
train_size = 50
validation_size = 20
test_size = 30
"""


def test_own_setting_from_toml(tmp_path: Path, coded_source) -> None:
    path = tmp_path / "fruit.toml"
    path.write_text(OWN)
    setting = load_scenario(path)
    assert setting.name == "fruit"
    assert setting.permutation == {0: 2, 2: 0}
    data = sample_federation(coded_source("fruit", 3), setting, "majority", 1)
    assert len(data.nodes[0][1]) == 50
    assert data.description.permutation == (2, 1, 0)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0.9, 0.1", "0.9, 0.2", r"minority probabilities sum to 1.1, not 1"),
        ("0.9, 0.1", "1.0", r"minority has 1 probabilities for 2 merged classes"),
        ("0.9, 0.1", "1.5, -0.5", r"minority.0: .*less than or equal to 1"),
        ("0.9, 0.1", "nan, 0.1", r"minority.0: .*finite"),
        ("[2]]", "[1]]", r"label 1 is in the merged classes twice"),
        ("[2]]", "[]]", r"at least one label"),
        ("[2]]", '["b"]]', r"merged_classes.1.0: .*integer"),
        ("{ 0 = 2, 2 = 0 }", "{ 0 = 2 }", r"permutation must have the same labels"),
        ("{ 0 = 2, 2 = 0 }", "{ 0 = 2, 2 = 2 }", r"permutation must have the same labels"),
        ("train_size = 50", "", r"train_size: is missing"),
        ("train_size = 50", "train_size = 0", r"train_size: .*greater than 0"),
        ("rotation = true", "rotations = true", r"rotations: Extra inputs are not permitted"),
        ("rotation = true", "rotation = ", r"not valid TOML"),
    ],
)
def test_mistakes_in_toml(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "own.toml"
    assert old in OWN
    path.write_text(OWN.replace(old, new))
    with pytest.raises(InputError, match=message) as caught:
        load_scenario(path)
    assert str(path) in str(caught.value)


def test_no_settings_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no file .* with a setting"):
        load_scenario(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="cannot read"):
        load_scenario(tmp_path / "binary.toml")
