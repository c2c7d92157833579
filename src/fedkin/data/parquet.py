"""Images in Parquet files that follow the hub's convention: a column of images and one of labels."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

from fedkin.data.images import TEST_NAMES, EncodedImages, check_label_range
from fedkin.errors import InputError

ROWS_AT_A_TIME = 500
"""Few, and read in one thread: Arrow keeps the memory it once used, and decoding is slower anyway."""


def parquet_files(directory: Path) -> dict[str, list[Path]]:
    """Return the files of each part: `train.parquet` or the hub's `train-00000-of-00002.parquet`."""
    for folder in (directory, directory / "data"):
        found = {
            part: sorted([*folder.glob(f"{part}.parquet"), *folder.glob(f"{part}-*.parquet")])
            for part in ("train", *TEST_NAMES)
        }
        if any(found.values()):
            test = next((found[name] for name in TEST_NAMES if found[name]), [])
            return {"train": found["train"], "test": test}
    return {"train": [], "test": []}


def read_parquet_parts(
    directory: Path, files: dict[str, list[Path]]
) -> tuple[list[EncodedImages], tuple[str, ...]]:
    """Return the train and test parts of a directory, and the names of the classes."""
    for part, paths in files.items():
        if not paths:
            raise InputError(
                f"{directory} has no {part}.parquet: a data set needs train.parquet and "
                "test.parquet, each with a column of images and a column of labels"
            )
    opened = [[_open_parquet(path) for path in files[part]] for part in ("train", "test")]
    schema = opened[0][0].schema_arrow
    features = _hub_features(schema)
    image_column, label_column = find_columns(schema, features, str(files["train"][0]))
    columns = [
        pyarrow.concat_arrays(
            [
                chunk
                for path, file in zip(files[part], group, strict=True)
                for chunk in _read_labels(path, file, image_column, label_column)
            ]
        )
        for part, group in zip(("train", "test"), opened, strict=True)
    ]
    names = features.get(label_column, {}).get("names") or _names_in_classes_file(directory)
    labels, classes = number_labels(columns, names, str(directory))
    parts = []
    for part, group, numbers in zip(("train", "test"), opened, labels, strict=True):
        origin = " and ".join(str(path) for path in files[part][:2])
        count = sum(file.metadata.num_rows for file in group)
        if not count:
            raise InputError(f"{origin} has no rows: give it at least one image")
        blobs = _blob_reader(files[part], image_column)
        place = lambda i, origin=origin: f"image {i} of {origin}"  # noqa: E731
        parts.append(EncodedImages(origin, count, blobs, numbers, place))
    return parts, classes


def _open_parquet(path: Path) -> pyarrow.parquet.ParquetFile:
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty (0 bytes): copy or download it again")
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(
            f"{path} is not a readable Parquet file ({error}): copy or download it again"
        ) from error


def _read_labels(
    path: Path, file: pyarrow.parquet.ParquetFile, image_column: str, label_column: str
) -> list[pyarrow.Array]:
    missing = {image_column, label_column} - set(file.schema_arrow.names)
    if missing:
        raise InputError(
            f"{path} has no column {sorted(missing)[0]!r}, which the training file has; its "
            f"columns are {', '.join(file.schema_arrow.names)}"
        )
    try:
        return file.read(columns=[label_column])[label_column].chunks
    except (pyarrow.ArrowException, OSError) as error:
        raise _damaged(path, error) from error


def read_parquet_column(files: dict[str, list[Path]], column: str) -> np.ndarray:
    """Return a column besides images and labels, of the training part and then of the test part."""
    values: list[Any] = []
    for path in [*files["train"], *files["test"]]:
        file = _open_parquet(path)
        if column not in file.schema_arrow.names:
            raise no_such_column(str(path), column, file.schema_arrow.names)
        try:
            values += file.read(columns=[column])[column].to_pylist()
        except (pyarrow.ArrowException, OSError) as error:
            raise _damaged(path, error) from error
    return text_or_numbers(values)


def text_or_numbers(values: list[Any]) -> np.ndarray:
    """Return a column's values as an array, with None for those that are missing."""
    if all(isinstance(value, int) for value in values):
        return np.array(values)
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def no_such_column(origin: str, column: str, names: Sequence[str]) -> InputError:
    """Return the error for a column that a data set does not have."""
    return InputError(f"{origin} has no column {column!r}; its columns are {', '.join(names)}")


