"""Load a data set of images by its name.

load_images("digits")               built in, no files needed
load_images("fashion-mnist")        FEDKIN_DATA/fashion-mnist/{train,test}.parquet, else the hub
load_images("./my-pictures")        a directory: Parquet files or train/CLASS/picture.png
load_images("owner/name")           any data set of images from the hub
"""

import difflib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedkin.data import downsampled_imagenet, image_folders, parquet
from fedkin.data.cache import FileState, MakeArray, cache_places, cached
from fedkin.data.hub import HUB_ID, hub_column, load_from_hub
from fedkin.data.images import ImageSource, Progress, decode_parts
from fedkin.errors import InputError

__all__ = [
    "DATA_SETS",
    "ImageSource",
    "KnownDataSet",
    "data_directory",
    "find",
    "load_column",
    "load_images",
    "resolve",
]


@dataclass(frozen=True)
class KnownDataSet:
    """A data set that fedkin knows by name."""

    name: str
    summary: str
    directories: tuple[str, ...] = ()
    """Where it may be in the data directory, best first; empty if it is built in."""
    hub_id: str | None = None


DATA_SETS: dict[str, KnownDataSet] = {
    each.name: each
    for each in (
        KnownDataSet("digits", "1,797 handwritten digits, 8x8, gray; comes with scikit-learn"),
        KnownDataSet("mnist", "70,000 handwritten digits, 28x28, gray", ("mnist",), "ylecun/mnist"),
        KnownDataSet(
            "fashion-mnist",
            "70,000 pieces of clothing, 28x28, gray",
            ("fashion-mnist",),
            "zalando-datasets/fashion_mnist",
        ),
        KnownDataSet(
            "cifar10",
            "60,000 photographs of 10 classes, 32x32, color",
            ("cifar10", "cifar10-jpeg"),
            "uoft-cs/cifar10",
        ),
        KnownDataSet(
            "tiny-imagenet32",
            "20,000 photographs of 40 animals, 32x32, color",
            ("tiny-imagenet32",),
        ),
        KnownDataSet(
            "downsampled-imagenet",
            "the paper's 40 classes of ImageNet, 32x32, color; the official .npz files",
            ("downsampled-imagenet",),
        ),
    )
}


def data_directory(directory: Path | None = None) -> Path | None:
    """Return the directory with the data sets: the given one, else `FEDKIN_DATA`, else None."""
    given = directory if directory is not None else os.environ.get("FEDKIN_DATA") or None
    if given is None:
        return None
    path = Path(given).expanduser()
    if not path.is_dir():
        origin = "the data directory" if directory is not None else "FEDKIN_DATA"
        raise InputError(
            f"{origin} {path} is not a directory: name the one that contains mnist/, fashion-mnist/, …"
        )
    return path


def find(name: str, directory: Path | None = None) -> Path | None:
    """Return the directory of a known data set on this machine, or None."""
    root = data_directory(directory)
    known = DATA_SETS[name]
    if root is None:
        return None
    return next((root / each for each in known.directories if (root / each).is_dir()), None)


def load_images(
    name: str, directory: Path | None = None, *, progress: Progress | None = None
) -> ImageSource:
    """Load a data set by name, path or hub id; `directory` replaces `FEDKIN_DATA`.

    >>> source = load_images("digits")
    >>> source.train_images.shape, source.test_images.shape, source.classes[:3]
    ((1198, 8, 8, 1), (599, 8, 8, 1), ('0', '1', '2'))
    """
    if name == "digits":
        return _digits()
    if name in DATA_SETS:
        return _load_known(DATA_SETS[name], directory, progress)
    path = resolve(name, directory)
    if path is not None:
        return _load_directory(name, path, progress)
    return load_from_hub(name, name, f"There is no directory {name} either", progress)


def load_column(name: str, column: str, directory: Path | None = None) -> np.ndarray:
    """Load a column of a data set besides images and labels: who wrote an image, say.

    The values are those of the training part, then those of the test part. None is a missing one.
    """
    known = DATA_SETS.get(name)
    path = resolve(name, directory) if known is None else find(name, directory)
    if path is not None or (known is not None and known.hub_id is None):
        files = parquet.parquet_files(path) if path is not None else {}
        if not any(files.values()):
            raise InputError(
                f"{name} has images and labels and no column {column!r}: only Parquet files and data "
                "sets of the hub can say whose an image is"
            )
        return parquet.read_parquet_column(files, column)
    if known is None or known.hub_id is None:
        return hub_column(name, name, f"There is no directory {name} either", column)
    return hub_column(name, known.hub_id, _how_to_provide(known, directory), column)


