"""Small labeled data for tests of partitions, without images."""

import numpy as np

from fedkin.data.labeled import LabeledData


def labeled(*class_sizes: int, **more) -> LabeledData:
    """Rows of classes of these sizes, in a fixed disorder; the input of a row is its number."""
    labels = np.repeat(np.arange(len(class_sizes)), class_sizes)
    labels = np.random.default_rng(5).permutation(labels)
    names = tuple(f"class {label}" for label in range(len(class_sizes)))
    return LabeledData(np.arange(len(labels), dtype=float)[:, None], labels, names, **more)


def squares(*class_sizes: int) -> LabeledData:
    """The same with images of 2 × 2 pixels: the number of the row at the top left, else zero."""
    rows = labeled(*class_sizes)
    images = np.zeros((len(rows), 2, 2, 1), np.uint8)
    images[:, 0, 0, 0] = np.arange(len(rows))
    return LabeledData(images, rows.labels, rows.classes)
