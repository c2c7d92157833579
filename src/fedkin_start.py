"""The command `fedkin`, before anything is loaded: Ctrl-C in its first second ends without a traceback.

Loading the libraries takes about a second. This module is outside the package so that nothing of it is
loaded before the command can be interrupted.
"""

import sys


def main() -> None:
    """Load the command line and run it."""
    try:
        from fedkin.cli.app import main as run
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted: nothing was written\n")
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
