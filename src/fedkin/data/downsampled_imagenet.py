r"""The official downsampled-ImageNet 32×32 release, and the paper's 40 classes of it.

The release (Chrabaszcz, Loshchilov, Hutter 2017) is `train_data_batch_1.npz` … `_10.npz` and
`val_data.npz`. Each holds `data`, `uint8` of shape (n, 3·32·32), the red plane first, then green,
then blue; and `labels`, which count from **1**.

The paper's class numbers (`sec:datageneration1`) count from **0**, as in loaders that subtract one.
The paper's own words show it. Counted from 0, its first group ("cats or animals similar to cat") is
Egyptian cat, Persian cat, cougar, jaguar, tiger cat, tiger, leopard and lion. Counted from 1 it would be
lesser panda, ibex, Persian cat, Old English sheepdog, colobus, indri, basenji and Italian greyhound.
"""

import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedkin.data.cache import MakeArray
from fedkin.data.images import Progress
from fedkin.errors import InputError

SIDE = 32
PIXELS = 3 * SIDE * SIDE


class PaperClass(NamedTuple):
    """A class of the paper."""

    number: int
    """The number that the paper prints: the label of the release minus one."""
    name: str


PAPER_GROUPS: tuple[tuple[PaperClass, ...], ...] = tuple(
    tuple(PaperClass(number, name) for number, name in group.items())
    for group in (
        {
            7: "Egyptian cat",
            9: "Persian cat",
            10: "cougar",
            29: "jaguar",
            54: "tiger cat",
            75: "tiger",
            84: "leopard",
            189: "lion",
        },
        {
            61: "red fox",
            66: "gray fox",
            68: "Pekinese",
            101: "white wolf",
            114: "Appenzeller",
            124: "golden retriever",
            131: "beagle",
            148: "Eskimo dog",
        },
        {
            383: "hen",
            397: "bald eagle",
            403: "prairie chicken",
            404: "peacock",
            405: "quail",
            406: "partridge",
            412: "bee eater",
            414: "hummingbird",
            420: "black swan",
            426: "little blue heron",
            433: "red-backed sandpiper",
            434: "redshank",
        },
        {
            224: "starfish",
            441: "great white shark",
            442: "tiger shark",
            443: "hammerhead",
            444: "electric ray",
            445: "stingray",
            449: "goldfish",
            453: "lionfish",
            454: "puffer",
            498: "bullfrog",
            499: "tree frog",
            500: "tailed frog",
        },
    )
)
"""C1 … C4 (the paper prints C1, C2, C2, C3). The position of a class here is its label in the task."""

CLASSES = tuple(each.name for group in PAPER_GROUPS for each in group)


def release_files(directory: Path) -> dict[str, list[Path]]:
    """Return the files of the release in a directory, ordered by their numbers."""
    train = sorted(
        directory.glob("train_data_batch_*.npz"),
        key=lambda path: (len(path.name), path.name),
    )
    return {"train": train, "test": sorted(directory.glob("val_data.npz"))}


def read_release(
    files: dict[str, list[Path]], make: MakeArray, progress: Progress | None
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Read the images of the paper's 40 classes, with one file of the release in memory at a time."""
    arrays = {}
    for part in ("train", "test"):
        if not files[part]:
            expected = "train_data_batch_1.npz … _10.npz" if part == "train" else "val_data.npz"
            raise InputError(
                f"the downsampled-ImageNet directory lacks {expected}: unpack the npz archives of "
                "the 32x32 release from image-net.org there"
            )
        chosen = [_chosen_labels(path) for path in files[part]]
        labels = np.concatenate([labels for _, labels in chosen])
        if not len(labels):
            raise InputError(
                f"{files[part][0]} holds no image of the paper's 40 classes: is it the release "
                "with all 1,000 classes?"
            )
        images = make(f"{part}_images", (len(labels), SIDE, SIDE, 3), np.uint8)
        filled = 0
        for number, (path, (rows, _)) in enumerate(zip(files[part], chosen, strict=True)):
            if progress:
                progress(str(path), number, len(files[part]))
            planes = _read_array(path, "data")
            if planes.dtype != np.uint8 or planes.ndim != 2 or planes.shape[1] != PIXELS:
                raise InputError(
                    f"'data' in {path} is {planes.dtype} of shape {planes.shape}, not uint8 of "
                    f"shape (n, {PIXELS}): fedkin reads the 32x32 release"
                )
            if len(planes) != len(_read_array(path, "labels")):
                raise InputError(f"{path} does not have one label per image: download it again")
            pixels = planes[rows].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
            images[filled : filled + len(rows)] = pixels
            filled += len(rows)
        arrays[f"{part}_images"], arrays[f"{part}_labels"] = images, labels
    return arrays, CLASSES


def _chosen_labels(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of a file that belong to the paper's classes, and their labels 0 … 39."""
    release_labels = _read_array(path, "labels")
    if release_labels.ndim != 1 or not np.issubdtype(release_labels.dtype, np.integer):
        raise InputError(f"'labels' in {path} are not a list of integers: download it again")
    task_label = np.full(1001, -1, np.int32)
    for label, paper_class in enumerate(each for group in PAPER_GROUPS for each in group):
        task_label[paper_class.number + 1] = label
    if len(release_labels) and not 1 <= release_labels.min() <= release_labels.max() <= 1000:
        raise InputError(
            f"labels in {path} run from {release_labels.min()} to {release_labels.max()}, but "
            "those of the release run from 1 to 1000"
        )
    labels = task_label[release_labels]
    rows = np.flatnonzero(labels >= 0)
    return rows, labels[rows]


def _read_array(path: Path, key: str) -> np.ndarray:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return archive[key]
    except KeyError as error:
        raise InputError(f"{path} has no array {key!r}: it is not a file of the release") from error
    except (OSError, EOFError, TypeError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        # A pickled array ends here too: unpickling would run code from whoever made the file.
        raise InputError(f"{path} cannot be read ({error}): download it again") from error
