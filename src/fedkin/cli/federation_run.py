"""`fedkin federation run`: a study on real nodes, or learning from their tables."""

import json as json_module
import time
import tomllib
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import pandas as pd
import typer

from fedkin.cli import fit, result_directory
from fedkin.cli.federation_options import DirectoryArgument
from fedkin.cli.output import JsonOption, notes, print_json
from fedkin.cli.progress import StudyDisplay
from fedkin.cli.study import ResumeOption, show_outcome
from fedkin.errors import InputError
from fedkin.events import Event, EventReader, RunStarted, StepDone, Warned, events_beside
from fedkin.flower import app_directory, control, processes, trial
from fedkin.flower.certificates import make_private_directory, require_flower
from fedkin.flower.layout import SUPERLINK, FederationFile, Layout
from fedkin.studies.follower import StudyFollower
from fedkin.studies.store import Store
from fedkin.training.result import load

POLL_SECONDS = 1.0
LEARNING = "learning from the nodes' tables …"

Job: TypeAlias = dict[str, Any]


def run(
    directory: DirectoryArgument,
    study: Annotated[
        Path | None,
        typer.Argument(
            metavar="[STUDY.toml]",
            help="Methods, model, parameters and budget (docs/federation.md); or say it by options.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The directory for the results.")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="bilevel, fedavg, local, ditto or pfedme; a study may have several."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="logistic, mlp, cnn, or ridge.")] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="The largest number of outer steps.")
    ] = None,
    synchronizations: Annotated[
        int | None, typer.Option(min=1, help="The budget of a run.")
    ] = None,
    resume: ResumeOption = False,
    json: JsonOption = False,
) -> None:
    """Carry out a study on the nodes of a running federation, on the SuperLink's machine.

    Nodes with images: ends as fedkin run does. Nodes with tables: ends as fedkin fit does.
    """
    require_flower()
    from fedkin.flower.jobs.loading import load_job
    from fedkin.flower.jobs.study import StudyJob

    if out is None:
        raise InputError("--out is missing: the directory for the results")
    layout = Layout(directory)
    federation = layout.read()
    options = {
        "method": method if method is None or len(method) > 1 else method[0],
        "model": model,
        "steps": steps,
        "synchronizations": synchronizations,
    }
    given = {name: value for name, value in options.items() if value is not None}
    path = write_job(layout, federation, study, given)
    job = load_job(path)
    out = out.absolute()
    with trial.connect(layout) as link:
        check_ready(layout, federation, link)
        configuration = {"job": str(path), "out": str(out), "resume": resume}
        if isinstance(job, StudyJob):
            check_study_out(out, resume)
            with StudyDisplay(notes) as display:
                follower = StudyFollower(out, len(job.study.runs()), display)
                failure = wait_for_run(link, configuration, lambda _: follower.poll())
                outcome = follower.outcome()
            if failure is not None and not outcome.failed:
                raise InputError(_with_log(failure, layout))
            show_outcome(outcome, out, json)
        else:
            check_fit_out(out)
            events = EventReader(events_beside(out), only_new=True)
            with notes.status(LEARNING) as status:

                def show(state: control.RunState) -> None:
                    status.update(f"{LEARNING} {state.exchanged / 1e6:.1f} MB exchanged")
                    for event in events.new():
                        _show_event(event)

                failure = wait_for_run(link, configuration, show)
            if failure is not None:
                raise InputError(_with_log(failure, layout))
            show_fit(out, json)


def write_job(layout: Layout, federation: FederationFile, study: Path | None, options: Job) -> Path:
    """Write a study with what is known of the data, for the program at the center."""
    import tomli_w

    content = {} if study is None else _with_whole_paths(_read(study), study)
    for name, value in options.items():
        if name in content:
            raise InputError(f"{name} is in {study} and among the options: say it once")
        content[name] = value
    if federation.center:
        content = _for_tables(layout, federation, content)
    else:
        content = _for_images(layout, federation, content)
    if study is None and not federation.center:
        # The paper's values need many more synchronizations than somebody who gives two options expects.
        content = {**content, "settings": {"preset": "automatic"}}
    # A name of its own for every run: the program at the center reads it later, maybe after another.
    stem = study.stem if study is not None else "options"
    path = layout.directory / "jobs" / f"{stem}-{uuid.uuid4().hex[:8]}.toml"
    make_private_directory(path.parent)
    path.write_text(tomli_w.dumps(content), encoding="utf-8")
    return path


def _read(study: Path) -> Job:
    try:
        return tomllib.loads(study.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"there is no file {study}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {study}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{study} is not valid TOML: {error}") from error


