"""The official downsampled-ImageNet release, on small files made in its format."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from fedkin.data.scenarios import paper_scenario
from fedkin.data.sources import load_images
from fedkin.errors import InputError

# The paper's lists, as printed; a label in the files of the release is one more.
PAPER_NUMBERS = (
    (7, 9, 10, 29, 54, 75, 84, 189),
    (61, 66, 68, 101, 114, 124, 131, 148),
    (383, 397, 403, 404, 405, 406, 412, 414, 420, 426, 433, 434),
    (224, 441, 442, 443, 444, 445, 449, 453, 454, 498, 499, 500),
)
ALL_NUMBERS = [number for group in PAPER_NUMBERS for number in group]


def save(path: Path, images: np.ndarray, release_labels: np.ndarray) -> None:
    """As the release does: the red, green and blue plane of an image, one after the other."""
    planes = np.concatenate([images[..., c].reshape(len(images), -1) for c in range(3)], axis=1)
    np.savez(path, data=planes, labels=release_labels, mean=planes.mean(axis=0))


@pytest.fixture
def release(tmp_path: Path) -> tuple[Path, dict[int, np.ndarray]]:
    """All 1,000 classes once in ten training files and once in the test file."""
    directory = tmp_path / "downsampled-imagenet"
    directory.mkdir()
    generator = np.random.default_rng(3)
    images = generator.integers(0, 256, (1000, 32, 32, 3), dtype=np.uint8)
    order = generator.permutation(1000)
    for i, rows in enumerate(np.array_split(order, 10)):
        save(directory / f"train_data_batch_{i + 1}.npz", images[rows], rows + 1)
    save(directory / "val_data.npz", images[::-1], np.arange(1000)[::-1] + 1)
    return directory, dict(enumerate(images))


def test_the_papers_classes_come_out_in_the_papers_order(
    release: tuple[Path, dict[int, np.ndarray]],
) -> None:
    directory, image_of_number = release
    source = load_images("downsampled-imagenet", directory.parent)
    assert source.train_images.shape == source.test_images.shape == (40, 32, 32, 3)
    for images, labels in (
        (source.train_images, source.train_labels),
        (source.test_images, source.test_labels),
    ):
        assert sorted(labels) == list(range(40))
        for image, label in zip(images, labels, strict=True):
            assert np.array_equal(image, image_of_number[ALL_NUMBERS[label]])


def test_groups_and_permutation_are_the_papers() -> None:
    setting = paper_scenario("downsampled-imagenet", 2)
    groups = [tuple(ALL_NUMBERS[label] for label in merged) for merged in setting.merged_classes]
    assert tuple(groups) == PAPER_NUMBERS
    cycle = [7, 61, 383, 224, 9, 66, 397, 441, 10, 68, 403, 442, 7]
    expected = dict(itertools.pairwise(cycle))
    in_numbers = {ALL_NUMBERS[old]: ALL_NUMBERS[new] for old, new in setting.permutation.items()}
    assert in_numbers == expected


def test_names_fit_the_papers_words(release: tuple[Path, dict[int, np.ndarray]]) -> None:
    """ "cats", "dogs", "birds", "fishes or frogs": only numbers that count from 0 give these."""
    classes = load_images("downsampled-imagenet", release[0].parent).classes
    by_number = dict(zip(ALL_NUMBERS, classes, strict=True))
    assert by_number[7] == "Egyptian cat"
    assert by_number[189] == "lion"
    assert by_number[124] == "golden retriever"
    assert by_number[383] == "hen"
    assert by_number[500] == "tailed frog"


def test_second_load_needs_no_release_file(release: tuple[Path, dict[int, np.ndarray]]) -> None:
    first = load_images("downsampled-imagenet", release[0].parent)
    second = load_images("downsampled-imagenet", release[0].parent)
    assert second.checksum == first.checksum
    assert not second.train_images.flags.writeable, "read from the cache"


def test_pickled_labels_are_refused(release: tuple[Path, dict[int, np.ndarray]]) -> None:
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("the file was unpickled",))

    path = release[0] / "train_data_batch_4.npz"
    labels = np.array([Bomb(), Bomb()], dtype=object)
    np.savez(path, data=np.zeros((2, 3072), np.uint8), labels=labels)
    with pytest.raises(InputError, match=r"train_data_batch_4.npz cannot be read"):
        load_images("downsampled-imagenet", release[0].parent)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"data": np.zeros((1, 3072), np.uint8)}, "has no array 'labels'"),
        ({"labels": np.array([8])}, "has no array 'data'"),
        ({"data": np.zeros((1, 12288), np.uint8), "labels": np.array([8])}, "the 32x32 release"),
        ({"data": np.zeros((1, 3072), np.float32), "labels": np.array([8])}, "not uint8"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": np.array([8])}, "one label per image"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": np.array([0])}, "run from 1 to 1000"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": np.array([1001])}, "run from 1 to 1000"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": np.array([8.0])}, "list of integers"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": np.array([1])}, "40 classes"),
    ],
)
def test_files_not_of_the_release(
    release: tuple[Path, dict[int, np.ndarray]], arrays: dict[str, np.ndarray], message: str
) -> None:
    np.savez(release[0] / "val_data.npz", **arrays)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match=message):
        load_images("downsampled-imagenet", release[0].parent)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 rubbish", b"\x80\x04K\x01.", b"\x93NUMPY"])
def test_files_that_are_no_archive(
    release: tuple[Path, dict[int, np.ndarray]], content: bytes
) -> None:
    (release[0] / "val_data.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"val_data.npz cannot be read"):
        load_images("downsampled-imagenet", release[0].parent)


def test_array_file_under_an_archives_name(release: tuple[Path, dict[int, np.ndarray]]) -> None:
    with (release[0] / "val_data.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(InputError, match=r"val_data.npz cannot be read"):
        load_images("downsampled-imagenet", release[0].parent)


def test_missing_files(release: tuple[Path, dict[int, np.ndarray]]) -> None:
    (release[0] / "val_data.npz").unlink()
    with pytest.raises(InputError, match=r"lacks val_data.npz"):
        load_images("downsampled-imagenet", release[0].parent)
