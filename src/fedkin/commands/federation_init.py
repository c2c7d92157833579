"""`fedkin federation init`: certificates, keys, data and the configuration of a federation."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedkin.commands.federation_data import CentreAndNodes, draw_images
from fedkin.commands.federation_options import LOCAL_HOSTS, DaysOption, HostOption
from fedkin.commands.output import JsonOption, print_json, results
from fedkin.errors import InputError
from fedkin.federation.flower import certificates
from fedkin.federation.flower.certificates import require_flower
from fedkin.federation.flower.layout import (
    FederationFile,
    Layout,
    ServerEntry,
    new_identity,
)

IMAGES_PANEL = "Nodes that draw images"


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
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same data.")] = 0,
    host: HostOption = None,
    listen: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS", help="Where the SuperLink listens; 0.0.0.0 for other machines too."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="The SuperLink's port; default: a free one."),
    ] = None,
    days: DaysOption = certificates.SERVER_DAYS,
    json: JsonOption = False,
) -> None:
    """Make a certificate authority, the server's certificate, a key pair a node, and configurations.

    Example: fedkin federation init trial --nodes 4
    """
    require_flower()
    layout = Layout(directory)
    _check_empty(layout)
    if nodes is None:
        raise InputError("say how many nodes: --nodes 4")
    if nodes == 1:
        raise InputError("one node alone is no federation: give --nodes 2 or more")
    prepared = CentreAndNodes({}, ())
    make = certificates.make_private_directory
    if nodes:
        prepared = draw_images(layout, dataset, setting, target.value, seed, nodes)
    make(layout.directory)
    certificates.make_authority(layout.authority, layout.authority_key)
    hosts = tuple(dict.fromkeys([*(host or ()), *LOCAL_HOSTS]))
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
            superlink=ServerEntry(listen=listen, port=port),
            centre=prepared.centre,
            node=prepared.nodes,
        )
    )
    _print_made(layout, hosts, prepared, json)


def _check_empty(layout: Layout) -> None:
    if layout.directory.exists() and not layout.directory.is_dir():
        raise InputError(f"{layout.directory} is a file: name a directory")
    if layout.directory.is_dir() and any(layout.directory.iterdir()):
        raise InputError(
            f"{layout.directory} is not empty: keys are never written over; name another directory"
        )


def _print_made(
    layout: Layout, hosts: tuple[str, ...], prepared: CentreAndNodes, json: bool
) -> None:
    names = [node.name for node in prepared.nodes]
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
