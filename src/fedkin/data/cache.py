"""Decoded data sets on disk, so that the second load takes a fraction of a second.

A cache is a directory with `.npy` files and a `cache.json` that holds the state of the original files
and a SHA-256 of every array. A cache that does not match is made again.
"""

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.data.images import ImageSource

logger = logging.getLogger(__name__)

FORMAT = 1
"""Increase this number when decoding changes, so that old caches are not used."""

PARTS = ("train_images", "train_labels", "test_images", "test_labels")

MakeArray = Callable[[str, tuple[int, ...], Any], np.ndarray]
"""`make(part, shape, dtype)` returns an array to fill, which is backed by a file of the cache."""


@dataclass(frozen=True)
class FileState:
    """What shows whether an original file has changed."""

    name: str
    size: int
    modified: int

    @classmethod
    def of(cls, path: Path, directory: Path) -> "FileState":
        """Return the current state of a file, named relative to the data set's directory."""
        status = path.stat()
        return cls(path.relative_to(directory).as_posix(), status.st_size, status.st_mtime_ns)


def user_cache_directory() -> Path:
    """Return `FEDKIN_CACHE`, else `XDG_CACHE_HOME/fedkin`, else `~/.cache/fedkin`."""
    if own := os.environ.get("FEDKIN_CACHE"):
        return Path(own)
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "fedkin"
    return Path.home() / ".cache" / "fedkin"


def cache_places(source: Path) -> list[Path]:
    """Return where the decoded arrays of a directory may be: in it, or in the user's cache."""
    key = hashlib.sha256(str(source.resolve()).encode()).hexdigest()[:16]
    fallback = user_cache_directory() / "images" / f"{source.name}-{key}"
    return [source / ".fedkin-cache", fallback] if _is_writable(source) else [fallback]


def hub_cache_place(hub_id: str, fingerprint: str) -> Path:
    """Return where the decoded arrays of a data set from the hub are."""
    key = hashlib.sha256(fingerprint.encode()).hexdigest()[:16]
    return user_cache_directory() / "images" / f"{hub_id.replace('/', '--')}-{key}"


def cached(
    name: str,
    places: Iterable[Path],
    files: Iterable[FileState],
    decode: Callable[[MakeArray], tuple[Mapping[str, np.ndarray], tuple[str, ...]]],
) -> ImageSource:
    """Return the data set from the first valid cache, or decode it and keep the result if possible.

    `decode(make)` returns the four arrays of `PARTS` and the names of the classes.
    """
    places = list(places)
    state = [[file.name, file.size, file.modified] for file in files]
    for place in places:
        if source := _read(name, place, state):
            return source
    for place in places:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(prefix=f"{place.name}-", dir=place.parent))
        except OSError:
            continue
        try:
            _write(scratch, state, decode)
            _put_in_place(scratch, place)
        except OSError as error:
            logger.warning("cannot keep decoded images in %s: %s", place, error)
            continue
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        if source := _read(name, place, state):
            return source
    arrays, classes = decode(lambda part, shape, dtype: np.empty(shape, dtype))
    return ImageSource(name=name, classes=classes, **arrays)


def _is_writable(directory: Path) -> bool:
    # Check the mode too: root may write anywhere, but a directory that its owner made read-only is not
    # the place for our files.
    return os.access(directory, os.W_OK) and bool(directory.stat().st_mode & 0o200)


def _read(name: str, place: Path, state: list[list[Any]]) -> ImageSource | None:
    """Return the cached data set, or None if it is missing, out of date or damaged."""
    try:
        index = json.loads((place / "cache.json").read_text(encoding="utf-8"))
        if index["format"] != FORMAT or index["files"] != state:
            return None
        arrays = {}
        for part in PARTS:
            array = np.load(place / f"{part}.npy", mmap_mode="r", allow_pickle=False)
            if hashlib.sha256(array.data).hexdigest() != index["sha256"][part]:
                logger.warning("%s is damaged and will be made again", place / f"{part}.npy")
                return None
            arrays[part] = np.asarray(array)
        return ImageSource(name=name, classes=tuple(index["classes"]), **arrays)
    except FileNotFoundError:
        return None
    except (OSError, EOFError, KeyError, TypeError, ValueError) as error:
        logger.warning(
            "the decoded images in %s are damaged and will be made again: %s", place, error
        )
        return None


def _write(
    scratch: Path,
    state: list[list[Any]],
    decode: Callable[[MakeArray], tuple[Mapping[str, np.ndarray], tuple[str, ...]]],
) -> None:
    def make(part: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return np.lib.format.open_memmap(scratch / f"{part}.npy", "w+", dtype, shape)

    arrays, classes = decode(make)
    sums = {}
    for part in PARTS:
        array = arrays[part]
        if isinstance(array, np.memmap):
            array.flush()
        else:
            np.save(scratch / f"{part}.npy", array, allow_pickle=False)
        sums[part] = hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()
    index = {"format": FORMAT, "files": state, "classes": list(classes), "sha256": sums}
    (scratch / "cache.json").write_text(json.dumps(index, indent=1), encoding="utf-8")


def _put_in_place(scratch: Path, place: Path) -> None:
    """Move the finished cache, so that no reader ever sees half of it."""
    shutil.rmtree(place, ignore_errors=True)
    try:
        scratch.rename(place)
    except OSError:
        # Another process has put its own cache there meanwhile, with the same arrays.
        if not (place / "cache.json").exists():
            raise
