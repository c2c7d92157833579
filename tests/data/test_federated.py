"""A saved description brings the same federation back, and notices when it cannot."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedkin.data.federated import FederationDescription, build_federation
from fedkin.data.scenarios import paper_scenario, sample_federation
from fedkin.data.sources import load_images
from fedkin.errors import InputError


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    data = sample_federation(load_images("digits"), paper_scenario("digits", 4), "majority", 11)
    path = tmp_path / "federation.json"
    data.description.save(path)
    return path


def test_saved_and_rebuilt_to_the_byte(saved: Path) -> None:
    source = load_images("digits")
    original = sample_federation(source, paper_scenario("digits", 4), "majority", 11)
    rebuilt = build_federation(source, FederationDescription.load(saved))
    assert rebuilt.description == original.description
    assert (rebuilt.names, rebuilt.similar) == (original.names, original.similar)
    for one, other in zip(
        [*rebuilt.nodes, rebuilt.validation, rebuilt.test],
        [*original.nodes, original.validation, original.test],
        strict=True,
    ):
        for a, b in zip(one, other, strict=True):
            assert a.tobytes() == b.tobytes()
            assert (a.dtype, a.shape) == (b.dtype, b.shape)


def test_file_says_who_got_what(saved: Path) -> None:
    """It is plain JSON, of use to somebody without fedkin."""
    content = json.loads(saved.read_text())
    assert content["source"] == "digits"
    assert content["seed"] == 11
    assert content["rotation"] in ("clockwise", "anticlockwise")
    source = load_images("digits")
    data = sample_federation(source, paper_scenario("digits", 4), "majority", 11)
    first = content["nodes"][0]
    assert (first["name"], first["group"]) == ("minority-1", "minority")
    assert np.array_equal(source.train_images[first["indices"]], data.nodes[0][0])


def test_other_data_are_noticed(saved: Path, coded_source) -> None:
    with pytest.raises(InputError, match=r"made from digits with checksum .* use the same files"):
        build_federation(coded_source("digits", 10), FederationDescription.load(saved))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("seed", "eleven", "seed: "),
        ("rotation", "sideways", "rotation: "),
        ("format", 2, "format: "),
        ("validation", [-1], "validation.0: "),
        ("color", "red", "color: Extra inputs"),
    ],
)
def test_damaged_description(saved: Path, key: str, value: object, message: str) -> None:
    saved.write_text(json.dumps(json.loads(saved.read_text()) | {key: value}))
    with pytest.raises(InputError, match=f"is not a saved federation .{message}"):
        FederationDescription.load(saved)


def test_indices_and_permutations_out_of_range(saved: Path) -> None:
    content = json.loads(saved.read_text())
    far = FederationDescription.model_validate(content | {"test": [5000]})
    with pytest.raises(InputError, match="the test set has image number 5000 of the test part"):
        build_federation(load_images("digits"), far)
    short = FederationDescription.model_validate(content | {"permutation": [1, 0]})
    with pytest.raises(InputError, match="permutation does not list the 10 classes"):
        build_federation(load_images("digits"), short)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file"):
        FederationDescription.load(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("not json")
    with pytest.raises(InputError, match="is not a saved federation"):
        FederationDescription.load(tmp_path / "text.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot read"):
        FederationDescription.load(tmp_path / "binary.json")
    data = sample_federation(load_images("digits"), paper_scenario("digits", 1), "minority", 0)
    with pytest.raises(InputError, match="cannot write"):
        data.description.save(tmp_path / "no" / "such" / "directory.json")
