"""`fedkin compare`: studies beside the paper, as tables, figures and a page for a repository."""

from pathlib import Path
from typing import Annotated

import typer

from fedkin.cli.output import JsonOption, notes, print_json, results
from fedkin.errors import InputError


def compare(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="RESULTS", help="The directory of results; it holds studies/*.toml."
        ),
    ],
    add: Annotated[
        list[Path] | None,
        typer.Option(
            help="What fedkin run had as --out, named like its file in studies/: collect its finished "
            "runs first. May be given several times."
        ),
    ] = None,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep",
            help="Collect a study that was run with --collected: what was collected before stays beside it.",
        ),
    ] = False,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace",
            help="Collect a study even if runs that were collected before are lost by it.",
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Set studies beside the paper, cell by cell: tables, figures and README.md of a results directory."""
    # The libraries that draw take a second to load: only this command pays for them.
    from fedkin.report import condensed, reproduction
    from fedkin.report.collected import read_reproduction

    if not directory.is_dir():
        raise InputError(f"{directory} is not a directory: give the one that holds studies/*.toml")
    if keep and replace:
        raise InputError("--keep and --replace exclude each other")
    if (keep or replace) and not add:
        raise InputError(f"--{'keep' if keep else 'replace'} is of no use without --add")
    stores = add or []
    # All are read before one is written: a store that is refused leaves everything as it was.
    found = [condensed.read_store(s, directory, keep=keep, replace=replace) for s in stores]
    for store, collection in zip(stores, found, strict=True):
        collection.write()
        notes.print(f"collected {store} into {collection.target}", markup=False, soft_wrap=True)
    with notes.status("comparing and drawing …"):
        files = reproduction.build(directory)
        states = read_reproduction(directory).studies
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
        print_json({"files": [str(path) for path in files], "studies": studies})
        return
    for name, state in studies.items():
        results.print(f"{name}: {state['finished']} of {state['planned']} runs", markup=False)
    results.print(f"page:  {directory / reproduction.README}", markup=False, soft_wrap=True)
    results.print(f"files: {directory} ({len(files)})", markup=False, soft_wrap=True)
