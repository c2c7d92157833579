"""`fedkin federation unregister`: a node that may no longer take part."""

from typing import Annotated

import typer

from fedkin.cli.federation.options import DirectoryArgument
from fedkin.cli.output import JsonOption, print_json, print_result
from fedkin.errors import InputError
from fedkin.flower import trial
from fedkin.flower.certificates import require_flower
from fedkin.flower.layout import Layout


def unregister(
    directory: DirectoryArgument,
    name: Annotated[str, typer.Argument(help="The node's name.")],
    json: JsonOption = False,
) -> None:
    """Refuse a node from now on; run it on the SuperLink's machine while the SuperLink is running."""
    require_flower()
    with trial.connect(Layout(directory)) as link:
        known = {node.name: node for node in link.nodes()}
        if name not in known:
            names = ", ".join(known) or "none"
            raise InputError(f"there is no node '{name}'; registered are: {names}")
        link.unregister(known[name].node_id)
    if json:
        print_json({"name": name}, schema="federation.unregister/1")
    else:
        print_result(f"node {name} is refused from now on")
