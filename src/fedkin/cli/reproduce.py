"""`fedkin reproduce`: cells of the paper's table."""

from typing import Annotated, Any

import typer

from fedkin.cli.options import (
    METHODS_REPEATED,
    SOLVER,
    SYNCHRONIZATIONS,
    TARGETS,
    TARGETS_REPEATED,
    DataOption,
    JobsOption,
    OutOption,
    ResumeOption,
    was_given,
)
from fedkin.cli.output import JsonOption
from fedkin.cli.study import run_study
from fedkin.errors import InputError
from fedkin.methods.registry import PAPER_METHODS, method_class
from fedkin.studies.study_file import check_study


def reproduce(
    context: typer.Context,
    out: OutOption,
    dataset: Annotated[
        list[str], typer.Option("--dataset", metavar="NAME", help="A data set; may be repeated.")
    ],
    setting: Annotated[
        list[int] | None,
        typer.Option(
            "--setting",
            min=1,
            max=4,
            help="A setting of the paper; may be repeated; default: all four.",
        ),
    ] = None,
    target: Annotated[list[str] | None, TARGETS_REPEATED] = None,
    method: Annotated[list[str] | None, METHODS_REPEATED] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, help="How many seeds to run: 0, 1, 2, …")
    ] = 5,
    learning_rate: Annotated[
        float | None,
        typer.Option("--learning-rate", help="The step size γ, if it is not tuned; default: 0.02."),
    ] = None,
    period: Annotated[
        int | None,
        typer.Option("--period", help="The local steps τ, if they are not tuned; default: 20."),
    ] = None,
    solver: Annotated[str, SOLVER] = "svrg",
    synchronizations: Annotated[int, SYNCHRONIZATIONS] = 800,
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
    methods = method or list(PAPER_METHODS)
    content: dict[str, Any] = {
        "dataset": dataset,
        "setting": setting or [1, 2, 3, 4],
        "target": target or list(TARGETS),
        "method": methods,
        "seed": list(range(seeds)),
        "synchronizations": synchronizations,
        "settings": {"preset": "paper"} if _any_has_preset(methods) else {},
    }
    for name, value in (("learning_rate", learning_rate), ("period", period)):
        if value is not None:
            if tune and "bilevel" in methods:
                option = name.replace("_", "-")
                raise InputError(
                    f"--{option} has no effect with --tune, which chooses it: leave one out"
                )
            content["settings"][name] = value
    if "bilevel" in methods:
        content["settings"]["bilevel"] = {"solver": solver}
    elif was_given(context, "solver"):
        raise InputError("--solver is for bilevel: add --method bilevel, or leave --solver out")
    if tune:
        content |= _tuning(methods, solver)
    run_study(check_study(content, "the options"), out, resume, jobs, data, json)


def _any_has_preset(methods: list[str]) -> bool:
    """Whether a preset is of any use: methods of other packages need not have one."""
    return any("preset" in method_class(name).setting_names() for name in methods)


def _tuning(methods: list[str], solver: str) -> dict[str, Any]:
    """Return what a study says about tuning, with the methods' grids; fedavg and local have none."""
    grids = {name: method_class(name).tuning_grid for name in methods}
    grid = {
        name: {setting: list(values) for setting, values in own.items()}
        for name, own in grids.items()
        if own
    }
    if not grid:
        raise InputError(
            "with --tune there is nothing to tune: fedavg and local use the γ and τ of Bi-level, so add "
            "--method bilevel, or leave --tune out"
        )
    if "bilevel" not in grid:
        return {"tune": grid}
    if solver != "svrg":
        del grid["bilevel"]["adjoint_learning_rate"]
    return {"tune": grid, "follow_bilevel": True}
