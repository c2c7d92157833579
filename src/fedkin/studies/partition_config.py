"""How studies divide a data set among nodes by a partition, in their files and in the config of a run."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from fedkin.data.federated import Target
from fedkin.data.partitions import (
    Partition,
    choose_partition,
    describe_partition,
    partition_title,
    read_partition,
)
from fedkin.data.partitions.named import PARTITIONS, partition_fields
from fedkin.data.partitions.split import TEST_FRACTION, VALIDATION_FRACTION
from fedkin.errors import InputError

StudyTarget = Target | Literal["all"]
"""Whose question a run answers: that of an owner like one of two groups, or every node's."""

Fraction = Annotated[float, Field(gt=0, lt=1)]


class PartitionConfig(BaseModel):
    """A partition in full, with its defaults, so that another default is another run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    fields: dict[str, Any]
    test_fraction: Fraction = TEST_FRACTION
    """The share of a node's rows for testing."""
    validation_fraction: Fraction = VALIDATION_FRACTION
    """The share of the other rows for validation."""

    @model_validator(mode="after")
    def _fields_in_full(self) -> "PartitionConfig":
        object.__setattr__(self, "fields", describe_partition(self.partition))
        return self

    @property
    def partition(self) -> Partition:
        """The partition itself."""
        return read_partition(self.kind, self.fields)

    @property
    def title(self) -> str:
        """The partition with what was chosen for it, for tables and names of directories."""
        chosen = [
            f"{name}={value:g}"
            for name, value, usual in (
                ("test_fraction", self.test_fraction, TEST_FRACTION),
                ("validation_fraction", self.validation_fraction, VALIDATION_FRACTION),
            )
            if value != usual
        ]
        return " ".join([partition_title(self.partition), *chosen])


def as_list(value: Any) -> Any:
    """Return a list; a single value stands for a list of one."""
    return value if isinstance(value, list | tuple) else [value]


OneOrMore = BeforeValidator(as_list)
"""A list in the file, or a single value that stands for a list of one."""


def _optional_list(value: Any) -> Any:
    return None if value is None else as_list(value)


Listed = BeforeValidator(_optional_list)
"""The same for a field that may be left out."""


def _known_partition(kind: str) -> str:
    partition_fields(kind)
    return kind


PartitionName = Annotated[str, AfterValidator(_known_partition)]


class PartitionFields(BaseModel):
    """The keys of a study's file that describe partitions. A list is a grid: one run for each value."""

    partition: Annotated[list[PartitionName] | None, Listed] = None
    """dirichlet, pathological, groups or natural."""
    nodes: Annotated[list[int] | None, Listed] = None
    alpha: Annotated[list[float] | None, Listed] = None
    """Dirichlet: the smaller, the fewer classes a node has."""
    minimum: Annotated[list[int] | None, Listed] = None
    """Dirichlet and natural: the smallest number of rows of a node."""
    classes_per_node: Annotated[list[int] | None, Listed] = None
    """Pathological, as the next two."""
    arrangement: Annotated[list[str] | None, Listed] = None
    even: Annotated[list[bool] | None, Listed] = None
    points_per_node: Annotated[list[int] | None, Listed] = None
    """Groups: the rows of a node."""
    column: Annotated[list[str] | None, Listed] = None
    """Natural: the column that says whose a row is."""
    test_fraction: Fraction | None = None
    validation_fraction: Fraction | None = None

    @model_validator(mode="before")
    @classmethod
    def _all_are_owners(cls, content: Any) -> Any:
        """A partition is there to ask everyone's question, unless the file says otherwise."""
        if isinstance(content, dict) and content.get("partition") and "target" not in content:
            return {**content, "target": "all"}
        return content


FRACTIONS = ("test_fraction", "validation_fraction")

SETTING_FIELDS = ("setting", "minority_nodes", "majority_nodes")
"""What describes the two groups of a setting, with a partition or without."""

SIZE_FIELDS = ("train_size", "validation_size", "test_size", "held_out")
"""How many points a setting draws, and what its owner holds out; a partition divides those that there are."""


def partitions_of(study: PartitionFields, dataset: str) -> Iterator[PartitionConfig]:
    """Yield every partition of a data set that a study asks for."""
    fractions = {name: value for name in FRACTIONS if (value := getattr(study, name)) is not None}
    for kind in study.partition or ():
        # What is left at its default is not passed on: a file with groups of its own has no use for it.
        lists = {
            name: as_list(value)
            for name in partition_fields(kind)
            if (value := getattr(study, name)) != type(study).model_fields[name].default
            or name == "setting"
        }
        for values in itertools.product(*lists.values()):
            chosen = choose_partition(kind, dict(zip(lists, values, strict=True)), dataset)
            yield PartitionConfig(kind=kind, fields=describe_partition(chosen), **fractions)


def refuse_useless_fields(study: PartitionFields, targets: Sequence[str], source: str) -> None:
    """Refuse what contradicts the study's partitions, or its having none."""
    given = {
        name
        for name in study.model_fields_set
        if getattr(study, name) != type(study).model_fields[name].default or name == "setting"
    }
    if study.partition is None:
        for name in PartitionFields.model_fields:
            if name in given:
                owners = [kind for kind in PARTITIONS if name in partition_fields(kind)]
                which = " or ".join(f'"{kind}"' for kind in owners or PARTITIONS)
                raise InputError(f"{source}: {name} is of no use without partition = {which}")
        if "all" in targets:
            raise InputError(
                f'{source}: target = "all" needs a partition, which gives every node data to judge by: '
                'add partition = "groups" for the groups of a setting, or another one'
            )
        return
    own = {name for kind in study.partition for name in partition_fields(kind)}
    for name in (*PartitionFields.model_fields, *SETTING_FIELDS, *SIZE_FIELDS):
        if name in given and name not in {"partition", *FRACTIONS, *own}:
            kinds = " and ".join(study.partition)
            raise InputError(
                f"{source}: {name} is of no use with the partition {kinds}, which takes "
                f"{', '.join(sorted(own))}"
            )
    for target in targets:
        if target != "all":
            raise InputError(
                f'{source}: target = "{target}" is one owner of a setting; with a partition every node '
                'is an owner: write target = "all", or leave it out'
            )
