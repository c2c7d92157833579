"""Carrying out a study and showing how it ended, for `fedkin run`, `reproduce` and `federation run`."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from fedkin.cli.output import StoppedByUserError, notes, print_json, print_result
from fedkin.cli.progress import StudyDisplay
from fedkin.cli.tracking import TrackedDisplay, open_trackers
from fedkin.errors import InputError
from fedkin.studies.cluster import Cluster
from fedkin.studies.config import StudyConfig
from fedkin.studies.store import count_finished
from fedkin.studies.store import results as read_results
from fedkin.studies.study import StudyOutcome, attempt, carry_out


def run_study(
    study: StudyConfig,
    out: Path,
    resume: bool,
    jobs: int,
    data: Path | None,
    json: bool,
    *,
    mlflow: str | None = None,
    tensorboard: Path | None = None,
    cluster: str | None = None,
    most_at_once: int | None = None,
) -> None:
    """Carry out a study with a progress display, and end with its report.

    Args:
        study: What to run.
        out: The directory for the results.
        resume: Whether it may already contain a part of the study.
        jobs: How many runs to do at the same time on this machine.
        data: The directory with the data sets.
        json: Whether to print JSON.
        mlflow: The directory or address of an MLflow store.
        tensorboard: The directory for TensorBoard.
        cluster: The address of a Ray cluster that does the runs.
        most_at_once: How many runs the cluster does at the same time; None for as many as it can.
    """
    experiment = out.resolve().name
    try:
        with (
            nullcontext() if cluster is None else Cluster(cluster, most_at_once, attempt) as away,
            open_trackers(mlflow, tensorboard, experiment=experiment) as trackers,
            StudyDisplay(notes, show_warnings=cluster is not None) as display,
        ):
            outcome = carry_out(
                study,
                out,
                resume=resume,
                jobs=jobs,
                display=TrackedDisplay(display, trackers),
                data_directory=data,
                cluster=away,
            )
    except KeyboardInterrupt:
        raise StoppedByUserError(what_was_kept(out)) from None
    show_outcome(outcome, out, json)


def what_was_kept(out: Path) -> str:
    """Say, after Ctrl-C, which runs are finished and how to continue."""
    finished = count_finished(out)
    runs = "1 finished run is" if finished == 1 else f"{finished} finished runs are"
    return f"{runs} kept in {out}; continue with the same command and --resume"


def show_outcome(outcome: StudyOutcome, out: Path, json: bool) -> None:
    """Show the report of a study, then what failed."""
    page = None
    if outcome.finished:
        # What draws the report takes a moment to load, and is not needed before.
        from fedkin.cli.report_summary import print_study, write_report

        record, page = write_report(out)
        if not json:
            print_study(record, page)
            print_result(f"tables and figures: fedkin report {out}")
    if json:
        report = None if page is None else str(page)
        print_json(study_answer(outcome, out) | {"report": report}, schema="study/1")
    refuse_failures(outcome)


def refuse_failures(outcome: StudyOutcome) -> None:
    """End the command with an error if runs failed."""
    if outcome.failure is not None:
        raise InputError(
            f"{outcome.failure} (when that is mended, continue with --resume: finished runs are kept)"
        )


def study_answer(outcome: StudyOutcome, out: Path) -> dict[str, Any]:
    """Return what `--json` prints of a study."""
    rows: list[dict[str, Any]] = []
    if outcome.finished:
        best = read_results(out, best=True)
        columns = ["dataset", "setting", "target", "method", "seed", "parameters"]
        columns += ["validation_accuracy", "test_accuracy"]
        rows = best.loc[:, columns].to_dict(orient="records")
    return {
        "finished": outcome.finished,
        "failed": outcome.failed,
        "failed_trials": outcome.failed_trials,
        "runs": rows,
    }
