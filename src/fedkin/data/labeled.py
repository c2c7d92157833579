"""Labeled data in one piece: what partitions divide among nodes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedkin.data.images import ImageSource, Progress
from fedkin.data.sources import load_column, load_images
from fedkin.errors import InputError
from fedkin.messages import did_you_mean


@dataclass(frozen=True, eq=False)
class LabeledData:
    """Inputs and labels, with the rows along the first axis of both.

    >>> data = LabeledData(np.zeros((4, 2)), np.array([0, 1, 1, 0]), ("no", "yes"))
    >>> len(data), [rows.tolist() for rows in data.rows_of_classes().values()]
    (4, [[0, 3], [1, 2]])
    """

    inputs: np.ndarray
    labels: np.ndarray
    """Numbers that count from 0: `classes[label]` is the name of a class."""
    classes: tuple[str, ...]
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    """What else is known about the rows, such as who wrote them; one value per row."""
    name: str = "the data"
    """For messages."""
    checksum: str | None = None
    """The checksum of the source, if the data have one."""

    def __post_init__(self) -> None:
        if self.labels.ndim != 1 or self.labels.dtype.kind not in "iu":
            raise InputError(
                f"the labels of {self.name} must be whole numbers, one per row, not "
                f"{self.labels.dtype} of shape {self.labels.shape}"
            )
        for what, values in {"inputs": self.inputs, **self.columns}.items():
            if len(values) != len(self.labels):
                raise InputError(
                    f"{self.name} has {len(self.labels)} labels but {len(values)} rows of {what}"
                )
        if not len(self.labels):
            raise InputError(f"{self.name} has no rows")
        if self.labels.min() < 0 or self.labels.max() >= len(self.classes):
            raise InputError(
                f"the labels of {self.name} run from {self.labels.min()} to {self.labels.max()}, but "
                f"there are {len(self.classes)} classes, 0 to {len(self.classes) - 1}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def rows_of_classes(self) -> dict[int, np.ndarray]:
        """Return the rows of every class that occurs, in the order of the labels."""
        return {
            int(label): np.flatnonzero(self.labels == label) for label in np.unique(self.labels)
        }

    def column(self, name: str) -> np.ndarray:
        """Return a column; if there is none with that name, suggest a close one."""
        if name not in self.columns:
            known = did_you_mean(name, list(self.columns))
            raise InputError(f"{self.name} has no column '{name}'{known}")
        return self.columns[name]


def pool(source: ImageSource, columns: Mapping[str, np.ndarray] | None = None) -> LabeledData:
    """Put the training part of a data set and then its test part into one, as PFLlib does.

    A partition gives every node rows for training, validation and testing. The division that the data
    set was published with plays no role then.
    """
    return LabeledData(
        inputs=np.concatenate([source.train_images, source.test_images]),
        labels=np.concatenate([source.train_labels, source.test_labels]),
        classes=source.classes,
        columns=columns or {},
        name=source.name,
        checksum=source.checksum,
    )


def load_labeled(
    name: str,
    directory: Path | None = None,
    *,
    column: str | None = None,
    progress: Progress | None = None,
) -> LabeledData:
    """Load a data set by name, path or hub id, with both its parts pooled.

    >>> len(load_labeled("digits"))
    1797

    Args:
        name: As for `load_images`.
        directory: Where data sets are; by default `FEDKIN_DATA`.
        column: A column to load besides images and labels, for the partition `Natural`.
        progress: Called while images are decoded.
    """
    source = load_images(name, directory, progress=progress)
    return pool(source, {column: load_column(name, column, directory)} if column else None)
