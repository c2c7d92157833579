"""From one table per node to the matrices of a federation."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedkin.data.preprocessing import Preprocessing, merge_summaries, transform, transform_label
from fedkin.data.summaries import TableSummary, summarize
from fedkin.data.tables import Table
from fedkin.types import LearningTask, Points


class TableFederation(NamedTuple):
    """The matrices of every node and of the center, and how they were made."""

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
    """Summarize every table, merge the summaries, and transform every table's rows.

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

    preprocessing = merge_summaries(
        {name: summary(table) for name, table in nodes.items()},
        summary(validation),
        None if test is None else summary(test),
        label,
        missing_codes,
    )
    return TableFederation(
        nodes={name: points(table) for name, table in nodes.items()},
        validation=points(validation),
        test=None if test is None else points(test),
        preprocessing=preprocessing,
    )