def resolve(name: str, directory: Path | None = None) -> Path | None:
    """Return the directory that a name refers to, or None for a known data set or a hub id.

    A bare name is looked up in the data directory first, because a study's results may be in a
    directory with the same name. A name that refers to nothing is an error: this is the cheap check
    before a long load.
    """
    if name in DATA_SETS:
        return None
    if not name.strip():
        raise InputError(
            f"the name of the data set is empty: choose one of {', '.join(DATA_SETS)}, or a path"
        )
    root = data_directory(directory)
    here = Path(name).expanduser()
    among_data = [root / name] if root else []
    bare = here.name == name and name != ".."
    places = [*among_data, here] if bare else [here, *among_data]
    for path in places:
        if path.is_dir():
            return path
    for path in places:
        if path.exists():
            raise InputError(
                f"{path} is a file: name the directory with train.parquet and test.parquet, or "
                "with the folders train/ and test/"
            )
    looks_like_path = name.startswith((".", "/", "~", "\\"))
    if HUB_ID.fullmatch(name) and not looks_like_path:
        return None
    if looks_like_path or "/" in name:
        raise InputError(f"there is no directory {name}: check the path")
    near = difflib.get_close_matches(name.lower(), DATA_SETS, n=2, cutoff=0.5)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    raise InputError(
        f"unknown data set {name!r}: {meant}fedkin knows {', '.join(DATA_SETS)}; a path to a "
        "directory and a hub id (owner/name) work too"
    )


def _load_known(
    known: KnownDataSet, directory: Path | None, progress: Progress | None
) -> ImageSource:
    path = find(known.name, directory)
    if path is not None:
        return _load_directory(known.name, path, progress)
    instead = _how_to_provide(known, directory)
    if known.hub_id is None:
        raise InputError(f"{known.name} is not on this machine. {instead}")
    return load_from_hub(known.name, known.hub_id, instead, progress)


def _how_to_provide(known: KnownDataSet, directory: Path | None) -> str:
    """Say where to put the files of a known data set that is not on this machine."""
    files = "train.parquet and test.parquet"
    if known.name == "downsampled-imagenet":
        files = "train_data_batch_1.npz … _10.npz and val_data.npz"
    root = data_directory(directory)
    if root is None:
        return (
            f"Put {files} into a directory {known.directories[0]} and set FEDKIN_DATA to the "
            "directory that contains it"
        )
    if any(parquet.parquet_files(root).values()):
        raise InputError(
            f"{root} is itself a data set: use the directory above it, {root.parent}, as the data "
            "directory"
        )
    return f"Put {files} into {root / known.directories[0]}"


def _load_directory(name: str, path: Path, progress: Progress | None) -> ImageSource:
    parquet_files = parquet.parquet_files(path)
    folders = image_folders.image_folders(path)
    release_files = downsampled_imagenet.release_files(path)
    if any(parquet_files.values()):
        files = [file for part in parquet_files.values() for file in part]
        files += [names] if (names := path / "classes.json").exists() else []
    elif any(release_files.values()):
        files = [file for part in release_files.values() for file in part]
    elif folders:
        files = [file for part in folders.values() for file in image_folders.folder_images(part)]
    else:
        raise InputError(
            f"{path} is not a data set: expected train.parquet and test.parquet, or pictures as "
            "train/CLASS/picture.png and test/CLASS/picture.png"
        )

    def decode(make: MakeArray) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
        if not any(parquet_files.values()) and any(release_files.values()):
            return downsampled_imagenet.read_release(release_files, make, progress)
        if any(parquet_files.values()):
            parts, classes = parquet.read_parquet_parts(path, parquet_files)
        else:
            parts, classes = image_folders.read_folder_parts(folders)
        names = ("train_images", "test_images")
        images = decode_parts(parts, lambda i, shape: make(names[i], shape, np.uint8), progress)
        arrays = dict(zip(names, images, strict=True))
        arrays |= {"train_labels": parts[0].labels, "test_labels": parts[1].labels}
        return arrays, classes

    states = [FileState.of(file, path) for file in files]
    return cached(name, cache_places(path), states, decode)


def _digits() -> ImageSource:
    """Return scikit-learn's digits; every third image is for testing.

    The images are ordered by writer and begin with 0, 1, …, 9, 0, 1, …. Since 3 and 10 have no common
    factor, taking every third gives both parts all writers and nearly equal numbers of all digits.
    """
    # Imported here because it takes seconds and few commands need it.
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    # Values count the dark pixels, 0 … 16, in 4x4 blocks.
    images = np.rint(np.asarray(pixels) * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    labels = np.asarray(labels, np.int32)
    for_testing = np.arange(len(images)) % 3 == 2
    return ImageSource(
        name="digits",
        train_images=images[~for_testing],
        train_labels=labels[~for_testing],
        test_images=images[for_testing],
        test_labels=labels[for_testing],
        classes=tuple(str(digit) for digit in range(10)),
    )
