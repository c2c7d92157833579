"""From one table a node to the matrices of a federation."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedkin.data.preprocessing import Preprocessing, agree, transform, transform_label
from fedkin.data.summaries import TableSummary, summarize
from fedkin.data.tables import Table
from fedkin.types import LearningTask, Points


class TableFederation(NamedTuple):
    """The matrices of every node, of the center, and how they were made."""

    nodes: dict[str, Points]
    validation: Points
    test: Points | None
    preprocessing: Preprocessing


def federate(
    nodes: Mapping[str, Table],
    validation: Table,
    test: Table | None,
    label: str,
    task: LearningTask = "classification",
    categorical: Sequence[str] = (),
    missing_codes: Mapping[str, float] | None = None,
) -> TableFederation:
    """Let every node summarize its table, the center agree, and every node transform its rows."""

    def answer(table: Table) -> TableSummary:
        without_codes = table.with_missing_codes(missing_codes or {})
        return summarize(without_codes, label, task, categorical)

    def points(table: Table) -> Points:
        return Points(transform(table, preprocessing), transform_label(table, preprocessing))

    preprocessing = agree(
        {name: answer(table) for name, table in nodes.items()},
        answer(validation),
        None if test is None else answer(test),
        label,
        missing_codes,
    )
    return TableFederation(
        nodes={name: points(table) for name, table in nodes.items()},
        validation=points(validation),
        test=None if test is None else points(test),
        preprocessing=preprocessing,
    )
