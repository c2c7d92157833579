"""Run `python -m reproduction --help`."""

from fedkin.cli.program import run_program
from reproduction.commands import app

if __name__ == "__main__":
    run_program(app)
