"""Run the leaderboard, or what is missing of it, and make its page again.

python -m reproduction.leaderboard run [STUDY]… [--methods bilevel,fedavg] [--stores DIR] [--jobs 2]
python -m reproduction.leaderboard collect [--stores runs/leaderboard]
python -m reproduction.leaderboard page
"""

from pathlib import Path
from typing import Annotated

import typer

from fedkin.cli.options import DataOption, JobsOption
from fedkin.cli.output import notes, print_note
from fedkin.cli.program import run_program
from fedkin.cli.progress import StudyDisplay
from fedkin.errors import InputError
from fedkin.studies.store import count_finished
from fedkin.studies.study import carry_out
from reproduction.leaderboard import hospitals, plan
from reproduction.leaderboard.index import collect as collect_store
from reproduction.leaderboard.index import known_runs, read_rows

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
StoresOption = Annotated[
    Path, typer.Option("--stores", help="Where runs are kept while they are under way.")
]
STORES = Path("runs/leaderboard")


@app.command()
def run(
    studies: Annotated[list[str] | None, typer.Argument(help="Which studies; all if none.")] = None,
    methods: Annotated[str | None, typer.Option(help="Some methods only, with commas.")] = None,
    stores: StoresOption = STORES,
    jobs: JobsOption = 1,
    data: DataOption = None,
) -> None:
    """Do the runs that the tables lack. Stop it at any time; the same command continues."""
    names = _checked(studies)
    chosen = None if methods is None else methods.split(",")
    failed = []
    for name in names:
        print_note(f"== {name}")
        if name == hospitals.NAME:
            hospitals.run_missing(data, chosen or plan.method_names(), print_note)
            continue
        failed += _run_study(name, chosen, stores / name, jobs, data)
    if failed:
        raise InputError(f"{len(failed)} runs failed; the first: {failed[0]}")


def _run_study(
    name: str, methods: list[str] | None, store: Path, jobs: int, data: Path | None
) -> list[str]:
    """Do a study's missing runs, collect them, and return why some failed."""
    study = plan.read_study(name, methods)
    known = known_runs(study, read_rows(name))
    print_note(f"{len(known)} of {len(study.runs())} runs are in the table")
    if len(known) == len(study.runs()):
        return []
    try:
        with StudyDisplay(notes) as display:
            outcome = carry_out(
                study,
                store,
                resume=True,
                jobs=jobs,
                display=display,
                data_directory=data,
                elsewhere=known,
            )
    finally:
        _collect(name, store)
    return [f"{run}: {reason}" for run, reason in outcome.failed.items()]


def _collect(name: str, store: Path) -> None:
    if store.is_dir() and count_finished(store):
        print_note(f"{name}: collected {collect_store(name, store)} runs of {store}")


@app.command()
def collect(stores: StoresOption = STORES) -> None:
    """Add the finished runs of all stores to the tables, also while they are under way."""
    for name in plan.ORDER:
        _collect(name, stores / name)


@app.command()
def page() -> None:
    """Make README.md and the figures again, from the tables."""
    from reproduction.leaderboard.page import write_page

    for path in write_page():
        print_note(str(path))


def _checked(studies: list[str] | None) -> list[str]:
    for name in studies or ():
        if name not in plan.ORDER:
            raise InputError(f"there is no study {name!r}: choose from {', '.join(plan.ORDER)}")
    return studies or list(plan.ORDER)


if __name__ == "__main__":
    run_program(app)
