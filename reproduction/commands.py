"""`python -m reproduction`: run the paper's studies, collect them, and make the page of results."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from fedkin.cli.options import DataOption, JobsOption, OutOption, ResumeOption
from fedkin.cli.output import JsonOption, notes, print_json, print_note, results
from fedkin.cli.progress import StudyDisplay
from fedkin.cli.report import show_report
from fedkin.cli.study import refuse_failures, run_study, study_answer
from fedkin.errors import InputError
from fedkin.studies.config import StudyConfig
from fedkin.studies.study import StudyOutcome, carry_out
from fedkin.studies.study_file import load_study

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="The paper's experiments: run their studies, collect the results, make the page (docs/studies.md).",
)


@app.command()
def run(
    study: Annotated[
        Path, typer.Argument(help="A TOML file, such as reproduction/studies/mnist.toml.")
    ],
    out: OutOption,
    resume: ResumeOption = False,
    jobs: JobsOption = 1,
    data: DataOption = None,
    collected: Annotated[
        Path | None,
        typer.Option(
            metavar="ROOT",
            help="Skip the runs already collected in this directory, such as reproduction, and use the "
            "parameters chosen for them.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Carry out a study, as `fedkin run` does; with --collected, only the runs that are missing."""
    content = load_study(study)
    if collected is None:
        run_study(content, out, resume, jobs, data, json)
    else:
        _run_missing(content, study.stem, collected, out, resume, jobs, data, json)


def _run_missing(
    study: StudyConfig,
    name: str,
    root: Path,
    out: Path,
    resume: bool,
    jobs: int,
    data: Path | None,
    json: bool,
) -> None:
    """Do the runs of a study that were not collected yet. No report: one of these alone would mislead."""
    from reproduction.page.condensed import read_collected

    if out.resolve().name != name:
        raise InputError(
            f"--out {out} must end with {name}, like the study's file: by that name `python -m "
            "reproduction compare --keep` adds its runs to the collected ones"
        )
    known, planned = read_collected(root, name, study), len(study.runs())
    print_note(f"{root} has {len(known)} of the {planned} runs of {name}")
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
            print_note(
                f"collect them with: python -m reproduction compare {root} --add {out} --keep"
            )
    if json:
        print_json(study_answer(outcome, out) | {"collected": len(known)}, schema="collected/1")
    refuse_failures(outcome)


@app.command()
def compare(
    root: Annotated[
        Path,
        typer.Argument(
            metavar="ROOT", help="The directory with studies/*.toml, such as reproduction."
        ),
    ],
    add: Annotated[
        list[Path] | None,
        typer.Option(
            help="The --out of a study, named like its file in studies/: collect its finished runs "
            "first. May be repeated."
        ),
    ] = None,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep",
            help="Keep the runs collected before, for a study that was run with --collected.",
        ),
    ] = False,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Collect a study even if runs collected before are lost."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Collect studies, and make README.md, the tables and the figures: our results next to the paper's."""
    # The libraries that draw take a second to load: only this command pays for them.
    from reproduction.page import build, condensed
    from reproduction.page.collected import read_reproduction

    if not root.is_dir():
        raise InputError(f"{root} is not a directory: give the one with studies/*.toml")
    if keep and replace:
        raise InputError("--keep and --replace exclude each other")
    if (keep or replace) and not add:
        raise InputError(f"--{'keep' if keep else 'replace'} is of no use without --add")
    stores = add or []
    # All are read before one is written: a store that is refused leaves everything as it was.
    found = [condensed.read_store(s, root, keep=keep, replace=replace) for s in stores]
    for store, collection in zip(stores, found, strict=True):
        collection.write()
        print_note(f"collected {store} into {collection.target}")
    with notes.status("comparing and drawing …"):
        files = build.write_all(root)
        states = read_reproduction(root).studies
    studies = {
        state.name: {
            "finished": len(state.runs),
            "planned": state.planned,
            "run_hours": round(state.run_hours, 3),
            "tuning_hours": round(state.trial_hours, 3),
        }
        for state in states
    }
    if json:
        print_json({"files": [str(path) for path in files], "studies": studies}, schema="compare/1")
        return
    for name, state in studies.items():
        results.print(f"{name}: {state['finished']} of {state['planned']} runs", markup=False)
    results.print(f"page:  {root / build.README}", markup=False, soft_wrap=True)
    results.print(f"files: {root} ({len(files)})", markup=False, soft_wrap=True)


@app.command()
def report(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="A collected study, such as reproduction/results/mnist, or the --out of a study.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Where to write; by default into that directory.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Make the tables, figures and report.html of `fedkin report`, with the paper's results next to ours."""
    from reproduction.page.condensed import read_any
    from reproduction.page.paper import PaperFigures

    record = dataclasses.replace(read_any(directory), paper=PaperFigures())
    show_report(record, out or directory, json=json)
