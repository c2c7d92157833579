"""The center's own tables, transformed as was agreed with the nodes."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedkin.data.preprocessing import (
    Preprocessing,
    Quantity,
    merge_summaries,
    transform,
    transform_label,
)
from fedkin.data.tables import Table
from fedkin.flower.jobs.learning import JobKeys
from fedkin.flower.jobs.table_nodes import Summaries, as_json
from fedkin.flower.joining import RunDescription
from fedkin.flower.node_settings import TableDescription
from fedkin.types import Points


@dataclass(frozen=True)
class AgreedTables:
    """The center's own tables, transformed as agreed, and the number of rows of each node."""

    preprocessing: Preprocessing
    validation: Points
    """The owner's rows."""
    test: Points | None
    rows: dict[str, int]
    owner: Table
    """The owner's rows, as they are."""
    warnings: tuple[str, ...]
    """Which columns are missing where, and which are not used."""

    @classmethod
    def agree(
        cls,
        description: TableDescription,
        summaries: Summaries,
        validation: Path,
        test: Path | None,
        *,
        owner_trains: bool = False,
    ) -> "AgreedTables":
        """Read the center's tables, and derive one transformation from all summaries.

        Args:
            description: How tables are read.
            summaries: What the nodes say about theirs.
            validation: The file of the owner's rows.
            test: The file of the test rows.
            owner_trains: Whether the owner's rows are trained on, too, and so decide how columns are scaled.
        """
        title = "the owner's table" if owner_trains else "the validation table"
        own = description.read(validation, title)
        tested = None if test is None else description.read(test, "the test table")
        assert description.label is not None
        preprocessing, warnings = merge_summaries(
            summaries,
            description.summarize(own),
            None if tested is None else description.summarize(tested),
            description.label,
            description.missing,
            owner_trains=owner_trains,
            strict=description.strict,
        )

        def points(table: Table) -> Points:
            return Points(transform(table, preprocessing), transform_label(table, preprocessing))

        return cls(
            preprocessing,
            points(own),
            None if tested is None else points(tested),
            {name: summary.rows for name, summary in summaries.items()},
            own,
            warnings,
        )

    def describe_run(
        self,
        keys: JobKeys,
        model: str,
        summaries: Summaries,
        preprocessing: Preprocessing | None = None,
    ) -> RunDescription:
        """Return what the nodes must know; by default, their tables become what was agreed."""
        return RunDescription(
            run=keys.digest(as_json(summaries)),
            seed=keys.seed,
            batch_size=keys.batch_size,
            model=model,
            task=keys.task,
            classes=1 if self.classes is None else len(self.classes),
            preprocessing=preprocessing or self.preprocessing,
        )

    def digests(self) -> dict[str, str]:
        """Return a digest of each of the center's own tables."""
        own = {"validation": self.validation, "test": self.test}
        return {
            name: hashlib.sha256(b"".join(array.tobytes() for array in points)).hexdigest()[:12]
            for name, points in own.items()
            if points is not None
        }

    @property
    def classes(self) -> np.ndarray | None:
        """The numbers of the classes; None for regression."""
        label = self.preprocessing.label
        return None if isinstance(label, Quantity) else np.arange(len(label.classes))
