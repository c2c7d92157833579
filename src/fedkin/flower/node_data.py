"""A node's own data: read from where its owner says, and transformed."""

from typing import NamedTuple

from fedkin.data.agreement import check_agreement
from fedkin.data.labels import split_rows
from fedkin.data.preprocessing import Preprocessing, transform, transform_label
from fedkin.data.scenarios import paper_scenario, sample_federation
from fedkin.data.sources import load_images
from fedkin.data.tables import Table
from fedkin.errors import InputError
from fedkin.flower.node_settings import NodeSettings
from fedkin.types import Points


class OwnParts(NamedTuple):
    """A node's points: what it trains on, and what it has held out for its own question."""

    training: Points
    validation: Points | None = None
    test: Points | None = None


def read_own_table(settings: NodeSettings) -> Table:
    """Read the owner's table."""
    return settings.read(settings.data, f"node '{settings.name}'")


def read_own_tables(settings: NodeSettings) -> dict[str, Table]:
    """Read the owner's table, and split it: `summary` is what is trained on, and what the nodes agree on.

    `validation` and `test` are there if the owner has said which share of the rows they are. The split is
    that of `fedkin map` with the same seed.
    """
    table = read_own_table(settings)
    shares = {"validation": settings.validation_fraction, "test": settings.test_fraction}
    held_out = {part: share for part, share in shares.items() if share is not None}
    if not held_out:
        return {"summary": table}
    assert settings.label is not None
    stratify = settings.task == "classification"
    *parts, rest = split_rows(
        table, settings.label, list(held_out.values()), settings.seed, stratify
    )
    return {"summary": rest, **dict(zip(held_out, parts, strict=True))}


LARGEST_MATRIX = 200_000_000
"""The largest number of entries of a transformed table, 0.8 GB. A request must not exhaust the node."""


def own_parts(settings: NodeSettings, preprocessing: Preprocessing | None) -> OwnParts:
    """Return the node's points; a table is transformed as all nodes agreed."""
    if not settings.is_table:
        return OwnParts(own_images(settings))
    if preprocessing is None:
        raise InputError("a table cannot be used before the nodes have agreed on its columns")
    assert settings.label is not None
    tables = read_own_tables(settings)
    every = list(tables.values())
    own = {part: settings.summarize(table, every) for part, table in tables.items()}
    check_agreement(
        preprocessing,
        own,
        settings.label,
        settings.missing,
        settings.largest_spread,
        strict=settings.strict,
    )
    rows, features = sum(table.rows for table in tables.values()), len(preprocessing.feature_names)
    if rows * features > LARGEST_MATRIX:
        raise InputError(
            f"the center asks for {features:,} features of each of {rows:,} rows, more than "
            f"{LARGEST_MATRIX:,} numbers in all: is a column of names or dates among the categories?"
        )
    found = {
        part: Points(transform(table, preprocessing), transform_label(table, preprocessing))
        for part, table in tables.items()
    }
    return OwnParts(found["summary"], found.get("validation"), found.get("test"))


def own_images(settings: NodeSettings) -> Points:
    """Draw the images of one node of a trial, as a simulation draws them."""
    member = settings.member or settings.name
    federation = sample_federation(
        load_images(settings.data),
        paper_scenario(settings.data, settings.setting),
        settings.target,
        settings.seed,
        minority_nodes=settings.minority_nodes,
        majority_nodes=settings.majority_nodes,
        train_size=settings.train_size,
    )
    if member not in federation.names:
        raise InputError(
            f"there is no node {member!r} in this federation; there are {', '.join(federation.names)}"
        )
    return Points(*federation.nodes[federation.names.index(member)])
