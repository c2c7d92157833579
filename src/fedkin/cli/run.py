"""`fedkin run`: a study from a file, which can be stopped and resumed."""

from pathlib import Path
from typing import Annotated

import typer

from fedkin.cli.options import DataOption, JobsOption, OutOption, ResumeOption
from fedkin.cli.output import JsonOption
from fedkin.cli.study import run_study
from fedkin.cli.tracking import MLflowOption, TensorBoardOption
from fedkin.studies.study_file import load_study


def run(
    study: Annotated[
        Path,
        typer.Argument(metavar="STUDY.toml", help="The study; docs/studies.md lists its keys."),
    ],
    out: OutOption,
    resume: ResumeOption = False,
    jobs: JobsOption = 1,
    data: DataOption = None,
    json: JsonOption = False,
    mlflow: MLflowOption = None,
    tensorboard: TensorBoardOption = None,
) -> None:
    """Carry out a study: every combination of the data sets, settings, methods and seeds in a file."""
    run_study(
        load_study(study), out, resume, jobs, data, json, mlflow=mlflow, tensorboard=tensorboard
    )
