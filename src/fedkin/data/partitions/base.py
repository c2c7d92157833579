"""What all partitions have in common."""

from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from fedkin.data.labeled import LabeledData
from fedkin.errors import InputError


class NodeRows(NamedTuple):
    """The rows of one node, and how its data differ from the published ones."""

    name: str
    rows: np.ndarray
    """In increasing order. A row occurs more than once only if it was drawn with replacement."""
    group: str | None = None
    permutation: tuple[int, ...] | None = None
    """`permutation[label]` is what the node calls a class; None if it changes nothing."""
    rotation: int = 0
    """By how many degrees the node's images are turned, clockwise."""


class Partition(Protocol):
    """A rule that divides the rows of a data set among nodes, drawn from a seed."""

    kind: ClassVar[str]
    """Its name in files and on the command line."""

    @property
    def shares_rows(self) -> bool:
        """Whether several nodes may have the same row."""
        ...

    @property
    def node_count(self) -> int | None:
        """How many nodes there are; None if the data decide."""
        ...

    def draw(self, data: LabeledData, seed: int) -> list[NodeRows]:
        """Return the rows of every node. The same arguments always give the same rows."""
        ...


def random_stream(seed: int, *place: int) -> np.random.Generator:
    """Return the generator of a seed; other places have independent ones."""
    check_whole("seed", seed, least=0)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=place))


def check_whole(name: str, value: Any, least: int) -> None:
    """Refuse what is not a whole number of at least this size."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}, not {value!r}")


def check_enough_rows(data: LabeledData, nodes: int, minimum: int) -> None:
    """Refuse partitions that no draw can satisfy."""
    if nodes > len(data):
        raise InputError(
            f"{data.name} has {len(data):,} rows, too few for {nodes:,} nodes: every node needs at "
            "least one; lower nodes"
        )
    if nodes * minimum > len(data):
        raise InputError(
            f"{data.name} has {len(data):,} rows, but {nodes:,} nodes with at least {minimum:,} rows "
            f"each need {nodes * minimum:,}: lower nodes, or minimum to {len(data) // nodes:,} or less"
        )


def numbered(rows: list[np.ndarray]) -> list[NodeRows]:
    """Name the nodes node-1, node-2, …"""
    return [NodeRows(f"node-{number}", np.sort(own)) for number, own in enumerate(rows, start=1)]
