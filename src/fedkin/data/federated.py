"""A federation's data: what every node holds, what the center holds, and how both were drawn."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from fedkin.data.images import ImageSource
from fedkin.errors import InputError
from fedkin.types import Points

Target = Literal["minority", "majority"]
Rotation = Literal["clockwise", "anticlockwise"]


class NodeDescription(BaseModel):
    """Which images of the training part a node holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    group: Target
    indices: tuple[NonNegativeInt, ...]


class FederationDescription(BaseModel):
    """Everything that is needed, besides the source, to build the same federation again.

    `permutation[label]` is the label that the majority gives to a class. `rotation` is the direction
    in which the majority's images are turned by 90 degrees. Validation images come from the training
    part, test images from the test part. If the target is the majority, both are changed like its
    nodes' images.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    source: str
    checksum: str
    setting: str
    target: Target
    seed: NonNegativeInt
    permutation: tuple[NonNegativeInt, ...]
    rotation: Rotation | None
    nodes: tuple[NodeDescription, ...]
    validation: tuple[NonNegativeInt, ...]
    test: tuple[NonNegativeInt, ...]

    def save(self, path: Path) -> None:
        """Write the description as JSON."""
        try:
            Path(path).write_text(self.model_dump_json() + "\n", encoding="utf-8")
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror}") from error

    @classmethod
    def load(cls, path: Path) -> "FederationDescription":
        """Read what `save` wrote."""
        try:
            return cls.model_validate_json(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise InputError(f"there is no file {path}") from error
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read {path}: {error}") from error
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(step) for step in first["loc"]) or "the file"
            raise InputError(
                f"{path} is not a saved federation ({place}: {first['msg']}): save it again"
            ) from error


@dataclass(frozen=True, eq=False)
class FederatedData:
    """The data of a federation. Images are `uint8`, channels last."""

    names: tuple[str, ...]
    nodes: tuple[Points, ...]
    validation: Points
    test: Points
    similar: tuple[bool, ...]
    """True for the nodes that have the target's distribution."""
    classes: tuple[str, ...]
    description: FederationDescription


def class_shares(federation: FederatedData) -> np.ndarray:
    """Return the share of every label (column) on every node, then in validation and test (rows)."""
    rows = [*federation.nodes, federation.validation, federation.test]
    counts = [np.bincount(labels, minlength=len(federation.classes)) for _, labels in rows]
    return np.array([count / count.sum() for count in counts])


def build_federation(source: ImageSource, description: FederationDescription) -> FederatedData:
    """Collect the images of every node. Equal sources and descriptions give equal bytes."""
    if source.checksum != description.checksum:
        raise InputError(
            f"the federation was made from {description.source} with checksum "
            f"{description.checksum[:12]}…, but {source.name} now has checksum "
            f"{source.checksum[:12]}…: use the same files"
        )
    if sorted(description.permutation) != list(range(len(source.classes))):
        raise InputError(
            f"the federation's permutation does not list the {len(source.classes)} classes of "
            f"{source.name}: save the description again"
        )

    def collect(part: str, indices: tuple[int, ...], group: Target, owner: str) -> Points:
        images, labels = getattr(source, f"{part}_images"), getattr(source, f"{part}_labels")
        chosen = np.asarray(indices, np.int64)
        if chosen.size and chosen.max() >= len(images):
            raise InputError(
                f"{owner} has image number {chosen.max()} of the {part} part of {source.name}, which "
                f"has only {len(images)} images: save the description again"
            )
        if group == "minority":
            return Points(images[chosen], labels[chosen])
        permutation = np.asarray(description.permutation, np.int32)
        return Points(_rotate(images[chosen], description.rotation), permutation[labels[chosen]])

    nodes = description.nodes
    target = description.target
    return FederatedData(
        names=tuple(node.name for node in nodes),
        nodes=tuple(collect("train", node.indices, node.group, node.name) for node in nodes),
        validation=collect("train", description.validation, target, "the validation set"),
        test=collect("test", description.test, target, "the test set"),
        similar=tuple(node.group == target for node in nodes),
        classes=source.classes,
        description=description,
    )


def _rotate(images: np.ndarray, rotation: Rotation | None) -> np.ndarray:
    if rotation is None:
        return images
    # `rot90` turns rows toward columns, which is anticlockwise on paper.
    turns = {"clockwise": -1, "anticlockwise": 1}[rotation]
    return np.ascontiguousarray(np.rot90(images, turns, axes=(1, 2)))
