"""What the commands that become a Flower process share."""

import os
from typing import NoReturn

from fedkin.cli.output import print_warning


def warn_insecure() -> None:
    """Warn about the consequences of --insecure."""
    print_warning(
        "--insecure: messages can be read and changed on their way, and any node can take part"
    )


def become(command: list[str], variables: dict[str, str]) -> NoReturn:
    """Replace this process by another program, so that signals reach that program directly."""
    os.execvpe(command[0], command, variables)
