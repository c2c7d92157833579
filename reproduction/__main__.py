"""Run `python -m reproduction --help`."""

from fedkin.cli.program import keep_code, run_program
from reproduction.commands import app

if __name__ == "__main__":
    keep_code()
    run_program(app)
