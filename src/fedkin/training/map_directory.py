"""The directory that `fedkin map` writes: the matrix, the scores, and a complete result for every owner."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedkin.data.preprocessing import Preprocessing
from fedkin.training import result_directory
from fedkin.training.collaboration import Collaboration
from fedkin.training.table_result import Scores, fill_result

COLLABORATION = "everyone.fedkin"
MATRIX, SCORES, SUMMARY, GROUPS, ROWS = (
    "matrix.csv",
    "scores.csv",
    "summary.csv",
    "groups.json",
    "rows.json",
)
OWNERS = "owners"
"""One directory per owner, as `fedkin fit` writes it, for `fedkin predict`."""
FILES = frozenset(
    {COLLABORATION, MATRIX, SCORES, SUMMARY, GROUPS, ROWS, OWNERS, result_directory.REPORT}
)


def owner_directories(names: tuple[str, ...]) -> dict[str, str]:
    """Return the name of each owner's directory: its own, without what a file system may refuse.

    >>> owner_directories(("va", "St. Gallen/1", "St. Gallen:1"))
    {'va': 'va', 'St. Gallen/1': 'St.-Gallen-1', 'St. Gallen:1': 'St.-Gallen-1-2'}
    """
    found: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-.") or "node"
        written, number = plain, 1
        while written in found.values():
            number += 1
            written = f"{plain}-{number}"
        found[name] = written
    return found


def write_map(
    out: Path,
    everyone: Collaboration,
    rows: Mapping[str, int],
    metrics: Mapping[str, Mapping[str, Scores]],
    preprocessing: Preprocessing,
) -> None:
    """Write the directory, completely or not at all.

    Args:
        out: The directory.
        everyone: What all nodes have learned.
        rows: The number of training rows of each node.
        metrics: The scores of every owner's model, by name of the table.
        preprocessing: How rows of a table become what the models take.
    """

    def fill(directory: Path) -> None:
        everyone.save(directory / COLLABORATION)
        if everyone.matrix is not None:
            everyone.matrix.to_csv(directory / MATRIX)
        everyone.scores.to_csv(directory / SCORES)
        everyone.summary.to_csv(directory / SUMMARY)
        result_directory.write_json(directory / GROUPS, everyone.groups)
        result_directory.write_json(directory / ROWS, rows)
        for name, place in owner_directories(everyone.nodes).items():
            if name not in everyone.models:
                continue
            result = everyone.models[name]
            if result.classes is not None:
                # The preprocessing has the names of the classes.
                result = replace(result, classes=np.arange(len(result.classes)))
            path = directory / OWNERS / place
            path.mkdir(parents=True)
            fill_result(path, result, preprocessing, metrics.get(name, {}), rows)

    result_directory.write_directory(out, fill)


def read_rows(directory: Path) -> dict[str, int]:
    """Read the number of training rows of each node."""
    return json.loads((directory / ROWS).read_text(encoding="utf-8"))
