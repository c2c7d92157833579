"""Groups of nodes that differ in classes, labels or rotation: section "Data" of the paper, for any number."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
from pydantic import ConfigDict

from fedkin.data.labeled import LabeledData
from fedkin.data.partitions.base import NodeRows, check_whole, random_stream
from fedkin.data.partitions.split import TEST_FRACTION, VALIDATION_FRACTION
from fedkin.data.scenarios import Scenario, draw_from_pools
from fedkin.errors import InputError

Rotation = Literal[0, 90, 180, 270, "either"]
"""Degrees, clockwise; `either` is 90 or 270, drawn once from the seed, as in the paper's setting 3."""

ROTATIONS = (0, 90, 180, 270, "either")


@dataclass(frozen=True)
class Group:
    """Nodes with the same distribution."""

    nodes: int
    probabilities: tuple[float, ...] | None = None
    """How often each class occurs, or each merged class if there are such; None: as in the data."""
    permutation: Mapping[int, int] = field(default_factory=dict)
    """`{2: 0}` means that the group labels class 2 as 0. Other labels stay."""
    rotation: Rotation = 0
    name: str | None = None
    """None for group1, group2, …"""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    def __post_init__(self) -> None:
        check_whole("nodes", self.nodes, least=1)
        if self.probabilities is not None:
            if not all(0 <= chance <= 1 for chance in self.probabilities):
                raise InputError(
                    f"probabilities must lie between 0 and 1, not {self.probabilities}"
                )
            if not math.isclose(sum(self.probabilities), 1, abs_tol=1e-6):
                raise InputError(f"the probabilities sum to {sum(self.probabilities):g}, not 1")
        if set(self.permutation) != set(self.permutation.values()):
            raise InputError(
                "the permutation must have the same labels on both sides, but they are "
                f"{sorted(self.permutation)} and {sorted(self.permutation.values())}"
            )
        if self.rotation not in ROTATIONS:
            raise InputError(
                f"rotation is 0, 90, 180, 270 (degrees, clockwise) or 'either', not {self.rotation!r}"
            )


