"""From the names of files to the tables of a federation."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fedkin.data.arrays import FEWEST_ROWS, check_enough_rows
from fedkin.data.columns import missing_cells
from fedkin.data.labels import prepare_label, split_rows
from fedkin.data.sites import split_table
from fedkin.data.tables import Table, TableFormat, read_table
from fedkin.errors import InputError
from fedkin.messages import check_printable, did_you_mean, listing
from fedkin.types import LearningTask


@dataclass(frozen=True)
class TableRequest:
    """Which tables to read, and what their columns mean."""

    nodes: tuple[str, ...]
    """Files, or NAME=FILE; none with a table of all sites."""
    validation: Path | None
    test: Path | None
    target_node: str | None
    validation_fraction: float | None
    test_fraction: float | None
    label: str
    task: LearningTask
    positive: str | None
    categorical: tuple[str, ...]
    missing_codes: Mapping[str, float]
    table_format: TableFormat
    seed: int
    minimum_rows: int = FEWEST_ROWS
    whole_owner: bool = False
    """Whether all rows of the target node are the owner's, but for test rows; it is then no node."""
    table: Path | None = None
    """One table of all sites."""
    site: str | None = None
    """Its column that names the site of a row."""
    strict: bool = False
    """Whether to refuse tables with different columns."""

    @property
    def owners_title(self) -> str:
        """What messages call the table of the owner's rows."""
        return "the owner's table" if self.whole_owner else "the validation table"


class GatheredTables(NamedTuple):
    """The tables of a federation, every row with a label, and notes for the user about them."""

    nodes: dict[str, Table]
    validation: Table
    test: Table | None
    notes: list[str]


def gather(request: TableRequest) -> GatheredTables:
    """Read the files, prepare the labels and, if requested, hold out rows of the target node."""
    _check_judges(request)
    nodes = _read_nodes(request)
    judges = {
        kind: read_table(path, title, request.table_format)
        for kind, title, path in (
            ("validation", request.owners_title, request.validation),
            ("test", "the test table", request.test),
        )
        if path is not None
    }
    _check_options_name_columns(request, [*nodes.values(), *judges.values()])
    notes: list[str] = []
    nodes = {name: _prepare_label(table, request, notes) for name, table in nodes.items()}
    judges = {kind: _prepare_label(table, request, notes) for kind, table in judges.items()}
    if request.positive is not None:
        _check_rule_divides(request, [*nodes.values(), *judges.values()])
    if request.target_node is not None:
        nodes, judges = _hold_out(request, nodes, judges)
    for table in nodes.values():
        check_enough_rows(table.rows, table.owner, request.minimum_rows)
    _note_empty_columns([*nodes.values(), judges["validation"]], notes)
    return GatheredTables(nodes, judges["validation"], judges.get("test"), notes)


class OwnersTables(NamedTuple):
    """The tables of one node that is an owner too."""

    train: Table
    validation: Table
    test: Table | None


def gather_owners(request: TableRequest) -> tuple[dict[str, OwnersTables], list[str]]:
    """Read the files, prepare the labels, and hold rows of every node out.

    Returns:
        Every node's tables, and notes for the user.
    """
    nodes = _read_nodes(request)
    if len(nodes) == 1:
        raise InputError(
            f"there is one node only, '{next(iter(nodes))}', and it has nobody to learn with: give every "
            "node's file with its own --node"
        )
    _check_options_name_columns(request, list(nodes.values()))
    notes: list[str] = []
    nodes = {name: _prepare_label(table, request, notes) for name, table in nodes.items()}
    if request.positive is not None:
        _check_rule_divides(request, list(nodes.values()))
    for table in nodes.values():
        check_enough_rows(table.rows, table.owner, request.minimum_rows)
    _note_empty_columns(nodes.values(), notes)
    fractions = [0.2 if request.validation_fraction is None else request.validation_fraction]
    if request.test_fraction is not None:
        fractions.append(request.test_fraction)
    found = {}
    for name, table in nodes.items():
        *held_out, rest = split_rows(
            table,
            request.label,
            fractions,
            request.seed,
            stratify=request.task == "classification",
        )
        found[name] = OwnersTables(rest, held_out[0], held_out[1] if len(held_out) > 1 else None)
        if request.task == "classification" and len(set(table.columns[request.label])) == 1:
            notes.append(
                f"{table.owner}: all rows have the same '{request.label}': a constant answer is always right "
                "there, and its weights say little"
            )
    return found, notes


def _read_nodes(request: TableRequest) -> dict[str, Table]:
    """Read every node's table: one file each, or one table of all sites."""
    if request.site is None:
        if not request.nodes:
            raise InputError(
                "there are no nodes: give every node's file with its own --node, or one table of all with "
                "--site COLUMN"
            )
        files = parse_nodes(request.nodes)
        _check_no_file_twice(request, files)
        return {
            name: read_table(path, f"node '{name}'", request.table_format)
            for name, path in files.items()
        }
    if request.nodes:
        raise InputError("give either files with --node, or one table with --site, not both")
    if request.table is None:
        raise InputError(
            "--site names a column of one table of all nodes: give the table's file too"
        )
    if request.site == request.label:
        raise InputError(f"'{request.site}' cannot be both the site and the label")
    if request.site in request.table_format.drop:
        raise InputError(f"the site column '{request.site}' cannot be left out with --drop")
    _check_no_file_twice(request, {request.table.stem: request.table})
    table = read_table(request.table, str(request.table), request.table_format)
    return split_table(table, request.site)


