"""`fedkin run --collected`: the runs of a study that a directory of results does not have."""

from pathlib import Path
from typing import Annotated

import typer

from fedkin.cli.output import notes, print_json, print_note
from fedkin.cli.progress import StudyDisplay
from fedkin.cli.study import refuse_failures, study_answer
from fedkin.errors import InputError
from fedkin.studies.config import StudyConfig
from fedkin.studies.study import StudyOutcome, carry_out

CollectedOption = Annotated[
    Path | None,
    typer.Option(
        "--collected",
        metavar="RESULTS",
        help="A directory of fedkin compare: skip the runs of this study that it has, and use the "
        "parameters chosen for them.",
    ),
]


def run_rest(
    study: StudyConfig,
    name: str,
    collected: Path,
    out: Path,
    resume: bool,
    jobs: int,
    data: Path | None,
    json: bool,
) -> None:
    """Do the missing runs of a study; no report is made, since one of these alone would mislead."""
    from fedkin.report.condensed import read_collected

    if out.resolve().name != name:
        raise InputError(
            f"--out {out} must end with {name}, as the study's file does: fedkin compare --keep finds the "
            "collected runs by that name"
        )
    known, planned = read_collected(collected, name, study), len(study.runs())
    print_note(f"{collected} has {len(known)} of the {planned} runs of {name}")
    if len(known) == planned and not out.exists():
        outcome = StudyOutcome(0, {}, {})
        print_note("nothing is left to run")
    else:
        with StudyDisplay(notes) as display:
            outcome = carry_out(
                study,
                out,
                resume=resume,
                jobs=jobs,
                display=display,
                data_directory=data,
                elsewhere=known,
            )
        if outcome.finished:
            print_note(f"put them together: fedkin compare {collected} --add {out} --keep")
    if json:
        print_json(study_answer(outcome, out) | {"collected": len(known)}, schema="collected/1")
    refuse_failures(outcome)
