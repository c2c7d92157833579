"""Run `python -m benchmarks --help`."""

from benchmarks.command import app
from fedkin.cli.program import run_program

if __name__ == "__main__":
    run_program(app)
