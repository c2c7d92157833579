"""`fedkin federation init`: certificates, keys, data and the configuration of a federation."""

import shutil
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedkin.cli.federation_data import (
    ImageRequest,
    Prepared,
    prepare_images,
    prepare_tables,
)
from fedkin.cli.federation_options import (
    LOCAL_HOSTS,
    CategoricalOption,
    DaysOption,
    DropOption,
    HostOption,
    LabelOption,
    MissingOption,
    PositiveOption,
    TaskOption,
    check_listen_option,
    table_settings,
)
from fedkin.cli.fit import TaskName
from fedkin.cli.fit_tables import TableRequest
from fedkin.cli.output import JsonOption, notes, print_json, results
from fedkin.cli.table_options import (
    ColumnsOption,
    NoHeaderOption,
    SeparatorOption,
    table_format,
)
from fedkin.data.option_text import parse_missing_codes, parse_names
from fedkin.errors import InputError
from fedkin.flower import certificates
from fedkin.flower.certificates import require_flower
from fedkin.flower.layout import (
    FederationFile,
    Layout,
    ServerEntry,
    new_identity,
)

IMAGES_PANEL = "Nodes that draw images"
TABLES_PANEL = "The center of nodes with tables"


class TargetName(StrEnum):
    """The two groups of nodes."""

    minority = "minority"
    majority = "majority"


def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory to make.")],
    nodes: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=64,
            help="So many nodes, each with images drawn for it; 0 for a server whose nodes are on "
            "other machines.",
        ),
    ] = None,
    node: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]FILE",
            help="Instead of --nodes: a node's CSV or Parquet file; once for each node.",
        ),
    ] = None,
    host: HostOption = None,
    listen: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Where the SuperLink listens: 127.0.0.1, or 0.0.0.0 for other machines too.",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="The SuperLink's port; default: a free one."),
    ] = None,
    days: DaysOption = certificates.SERVER_DAYS,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same data.")] = 0,
    json: JsonOption = False,
    dataset: Annotated[
        str, typer.Option(help="The data set that is drawn from.", rich_help_panel=IMAGES_PANEL)
    ] = "digits",
    setting: Annotated[
        int,
        typer.Option(
            min=1, max=4, help="How nodes differ (docs/data.md).", rich_help_panel=IMAGES_PANEL
        ),
    ] = 2,
    target: Annotated[
        TargetName,
        typer.Option(help="Whose data the owner's are like.", rich_help_panel=IMAGES_PANEL),
    ] = TargetName.minority,
    validation: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The center's own data: what the weights are judged by.",
            rich_help_panel=TABLES_PANEL,
        ),
    ] = None,
    test: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Data to measure the final model on.",
            rich_help_panel=TABLES_PANEL,
        ),
    ] = None,
    target_node: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Instead of --validation: hold out rows of this node for the center.",
            rich_help_panel=TABLES_PANEL,
        ),
    ] = None,
    validation_fraction: Annotated[
        float | None,
        typer.Option(
            help="Share of its rows to hold out, 0.3 if not given.", rich_help_panel=TABLES_PANEL
        ),
    ] = None,
    test_fraction: Annotated[
        float | None,
        typer.Option(
            help="Share of its rows to hold out for test as well.", rich_help_panel=TABLES_PANEL
        ),
    ] = None,
    label: LabelOption = None,
    task: TaskOption = TaskName.classification,
    positive: PositiveOption = None,
    categorical: CategoricalOption = None,
    drop: DropOption = None,
    missing: MissingOption = None,
    columns: ColumnsOption = None,
    no_header: NoHeaderOption = False,
    separator: SeparatorOption = ",",
) -> None:
    """Make a certificate authority, the server's certificate, a key pair a node, and configurations.

    Examples: fedkin federation init trial --nodes 4

    fedkin federation init trial --node a.csv --node b.csv --validation own.csv --label outcome
    """
    require_flower()
    layout = Layout(directory)
    check_listen_option(listen)
    _check_empty(layout)
    if (nodes is None) == (not node):
        raise InputError("say what nodes there are: --nodes 4, or --node FILE for each of them")
    if nodes == 1 or (node and len(node) == 1):
        raise InputError("one node alone is no federation: give two or more")
    if node:
        if label is None:
            raise InputError("--label is missing: the column to predict")
        request = TableRequest(
            nodes=tuple(node),
            validation=validation,
            test=test,
            target_node=target_node,
            validation_fraction=validation_fraction,
            test_fraction=test_fraction,
            label=label,
            task=task.value,
            positive=positive,
            categorical=parse_names(categorical),
            missing_codes=parse_missing_codes(missing),
            table_format=table_format(columns, no_header, separator, drop),
            seed=seed,
        )
        options = table_settings(
            label, task, positive, categorical, drop, missing, columns, no_header, separator
        )

        def prepare() -> Prepared:
            return prepare_tables(layout, request, options)
    else:
        _refuse_table_options(label, validation, test, target_node)

        def prepare() -> Prepared:
            if not nodes:
                return Prepared({}, {}, ())
            return prepare_images(ImageRequest(dataset, setting, target.value, seed, nodes))

    hosts = tuple(dict.fromkeys([*(host or ()), *LOCAL_HOSTS]))
    try:
        prepared = prepare()
        _write(layout, prepared, hosts, days, ServerEntry(listen=listen, port=port))
    except BaseException:
        shutil.rmtree(layout.directory, ignore_errors=True)  # it was not there, or empty
        raise
    _print_made(layout, hosts, prepared, json)


