"""`fedkin federation node`: a node with its own table, on its own machine."""

from pathlib import Path
from typing import Annotated

import typer

from fedkin.cli.federation import foreground
from fedkin.cli.federation.options import InsecureOption, table_settings
from fedkin.cli.options import (
    LABEL,
    SeedOption,
    refuse_csv_options,
    was_given,
)
from fedkin.cli.output import print_note
from fedkin.cli.table_options import COLUMN_OPTIONS, takes
from fedkin.errors import InputError
from fedkin.flower import certificates, processes
from fedkin.flower.certificates import require_flower
from fedkin.flower.launch import Node, check_address, supernode_command
from fedkin.flower.layout import Option, check_name, write_configuration

LIMITS_PANEL = "Limits of what the center may ask"
PRIVACY_PANEL = "Differential privacy for your rows"


@takes(*COLUMN_OPTIONS)
def node(
    context: typer.Context,
    superlink: Annotated[
        str,
        typer.Option(
            "--superlink", metavar="HOST:PORT", help="Where the federation's SuperLink listens."
        ),
    ],
    table: Annotated[
        Path,
        typer.Option(
            "--table", metavar="FILE", help="Your table, CSV or Parquet; it stays on this machine."
        ),
    ],
    label: Annotated[str, LABEL],
    ca: Annotated[
        Path | None,
        typer.Option(
            "--ca",
            metavar="FILE",
            help="The certificate of the authority, ca.pem, from the SuperLink's owner.",
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            "--key", metavar="FILE", help="Your private key, made by fedkin federation key."
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", help="Your name in results; default: the file's without its ending."
        ),
    ] = None,
    minimum_points: Annotated[
        int,
        typer.Option(
            "--minimum-points", min=1, help="Take part only with at least this many rows."
        ),
    ] = 10,
    minimum_batch: Annotated[
        int,
        typer.Option(
            "--minimum-batch",
            min=1,
            help="Take part only if mini-batches have at least this many rows.",
        ),
    ] = 5,
    allow: Annotated[
        str | None,
        typer.Option(
            "--allow",
            metavar="A,B,C",
            help="Answer only these requests; default: those of fedkin's methods (docs/federation.md).",
        ),
    ] = None,
    reveal: Annotated[
        bool,
        typer.Option(
            "--reveal", help="Let the center ask for this node's own vectors, as some methods do."
        ),
    ] = False,
    plain_sums: Annotated[
        bool,
        typer.Option(
            "--plain-sums",
            help="Let the center add up this node's vectors itself, so that it sees every one.",
        ),
    ] = False,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            "--peer",
            metavar="NAME=SHA256:…",
            help="The fingerprint of another node's key; give one for every other node, and no other key is "
            "accepted.",
        ),
    ] = None,
    validation_fraction: Annotated[
        float | None,
        typer.Option(
            "--validation-fraction",
            help="Be an owner too: hold this share of your rows out to learn your own weights by "
            "(docs/everyone.md).",
        ),
    ] = None,
    test_fraction: Annotated[
        float | None,
        typer.Option(
            "--test-fraction", help="As an owner, hold this share of your rows out for testing."
        ),
    ] = None,
    seed: SeedOption = 0,
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods",
            metavar="A:B,…",
            help="Take part in these methods of other packages, as package.module:Class.",
        ),
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(
            "--models",
            metavar="A:B,…",
            help="Train these models of other packages, as package.module:factory.",
        ),
    ] = None,
    state: Annotated[
        Path,
        typer.Option(
            "--state",
            metavar="DIR",
            help="The directory for the node's own files: its secret, audit log, memory and compiled code.",
        ),
    ] = Path("fedkin-node"),
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=1,
            max=65535,
            help="A port for the node's own processes, on this machine only; default: a free one.",
        ),
    ] = None,
    requests_per_run: Annotated[
        int | None,
        typer.Option(
            "--requests-per-run",
            min=1,
            metavar="N",
            help="The most requests in one run; one for several models counts for each (default: 100,000).",
            rich_help_panel=LIMITS_PANEL,
        ),
    ] = None,
    joins_per_day: Annotated[
        int | None,
        typer.Option(
            "--joins-per-day",
            min=1,
            metavar="N",
            help="The most requests to join a run within 24 hours (default: 2,000).",
            rich_help_panel=LIMITS_PANEL,
        ),
    ] = None,
    models_at_once: Annotated[
        int | None,
        typer.Option(
            "--models-at-once",
            min=1,
            metavar="N",
            help="The most models that one message may be about (default: 1,000).",
            rich_help_panel=LIMITS_PANEL,
        ),
    ] = None,
    steps_per_request: Annotated[
        int | None,
        typer.Option(
            "--steps-per-request",
            min=1,
            metavar="N",
            help="The most local steps times iterations of one message (default: 10,000,000).",
            rich_help_panel=LIMITS_PANEL,
        ),
    ] = None,
    largest_norm: Annotated[
        float | None,
        typer.Option(
            "--largest-norm",
            min=0,
            metavar="X",
            help="The largest norm of a model (default: 100).",
            rich_help_panel=LIMITS_PANEL,
        ),
    ] = None,
    largest_spread: Annotated[
        float | None,
        typer.Option(
            "--largest-spread",
            min=1,
            metavar="X",
            help="The largest root mean square of a column as the center scales it (default: 10).",
            rich_help_panel=LIMITS_PANEL,
        ),
    ] = None,
    seconds_per_request: Annotated[
        float | None,
        typer.Option(
            "--seconds-per-request",
            min=0,
            metavar="S",
            help="How long an answer may take; the worker is ended if it takes longer (default: 600).",
            rich_help_panel=LIMITS_PANEL,
        ),
    ] = None,
    fewest_nodes: Annotated[
        int | None,
        typer.Option(
            "--fewest-nodes",
            min=3,
            metavar="N",
            help="The fewest nodes in a sum that hides this node's vectors (default: 3).",
            rich_help_panel=LIMITS_PANEL,
        ),
    ] = None,
    largest_share: Annotated[
        float | None,
        typer.Option(
            "--largest-share",
            min=0,
            max=1,
            metavar="X",
            help="This node's largest share of such a sum (default: the cap of the run).",
            rich_help_panel=LIMITS_PANEL,
        ),
    ] = None,
    repeats_per_run: Annotated[
        int | None,
        typer.Option(
            "--repeats-per-run",
            min=0,
            metavar="N",
            help="How often a sum may be repeated without nodes that have failed (default: 20).",
            rich_help_panel=LIMITS_PANEL,
        ),
    ] = None,
    runs_kept: Annotated[
        int | None,
        typer.Option(
            "--runs-kept",
            min=1,
            metavar="N",
            help="The number of runs whose memory stays on the disk (default: 20).",
            rich_help_panel=LIMITS_PANEL,
        ),
    ] = None,
    audit_megabytes: Annotated[
        float | None,
        typer.Option(
            "--audit-megabytes",
            min=0,
            metavar="MB",
            help="The size of the audit log (default: 20).",
            rich_help_panel=LIMITS_PANEL,
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            "--epsilon",
            min=0,
            metavar="E",
            help="Protect each of your rows by noise: the largest epsilon of all training, ever; "
            "the summary stays exact (docs/security.md).",
            rich_help_panel=PRIVACY_PANEL,
        ),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(
            "--delta",
            min=0,
            max=1,
            metavar="D",
            help="The delta that goes with --epsilon (default: 0.00001).",
            rich_help_panel=PRIVACY_PANEL,
        ),
    ] = None,
    clip: Annotated[
        float | None,
        typer.Option(
            "--clip",
            min=0,
            metavar="C",
            help="The largest norm of a single row's gradient (default: 1).",
            rich_help_panel=PRIVACY_PANEL,
        ),
    ] = None,
    private_steps: Annotated[
        int | None,
        typer.Option(
            "--private-steps",
            min=1,
            metavar="N",
            help="How many gradients the budget is divided over (default: 100).",
            rich_help_panel=PRIVACY_PANEL,
        ),
    ] = None,
    insecure: InsecureOption = False,
) -> None:
    """Take part in a federation with your own table, in the foreground; end it with Ctrl-C.

    Example: fedkin federation node --superlink link.example.org:8000 --ca ca.pem --key node.key
    --table my.csv --label outcome
    """
    require_flower()
    address = check_address(superlink, "--superlink")
    name = name or table.stem
    try:
        check_name(name)
    except ValueError as error:
        raise InputError(f"{error} (--name)") from error
    authority, private = _credentials(ca, key, insecure)
    refuse_csv_options(context, [table])
    if was_given(context, "seed") and validation_fraction is None:
        raise InputError(
            "--seed draws the rows that an owner holds out: add --validation-fraction, or leave it out"
        )
    settings = table_settings(context) | {
        "name": name,
        "data": str(table.absolute()),
        "minimum-points": minimum_points,
        "minimum-batch": minimum_batch,
        "state": str(state.absolute() / "memory"),
    }
    for option, value in (
        ("allow", allow),
        ("methods", methods),
        ("models", models),
        ("reveal", reveal or None),
        ("key", None if private is None else str(private)),
        ("plain-sums", plain_sums or None),
        ("peers", ",".join(peer) if peer else None),
        ("fewest-nodes", fewest_nodes),
        ("largest-share", largest_share),
        ("repeats-per-run", repeats_per_run),
        ("validation-fraction", validation_fraction),
        ("test-fraction", test_fraction),
        ("seed", seed or None),
        ("requests-per-run", requests_per_run),
        ("joins-per-day", joins_per_day),
        ("models-at-once", models_at_once),
        ("steps-per-request", steps_per_request),
        ("largest-norm", largest_norm),
        ("largest-spread", largest_spread),
        ("seconds-per-request", seconds_per_request),
        ("runs-kept", runs_kept),
        ("audit-megabytes", audit_megabytes),
        ("epsilon", epsilon),
        ("delta", delta),
        ("clip", clip),
        ("private-steps", private_steps),
    ):
        if value is not None:
            settings[option] = value
    _check_table(settings)
    if port is not None and processes.port_is_taken("127.0.0.1", port):
        raise InputError(f"port {port} is in use by another program: choose another --port")
    configuration = state.absolute() / "node.toml"
    write_configuration(configuration, settings)
    if insecure:
        foreground.warn_insecure()
    command = supernode_command(
        Node(address, port or processes.free_ports(1)[0], configuration, authority, private)
    )
    home = {"FLWR_HOME": str(state.absolute() / "flower")}
    foreground.become(command, processes.quiet_environment() | home)


