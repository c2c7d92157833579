"""Folders of images: `train/CLASS/picture.png` and `test/CLASS/picture.png`."""

from pathlib import Path

import numpy as np

from fedkin.data.images import TEST_NAMES, EncodedImages
from fedkin.errors import InputError

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"})


def image_folders(directory: Path) -> dict[str, Path]:
    """Return the folders `train` and `test` (or `validation`, …) of a directory, or nothing."""
    test = next((directory / name for name in TEST_NAMES if (directory / name).is_dir()), None)
    train = directory / "train"
    if train.is_dir() and test is not None:
        return {"train": train, "test": test}
    return {}


def folder_images(folder: Path) -> list[Path]:
    """Return all images of a part, `CLASS/picture.png`, in a fixed order."""
    return sorted(
        path
        for path in folder.glob("*/*")
        if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file()
    )


def read_folder_parts(folders: dict[str, Path]) -> tuple[list[EncodedImages], tuple[str, ...]]:
    """Return the train and test parts; the names of the subfolders are the classes."""
    train_images, test_images = folder_images(folders["train"]), folder_images(folders["test"])
    for folder, paths in ((folders["train"], train_images), (folders["test"], test_images)):
        if not paths:
            raise InputError(
                f"{folder} has no images: expected {folder.name}/CLASS/picture.png, one "
                "subfolder per class"
            )
    classes = tuple(sorted({path.parent.name for path in train_images}))
    numbers = {name: number for number, name in enumerate(classes)}
    unknown = sorted({path.parent.name for path in test_images} - set(classes))
    if unknown:
        raise InputError(
            f"{folders['test'] / unknown[0]} is a class that {folders['train']} does not have. Its "
            f"classes are {', '.join(classes[:10])}"
        )
    parts = []
    for folder, paths in ((folders["train"], train_images), (folders["test"], test_images)):
        labels = np.array([numbers[path.parent.name] for path in paths], np.int32)
        blobs = lambda paths=paths: (path.read_bytes() for path in paths)  # noqa: E731
        place = lambda i, paths=paths: str(paths[i])  # noqa: E731
        parts.append(EncodedImages(str(folder), len(paths), blobs, labels, place))
    return parts, classes
