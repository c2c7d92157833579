"""Data sets of images, and decoding images (PNG, JPEG, …) into one `uint8` array."""

import hashlib
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from PIL import Image

from fedkin.errors import InputError

Progress = Callable[[str, int, int], None]
"""Called during long work with what is being read, how much is done and how much there is."""

TEST_NAMES = ("test", "validation", "valid", "val")
"""The hub's names for the part that is not used for training, best first."""


@dataclass(frozen=True, eq=False)
class ImageSource:
    """A data set of images of one size, as it was published, with a training and a test part.

    Images are `uint8` of shape `(n, height, width, channels)`, with one channel if they are gray.
    Labels are `int32` and count from 0. `classes[label]` is the name of a class.
    """

    name: str
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            images, labels = getattr(self, f"{part}_images"), getattr(self, f"{part}_labels")
            if images.dtype != np.uint8 or images.ndim != 4:
                raise InputError(
                    f"the {part} images of {self.name} must be uint8 of shape (n, height, width, "
                    f"channels), not {images.dtype} of shape {images.shape}"
                )
            if labels.shape != (len(images),):
                raise InputError(
                    f"{self.name} has {len(images)} {part} images but labels of shape "
                    f"{labels.shape}; there must be one label per image"
                )
            if not len(images):
                raise InputError(f"the {part} part of {self.name} has no images")
            check_label_range(labels, len(self.classes), f"the {part} part of {self.name}")
        if self.train_images.shape[1:] != self.test_images.shape[1:]:
            raise InputError(
                f"training images of {self.name} have shape {self.train_images.shape[1:]} but test "
                f"images {self.test_images.shape[1:]}: give them one size and one number of channels"
            )

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of all pixels and labels: sources with equal checksums hold equal data."""
        digest = hashlib.sha256()
        for array in (self.train_images, self.train_labels, self.test_images, self.test_labels):
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class EncodedImages:
    """One part of a data set before decoding."""

    origin: str
    """The file or folder, for messages."""
    count: int
    blobs: Callable[[], Iterator[bytes]]
    """Iterates over the images; called again if decoding has to start over."""
    labels: np.ndarray
    place: Callable[[int], str]
    """Where an image is, for messages."""


class _ColorFoundError(Exception):
    """A colored image in a part that seemed gray."""


def decode_parts(
    parts: Sequence[EncodedImages],
    make_array: Callable[[int, tuple[int, ...]], np.ndarray],
    progress: Progress | None = None,
) -> list[np.ndarray]:
    """Decode the parts of a data set: to gray if every image is gray, else all to RGB.

    `make_array(part, shape)` returns the `uint8` array to fill. The caller can back it by a file, so
    that the decoded images are never in memory twice.
    """
    color = False
    while True:
        try:
            return [
                _decode_part(part, color, lambda shape, i=i: make_array(i, shape), progress)
                for i, part in enumerate(parts)
            ]
        except _ColorFoundError:
            color = True


def _decode_part(
    part: EncodedImages,
    color: bool,
    make_array: Callable[[tuple[int, ...]], np.ndarray],
    progress: Progress | None,
) -> np.ndarray:
    images: np.ndarray | None = None
    for i, blob in enumerate(part.blobs()):
        pixels = _decode_image(blob, color, part.place(i))
        if images is None:
            images = make_array((part.count, *pixels.shape))
        if pixels.shape != images.shape[1:]:
            raise InputError(
                f"{part.place(i)} is {pixels.shape[1]}x{pixels.shape[0]} pixels but the first is "
                f"{images.shape[2]}x{images.shape[1]}: resize them all to one size"
            )
        images[i] = pixels
        if progress and (i + 1 == part.count or i % 500 == 0):
            progress(part.origin, i + 1, part.count)
    if images is None:
        raise InputError(f"{part.origin} has no images")
    return images


def _decode_image(blob: bytes, color: bool, place: str) -> np.ndarray:
    try:
        with Image.open(io.BytesIO(blob)) as image:
            if image.mode.startswith(("I", "F")):
                raise ValueError("more than 8 bits per channel")
            if image.mode not in ("1", "L", "LA") and not color:
                raise _ColorFoundError
            pixels = np.asarray(image.convert("RGB" if color else "L"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        # Pillow reports damage as any of these, depending on the format.
        raise InputError(
            f"{place} cannot be decoded ({error}): it is damaged or not an 8-bit image; replace it"
        ) from error
    return pixels if color else pixels[..., None]


def check_label_range(labels: np.ndarray, classes: int, origin: str) -> None:
    """Refuse labels outside 0 … classes − 1; the hub marks unknown labels with −1."""
    outside = np.flatnonzero((labels < 0) | (labels >= classes))
    if outside.size:
        raise InputError(
            f"row {outside[0]} of {origin} has label {labels[outside[0]]}, but there are {classes} "
            f"classes, so labels run from 0 to {classes - 1}; remove or correct such rows"
        )
