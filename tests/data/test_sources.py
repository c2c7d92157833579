"""Data sets by name: the right bytes, and a helpful word where there are none."""

import hashlib
import struct
import time
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedkin.data.sources import DATA_SETS, data_directory, find, load_images, resolve
from fedkin.errors import InputError

# SHA-256 of the publishers' own uncompressed IDX files (train images, train labels, test images,
# test labels): an IDX file is a big-endian header and the raw bytes, so it can be rebuilt.
IDX_SHA256 = {
    "mnist": (
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    "fashion-mnist": (
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
}


@pytest.mark.parametrize("name", IDX_SHA256)
def test_grey_sets_decode_to_the_publishers_bytes(name: str, real_data: Path) -> None:
    source = load_images(name, real_data)
    files = []
    for images, labels in (
        (source.train_images, source.train_labels),
        (source.test_images, source.test_labels),
    ):
        assert images.shape[1:] == (28, 28, 1)
        files.append(struct.pack(">IIII", 0x803, len(images), 28, 28) + images.tobytes())
        files.append(struct.pack(">II", 0x801, len(labels)) + labels.astype(np.uint8).tobytes())
    assert tuple(hashlib.sha256(file).hexdigest() for file in files) == IDX_SHA256[name]


@pytest.mark.parametrize(
    ("name", "train_per_class", "test_per_class", "first_class", "last_class"),
    [
        ("cifar10", [5000] * 10, [1000] * 10, "airplane", "truck"),
        ("tiny-imagenet32", [420] * 40, [80] * 40, "tabby", "sea slug"),
    ],
)
def test_color_sets_have_the_right_shapes_counts_and_classes(
    name: str,
    train_per_class: list[int],
    test_per_class: list[int],
    first_class: str,
    last_class: str,
    real_data: Path,
) -> None:
    source = load_images(name, real_data)
    assert source.train_images.shape == (sum(train_per_class), 32, 32, 3)
    assert source.test_images.shape == (sum(test_per_class), 32, 32, 3)
    assert source.train_images.dtype == np.uint8
    assert source.train_labels.dtype == np.int32
    assert np.bincount(source.train_labels).tolist() == train_per_class
    assert np.bincount(source.test_labels).tolist() == test_per_class
    assert (source.classes[0], source.classes[-1]) == (first_class, last_class)
    # Photographs: three channels that are not copies of one another.
    assert np.any(source.train_images[..., 0] != source.train_images[..., 2])


def test_second_load_of_cifar10_takes_under_a_second(real_data: Path) -> None:
    first = load_images("cifar10", real_data)
    start = time.perf_counter()
    second = load_images("cifar10", real_data)
    assert time.perf_counter() - start < 1
    assert second.checksum == first.checksum


def test_real_data_directory_is_left_as_it_was(real_data: Path) -> None:
    load_images("mnist", real_data)
    if not (real_data / "mnist").stat().st_mode & 0o200:
        assert not (real_data / "mnist" / ".fedkin-cache").exists()


def test_digits_are_scikit_learns_split_in_two() -> None:
    source = load_images("digits")
    original = load_digits()
    assert len(source.train_images) + len(source.test_images) == 1797
    # 16 steps of gray to 255: the original comes back exactly.
    for images, labels, offset in (
        (source.test_images, source.test_labels, 2),
        (source.train_images[::2], source.train_labels[::2], 0),
        (source.train_images[1::2], source.train_labels[1::2], 1),
    ):
        assert np.array_equal(np.rint(images[..., 0] / 255 * 16), original.images[offset::3])
        assert np.array_equal(labels, original.target[offset::3])
    assert source.train_images.max() == 255
    shares = np.bincount(source.test_labels) / np.bincount(original.target)
    assert np.all((shares > 0.28) & (shares < 0.38)), "a third of every digit, about"


def test_digits_load_the_same_twice() -> None:
    assert load_images("digits").checksum == load_images("digits").checksum


def test_checksum_sees_one_pixel(coded_source) -> None:
    one, other = coded_source("a", 3, 50, 50), coded_source("a", 3, 50, 50)
    assert one.checksum == other.checksum
    changed = coded_source("a", 3, 50, 50)
    changed.test_images[49, 3, 3, 0] ^= 1
    assert changed.checksum != one.checksum


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("mnits", "mnist"), ("fashion_mnist", "fashion-mnist"), ("CIFAR10", "cifar10")],
)
def test_unknown_name_suggests_the_near_one(typed: str, meant: str, no_data: None) -> None:
    with pytest.raises(InputError, match=rf"unknown data set .*did you mean {meant}"):
        load_images(typed)


def test_unknown_name_without_a_near_one_lists_all(no_data: None) -> None:
    with pytest.raises(InputError, match="fedkin knows digits, mnist") as caught:
        load_images("zzz")
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "  "])
def test_empty_name_is_an_error(name: str, no_data: None) -> None:
    with pytest.raises(InputError, match="the name of the data set is empty"):
        load_images(name)


def test_wrong_data_directory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDKIN_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"FEDKIN_DATA .*nowhere is not a directory"):
        load_images("mnist")
    with pytest.raises(InputError, match=r"data directory .*elsewhere is not a directory"):
        data_directory(tmp_path / "elsewhere")


def test_data_directory_one_step_too_deep(parquet_set: Path) -> None:
    with pytest.raises(InputError, match=rf"is itself a data set.*{parquet_set.parent}, as"):
        load_images("mnist", parquet_set)


def test_digits_need_no_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDKIN_DATA", str(tmp_path / "nowhere"))
    assert len(load_images("digits").classes) == 10


@pytest.mark.parametrize("name", ["tiny-imagenet32", "downsampled-imagenet"])
def test_sets_that_no_hub_has_say_where_to_put_them(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"{name} is not on this machine. Put .* into .*{name}"):
        load_images(name, tmp_path)


def test_missing_path_and_file_instead_of_directory(tmp_path: Path, no_data: None) -> None:
    with pytest.raises(InputError, match="there is no directory"):
        load_images(str(tmp_path / "nothing"))
    (tmp_path / "file.parquet").write_bytes(b"")
    with pytest.raises(InputError, match="is a file"):
        load_images(str(tmp_path / "file.parquet"))


def test_a_bare_name_is_a_data_set_before_it_is_a_directory_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study's results are often kept in a directory that is named like its data."""
    data, here = tmp_path / "data", tmp_path / "here"
    for place in (data, here):
        (place / "pictures").mkdir(parents=True)
    monkeypatch.chdir(here)
    assert resolve("pictures", data) == data / "pictures"
    assert resolve("./pictures", data) == Path("pictures")
    (data / "pictures").rmdir()
    assert resolve("pictures", data) == Path("pictures")
    (data / "pictures").touch()  # a file is not in the way of a directory
    assert resolve("pictures", data) == Path("pictures")
    assert resolve("..", data) == Path("..")


def test_cifar10_prefers_the_lossless_directory(tmp_path: Path) -> None:
    (tmp_path / "cifar10-jpeg").mkdir()
    assert find("cifar10", tmp_path) == tmp_path / "cifar10-jpeg"
    (tmp_path / "cifar10").mkdir()
    assert find("cifar10", tmp_path) == tmp_path / "cifar10"


def test_a_directory_in_the_data_directory_is_found_by_name(parquet_set: Path) -> None:
    assert load_images("small", parquet_set.parent).classes == ("cat", "dog")
    assert "small" not in DATA_SETS
