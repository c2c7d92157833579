"""Run `python -m reproduction.theory --help`."""

from fedkin.cli.program import run_program
from reproduction.theory.commands import app

if __name__ == "__main__":
    run_program(app)
