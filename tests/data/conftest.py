import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from encoded_images import encode, parquet_table

from fedkin.data.images import ImageSource
from fedkin.data.sources import load_images


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or leaves decoded images in the user's own cache."""
    cache = tmp_path / "user-cache"
    monkeypatch.setenv("FEDKIN_CACHE", str(cache))
    return cache


@pytest.fixture
def no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDKIN_DATA", raising=False)


@pytest.fixture(scope="session")
def decoded_once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The directory of the real data sets, and a cache that all workers of a run fill once."""
    root = os.environ.get("FEDKIN_DATA")
    if not root or not (Path(root) / "fashion-mnist").is_dir():
        pytest.skip("FEDKIN_DATA does not name a directory with the real data sets")
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    cache = shared / "decoded"
    with (shared / "decoded.lock").open("w") as lock, pytest.MonkeyPatch.context() as patch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        patch.setenv("FEDKIN_CACHE", str(cache))
        for name in ("mnist", "fashion-mnist", "cifar10", "tiny-imagenet32"):
            load_images(name, Path(root))
    return Path(root), cache


@pytest.fixture
def real_data(decoded_once: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the real data sets; tests that need it are skipped where there is none."""
    root, cache = decoded_once
    monkeypatch.setenv("FEDKIN_CACHE", str(cache))
    return root


@pytest.fixture
def pictures() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (12, 5, 5), dtype=np.uint8)


@pytest.fixture
def parquet_set(tmp_path: Path, pictures: np.ndarray) -> Path:
    """A sound data set: eight training and four test images of two classes."""
    directory = tmp_path / "data" / "small"
    directory.mkdir(parents=True)
    for part, chosen in (("train", pictures[:8]), ("test", pictures[8:])):
        labels = [i % 2 for i in range(len(chosen))]
        table = parquet_table([encode(each) for each in chosen], labels, ["cat", "dog"])
        pq.write_table(table, directory / f"{part}.parquet")
    return directory


CodedSource = Callable[..., ImageSource]


@pytest.fixture
def coded_source() -> CodedSource:
    """A source whose images say who they are, so that a sample can be checked without fedkin.

    Pixel (0, 0) is 255 in the upright image and nowhere else; (1, 1) is 1 for the training part and
    2 for the test part; (1, 2) and (2, 1) are the two digits (base 200) of the image's index.
    """

    def make(name: str, classes: int, train: int = 9_000, test: int = 4_000) -> ImageSource:
        generator = np.random.default_rng(7)
        # Classes of unequal size: "uniform within a merged class" is not "uniform over classes".
        weights = np.linspace(1, 3, classes)
        arrays = {}
        for part, size, code in (("train", train, 1), ("test", test, 2)):
            images = np.zeros((size, 4, 4, 1), np.uint8)
            images[:, 0, 0] = 255
            images[:, 1, 1] = code
            images[:, 1, 2, 0], images[:, 2, 1, 0] = np.divmod(np.arange(size), 200)
            arrays[f"{part}_images"] = images
            labels = generator.choice(classes, size, p=weights / weights.sum())
            arrays[f"{part}_labels"] = labels.astype(np.int32)
        return ImageSource(name=name, classes=tuple(f"class {i}" for i in range(classes)), **arrays)

    return make
