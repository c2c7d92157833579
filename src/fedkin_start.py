"""The command `fedkin`, before anything is loaded: Ctrl-C in its first second ends without a traceback.

Loading the libraries takes about a second. This module is outside the package so that nothing of it is
loaded before the command can be interrupted. The package imports it first, for `python -m fedkin`.
"""

import itertools
import os
import signal
import sys
from typing import Any, NoReturn


def main() -> None:
    """Load the command line and run it."""
    usual = _end_quietly() if _BEFORE is None else _BEFORE
    from fedkin.cli.app import main as run

    signal.signal(signal.SIGINT, usual)
    run()


def _end(number: int, frame: object) -> NoReturn:
    sys.stderr.write("error: interrupted: nothing was written\n")
    sys.stderr.flush()
    os._exit(130)


def _end_quietly() -> Any:
    """End on Ctrl-C with one line from now on; return what was done before."""
    # An exception would not do: libraries interrupted while they load turn it into errors of their own.
    return signal.signal(signal.SIGINT, _end)


def _is_module() -> bool:
    """Tell whether Python was started as `python -m fedkin`, and is still looking for that module."""
    return sys.argv[:1] == ["-m"] and ("-m", "fedkin") in itertools.pairwise(sys.orig_argv)


_BEFORE = _end_quietly() if _is_module() else None
"""What Ctrl-C did before, where the package is loaded as a command."""

if __name__ == "__main__":
    main()
