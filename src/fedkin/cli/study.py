"""`fedkin run` and `fedkin reproduce`: studies that can be stopped, resumed and trusted."""

from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from fedkin.cli.output import JsonOption, notes, print_json, results
from fedkin.cli.study_display import StudyDisplay
from fedkin.errors import InputError
from fedkin.studies.config import StudyConfig, check_study, load_study
from fedkin.studies.store import results as read_results
from fedkin.studies.study import StudyOutcome, carry_out
from fedkin.training.method_settings import MethodName

PAPER_GRID: dict[str, dict[str, list[Any]]] = {
    "bilevel": {
        "learning_rate": [0.05, 0.02, 0.01],
        "adjoint_learning_rate": [0.0005, 0.0002, 0.0001],
        "period": [10, 20],
        "outer_learning_rate": [0.025, 0.02, 0.015],
    },
    "ditto": {"proximal": [0.05, 0.1, 0.2]},
    "pfedme": {"proximal": [5.0, 10.0, 15.0]},
}
"""What the paper chooses from; the other methods take γ and τ as Bi-level has them."""

OutOption = Annotated[Path, typer.Option(help="The directory for the results.")]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Go on with a study; finished runs are not done again.")
]
JobsOption = Annotated[int, typer.Option(min=1, help="Runs at the same time, in processes.")]
DataOption = Annotated[
    Path | None, typer.Option("--data", help="Where data sets are; by default FEDKIN_DATA.")
]


def run(
    study: Annotated[Path, typer.Argument(help="A TOML file; docs/studies.md shows its keys.")],
    out: OutOption,
    resume: ResumeOption = False,
    jobs: JobsOption = 1,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Carry out a study: every combination of data sets, settings, methods and seeds in a file."""
    run_study(load_study(study), out, resume, jobs, data, json)


def reproduce(
    out: OutOption,
    dataset: Annotated[list[str], typer.Option(help="Data set; may be given several times.")],
    setting: Annotated[
        list[int] | None, typer.Option(min=1, max=4, help="Setting 1-4; default: all four.")
    ] = None,
    target: Annotated[
        list[str] | None, typer.Option(help="minority or majority; default: both.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Method; default: all of the paper's.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0, 1, … so many.")] = 5,
    learning_rate: Annotated[
        float | None, typer.Option(help="γ, if it is not tuned; by default 0.02.")
    ] = None,
    period: Annotated[
        int | None, typer.Option(help="τ, if it is not tuned; by default 20.")
    ] = None,
    solver: Annotated[str, typer.Option(help="svrg (the paper's) or cg (ours).")] = "svrg",
    synchronizations: Annotated[int, typer.Option(min=1, help="The budget of a run.")] = 800,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune",
            help="Choose parameters from the paper's grid by five outer iterations on seed 0.",
        ),
    ] = False,
    resume: ResumeOption = False,
    jobs: JobsOption = 1,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Run cells of the paper's table: its methods, settings and parameters."""
    methods = method or list(get_args(MethodName))
    content: dict[str, Any] = {
        "dataset": dataset,
        "setting": setting or [1, 2, 3, 4],
        "target": target or ["minority", "majority"],
        "method": methods,
        "seed": list(range(seeds)),
        "synchronizations": synchronizations,
        "settings": {},
    }
    for name, value in (("learning_rate", learning_rate), ("period", period)):
        if value is not None:
            if tune and "bilevel" in methods:
                option = name.replace("_", "-")
                raise InputError(f"--{option} is of no use with --tune, which chooses it")
            content["settings"][name] = value
    if "bilevel" in methods:
        content["settings"]["bilevel"] = {"solver": solver}
    if tune:
        content["tune"] = {name: dict(grid) for name, grid in PAPER_GRID.items() if name in methods}
        if not content["tune"]:
            raise InputError(
                "with --tune there is nothing to tune: fedavg and local take the γ and τ of Bi-level, "
                "so add --method bilevel, or leave --tune out"
            )
        if "bilevel" in methods:
            content["follow_bilevel"] = True
            if solver != "svrg":
                del content["tune"]["bilevel"]["adjoint_learning_rate"]
    run_study(check_study(content, "the options"), out, resume, jobs, data, json)


def run_study(
    study: StudyConfig, out: Path, resume: bool, jobs: int, data: Path | None, json: bool
) -> None:
    """Carry out a study with a progress bar, and end with its report."""
    with StudyDisplay(notes) as display:
        outcome = carry_out(
            study, out, resume=resume, jobs=jobs, display=display, data_directory=data
        )
    show_outcome(outcome, out, json)


def show_outcome(outcome: StudyOutcome, out: Path, json: bool) -> None:
    """End as every study ends: with its report, or with what was wrong."""
    page = None
    if outcome.finished:
        # What makes the report takes a moment to load, and is not needed before.
        from fedkin.cli.endings import print_study, write_report

        record, page = write_report(out)
        if not json:
            print_study(record, page)
            results.print(f"tables and figures: fedkin report {out}", markup=False, soft_wrap=True)
    if json:
        print_json(study_answer(outcome, out) | {"report": None if page is None else str(page)})
    refuse_failures(outcome)


def refuse_failures(outcome: StudyOutcome) -> None:
    """End the program with an error if runs failed."""
    if outcome.failed:
        raise InputError(
            f"{len(outcome.failed)} of {len(outcome.failed) + outcome.finished} runs failed; the "
            f"first: {next(iter(outcome.failed.values()))}"
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
