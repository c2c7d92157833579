"""The data of a trial federation: what each node and the center have."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq

from fedkin.advice.question import check_owner_rows
from fedkin.data.arrays import check_several_nodes
from fedkin.data.federated import Target
from fedkin.data.scenarios import paper_scenario, sample_federation
from fedkin.data.sources import load_images
from fedkin.data.table_federation import federate_owners, federate_request
from fedkin.data.table_request import TableRequest, gather, gather_owners, parse_nodes
from fedkin.data.tables import Table, TableFormat, is_parquet, separator_in
from fedkin.errors import InputError
from fedkin.flower.certificates import make_private_directory
from fedkin.flower.jobs.options import OWN
from fedkin.flower.layout import Layout, NodeEntry, Option, check_name

FEWEST_HELD_OUT_ROWS = 5
"""A node with fewer does not take part (`minimum-batch`)."""


class Prepared(NamedTuple):
    """What `federation.toml` says about data."""

    data: dict[str, Option]
    center: dict[str, str]
    nodes: tuple[NodeEntry, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImageRequest:
    """A federation of images to be drawn."""

    dataset: str
    setting: int
    target: Target
    seed: int
    nodes: int


def prepare_images(request: ImageRequest) -> Prepared:
    """Divide images among nodes: each draws its own, with the same seed as the center."""
    groups = {
        "minority": request.nodes // 2,
        "majority": request.nodes - request.nodes // 2,
    }
    # Drawn here only to report mistakes now, and not in the log of a node.
    federation = sample_federation(
        load_images(request.dataset),
        paper_scenario(request.dataset, request.setting),
        request.target,
        request.seed,
        minority_nodes=groups["minority"],
        majority_nodes=groups["majority"],
    )
    data: dict[str, Option] = {
        "setting": request.setting,
        "target": request.target,
        "seed": request.seed,
        "minority-nodes": groups["minority"],
        "majority-nodes": groups["majority"],
    }
    nodes = _entries(dict.fromkeys(federation.names, request.dataset))
    return Prepared(data, {}, nodes)


def prepare_tables(layout: Layout, request: TableRequest, options: dict[str, Option]) -> Prepared:
    """Check the tables as `fedkin fit` or `advise` does, and split off the rows that are the center's.

    Args:
        layout: Where the split tables are written; other tables stay where they are.
        request: The tables and what their columns mean.
        options: How tables are read, as the settings of a node.
    """
    files = _named_files(request)
    tables = gather(request)
    federation = federate_request(tables, request)
    if request.whole_owner:
        check_several_nodes(len(tables.nodes))
        check_owner_rows(tables.validation.rows)
    judge = OWN if request.whole_owner else "validation"
    own = {name: str(files[name].absolute()) for name in tables.nodes}
    given = {judge: request.validation, "test": request.test}
    center = {kind: str(path.absolute()) for kind, path in given.items() if path is not None}
    if request.target_node is not None:
        source = files[request.target_node]
        parts = {judge: tables.validation} | ({} if tables.test is None else {"test": tables.test})
        for kind, table in parts.items():
            if kind not in center:
                path = layout.center / f"{kind}{_ending(source)}"
                write_rows(source, table, path, request.table_format)
                center[kind] = str(path.relative_to(layout.directory))
        if request.target_node in own:
            path = layout.node(request.target_node) / f"data{_ending(source)}"
            write_rows(source, tables.nodes[request.target_node], path, request.table_format)
            own[request.target_node] = str(path.relative_to(layout.directory))
    nodes = _entries(own)
    # The seed that has split the owner's rows also draws their folds.
    seed: dict[str, Option] = {"seed": request.seed} if request.whole_owner else {}
    notes = (*tables.notes, *federation.warnings)
    return Prepared(options | seed, center, nodes, notes)


def prepare_everyone(request: TableRequest, options: dict[str, Option]) -> Prepared:
    """Check the tables as `fedkin map` does; every node holds its own rows out, and the center has none.

    Args:
        request: The tables, what their columns mean, and which shares of their rows are held out.
        options: How tables are read, as the settings of a node.
    """
    files = _named_files(request)
    tables, notes = gather_owners(request)
    for name, own in tables.items():
        for part, table in (("validation", own.validation), ("test", own.test)):
            if table is not None and table.rows < FEWEST_HELD_OUT_ROWS:
                raise InputError(
                    f"node '{name}' would hold out {table.rows} of its rows, and a summary or a gradient of "
                    f"fewer than {FEWEST_HELD_OUT_ROWS} would reveal them: give a larger --{part}-fraction, "
                    "or leave the node out"
                )
    federation = federate_owners(
        tables,
        request.label,
        request.task,
        request.categorical,
        request.missing_codes,
        strict=request.strict,
    )
    held_out: dict[str, Option | None] = {
        "validation-fraction": request.validation_fraction,
        "test-fraction": request.test_fraction,
        "seed": request.seed,
    }
    data = options | {name: value for name, value in held_out.items() if value is not None}
    nodes = _entries({name: str(path.absolute()) for name, path in files.items()})
    return Prepared(data, {}, nodes, (*notes, *federation.warnings))


def _entries(data: dict[str, str]) -> tuple[NodeEntry, ...]:
    """Return the nodes of a trial, which compute what a simulation does."""
    return tuple(NodeEntry(name=name, data=own, reproducible=True) for name, own in data.items())


def _named_files(request: TableRequest) -> dict[str, Path]:
    """Return the file of each node by its name, which processes and directories can have."""
    files = parse_nodes(request.nodes)
    for name in files:
        try:
            check_name(name)
        except ValueError as error:
            raise InputError(f"--node: {error}; write NAME=FILE") from error
    return files


def _ending(source: Path) -> str:
    return ".parquet" if is_parquet(source) else ".csv"


def write_rows(source: Path, table: Table, path: Path, table_format: TableFormat) -> None:
    """Write the rows of a file that are in a table, as they are in the file."""
    make_private_directory(path.parent)
    if is_parquet(source):
        pq.write_table(pq.read_table(source).take(table.positions - 1), path)
        return
    text = source.read_bytes().decode("utf-8-sig")
    lines = io.StringIO(text, newline="")
    separator = separator_in(lines, table_format)
    reader = csv.reader(lines, delimiter=separator)
    wanted = set(np.asarray(table.positions).tolist())
    with_header = table_format.header and table_format.names is None
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, delimiter=separator)
            for record in reader:
                if not record:
                    continue
                if with_header or reader.line_num in wanted:
                    writer.writerow(record)
                    with_header = False
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
