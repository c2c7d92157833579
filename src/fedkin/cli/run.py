"""`fedkin run`: a study from a file, which can be stopped and resumed."""

from pathlib import Path
from typing import Annotated

import typer

from fedkin.cli.options import DataOption, JobsOption, OutOption, ResumeOption
from fedkin.cli.output import JsonOption
from fedkin.cli.run_collected import CollectedOption, run_rest
from fedkin.cli.study import run_study
from fedkin.studies.config import load_study


def run(
    study: Annotated[
        Path,
        typer.Argument(metavar="STUDY.toml", help="The study; docs/studies.md lists its keys."),
    ],
    out: OutOption,
    resume: ResumeOption = False,
    jobs: JobsOption = 1,
    data: DataOption = None,
    collected: CollectedOption = None,
    json: JsonOption = False,
) -> None:
    """Carry out a study: every combination of the data sets, settings, methods and seeds in a file."""
    content = load_study(study)
    if collected is None:
        run_study(content, out, resume, jobs, data, json)
    else:
        run_rest(content, study.stem, collected, out, resume, jobs, data, json)
