"""Data sets from the Hugging Face hub, through the optional package `datasets`."""

import importlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow

from fedkin.data.cache import MakeArray, cached, hub_cache_place
from fedkin.data.images import TEST_NAMES, EncodedImages, ImageSource, Progress, decode_parts
from fedkin.data.parquet import (
    ROWS_AT_A_TIME,
    find_columns,
    image_bytes,
    no_such_column,
    number_labels,
    text_or_numbers,
)
from fedkin.errors import InputError

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def load_from_hub(
    name: str, hub_id: str, instead: str, progress: Progress | None = None
) -> ImageSource:
    """Download and decode a data set of images; `datasets` keeps the downloaded files.

    `instead` says how to provide the files by hand. It ends every message about a failed download.
    """
    chosen = _download(name, hub_id, instead)

    def decode(make: MakeArray) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
        encoded, classes = _encoded_parts(chosen, hub_id)
        names = ("train_images", "test_images")
        images = decode_parts(encoded, lambda i, shape: make(names[i], shape, np.uint8), progress)
        arrays = dict(zip(names, images, strict=True))
        arrays |= {"train_labels": encoded[0].labels, "test_labels": encoded[1].labels}
        return arrays, classes

    # The fingerprint changes with the data, so a decoded copy of another version is not used.
    fingerprint = " ".join(part._fingerprint for part in chosen)
    return cached(name, [hub_cache_place(hub_id, fingerprint)], [], decode)


def hub_column(name: str, hub_id: str, instead: str, column: str) -> np.ndarray:
    """Return a column besides images and labels, of the training part and then of the test part."""
    values: list[Any] = []
    for part in _download(name, hub_id, instead):
        if column not in part.features:
            raise no_such_column(hub_id, column, list(part.features))
        table = part.with_format("arrow").select_columns([column])[:]
        values += table[column].to_pylist()
    return text_or_numbers(values)


def _download(name: str, hub_id: str, instead: str) -> list[Any]:
    """Return the training part and the test part."""
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise InputError(
            f"{name} is not on this machine. {instead}; or let fedkin download {hub_id} from the hub: "
            "pip install 'fedkin[data]'"
        ) from error
    try:
        parts: dict[str, Any] = datasets.load_dataset(hub_id)
    # `datasets` passes on errors of many kinds (HTTP, file system, its own). Whichever it is, there is
    # no data set, and the error's text says why.
    except Exception as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise InputError(
            f"{name} could not be downloaded from the hub as {hub_id} ({reason}). {instead}"
        ) from error
    test_name = next((part for part in TEST_NAMES if part in parts), None)
    if "train" not in parts or test_name is None:
        raise InputError(
            f"{hub_id} has the parts {', '.join(parts)}; fedkin needs 'train' and one of "
            f"{', '.join(TEST_NAMES)}"
        )
    return [parts["train"], parts[test_name]]


def _encoded_parts(parts: list[Any], hub_id: str) -> tuple[list[EncodedImages], tuple[str, ...]]:
    tables = [part.with_format("arrow") for part in parts]
    features = parts[0].features.to_dict()
    image_column, label_column = find_columns(tables[0][:1].schema, features, hub_id)
    columns = [
        pyarrow.concat_arrays(table.select_columns([label_column])[:][label_column].chunks)
        for table in tables
    ]
    names = features.get(label_column, {}).get("names")
    labels, classes = number_labels(columns, names, hub_id)

    def blobs(table: Any) -> Iterator[bytes]:
        for batch in table.select_columns([image_column]).iter(ROWS_AT_A_TIME):
            for chunk in batch[image_column].chunks:
                yield from image_bytes(chunk, hub_id)

    encoded = [
        EncodedImages(
            origin=f"{hub_id} ({part})",
            count=len(table),
            blobs=lambda table=table: blobs(table),
            labels=numbers,
            place=lambda i, part=part: f"image {i} of {hub_id} ({part})",
        )
        for part, table, numbers in zip(("train", "test"), tables, labels, strict=True)
    ]
    return encoded, classes
