"""`fedkin federation key`: a node's key pair."""

from pathlib import Path
from typing import Annotated

import typer

from fedkin.cli.output import JsonOption, print_json, print_result
from fedkin.federation.secure.cards import fingerprint_of, read_identity
from fedkin.flower import certificates
from fedkin.flower.certificates import require_flower


def key(
    path: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="The file for the private key, for example node.key."),
    ],
    json: JsonOption = False,
) -> None:
    """Make a node's key pair, on the node: the private key never leaves it.

    Send the public half, FILE.pub, to whoever runs the SuperLink.
    """
    require_flower()
    certificates.make_node_key(path)
    public = certificates.public_key_path(path)
    fingerprint = fingerprint_of(read_identity(public))
    if json:
        answer = {
            "private_key": str(path),
            "public_key": str(public),
            "fingerprint": fingerprint,
        }
        print_json(answer, schema="federation.key/1")
        return
    print_result(f"private key, stays on this machine: {path}")
    print_result(f"public key, for the SuperLink's owner: {public}")
    print_result(f"its fingerprint, for the owners of the other nodes: {fingerprint}")
