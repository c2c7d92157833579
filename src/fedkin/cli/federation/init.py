"""`fedkin federation init`: certificates, keys, data and the configuration of a federation."""

import shutil
from pathlib import Path
from typing import Annotated, cast

import typer

from fedkin.cli.federation.options import (
    LOCAL_HOSTS,
    DaysOption,
    HostOption,
    check_listen_option,
    table_settings,
)
from fedkin.cli.options import (
    JUDGE_PANEL,
    LABEL,
    NODE,
    TARGET,
    OwnOption,
    SeedOption,
    TargetNodeOption,
    TestOption,
    ValidationOption,
    read_request,
    was_given,
)
from fedkin.cli.output import JsonOption, notes, print_json, print_note, print_result
from fedkin.cli.table_options import COLUMN_OPTIONS, takes
from fedkin.data.federated import Target
from fedkin.errors import InputError
from fedkin.flower import certificates
from fedkin.flower.certificates import require_flower
from fedkin.flower.layout import FederationFile, Layout, ServerEntry, new_identity
from fedkin.flower.trial_data import (
    ImageRequest,
    Prepared,
    prepare_everyone,
    prepare_images,
    prepare_tables,
)

IMAGES_PANEL = "Nodes with images"
IMAGE_OPTIONS = ("dataset", "setting", "target")
JUDGE_OPTIONS = ("validation", "own", "test", "target_node", "validation_fraction", "test_fraction")
TABLE_OPTIONS = (
    "label",
    "task",
    "positive",
    "categorical",
    "drop",
    "missing",
    "strict",
    "columns",
    "no_header",
    "separator",
    *JUDGE_OPTIONS,
)


@takes(*COLUMN_OPTIONS)
def init(
    context: typer.Context,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory to make.")],
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes",
            min=0,
            max=64,
            help="How many nodes, each with images drawn for it; 0 for a server whose nodes are on "
            "other machines.",
        ),
    ] = None,
    node: Annotated[list[str] | None, NODE] = None,
    everyone: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Every node is an owner: each holds rows of its own out to learn its weights by, and the "
            "server holds no data (docs/everyone.md).",
        ),
    ] = False,
    advise: Annotated[
        bool,
        typer.Option(
            "--advise",
            help="The question is whether to join: all rows of the owner (--own, or --owner) are at the "
            "center (docs/verdict.md).",
        ),
    ] = False,
    host: HostOption = None,
    listen: Annotated[
        str,
        typer.Option(
            "--listen",
            metavar="ADDRESS",
            help="Where the SuperLink listens: 127.0.0.1, or 0.0.0.0 for other machines too.",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option("--port", min=1, max=65535, help="The SuperLink's port; default: a free one."),
    ] = None,
    days: DaysOption = certificates.SERVER_DAYS,
    seed: SeedOption = 0,
    json: JsonOption = False,
    dataset: Annotated[
        str,
        typer.Option(
            "--dataset",
            metavar="NAME",
            help="The data set to draw images from.",
            rich_help_panel=IMAGES_PANEL,
        ),
    ] = "digits",
    setting: Annotated[
        int,
        typer.Option(
            "--setting",
            min=1,
            max=4,
            help="A setting of the paper: how nodes differ (docs/data.md).",
            rich_help_panel=IMAGES_PANEL,
        ),
    ] = 2,
    target: Annotated[str, TARGET] = "minority",
    validation: ValidationOption = None,
    own: OwnOption = None,
    test: TestOption = None,
    target_node: TargetNodeOption = None,
    validation_fraction: Annotated[
        float | None,
        typer.Option(
            "--validation-fraction",
            help="The share of the target node's rows to hold out for validation (default: 0.3), or with "
            "--all of every node's (default: 0.2).",
            rich_help_panel=JUDGE_PANEL,
        ),
    ] = None,
    test_fraction: Annotated[
        float | None,
        typer.Option(
            "--test-fraction",
            help="The share of the target node's rows, or with --all of every node's, to hold out for "
            "testing; default: none.",
            rich_help_panel=JUDGE_PANEL,
        ),
    ] = None,
    label: Annotated[str | None, LABEL] = None,
) -> None:
    """Make the certificates, the key pairs of the nodes and the configuration of a federation.

    Examples: fedkin federation init trial --nodes 4

    fedkin federation init trial --node a.csv --node b.csv --validation own.csv --label outcome

    fedkin federation init trial --advise --node a.csv --node b.csv --own own.csv --label outcome

    fedkin federation init trial --all --node a.csv --node b.csv --node c.csv --label outcome
    """
    require_flower()
    layout = Layout(directory)
    check_listen_option(listen)
    _check_empty(layout)
    if nodes is not None and node:
        raise InputError(
            "give --nodes 4 for nodes with images, or --node FILE for each node with a table, not both"
        )
    if nodes is None and not node:
        raise InputError("say which nodes there are: --nodes 4, or --node FILE for each of them")
    if nodes == 1 or (node and len(node) == 1):
        raise InputError("one node alone is no federation: give two or more")
    _refuse_for_other_questions(context, nodes, advise=advise, everyone=everyone)
    if everyone:
        _refuse_with_all(context, nodes)
        validation_fraction = 0.2 if validation_fraction is None else validation_fraction
    else:
        _refuse_ignored(context, nodes)
    if node:
        if label is None:
            raise InputError("--label is missing: the column to predict")
        request = read_request(context, validation_fraction=validation_fraction, whole_owner=advise)
        options = table_settings(context)

        def prepare() -> Prepared:
            if everyone:
                return prepare_everyone(request, options)
            return prepare_tables(layout, request, options)
    else:

        def prepare() -> Prepared:
            if not nodes:
                return Prepared({}, {}, ())
            return prepare_images(ImageRequest(dataset, setting, cast(Target, target), seed, nodes))

    hosts = tuple(dict.fromkeys([*(host or ()), *LOCAL_HOSTS]))
    try:
        with notes.status("making the federation …"):
            prepared = prepare()
            _write(layout, prepared, hosts, days, ServerEntry(listen=listen, port=port))
    except BaseException:
        shutil.rmtree(layout.directory, ignore_errors=True)  # it was not there, or empty
        raise
    _print_made(layout, hosts, prepared, json)