def _with_whole_paths(content: Job, study: Path) -> Job:
    """Write the center's own tables as they are found from elsewhere; they are named from the file."""
    named = {name: content[name] for name in ("validation", "test") if name in content}
    return content | {
        name: str(study.absolute().parent / path)
        for name, path in named.items()
        if isinstance(path, str)
    }


def _for_tables(layout: Layout, federation: FederationFile, content: Job) -> Job:
    """Add the center's own tables, and how tables are read."""
    if isinstance(content.get("method"), list):
        raise InputError("nodes with tables learn by one method at a time: give one --method")
    known: Job = dict(federation.data)
    known |= {name: str(layout.path(path)) for name, path in federation.center.items()}
    waiting = {"nodes": len(federation.node)} if federation.node else {}
    return {**known, **content, "federation": waiting | content.get("federation", {})}


def _for_images(layout: Layout, federation: FederationFile, content: Job) -> Job:
    """Add how the nodes' images were drawn; a study that says otherwise would judge other data."""
    known: Job = {name.replace("-", "_"): value for name, value in federation.data.items()}
    sources = {node.data for node in federation.node}
    if len(sources) == 1:
        known["dataset"] = sources.pop()
    for name, value in known.items():
        if content.get(name, value) not in (value, [value]):
            raise InputError(
                f"{name} is {content[name]} in the study, but the nodes' data were drawn with {value} "
                f"({layout.file}): leave it out, or make a federation for it"
            )
    return known | content


def check_study_out(out: Path, resume: bool) -> None:
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


def check_fit_out(out: Path) -> None:
    """The same for a result from tables."""
    if out.is_dir() and any(out.iterdir()):
        raise InputError(f"{out} is not empty: choose another --out")
    result_directory.check_writable(out, force=False)


def check_ready(layout: Layout, federation: FederationFile, link: control.Control) -> None:
    """Refuse to begin without a SuperLink; say which nodes are missing."""
    if SUPERLINK not in processes.find(federation.id).values():
        raise InputError(
            f"{layout.directory} is down: start it with fedkin federation up {layout.directory}"
        )
    states = {node.name: node.status for node in link.nodes()}
    absent = [name for name, status in states.items() if status != "online"]
    if absent:
        notes.print(
            f"note: not online: {', '.join(absent)}; they are waited for (fedkin federation logs)",
            markup=False,
            soft_wrap=True,
        )


def wait_for_run(
    link: control.Control, configuration: Job, show: Callable[[control.RunState], None]
) -> str | None:
    """Start the program at the center and wait until it ends.

    Args:
        link: The SuperLink.
        configuration: The configuration of the run.
        show: Called regularly while it runs, and once at the end.

    Returns:
        Why it did not complete, or None.
    """
    number = link.start_run(app_directory(), configuration)
    try:
        while not (state := link.run_state(number)).ended:
            show(state)
            time.sleep(POLL_SECONDS)
        show(state)
    except BaseException:
        link.stop_run(number)
        notes.print("the run is stopped: continue it with --resume")
        raise
    if state.outcome == "completed":
        return None
    reason = " ".join(state.details.split()).removeprefix("ServerApp failed with exception: ")
    return reason or f"the study was {state.outcome or 'lost'}"


def _show_event(event: Event) -> None:
    """Show how far training is; how it ends is shown with the result."""
    if isinstance(event, RunStarted):
        line = f"nodes: {', '.join(event.nodes)}"
        if event.resumed_after is not None:
            line += f"; resumed after step {event.resumed_after}"
    elif isinstance(event, StepDone):
        line = (
            f"step {event.step}: {event.synchronizations} synchronizations, validation loss "
            f"{event.validation_loss:.4f}"
        )
    elif isinstance(event, Warned):
        line = f"note: {event.message}"
    else:
        return
    notes.print(line, markup=False, soft_wrap=True)


def _with_log(failure: str, layout: Layout) -> str:
    return f"{failure} (the whole log: fedkin federation logs {layout.directory})"


def show_fit(out: Path, json: bool) -> None:
    """End as `fedkin fit` does, from what was written."""
    from fedkin.cli.endings import print_path, write_report

    result = load(out / result_directory.MODEL)
    table = pd.read_csv(out / result_directory.WEIGHTS_TABLE)
    rows = dict(zip(table.node.astype(str), table["rows"].astype(int).tolist(), strict=True))
    metrics = json_module.loads((out / result_directory.METRICS).read_text(encoding="utf-8"))
    _, page = write_report(out)
    if json:
        print_json(
            {
                "out": str(out),
                "weights": fit.weights_of(result),
                "rows": rows,
                "metrics": metrics,
                "stopped": result.stopped,
                "report": str(page),
            }
        )
        return
    fit.print_result(result, rows, metrics, out)
    print_path(page)