def _refuse_table_options(label: object, *judges: object) -> None:
    given = (
        ("--label", label),
        *zip(("--validation", "--test", "--target-node"), judges, strict=True),
    )
    for option, value in given:
        if value is not None:
            raise InputError(f"{option} is of tables: give them with --node FILE, not --nodes")


def _write(
    layout: Layout, prepared: Prepared, hosts: tuple[str, ...], days: int, server: ServerEntry
) -> None:
    certificates.make_private_directory(layout.directory)
    certificates.make_authority(layout.authority, layout.authority_key)
    certificates.make_server_certificate(
        layout.authority,
        layout.authority_key,
        hosts,
        layout.server_certificate,
        layout.server_key,
        days,
    )
    for node in prepared.nodes:
        certificates.make_node_key(layout.node_key(node.name))
    layout.write(
        FederationFile(
            id=new_identity(),
            superlink=server,
            data=prepared.data,
            center=prepared.center,
            node=prepared.nodes,
        )
    )


def _check_empty(layout: Layout) -> None:
    if layout.directory.exists() and not layout.directory.is_dir():
        raise InputError(f"{layout.directory} is a file: name a directory")
    if layout.directory.is_dir() and any(layout.directory.iterdir()):
        raise InputError(
            f"{layout.directory} is not empty: keys are never written over; name another directory"
        )


def _print_made(layout: Layout, hosts: tuple[str, ...], prepared: Prepared, json: bool) -> None:
    names = [node.name for node in prepared.nodes]
    for note in prepared.notes:
        notes.print(f"note: {note}", markup=False, soft_wrap=True)
    if json:
        print_json(
            {
                "directory": str(layout.directory),
                "configuration": str(layout.file),
                "hosts": list(hosts),
                "nodes": names,
            }
        )
        return

    def line(text: str) -> None:
        results.print(text, markup=False, soft_wrap=True)

    expires = certificates.describe(layout.server_certificate).expires
    line(f"certificate authority: {layout.authority} (its key, ca.key, stays on this machine)")
    line(f"server certificate: for {', '.join(hosts)}, until {expires:%Y-%m-%d}")
    if names:
        line(f"nodes: {', '.join(names)}, each with a key pair in {layout.directory / 'nodes'}")
    line(f"configuration: {layout.file}")
    following = "up" if names else "superlink"
    line(f"start it with: fedkin federation {following} {layout.directory}")