def _blob_reader(paths: Sequence[Path], image_column: str) -> Callable[[], Iterator[bytes]]:
    def blobs() -> Iterator[bytes]:
        for path in paths:
            batches = _open_parquet(path).iter_batches(
                ROWS_AT_A_TIME, columns=[image_column], use_threads=False
            )
            while True:
                try:
                    batch = next(batches, None)
                except (pyarrow.ArrowException, OSError) as error:
                    raise _damaged(path, error) from error
                if batch is None:
                    break
                yield from image_bytes(batch.column(0), str(path))

    return blobs


def _damaged(path: Path, error: Exception) -> InputError:
    return InputError(f"{path} is damaged ({error}): copy or download it again")


def image_bytes(column: pyarrow.Array, origin: str) -> Iterator[bytes]:
    """Yield the encoded images of a column: structs of `bytes` and `path`, or plain binary."""
    if pyarrow.types.is_struct(column.type):
        column = column.field("bytes")
    for value in column:
        blob = value.as_py()
        if not isinstance(blob, bytes):
            raise InputError(
                f"{origin} has a row without the bytes of an image: fedkin reads files that contain "
                "their images, not links to them"
            )
        yield blob


def _hub_features(schema: pyarrow.Schema) -> dict[str, dict[str, Any]]:
    """Return the hub's description of the columns, which `datasets` puts into the file."""
    try:
        description = json.loads((schema.metadata or {})[b"huggingface"])
        return dict(description["info"]["features"])
    except (KeyError, TypeError, ValueError):
        return {}


def find_columns(
    schema: pyarrow.Schema, features: dict[str, dict[str, Any]], origin: str
) -> tuple[str, str]:
    """Return the names of the column of images and the column of labels."""

    def first(kind: str, usual: Sequence[str]) -> str | None:
        typed = [name for name in schema.names if features.get(name, {}).get("_type") == kind]
        named = [name for name in usual if name in schema.names]
        both = [name for name in named if name in typed]
        return next(iter([*both, *typed, *named]), None)

    image = first("Image", ("image", "img"))
    label = first("ClassLabel", ("label", "labels", "fine_label"))
    columns = ", ".join(schema.names)
    if image is None:
        raise InputError(f"{origin} has no column 'image'; its columns are {columns}")
    if label is None:
        raise InputError(f"{origin} has no column 'label'; its columns are {columns}")
    kind = schema.field(image).type
    holds_bytes = pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind)
    if pyarrow.types.is_struct(kind):
        holds_bytes = kind.get_field_index("bytes") >= 0
    if not holds_bytes:
        raise InputError(
            f"column {image!r} of {origin} is of type {kind}, not encoded images: expected a "
            "struct with a field 'bytes', as the hub writes it, or binary"
        )
    return image, label


def _names_in_classes_file(directory: Path) -> list[str] | None:
    path = directory / "classes.json"
    if not path.exists():
        return None
    try:
        names = json.loads(path.read_text(encoding="utf-8"))["names"]
        if not all(isinstance(name, str) for name in names):
            raise TypeError("names must be text")
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f'{path} cannot be read ({error}): it should look like {{"names": ["cat", "dog"]}}; '
            "correct or remove it"
        ) from error
    return names


def number_labels(
    columns: Sequence[pyarrow.Array], names: Sequence[str] | None, origin: str
) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Return the labels of the parts as `int32` from 0, and the class names; text labels are sorted."""
    for column in columns:
        if column.null_count:
            raise InputError(f"{origin} has a row without a label: remove such rows")
    kind = columns[0].type
    if pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind):
        texts = [column.to_pylist() for column in columns]
        classes = tuple(names or sorted(set(texts[0])))
        numbers = {name: number for number, name in enumerate(classes)}
        unknown = sorted({text for part in texts for text in part} - set(numbers))
        if unknown:
            raise InputError(
                f"label {unknown[0]!r} in {origin} is not one of the training classes "
                f"{', '.join(classes[:10])}: correct it or add it to the training part"
            )
        return [np.array([numbers[text] for text in part], np.int32) for part in texts], classes
    if not pyarrow.types.is_integer(kind):
        raise InputError(f"labels in {origin} are of type {kind}; they must be integers or text")
    labels = [column.to_numpy(zero_copy_only=False).astype(np.int64) for column in columns]
    highest = max((int(part.max()) for part in labels if len(part)), default=-1)
    classes = tuple(names or (str(label) for label in range(highest + 1)))
    for part in labels:
        check_label_range(part, len(classes), origin)
    return [part.astype(np.int32) for part in labels], classes
