"""The hub, without a network: what is asked of `datasets`, and what is said when it fails."""

import sys
import types
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from encoded_images import encode, parquet_table

from fedkin.data.labeled import load_labeled
from fedkin.data.partitions import Natural
from fedkin.data.sources import load_images
from fedkin.errors import InputError


class Features(dict):
    def to_dict(self) -> dict:
        return dict(self)


class FakeDataset:
    """The part of a `datasets.Dataset` in arrow format that fedkin uses."""

    def __init__(self, table: pa.Table, names: list[str], fingerprint: str) -> None:
        self.table = table
        self._fingerprint = fingerprint
        label = {"_type": "ClassLabel", "names": names}
        self.features = Features(image={"_type": "Image"}, label=label)

    def with_format(self, kind: str) -> "FakeDataset":
        assert kind == "arrow"
        return self

    def select_columns(self, columns: list[str]) -> "FakeDataset":
        chosen = FakeDataset(self.table.select(columns), [], self._fingerprint)
        chosen.features = self.features
        return chosen

    def iter(self, size: int):
        for start in range(0, len(self.table), size):
            yield self.table.slice(start, size)

    def __getitem__(self, rows: slice) -> pa.Table:
        return self.table[rows]

    def __len__(self) -> int:
        return len(self.table)


def pretend(monkeypatch: pytest.MonkeyPatch, load_dataset) -> None:
    module = types.ModuleType("datasets")
    module.load_dataset = load_dataset  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "datasets", module)


def test_known_name_is_fetched_and_kept(
    monkeypatch: pytest.MonkeyPatch, pictures: np.ndarray, tmp_path: Path
) -> None:
    asked = []
    table = parquet_table([encode(each) for each in pictures], [0, 1] * 6)

    def load_dataset(hub_id: str) -> dict[str, FakeDataset]:
        asked.append(hub_id)
        return {
            "train": FakeDataset(table.slice(0, 8), ["cat", "dog"], "one"),
            "test": FakeDataset(table.slice(8), ["cat", "dog"], "two"),
        }

    pretend(monkeypatch, load_dataset)
    for name, hub_id in (
        ("mnist", "ylecun/mnist"),
        ("fashion-mnist", "zalando-datasets/fashion_mnist"),
        ("cifar10", "uoft-cs/cifar10"),
        ("someone/own-set", "someone/own-set"),
    ):
        source = load_images(name, tmp_path)
        assert asked[-1] == hub_id
        assert np.array_equal(source.train_images[..., 0], pictures[:8])
        assert np.array_equal(source.test_images[..., 0], pictures[8:])
        assert source.classes == ("cat", "dog")
        assert source.name == name


def test_without_the_package(monkeypatch: pytest.MonkeyPatch, no_data: None) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError) as caught:
        load_images("mnist")
    message = str(caught.value)
    assert "train.parquet and test.parquet into a directory mnist and set FEDKIN_DATA" in message
    assert "pip install 'fedkin[data]'" in message


def test_without_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def load_dataset(hub_id: str) -> None:
        raise ConnectionError(f"Couldn't reach '{hub_id}' on the Hub (LocalEntryNotFoundError)")

    pretend(monkeypatch, load_dataset)
    with pytest.raises(InputError, match=r"could not be downloaded .*Couldn't reach") as caught:
        load_images("cifar10", tmp_path)
    assert f"Put train.parquet and test.parquet into {tmp_path / 'cifar10'}" in str(caught.value)


def test_parts_that_are_not_there(monkeypatch: pytest.MonkeyPatch, no_data: None) -> None:
    pretend(monkeypatch, lambda hub_id: {"train": None, "extra": None})
    with pytest.raises(InputError, match="someone/set has the parts train, extra"):
        load_images("someone/set")


def test_a_column_of_the_hub_says_whose_a_row_is(
    monkeypatch: pytest.MonkeyPatch, pictures: np.ndarray
) -> None:
    table = parquet_table([encode(each) for each in pictures], [0, 1] * 6)
    table = table.append_column("writer", pa.array(["ada", "bo", "cy"] * 4))
    parts = {
        "train": FakeDataset(table.slice(0, 8), ["cat", "dog"], "one"),
        "test": FakeDataset(table.slice(8), ["cat", "dog"], "two"),
    }
    for part in parts.values():
        part.features["writer"] = {"_type": "Value"}
    pretend(monkeypatch, lambda hub_id: parts)
    data = load_labeled("owner/letters", column="writer")
    nodes = Natural("writer").draw(data, 0)
    assert {node.name: node.rows.tolist() for node in nodes} == {
        "ada": [0, 3, 6, 9],
        "bo": [1, 4, 7, 10],
        "cy": [2, 5, 8, 11],
    }
    with pytest.raises(
        InputError, match="no column 'author'; its columns are image, label, writer"
    ):
        load_labeled("owner/letters", column="author")
