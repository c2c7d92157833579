"""`fedkin report`: tables, figures and a page from results on disk, without training."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedkin.cli.output import JsonOption, notes, print_json, results
from fedkin.errors import InputError
from fedkin.training.result_directory import ADVICE

if TYPE_CHECKING:
    from fedkin.report.reading import Record


def report(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="The --out of fedkin run, reproduce, demo, fit or map."),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where to write; default: into that directory."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Make the tables, figures and report.html of a study, finished or not, of a fit or of a map."""
    # The libraries that draw take a second to load: only this command pays for them.
    from fedkin.report.reading import read_record

    if (directory / ADVICE).is_file():
        _show_advice(directory, out, json=json)
        return
    show_report(read_record(directory), out or directory, json=json)


def _show_advice(directory: Path, out: Path | None, *, json: bool) -> None:
    from fedkin.report.advice_page import write_advice_page

    if out is not None:
        raise InputError("the report of an advice goes into its own directory: leave --out out")
    page = write_advice_page(directory)
    if json:
        files: list[str] = []
        answer = {"report": str(page), "files": files, "finished": 1, "missing": []}
        print_json(answer, schema="report/1")
    else:
        results.print(f"page:  {page}", markup=False, soft_wrap=True)


def show_report(record: "Record", target: Path, *, json: bool) -> None:
    """Write the report of a record into a directory, and say what was written and what is missing."""
    from fedkin.report import html

    page = html.write_page(record, target / html.NAME)
    folder = target / "report"
    # All that there is of a map is on its page and in its own tables.
    files = [] if record.kind == "map" else _write_files(record, folder)
    missing = [
        {"run": each.cell.title, "method": each.method, "seed": each.seed, "reason": each.reason}
        for each in record.missing
    ]
    if json:
        print_json(
            {
                "report": str(page),
                "files": [str(path) for path in files],
                "finished": len(record.runs),
                "missing": missing,
            },
            schema="report/1",
        )
        return
    if record.doubt:
        line = f"it is unknown whether runs are missing: {record.doubt}"
        notes.print(line, markup=False, soft_wrap=True)
    if record.missing:
        asked_for = len(record.missing) + len(record.runs)
        notes.print(
            f"{len(record.missing)} of {asked_for} runs are missing; the report is of the others:"
        )
        for each in record.missing[:MOST_MISSING]:
            line = f"  {each.cell.title}, {each.method}, seed {each.seed}: {each.reason}"
            notes.print(line, markup=False, soft_wrap=True)
        if len(record.missing) > MOST_MISSING:
            notes.print(f"  … and {len(record.missing) - MOST_MISSING} more, all in the report")
    results.print(f"page:  {page}", markup=False, soft_wrap=True)
    if not files:
        return
    endings = ", ".join(sorted({path.suffix[1:] for path in files}))
    results.print(f"files: {folder} ({len(files)}: {endings})", markup=False, soft_wrap=True)


def _write_files(record: "Record", folder: Path) -> list[Path]:
    """Write the tables and figures of a record; return their files."""
    from fedkin.report import figures, tables

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make {folder}: {error.strerror}") from error
    files = []
    table = tables.summary(record)
    if record.kind == "study":
        for ending, write in tables.WRITERS.items():
            path = folder / f"table.{ending}"
            path.write_text(write(table), encoding="utf-8")
            files.append(path)
    with notes.status("drawing figures …"):
        files += figures.save_figures(record, folder)
    return files


MOST_MISSING = 10
"""How many missing runs are listed; the page lists all."""