def _refuse_for_other_questions(
    context: typer.Context, nodes: int | None, *, advise: bool, everyone: bool
) -> None:
    """Refuse options that contradict --advise, and those that need it."""
    if not advise:
        if was_given(context, "own"):
            raise InputError(
                "--own has all rows of the owner, for the question whether to join: add --advise, or give "
                "--validation FILE in place of --own"
            )
        return
    if everyone:
        raise InputError(
            "--advise is one owner's question, and --all is everyone's: give one of them"
        )
    if nodes is not None:
        raise InputError(
            "--advise is for nodes with tables: give --node FILE for each of them in place of --nodes"
            + (
                "; for nodes elsewhere, the job's file says own = … (docs/federation.md)"
                if nodes == 0
                else ""
            )
        )
    if given := was_given(context, "validation", "validation_fraction"):
        raise InputError(
            f"{given[0]} would hold rows of the owner out, and --advise divides all of them into folds: give "
            "--own FILE, or --owner NAME alone"
        )


def _refuse_with_all(context: typer.Context, nodes: int | None) -> None:
    """Refuse options that contradict --all."""
    if nodes == 0:
        raise InputError(
            "--all is for nodes on this machine, and --nodes 0 makes none: leave --all out; nodes elsewhere "
            "hold rows out with their own --validation-fraction, and the job's file says "
            "validation-fraction too (docs/everyone.md)"
        )
    if nodes is not None:
        raise InputError(
            "--all is for nodes with tables: give --node FILE for each of them in place of --nodes; for "
            "images, a study with a partition answers everyone's question in simulation (docs/studies.md)"
        )
    if given := was_given(context, "validation", "test", "target_node"):
        raise InputError(
            f"{given[0]} is for one owner, and with --all every node is one: leave {given[0]} or --all out"
        )
    if given := was_given(context, *IMAGE_OPTIONS):
        raise InputError(f"{given[0]} is for nodes with images, and --all for tables: leave it out")


def _refuse_ignored(context: typer.Context, nodes: int | None) -> None:
    """Refuse options that would change nothing with the nodes that were asked for."""
    if nodes is None:
        if given := was_given(context, *IMAGE_OPTIONS):
            raise InputError(
                f"{given[0]} is for nodes with images: leave it out, or give --nodes 4 in place of --node"
            )
        if was_given(context, "seed") and not was_given(context, "target_node", "advise"):
            raise InputError(
                "--seed decides which rows --target-node holds out: add --target-node NAME, or leave it "
                "out"
            )
        return
    if given := was_given(context, *TABLE_OPTIONS):
        raise InputError(
            f"{given[0]} is for nodes with tables: leave it out, or give --node FILE for each node in "
            "place of --nodes"
        )
    if nodes == 0 and (given := was_given(context, *IMAGE_OPTIONS, "seed")):
        raise InputError(
            f"{given[0]} is for nodes on this machine, and --nodes 0 makes none: leave it out; nodes "
            "elsewhere have their own data"
        )


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
        raise InputError(f"{layout.directory} is a file: choose a directory")
    if layout.directory.is_dir() and any(layout.directory.iterdir()):
        raise InputError(
            f"{layout.directory} is not empty: keys are never written over; choose another directory"
        )


def _print_made(layout: Layout, hosts: tuple[str, ...], prepared: Prepared, json: bool) -> None:
    names = [node.name for node in prepared.nodes]
    for note in prepared.notes:
        print_note(f"note: {note}")
    if json:
        print_json(
            {
                "directory": str(layout.directory),
                "configuration": str(layout.file),
                "hosts": list(hosts),
                "nodes": names,
            },
            schema="federation.init/1",
        )
        return
    expires = certificates.describe(layout.server_certificate).expires
    print_result(
        f"certificate authority: {layout.authority} (its key, ca.key, stays on this machine)"
    )
    print_result(f"server certificate: for {', '.join(hosts)}, until {expires:%Y-%m-%d}")
    if names:
        print_result(
            f"nodes: {', '.join(names)}, each with a key pair in {layout.directory / 'nodes'}"
        )
    print_result(f"configuration: {layout.file}")
    following = "up" if names else "superlink"
    print_result(f"start it with: fedkin federation {following} {layout.directory}")
