"""Run `python -m benchmarks --help`."""

from benchmarks.command import app
from fedkin.cli.program import keep_code, run_program

if __name__ == "__main__":
    keep_code()
    run_program(app)
