"""From one table per node to the matrices of a federation."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedkin.data.preprocessing import (
    Preprocessing,
    merge_summaries,
    merge_with_judges,
    transform,
    transform_label,
)
from fedkin.data.summaries import TableSummary, summarize
from fedkin.data.table_request import GatheredTables, OwnersTables, TableRequest
from fedkin.data.tables import Table
from fedkin.types import LearningTask, Points


class TableFederation(NamedTuple):
    """The matrices of every node and of the center, and how they were made."""

    nodes: dict[str, Points]
    validation: Points
    test: Points | None
    preprocessing: Preprocessing
    warnings: tuple[str, ...]
    """Which columns are missing where, and which are not used."""


def federate(
    nodes: Mapping[str, Table],
    validation: Table,
    test: Table | None,
    label: str,
    task: LearningTask = "classification",
    categorical: Sequence[str] = (),
    missing_codes: Mapping[str, float] | None = None,
    *,
    owner_trains: bool = False,
    strict: bool = False,
) -> TableFederation:
    """Summarize every table, merge the summaries, and transform every table's rows.

    With `owner_trains`, the owner's rows also decide how columns are scaled; with `strict`, tables with
    different columns are refused.

    >>> import numpy as np
    >>> from fedkin.data.columns import column_from_text
    >>> def table(owner, ages, outcomes):
    ...     columns = {"age": column_from_text(ages), "outcome": column_from_text(outcomes)}
    ...     return Table(owner, columns, np.arange(1, len(ages) + 1), "row")
    >>> federation = federate(
    ...     {"zurich": table("zurich", ["20", "40"], ["no", "yes"])},
    ...     table("the validation table", ["30", "?"], ["yes", "no"]),
    ...     None,
    ...     label="outcome",
    ... )
    >>> federation.nodes["zurich"].inputs.tolist(), federation.validation.inputs.tolist()
    ([[-1.0], [1.0]], [[0.0], [0.0]])
    """

    def summary(table: Table) -> TableSummary:
        without_codes = table.with_missing_codes(missing_codes or {})
        return summarize(without_codes, label, task, categorical)

    def points(table: Table) -> Points:
        return Points(transform(table, preprocessing), transform_label(table, preprocessing))

    preprocessing, warnings = merge_summaries(
        {name: summary(table) for name, table in nodes.items()},
        summary(validation),
        None if test is None else summary(test),
        label,
        missing_codes,
        owner_trains=owner_trains,
        strict=strict,
    )
    return TableFederation(
        nodes={name: points(table) for name, table in nodes.items()},
        validation=points(validation),
        test=None if test is None else points(test),
        preprocessing=preprocessing,
        warnings=warnings,
    )


def federate_request(tables: GatheredTables, request: TableRequest) -> TableFederation:
    """Do what `federate` does, for tables that were asked for."""
    return federate(
        tables.nodes,
        tables.validation,
        tables.test,
        request.label,
        request.task,
        request.categorical,
        request.missing_codes,
        owner_trains=request.whole_owner,
        strict=request.strict,
    )


class OwnersPoints(NamedTuple):
    """The matrices of one node that is an owner too."""

    train: Points
    validation: Points
    test: Points | None


class OwnersFederation(NamedTuple):
    """The matrices of nodes that all are owners, and how they were made."""

    nodes: dict[str, OwnersPoints]
    preprocessing: Preprocessing
    warnings: tuple[str, ...]
    """Which columns are missing where, and which are not used."""


def federate_owners(
    nodes: Mapping[str, OwnersTables],
    label: str,
    task: LearningTask = "classification",
    categorical: Sequence[str] = (),
    missing_codes: Mapping[str, float] | None = None,
    *,
    strict: bool = False,
) -> OwnersFederation:
    """Do for nodes that all are owners what `federate` does for one owner.

    Only what the nodes train on decides how columns are scaled.
    """

    def summaries(own: OwnersTables) -> dict[str, TableSummary]:
        parts = {
            part: table.with_missing_codes(missing_codes or {})
            for part, table in own._asdict().items()
            if table is not None
        }
        return {
            part: summarize(table, label, task, categorical, list(parts.values()))
            for part, table in parts.items()
        }

    def points(table: Table) -> Points:
        return Points(transform(table, preprocessing), transform_label(table, preprocessing))

    described = {name: summaries(own) for name, own in nodes.items()}
    trained = {name: parts.pop("train") for name, parts in described.items()}
    judges = {
        f"the {part} rows of node '{name}'": summary
        for name, parts in described.items()
        for part, summary in parts.items()
    }
    preprocessing, warnings = merge_with_judges(
        trained, judges, label, missing_codes, strict=strict
    )
    found = {
        name: OwnersPoints(
            points(own.train),
            points(own.validation),
            None if own.test is None else points(own.test),
        )
        for name, own in nodes.items()
    }
    return OwnersFederation(found, preprocessing, warnings)
