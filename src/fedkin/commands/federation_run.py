"""`fedkin federation run`: a study on real nodes, with the end that every study has."""

import time
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from fedkin.commands.federation_options import DirectoryArgument
from fedkin.commands.output import JsonOption, notes
from fedkin.commands.study import ResumeOption, show_outcome
from fedkin.commands.study_display import StudyDisplay
from fedkin.commands.study_watch import StudyWatch
from fedkin.errors import InputError
from fedkin.experiments.store import Store
from fedkin.federation.flower import app_directory, control, processes, trial
from fedkin.federation.flower.certificates import make_private_directory, require_flower
from fedkin.federation.flower.layout import SUPERLINK, FederationFile, Layout

POLL_SECONDS = 2.0


def run(
    directory: DirectoryArgument,
    study: Annotated[
        Path,
        typer.Argument(
            metavar="STUDY.toml", help="Methods, model, parameters and budget (docs/federation.md)."
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The directory for the results.")],
    resume: ResumeOption = False,
    json: JsonOption = False,
) -> None:
    """Carry out a study on the nodes of a running federation, on the SuperLink's machine."""
    require_flower()
    from fedkin.jobs import load_job

    layout = Layout(directory)
    federation = layout.read()
    out = out.absolute()
    job = write_job(layout, federation, study)
    total = len(load_job(job).study.runs())
    check_out(out, resume)
    with trial.connect(layout) as link:
        _check_ready(layout, federation, link)
        with StudyDisplay(notes) as display:
            watch = StudyWatch(out, total, display)
            follow(link, {"job": str(job), "out": str(out), "resume": resume}, layout, watch)
            outcome = watch.outcome()
    show_outcome(outcome, out, json)


def write_job(layout: Layout, federation: FederationFile, study: Path) -> Path:
    """Write the study with what is known of the nodes' data, for the program at the centre."""
    import tomli_w

    try:
        content = tomllib.loads(study.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"there is no file {study}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {study}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{study} is not valid TOML: {error}") from error
    for name, value in _known(federation).items():
        given = content.setdefault(name, value)
        if given not in (value, [value]):
            raise InputError(
                f"{study}: {name} is {given}, but the nodes' data were drawn with {value} "
                f"({layout.file}): leave it out, or make a federation for it"
            )
    job = layout.directory / "jobs" / study.name
    make_private_directory(job.parent)
    job.write_text(tomli_w.dumps(content), encoding="utf-8")
    return job


def _known(federation: FederationFile) -> dict[str, Any]:
    """Return what a study must say of the nodes' data, because they were drawn so."""
    sources = {node.data for node in federation.node}
    known: dict[str, Any] = {name.replace("-", "_"): value for name, value in federation.data.items()}
    return known | ({"dataset": sources.pop()} if len(sources) == 1 else {})


def check_out(out: Path, resume: bool) -> None:
    """Say here, and not in a log, that results cannot be written."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: give --out the name of a directory")
    present = out.is_dir() and any(out.iterdir())
    if present and (out / "study.json").exists():
        Store(out).check_format()
        if not resume:
            raise InputError(
                f"{out} already holds a study: add --resume to go on with it (finished runs are "
                "kept), or choose another directory"
            )
    elif present:
        raise InputError(f"{out} holds other files: choose a new or empty directory")


def _check_ready(layout: Layout, federation: FederationFile, link: control.Control) -> None:
    """Refuse to begin without a SuperLink or with nodes missing."""
    if SUPERLINK not in processes.find(federation.id).values():
        raise InputError(
            f"{layout.directory} is down: start it with fedkin federation up {layout.directory}"
        )
    states = {node.name: node.status for node in link.nodes()}
    absent = [node.name for node in federation.node if states.get(node.name) != "online"]
    if absent:
        notes.print(
            f"note: not online: {', '.join(absent)}; they can still come (fedkin federation logs)",
            markup=False,
            soft_wrap=True,
        )


def follow(
    link: control.Control, configuration: dict[str, Any], layout: Layout, watch: StudyWatch
) -> None:
    """Start the program at the centre and show what it does until its end."""
    number = link.start_run(app_directory(), configuration)
    try:
        while True:
            state = link.run_state(number)
            watch.look()
            if state.ended:
                break
            time.sleep(POLL_SECONDS)
    except BaseException:
        link.stop_run(number)
        notes.print("the study is stopped: go on with it by --resume")
        raise
    if state.outcome != "completed" and not watch.outcome().failed:
        reason = " ".join(state.details.split()) or f"it was {state.outcome or 'lost'}"
        raise InputError(f"the study has not come to its end: {reason} (see {layout.log(SUPERLINK)})")
