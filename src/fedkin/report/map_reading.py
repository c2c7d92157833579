"""Read the result of `fedkin map` into a `Record`."""

import math
from pathlib import Path
from typing import Any

import pandas as pd

from fedkin.report.reading import Cell, Record, Run
from fedkin.report.style import method_title
from fedkin.training import map_directory
from fedkin.training.collaboration import Collaboration

MOST_NAMED = 4
"""Where more nodes have ended for the same reason, their number is enough."""


def read_map(directory: Path) -> Record:
    """Read a directory that `fedkin map` wrote: one run per method, which has all owners."""
    everyone = Collaboration.load(directory / map_directory.COLLABORATION)
    rows = map_directory.read_rows(directory)
    stops: dict[str, list[str]] = {}
    for name, result in everyone.models.items():
        stops.setdefault(result.stopped, []).append(name)
    request = {
        "nodes": everyone.nodes,
        "method": everyone.method,
        "title": method_title(everyone.method),
        "synchronizations": everyone.cost.synchronizations,
        "scored_on": everyone.scored_on,
        "warnings": everyone.warnings,
        "failures": everyone.failures,
        "stops": [
            (", ".join(names) if len(names) <= MOST_NAMED else f"{len(names)} nodes", why)
            for why, names in stops.items()
        ],
    }
    methods = [str(name) for name in everyone.scores.columns.drop("points")]
    runs = [
        Run(
            name=method,
            cell=Cell(directory.resolve().name, "", ""),
            method=method,
            seed=0,
            config={},
            versions={},
            outcome={},
            history=pd.DataFrame(),
            weights=None,
            data={"names": list(rows), "points": list(rows.values())},
            owners=_owners_of_map(everyone, method),
            label=method_title(method),
        )
        for method in methods
    ]
    return Record(directory, "map", runs, request=request)


def _owners_of_map(everyone: Collaboration, method: str) -> dict[str, Any]:
    matrix = everyone.matrix if method == everyone.method else None
    rows = [
        {
            "name": name,
            "group": None,
            "test_points": int(points),
            "score": None if math.isnan(score) else score,
        }
        for name, points, score in zip(
            everyone.nodes,
            everyone.scores["points"].tolist(),
            everyone.scores[method].tolist(),
            strict=True,
        )
    ]
    return {
        "measure": everyone.measure,
        "scored_on": everyone.scored_on,
        "owners": rows,
        "matrix": None
        if matrix is None
        else [None if row.isna().all() else row.tolist() for _, row in matrix.iterrows()],
        "found_groups": [list(group) for group in everyone.groups],
    }