def _credentials(
    ca: Path | None, key: Path | None, insecure: bool
) -> tuple[Path | None, Path | None]:
    """Return the authority's certificate and the node's key, which only --insecure does without."""
    if insecure:
        if ca is not None or key is not None:
            raise InputError("--insecure uses neither --ca nor --key: leave it out to be secure")
        return None, None
    if ca is None:
        raise InputError(
            "--ca is missing: give the ca.pem of the SuperLink's owner, to recognize the server"
        )
    if key is None:
        raise InputError(
            "--key is missing: give your private key; make one with fedkin federation key"
        )
    certificates.describe(ca)
    certificates.check_private_key(key)
    return ca.absolute(), key.absolute()


def _check_table(configuration: dict[str, Option]) -> None:
    """Read the table as requests will read it, so that its owner sees what is wrong with it."""
    from fedkin.flower.node_data import read_own_tables
    from fedkin.flower.node_settings import node_settings

    settings = node_settings(configuration)
    tables = read_own_tables(settings)
    table = tables["summary"]
    if table.rows < settings.minimum_points:
        raise InputError(
            f"{settings.data} has {table.rows} rows with a label, but --minimum-points is "
            f"{settings.minimum_points}: the node would refuse to take part"
        )
    held_out = {part: own.rows for part, own in tables.items() if part != "summary"}
    if held_out.get("validation", settings.minimum_batch) < settings.minimum_batch:
        raise InputError(
            f"--validation-fraction holds out {held_out['validation']} rows, but --minimum-batch is "
            f"{settings.minimum_batch}: the node would refuse to take part"
        )
    print_note(
        f"node {settings.name}: {table.rows} rows with a label, {len(table.columns) - 1} columns"
        + "".join(f"; {rows} more held out for {part}" for part, rows in held_out.items())
    )
