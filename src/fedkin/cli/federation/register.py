"""`fedkin federation register`: a node that may take part."""

from pathlib import Path
from typing import Annotated

import typer

from fedkin.cli.federation.options import DirectoryArgument
from fedkin.cli.output import JsonOption, print_json, print_result
from fedkin.errors import InputError
from fedkin.flower import trial
from fedkin.flower.certificates import read_public_key, require_flower
from fedkin.flower.layout import Layout, check_name


def register(
    directory: DirectoryArgument,
    name: Annotated[str, typer.Argument(help="What to call the node.")],
    public_key: Annotated[Path, typer.Argument(metavar="KEY.pub", help="The node's public key.")],
    json: JsonOption = False,
) -> None:
    """Allow a node to take part; run it on the SuperLink's machine while the SuperLink is running."""
    require_flower()
    try:
        check_name(name)
    except ValueError as error:
        raise InputError(str(error)) from error
    with trial.connect(Layout(directory)) as link:
        if name in {node.name for node in link.nodes()}:
            raise InputError(
                f"there is a node '{name}' already: choose another name, or unregister it"
            )
        node_id = link.register(name, read_public_key(public_key))
    if json:
        print_json({"name": name, "node_id": str(node_id)}, schema="federation.register/1")
    else:
        print_result(f"node {name} may take part")