@dataclass(frozen=True)
class Groups:
    """Any number of groups, each with class probabilities, a label permutation and a rotation.

    Every row is drawn independently: first a class (or merged class) with the group's probabilities, then a
    row of it, all equally likely.

    What is left open, and what is chosen here: the paper draws with replacement, and so does
    `replacement=True`, where nodes share rows. By default a row is drawn at most once, so that no node
    trains on what another is tested on; the data must then have enough rows of every class. All nodes
    have the same number of rows.

    >>> from fedkin.data.labeled import load_labeled
    >>> even, odd = (0.2, 0) * 5, (0, 0.2) * 5
    >>> groups = Groups((Group(5, even), Group(5, odd), Group(5, rotation=90)), points_per_node=60)
    >>> nodes = groups.draw(load_labeled("digits"), seed=0)
    >>> nodes[10].name, len(nodes[10].rows), nodes[10].rotation
    ('group3-1', 60, 90)
    """

    groups: tuple[Group, ...]
    points_per_node: int
    """The number of rows of a node."""
    merged_classes: tuple[tuple[int, ...], ...] | None = None
    """Labels that are drawn together; None: every class by itself."""
    replacement: bool = False
    """Whether a row may be drawn more than once."""
    name: str = "own"

    kind: ClassVar[str] = "groups"
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    def __post_init__(self) -> None:
        if not self.groups:
            raise InputError("there are no groups: give at least one")
        check_whole("points_per_node", self.points_per_node, least=1)
        labels = list(itertools.chain(*(self.merged_classes or ())))
        if self.merged_classes is not None and not all(self.merged_classes):
            raise InputError("every merged class needs at least one label")
        if len(set(labels)) < len(labels):
            twice = next(label for label in labels if labels.count(label) > 1)
            raise InputError(f"label {twice} is in the merged classes twice")
        if len(set(self.group_names)) < len(self.groups):
            raise InputError(f"two groups have the same name: {', '.join(self.group_names)}")

    @property
    def shares_rows(self) -> bool:
        """Whether several nodes may have the same row."""
        return self.replacement

    @property
    def node_count(self) -> int:
        """How many nodes there are."""
        return sum(group.nodes for group in self.groups)

    @property
    def group_names(self) -> tuple[str, ...]:
        """The names of the groups."""
        return tuple(
            group.name or f"group{number}" for number, group in enumerate(self.groups, start=1)
        )

    def draw(self, data: LabeledData, seed: int) -> list[NodeRows]:
        """Return the rows of every node, and how its labels and images are changed."""
        merged = self.merged_classes or tuple((label,) for label in range(len(data.classes)))
        self._check_fit(data, merged)
        pools = [np.flatnonzero(np.isin(data.labels, labels)) for labels in merged]
        probabilities = [self._probabilities(group, pools) for group in self.groups]
        self._check_pools(data, merged, pools, probabilities)
        random = random_stream(seed, 0)
        direction = 90 if random.random() < 0.5 else 270
        members = [number for number, group in enumerate(self.groups) for _ in range(group.nodes)]
        if self.replacement:
            rows = [
                draw_from_pools(pools, probabilities[number], self.points_per_node, random)
                for number in members
            ]
        else:
            chances = [probabilities[number] for number in members]
            rows = self._draw_once(data, merged, pools, chances, random)
        places = itertools.chain(*(range(1, group.nodes + 1) for group in self.groups))
        return [
            NodeRows(
                name=f"{self.group_names[number]}-{place}",
                rows=np.sort(own),
                group=self.group_names[number],
                permutation=_full(self.groups[number].permutation, len(data.classes)),
                rotation=_degrees(self.groups[number].rotation, direction),
            )
            for number, place, own in zip(members, places, rows, strict=True)
        ]

    def _draw_once(
        self,
        data: LabeledData,
        merged: tuple[tuple[int, ...], ...],
        pools: list[np.ndarray],
        chances: list[np.ndarray],
        random: np.random.Generator,
    ) -> list[np.ndarray]:
        """Draw for all nodes such that no row is drawn twice."""
        counts = np.array([random.multinomial(self.points_per_node, chance) for chance in chances])
        for labels, rows, wanted in zip(merged, pools, counts.sum(axis=0), strict=True):
            if wanted > len(rows):
                raise InputError(
                    f"the groups need {wanted:,} rows of {_named(data, labels)}, but {data.name} has "
                    f"{len(rows):,}: lower points_per_node or the number of nodes, or draw with replacement "
                    "(replacement = true)"
                )
        shuffled = [random.permutation(rows) for rows in pools]
        ends = np.cumsum(counts, axis=0)
        return [
            np.concatenate(
                [
                    rows[end - count : end]
                    for rows, end, count in zip(shuffled, of_node, own, strict=True)
                ]
            )
            for of_node, own in zip(ends, counts, strict=True)
        ]

    def _probabilities(self, group: Group, pools: list[np.ndarray]) -> np.ndarray:
        """Return the group's probabilities; without any, all rows are equally likely."""
        if group.probabilities is None:
            sizes = np.array([len(rows) for rows in pools], float)
            return sizes / sizes.sum()
        given = np.array(group.probabilities)
        return given / given.sum()

    def _check_fit(self, data: LabeledData, merged: tuple[tuple[int, ...], ...]) -> None:
        for name, group in zip(self.group_names, self.groups, strict=True):
            named = [*itertools.chain(*merged), *group.permutation]
            if not 0 <= min(named) <= max(named) < len(data.classes):
                wrong = next(label for label in named if not 0 <= label < len(data.classes))
                raise InputError(
                    f"{name} names class {wrong}, but {data.name} has {len(data.classes)} classes, "
                    f"0 to {len(data.classes) - 1}"
                )
            if group.probabilities is not None and len(group.probabilities) != len(merged):
                what = "classes" if self.merged_classes is None else "merged classes"
                raise InputError(
                    f"{name} has {len(group.probabilities)} probabilities for {len(merged)} {what} of "
                    f"{data.name}"
                )
            shape = data.inputs.shape
            if group.rotation != 0 and len(shape) != 4:
                raise InputError(
                    f"{name} is turned, but {data.name} has no images: leave out rotation"
                )
            if group.rotation not in (0, 180) and shape[1] != shape[2]:
                raise InputError(
                    f"images of {data.name} are {shape[2]}x{shape[1]} pixels, but only square images "
                    f"can be turned by 90 degrees: choose another rotation for {name}"
                )

    def _check_pools(
        self,
        data: LabeledData,
        merged: tuple[tuple[int, ...], ...],
        pools: list[np.ndarray],
        probabilities: list[np.ndarray],
    ) -> None:
        for name, chances in zip(self.group_names, probabilities, strict=True):
            for labels, rows, chance in zip(merged, pools, chances, strict=True):
                if chance > 0 and not len(rows):
                    raise InputError(
                        f"{data.name} has no row of {_named(data, labels)}, which {name} draws from"
                    )


def groups_of_scenario(
    scenario: Scenario,
    minority_nodes: int = 5,
    majority_nodes: int = 10,
    points_per_node: int | None = None,
) -> Groups:
    """Return the two groups of one of the paper's settings, or of a declared one, with replacement.

    `points_per_node` is the number of rows of a node. By default the training part of them is as large as the
    setting says.

    >>> from fedkin.data.scenarios import paper_scenario
    >>> groups = groups_of_scenario(paper_scenario("digits", 3))
    >>> groups.group_names, groups.groups[1].rotation, groups.points_per_node
    (('minority', 'majority'), 'either', 333)
    """
    if points_per_node is None:
        points_per_node = _usual_points(scenario.train_size)
    minority = Group(minority_nodes, scenario.minority, name="minority") if minority_nodes else None
    majority = None
    if majority_nodes:
        majority = Group(
            majority_nodes,
            scenario.majority,
            scenario.permutation,
            "either" if scenario.rotation else 0,
            name="majority",
        )
    return Groups(
        groups=tuple(group for group in (minority, majority) if group is not None),
        points_per_node=points_per_node,
        merged_classes=scenario.merged_classes,
        replacement=True,
        name=scenario.name,
    )


def _usual_points(train_size: int) -> int:
    """Return how many rows a node needs for a training part of this size."""
    return round(train_size / ((1 - TEST_FRACTION) * (1 - VALIDATION_FRACTION)))


def _named(data: LabeledData, labels: tuple[int, ...]) -> str:
    names = ", ".join(data.classes[label] for label in labels)
    return f"{'class' if len(labels) == 1 else 'the classes'} {names}"


def _full(permutation: Mapping[int, int], classes: int) -> tuple[int, ...] | None:
    full = tuple(permutation.get(label, label) for label in range(classes))
    return None if full == tuple(range(classes)) else full


def _degrees(rotation: Rotation, direction: int) -> int:
    return direction if rotation == "either" else rotation
