"""The data of a trial federation: one file a node, and the centre's own."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedkin.data.federated import Examples, Target
from fedkin.data.settings import paper_setting, sample_federation
from fedkin.data.sources import load_images
from fedkin.errors import InputError
from fedkin.federation.flower.certificates import make_private_directory
from fedkin.federation.flower.layout import Layout, NodeEntry, Option


class CentreAndNodes(NamedTuple):
    """What the centre brings to a study, and what nodes there are."""

    centre: dict[str, Option]
    nodes: tuple[NodeEntry, ...]


def draw_images(
    layout: Layout, dataset: str, setting: int, target: Target, seed: int, count: int
) -> CentreAndNodes:
    """Draw a federation of images and write each node's to a file of its own."""
    federation = sample_federation(
        load_images(dataset, None),
        paper_setting(dataset, setting),
        target,
        seed,
        minority_nodes=count // 2,
        majority_nodes=count - count // 2,
    )
    entries = []
    for name, examples in zip(federation.names, federation.nodes, strict=True):
        path = layout.node(name) / "data.npz"
        _write_examples(path, examples)
        entries.append(NodeEntry(name=name, data=str(path.relative_to(layout.directory))))
    centre: dict[str, Option] = {}
    for kind in ("validation", "test"):
        path = layout.centre / f"{kind}.npz"
        _write_examples(path, getattr(federation, kind))
        centre[kind] = str(path.relative_to(layout.directory))
    return CentreAndNodes(centre, tuple(entries))


def _write_examples(path: Path, examples: Examples) -> None:
    make_private_directory(path.parent)
    try:
        np.savez_compressed(path, x=examples[0], y=examples[1])
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
