"""`fedkin data show --partition`: who holds what of a data set that is divided among nodes."""

import json as json_format
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from fedkin.cli.output import notes, print_json, results
from fedkin.data.labeled import LabeledData
from fedkin.data.partitions import (
    NodeSplit,
    Partition,
    describe_partition,
    one_class_nodes,
    partition_title,
)
from fedkin.errors import InputError
from fedkin.messages import join_names

MOST_LISTED_CLASSES = 3
"""How many classes of a node the table on the terminal lists, largest first."""


def show_partition(
    data: LabeledData,
    partition: Partition,
    nodes: Sequence[NodeSplit],
    seed: int,
    out: Path,
    *,
    json: bool,
) -> None:
    """Draw a partition to PNG and SVG, write which node has which rows, and print a table or JSON."""
    # Imported here, because matplotlib takes a second and only this command needs it.
    from fedkin.report.federation_figure import save_figure
    from fedkin.report.partition_figure import draw_partition

    title = f"{data.name}, {partition_title(partition)}, seed {seed}"
    files = [*save_figure(draw_partition(nodes, data.classes, title), out / "partition")]
    files.append(_write_rows(nodes, _answer(data, partition, nodes, seed), out / "partition.json"))
    if json:
        answer = _answer(data, partition, nodes, seed)
        print_json(answer | {"files": [str(file) for file in files]}, schema="data.partition/1")
        return
    results.print(title, style="bold", soft_wrap=True, markup=False)
    _print_table(data, nodes)
    _print_remarks(nodes)
    notes.print("\n" + "\n".join(map(str, files)), soft_wrap=True, markup=False)


def _answer(
    data: LabeledData, partition: Partition, nodes: Sequence[NodeSplit], seed: int
) -> dict[str, Any]:
    return {
        "source": data.name,
        "checksum": data.checksum,
        "partition": partition.kind,
        "fields": describe_partition(partition),
        "seed": seed,
        "classes": list(data.classes),
        "rows": len(data),
        "nodes": [
            {
                "name": node.name,
                "group": node.group,
                "train": len(node.train.labels),
                "validation": len(node.validation.labels),
                "test": len(node.test.labels),
                "class_counts": node.class_counts(len(data.classes)).tolist(),
                "permutation": {
                    str(label): to for label, to in enumerate(node.permutation or ()) if to != label
                },
                "rotation": node.rotation,
            }
            for node in nodes
        ],
        "one_class_nodes": one_class_nodes(nodes),
    }


def _write_rows(nodes: Sequence[NodeSplit], answer: Mapping[str, Any], path: Path) -> Path:
    """Write which rows of the data set each node has, counted from its first training row."""
    rows = {
        node.name: {part: own.tolist() for part, own in node.rows._asdict().items()}
        for node in nodes
    }
    try:
        path.write_text(json_format.dumps({**answer, "rows_of_nodes": rows}) + "\n", "utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    return path


def _print_table(data: LabeledData, nodes: Sequence[NodeSplit]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("node", no_wrap=True)
    for heading in ("train", "validation", "test"):
        table.add_column(heading, justify="right")
    table.add_column("classes", justify="right")
    table.add_column("what it holds", overflow="fold")
    for node in nodes:
        counts = node.class_counts(len(data.classes))
        largest = np.argsort(-counts, kind="stable")[:MOST_LISTED_CLASSES]
        held = [
            f"{data.classes[i]} {_share(counts[i] / counts.sum())}" for i in largest if counts[i]
        ]
        more = int((counts > 0).sum()) - len(held)
        table.add_row(
            node.name,
            *(f"{len(getattr(node, part).labels):,}" for part in ("train", "validation", "test")),
            str(int((counts > 0).sum())),
            ", ".join(held) + (f" and {more} more" if more else ""),
        )
    results.print(table)


def _share(share: float) -> str:
    return f"({share:.0%})" if share >= 0.01 else "(<1%)"


def _print_remarks(nodes: Sequence[NodeSplit]) -> None:
    changed: dict[str, str] = {}
    for node in nodes:
        moves = [f"{label}→{to}" for label, to in enumerate(node.permutation or ()) if to != label]
        changes = [f"labels {', '.join(moves)}"] if moves else []
        changes += [f"images turned {node.rotation}° clockwise"] if node.rotation else []
        if node.group is not None and changes:
            changed[node.group] = "; ".join(changes)
    for group, changes in changed.items():
        results.print(f"In {group}: {changes}", soft_wrap=True, markup=False)
    alone = one_class_nodes(nodes)
    if alone:
        what = "1 node has" if len(alone) == 1 else f"{len(alone)} nodes have"
        notes.print(
            f"{what} points of one class only, and nothing to learn alone: {join_names(alone, 6)}",
            soft_wrap=True,
            markup=False,
        )
