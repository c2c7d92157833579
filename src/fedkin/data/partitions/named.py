"""Partitions by name and fields, as study files and the command line write them."""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedkin.data.partitions.base import Partition
from fedkin.data.partitions.dirichlet import Dirichlet
from fedkin.data.partitions.groups import Groups, groups_of_scenario
from fedkin.data.partitions.natural import Natural
from fedkin.data.partitions.pathological import Pathological
from fedkin.data.scenarios import load_scenario, paper_scenario
from fedkin.errors import InputError
from fedkin.messages import in_plain_words, suggestion

PARTITIONS: dict[str, type[Any]] = {
    each.kind: each for each in (Dirichlet, Pathological, Groups, Natural)
}

GROUPS_FIELDS = ("setting", "minority_nodes", "majority_nodes", "points_per_node")
"""How files and the command line describe groups: a setting 1-4, or a file that has all the rest."""


def as_written(name: str) -> str:
    """Write a field in a message as study files have it."""
    return name


def partition_fields(kind: str) -> tuple[str, ...]:
    """Return the fields that describe a partition in a study file.

    >>> partition_fields("dirichlet")
    ('alpha', 'nodes', 'minimum')
    """
    if kind not in PARTITIONS:
        raise InputError(f"the partition {kind!r} is unknown{suggestion(str(kind), PARTITIONS)}")
    return (
        GROUPS_FIELDS if kind == "groups" else tuple(each.name for each in fields(PARTITIONS[kind]))
    )


def choose_partition(
    kind: str,
    given: Mapping[str, Any],
    dataset: str,
    write: Callable[[str], str] = as_written,
) -> Partition:
    """Make the partition that a study file or a command line describes.

    >>> choose_partition("dirichlet", {"alpha": 0.1, "nodes": 20}, "digits")
    Dirichlet(alpha=0.1, nodes=20, minimum=10)

    Args:
        kind: The name of the partition.
        given: Its fields.
        dataset: The data set, which decides what the settings 1-4 are.
        write: How the user writes a field: `--alpha`, say.
    """
    known = partition_fields(kind)
    for name in given:
        if name not in known:
            mine = ", ".join(write(each) for each in known)
            raise InputError(
                f"{write(name)} is of no use with the partition {kind}, which takes {mine}"
            )
    if kind == "groups":
        return _choose_groups(given, dataset, write)
    for field in fields(PARTITIONS[kind]):
        if field.default is MISSING and field.name not in given:
            raise InputError(f"the partition {kind} needs {write(field.name)}")
    return read_partition(kind, given)


def read_partition(kind: str, described: Mapping[str, Any]) -> Partition:
    """Make a partition of what `describe_partition` returned."""
    partition_fields(kind)
    try:
        return _adapter(kind).validate_python(dict(described))
    except ValidationError as error:
        raise InputError(_problems(error)) from error


def describe_partition(partition: Partition) -> dict[str, Any]:
    """Describe a partition in full, with its defaults, in values that JSON has.

    >>> describe_partition(Dirichlet(0.1, 20))
    {'alpha': 0.1, 'nodes': 20, 'minimum': 10}
    """
    return _adapter(partition.kind).dump_python(partition, mode="json")


def partition_title(partition: Partition) -> str:
    """Name a partition with what was chosen for it.

    >>> partition_title(Pathological(2, 20)), partition_title(Dirichlet(0.5, 20, minimum=5))
    ('pathological classes_per_node=2 nodes=20', 'dirichlet alpha=0.5 nodes=20 minimum=5')
    """
    if isinstance(partition, Groups):
        sizes = "+".join(str(group.nodes) for group in partition.groups)
        return f"groups {sizes} of {partition.name}, points_per_node={partition.points_per_node}"
    chosen = [
        f"{field.name}={value}"
        for field in fields(PARTITIONS[partition.kind])
        if (value := getattr(partition, field.name)) != field.default
    ]
    return " ".join([partition.kind, *chosen])


def load_groups(path: Path) -> Groups:
    """Read groups from a TOML file whose keys are the fields of `Groups`, each group a `[[groups]]`."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path} with groups: check the path") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not valid TOML: {error}") from error
    try:
        return _adapter("groups").validate_python({"name": path.stem, **content})
    except ValidationError as error:
        raise InputError(f"{path}: {_problems(error)}") from error


def _choose_groups(given: Mapping[str, Any], dataset: str, write: Callable[[str], str]) -> Groups:
    setting = given.get("setting")
    if setting is None:
        raise InputError(
            f"the partition groups needs {write('setting')}: 1, 2, 3 or 4 for the two groups of the paper, "
            "or a TOML file with [[groups]], as docs/data.md shows"
        )
    own = {name: value for name, value in given.items() if name != "setting"}
    if isinstance(setting, int):
        scenario = paper_scenario(dataset, setting)
    elif not has_groups(Path(setting)):
        scenario = load_scenario(Path(setting))
    elif own:
        raise InputError(
            f"{write(next(iter(own)))} is of no use here: {setting} says how many nodes and points "
            "there are"
        )
    else:
        return load_groups(Path(setting))
    return groups_of_scenario(scenario, **own)


def has_groups(path: Path) -> bool:
    """Tell whether a file has a list of groups, not the paper's two groups as `Scenario` has them."""
    try:
        return "groups" in tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False  # `load_scenario` says what is wrong with it


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(PARTITIONS[kind])


def _problems(error: ValidationError) -> str:
    """Say what is wrong with which key."""
    return "; ".join(
        ": ".join(
            part
            for part in (
                ".".join(str(step) for step in each["loc"]),
                in_plain_words(each["msg"]),
            )
            if part
        )
        for each in error.errors()
    )
