"""The command `fedkin`, before anything is loaded: Ctrl-C in its first second ends without a traceback.

Loading the libraries takes about a second. This module is outside the package so that nothing of it is
loaded before the command can be interrupted.
"""

import os
import signal
import sys
from typing import NoReturn


def main() -> None:
    """Load the command line and run it."""
    # An exception would not do: libraries interrupted while they load turn it into errors of their own.
    usual = signal.signal(signal.SIGINT, _end)
    from fedkin.cli.app import main as run

    signal.signal(signal.SIGINT, usual)
    run()


def _end(number: int, frame: object) -> NoReturn:
    sys.stderr.write("error: interrupted: nothing was written\n")
    sys.stderr.flush()
    os._exit(130)


if __name__ == "__main__":
    main()
