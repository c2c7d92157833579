"""`fedkin run`: a study from a file, which can be stopped and resumed."""

from pathlib import Path
from typing import Annotated

import typer

from fedkin.cli.options import DataOption, JobsOption, OutOption, ResumeOption, was_given
from fedkin.cli.output import JsonOption
from fedkin.cli.study import run_study
from fedkin.cli.tracking import MLflowOption, TensorBoardOption
from fedkin.studies.study_file import load_study


def run(
    context: typer.Context,
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
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="ADDRESS",
            help="Do the runs on a Ray cluster: ray://HOST:PORT, or local for one on this machine. --jobs "
            "then limits how many it does at the same time; default: as many as it has processors.",
        ),
    ] = None,
) -> None:
    """Carry out a study: every combination of the data sets, settings, methods and seeds in a file."""
    run_study(
        load_study(study),
        out,
        resume,
        jobs,
        data,
        json,
        mlflow=mlflow,
        tensorboard=tensorboard,
        cluster=cluster,
        most_at_once=jobs if was_given(context, "jobs") else None,
    )