def parse_nodes(written: Sequence[str]) -> dict[str, Path]:
    """Return the file of each node by its name: the given one, or that of the file."""
    files: dict[str, Path] = {}
    for item in written:
        name, equals, path = item.partition("=")
        # A file may have an equals sign in its name.
        if not equals or Path(item).exists():
            name, path = Path(item).stem, item
        if not name or not path:
            raise InputError(f"--node takes a FILE or NAME=FILE, not '{item}'")
        if name in files:
            raise InputError(
                f"two nodes are called '{name}' ({files[name]} and {path}); give them names, for "
                f"example --node {name}1={files[name]} --node {name}2={path}"
            )
        files[check_printable(name, "the name of a node")] = Path(path)
    return files


def _check_judges(request: TableRequest) -> None:
    if request.target_node is None:
        if request.validation is None and request.whole_owner:
            raise InputError(
                "whose question is it? give the owner's own rows (--own FILE), or name the node that is "
                "the owner (--target-node NAME)"
            )
        if request.validation is None:
            raise InputError(
                "there is nothing to judge the nodes by; give the center's own data (--validation "
                "FILE), or name a node to hold rows out of (--target-node NAME)"
            )
        for option, value in (
            ("--validation-fraction", request.validation_fraction),
            ("--test-fraction", request.test_fraction),
        ):
            if value is not None:
                raise InputError(f"{option} needs --target-node NAME: the node to hold rows out of")
    elif request.validation is not None:
        own = "--own" if request.whole_owner else "--validation"
        raise InputError(f"give either {own} or --target-node, not both")
    elif request.test is not None and request.test_fraction is not None:
        raise InputError("give either --test or --test-fraction, not both")


def _check_no_file_twice(request: TableRequest, files: Mapping[str, Path]) -> None:
    """Rows that a node trains on would flatter the weights and the scores judged by them."""
    roles = [(f"node '{name}'", path) for name, path in files.items()]
    roles += [
        (title, path)
        for title, path in (
            (request.owners_title, request.validation),
            ("the test table", request.test),
        )
        if path is not None
    ]
    seen: dict[Path, str] = {}
    for role, path in roles:
        other = seen.setdefault(path.resolve(), role)
        if other != role:
            raise InputError(
                f"{path} is both {other} and {role}; every table needs its own rows (to hold "
                "out rows of a node, use --target-node)"
            )


def _check_options_name_columns(request: TableRequest, tables: Collection[Table]) -> None:
    """An option that names a column of no table would change nothing: it is misspelled."""
    present = dict.fromkeys(name for table in tables for name in table.columns)
    dropped = set().union(*(table.dropped for table in tables))
    if request.label in dropped:
        raise InputError(f"the label '{request.label}' cannot be left out with --drop")
    options = {
        "--drop": [name for name in request.table_format.drop if name not in dropped],
        "--categorical": request.categorical,
        "--missing": list(request.missing_codes),
    }
    for option, names in options.items():
        for name in names:
            if name not in present:
                raise InputError(
                    f"{option}: no table has a column '{name}'{did_you_mean(name, present)}"
                )


def _prepare_label(table: Table, request: TableRequest, notes: list[str]) -> Table:
    prepared = prepare_label(
        table, request.label, request.task, request.positive, request.missing_codes
    )
    if prepared.rows < table.rows:
        notes.append(
            f"{table.owner}: {table.rows - prepared.rows} of {table.rows} rows have no "
            f"'{request.label}' and are left out"
        )
    return prepared


def _note_empty_columns(nodes: Iterable[Table], notes: list[str]) -> None:
    """Say which columns a node has by name only: the model learns nothing about them there."""
    for table in nodes:
        empty = [name for name, values in table.columns.items() if missing_cells(values).all()]
        if empty:
            notes.append(
                f"{table.owner} has no value in {listing(empty)}: treated as missing in every row there "
                f"(--drop {','.join(empty)} leaves {'it' if len(empty) == 1 else 'them'} out everywhere)"
            )


def _check_rule_divides(request: TableRequest, tables: Collection[Table]) -> None:
    answers = {answer for table in tables for answer in table.columns[request.label]}
    if len(answers) == 1:
        share = "every row" if "yes" in answers else "no row"
        raise InputError(
            f"--positive '{request.positive}' fits {share} of '{request.label}' in all tables; "
            "is it spelled as in the files?"
        )


def _hold_out(
    request: TableRequest, nodes: Mapping[str, Table], judges: Mapping[str, Table]
) -> tuple[dict[str, Table], dict[str, Table]]:
    name = request.target_node or ""
    if name not in nodes:
        raise InputError(f"--target-node: there is no node '{name}'{did_you_mean(name, nodes)}")
    if request.whole_owner:
        return _set_owner_apart(request, nodes, judges)
    fractions = [0.3 if request.validation_fraction is None else request.validation_fraction]
    if request.test_fraction is not None:
        fractions.append(request.test_fraction)
    held_out = split_rows(
        nodes[name],
        request.label,
        fractions,
        request.seed,
        stratify=request.task == "classification",
    )
    kinds = ["validation", "test"]
    made = dict(zip(kinds, held_out[:-1], strict=False))
    return {**nodes, name: held_out[-1]}, {**judges, **made}


def _set_owner_apart(
    request: TableRequest, nodes: Mapping[str, Table], judges: Mapping[str, Table]
) -> tuple[dict[str, Table], dict[str, Table]]:
    """Make the target node the owner: its rows are nobody else's."""
    name = request.target_node or ""
    owner = nodes[name]
    others = {other: table for other, table in nodes.items() if other != name}
    if request.test_fraction is None:
        return others, {**judges, "validation": owner}
    test, rest = split_rows(
        owner,
        request.label,
        [request.test_fraction],
        request.seed,
        stratify=request.task == "classification",
    )
    return others, {**judges, "validation": rest, "test": test}
