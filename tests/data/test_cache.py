"""Decoded arrays on disk: used the second time, never believed when damaged or out of date."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from encoded_images import encode, parquet_table

from fedkin.data import sources
from fedkin.data.cache import user_cache_directory
from fedkin.data.images import ImageSource
from fedkin.data.sources import load_images


@pytest.fixture
def decoding(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by one entry whenever images are decoded."""
    calls: list[str] = []
    original = sources.decode_parts

    def counting(*arguments, **options):
        calls.append("decoded")
        return original(*arguments, **options)

    monkeypatch.setattr(sources, "decode_parts", counting)
    return calls


def assert_sound(source: ImageSource, pictures: np.ndarray) -> None:
    assert np.array_equal(source.train_images, pictures[:8, :, :, None])
    assert np.array_equal(source.test_images, pictures[8:, :, :, None])
    assert source.train_labels.tolist() == [0, 1] * 4
    assert source.classes == ("cat", "dog")


def cache_of(directory: Path) -> Path:
    return directory / ".fedkin-cache"


def test_second_load_decodes_nothing(
    parquet_set: Path, pictures: np.ndarray, decoding: list[str]
) -> None:
    assert_sound(load_images(str(parquet_set)), pictures)
    assert_sound(load_images(str(parquet_set)), pictures)
    assert len(decoding) == 1
    assert cache_of(parquet_set).is_dir()
    assert not [path for path in parquet_set.iterdir() if path.name.startswith(".fedkin-cache-")]


@pytest.mark.parametrize("part", ["train_images", "train_labels", "test_images", "test_labels"])
def test_one_changed_byte_is_noticed_and_mended(
    parquet_set: Path, pictures: np.ndarray, decoding: list[str], part: str
) -> None:
    load_images(str(parquet_set))
    path = cache_of(parquet_set) / f"{part}.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    assert_sound(load_images(str(parquet_set)), pictures)
    assert len(decoding) == 2
    assert_sound(load_images(str(parquet_set)), pictures)
    assert len(decoding) == 2


@pytest.mark.parametrize("name", ["train_images.npy", "test_labels.npy", "cache.json"])
@pytest.mark.parametrize("damage", ["truncated", "empty", "missing", "rubbish"])
def test_broken_files_are_noticed_and_mended(
    parquet_set: Path, pictures: np.ndarray, decoding: list[str], name: str, damage: str
) -> None:
    load_images(str(parquet_set))
    path = cache_of(parquet_set) / name
    if damage == "missing":
        path.unlink()
    else:
        content = path.read_bytes()
        path.write_bytes(
            {"truncated": content[:-7], "empty": b"", "rubbish": b"\x80\x04N."}[damage]
        )
    assert_sound(load_images(str(parquet_set)), pictures)
    assert len(decoding) == 2


def test_cache_with_pickled_array_is_not_unpickled(
    parquet_set: Path, pictures: np.ndarray, decoding: list[str]
) -> None:
    load_images(str(parquet_set))
    pickled = np.array([{"a": 1}], dtype=object)
    np.save(cache_of(parquet_set) / "train_labels.npy", pickled, allow_pickle=True)
    assert_sound(load_images(str(parquet_set)), pictures)
    assert len(decoding) == 2


def test_changed_original_is_noticed(parquet_set: Path, pictures: np.ndarray) -> None:
    load_images(str(parquet_set))
    other = [encode(255 - each) for each in pictures[:8]]
    table = parquet_table(other, [0, 1] * 4, ["cat", "dog"])
    pq.write_table(table, parquet_set / "train.parquet")
    assert np.array_equal(load_images(str(parquet_set)).train_images[..., 0], 255 - pictures[:8])


def test_older_format_is_not_believed(
    parquet_set: Path, pictures: np.ndarray, decoding: list[str]
) -> None:
    load_images(str(parquet_set))
    index = cache_of(parquet_set) / "cache.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"format": 0}))
    assert_sound(load_images(str(parquet_set)), pictures)
    assert len(decoding) == 2


def test_closed_directory_is_left_alone_even_by_root(
    parquet_set: Path, pictures: np.ndarray, decoding: list[str], own_cache: Path
) -> None:
    parquet_set.chmod(0o555)
    try:
        assert_sound(load_images(str(parquet_set)), pictures)
        assert_sound(load_images(str(parquet_set)), pictures)
        assert sorted(path.name for path in parquet_set.iterdir()) == [
            "test.parquet",
            "train.parquet",
        ]
    finally:
        parquet_set.chmod(0o755)
    assert len(decoding) == 1
    assert list((own_cache / "images").iterdir())


def test_without_any_place_to_write_images_are_still_read(
    parquet_set: Path, pictures: np.ndarray, own_cache: Path
) -> None:
    own_cache.write_text("a file where the cache directory should be")
    parquet_set.chmod(0o555)
    try:
        assert_sound(load_images(str(parquet_set)), pictures)
    finally:
        parquet_set.chmod(0o755)


def test_two_directories_of_one_name_do_not_share_a_cache(
    parquet_set: Path, pictures: np.ndarray, tmp_path: Path
) -> None:
    twin = tmp_path / "twin" / parquet_set.name
    shutil.copytree(parquet_set, twin)
    table = parquet_table([encode(each) for each in pictures[:2]], [0, 1], ["cat", "dog"])
    pq.write_table(table, twin / "train.parquet")
    for directory in (parquet_set, twin):
        directory.chmod(0o555)
    try:
        assert len(load_images(str(parquet_set)).train_images) == 8
        assert len(load_images(str(twin)).train_images) == 2
        assert len(load_images(str(parquet_set)).train_images) == 8
    finally:
        for directory in (parquet_set, twin):
            directory.chmod(0o755)


def test_user_cache_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDKIN_CACHE", f"{os.sep}one")
    monkeypatch.setenv("XDG_CACHE_HOME", f"{os.sep}two")
    assert user_cache_directory() == Path(os.sep, "one")
    monkeypatch.delenv("FEDKIN_CACHE")
    assert user_cache_directory() == Path(os.sep, "two", "fedkin")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert user_cache_directory() == Path.home() / ".cache" / "fedkin"
