"""`fedkin federation run`: a study on real nodes, or learning from their tables."""

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from fedkin.advice.directory import read_advice
from fedkin.cli import fit
from fedkin.cli import map as map_command
from fedkin.cli.advise import show_advice
from fedkin.cli.federation.options import DirectoryArgument
from fedkin.cli.federation.waiting import wait_for_run
from fedkin.cli.options import (
    METHODS_REPEATED,
    MODEL,
    STEPS,
    SYNCHRONIZATIONS,
    OutOption,
    ResumeOption,
)
from fedkin.cli.output import JsonOption, notes, print_note, print_warning
from fedkin.cli.progress import StudyDisplay
from fedkin.cli.study import show_outcome
from fedkin.data.preprocessing import Preprocessing
from fedkin.errors import InputError
from fedkin.events import Event, EventReader, RunStarted, StepDone, Warned, events_beside
from fedkin.flower import processes, trial
from fedkin.flower.certificates import require_flower
from fedkin.flower.internals import control
from fedkin.flower.jobs.event_log import event_text
from fedkin.flower.jobs.writing import Job, write_job
from fedkin.flower.layout import SUPERLINK, FederationFile, Layout
from fedkin.studies.follower import StudyFollower
from fedkin.studies.store import Store
from fedkin.training import map_directory, result_directory
from fedkin.training.collaboration import Collaboration
from fedkin.training.result import load
from fedkin.training.table_result import read_rows

LEARNING = "learning from the nodes' tables …"


def run(
    directory: DirectoryArgument,
    out: OutOption,
    study: Annotated[
        Path | None,
        typer.Argument(
            metavar="[STUDY.toml]",
            help="Methods, model, parameters and budget (docs/federation.md), in place of options.",
        ),
    ] = None,
    method: Annotated[list[str] | None, METHODS_REPEATED] = None,
    model: Annotated[str | None, MODEL] = None,
    steps: Annotated[int | None, STEPS] = None,
    synchronizations: Annotated[int | None, SYNCHRONIZATIONS] = None,
    plain_sums: Annotated[
        bool,
        typer.Option(
            "--plain-sums",
            help="Let the center see every node's vectors, and add them up itself (docs/security.md).",
        ),
    ] = False,
    resume: ResumeOption = False,
    json: JsonOption = False,
    contributions: Annotated[bool, typer.Option("--contributions", hidden=True)] = False,
) -> None:
    """Carry out a study on the nodes of a running federation; run it on the SuperLink's machine.

    With images it ends like fedkin run, with tables like fedkin fit, where the question is whether to join
    (init --advise) like fedkin advise, and where every node is an owner (init --all) like fedkin map.
    """
    if contributions:
        raise InputError(
            "--contributions trains on groups that differ by one node, and their sums would give this node's "
            "own vectors away: it is for fedkin fit and fedkin advise, where all tables are at hand"
        )
    require_flower()
    from fedkin.flower.jobs.advice import AdviceJob
    from fedkin.flower.jobs.everyone import EveryoneJob
    from fedkin.flower.jobs.loading import load_job
    from fedkin.flower.jobs.study import StudyJob

    layout = Layout(directory)
    federation = layout.read()
    options = {
        "method": method if method is None or len(method) > 1 else method[0],
        "model": model,
        "steps": steps,
        "synchronizations": synchronizations,
    }
    given = {name: value for name, value in options.items() if value is not None}
    path = write_job(layout, federation, study, given, plain_sums=plain_sums)
    job = load_job(path)
    out = out.absolute()
    with trial.connect(layout) as link:
        check_ready(layout, federation, link, out)
        configuration = {"job": str(path), "out": str(out), "resume": resume}
        if isinstance(job, StudyJob):
            Store(out).check(resume=resume)
            with StudyDisplay(notes, show_warnings=True) as display:
                follower = StudyFollower(out, len(job.study.runs()), display)
                failure = wait_for_run(layout, link, configuration, lambda _: follower.poll())
                outcome = follower.outcome()
            if failure is not None and not outcome.failed:
                raise InputError(failure)
            display.repeat_warnings()
            show_outcome(outcome, out, json)
        elif isinstance(job, AdviceJob):
            check_fit_out(out)
            shown = follow_owners(link, configuration, out, layout)
            advice, _ = read_advice(out)
            preprocessing = Preprocessing.load(out / result_directory.PREPROCESSING)
            page = out / result_directory.REPORT
            show_advice(advice, preprocessing, out, page, json, shown=shown)
        elif isinstance(job, EveryoneJob):
            check_fit_out(out)
            shown = follow_owners(link, configuration, out, layout)
            everyone = Collaboration.load(out / map_directory.COLLABORATION)
            map_command.show(everyone, out, json, shown=shown)
        else:
            check_fit_out(out)
            events = EventReader(events_beside(out), only_new=True)
            with notes.status(LEARNING) as status:

                def show(state: control.RunStatus) -> None:
                    status.update(f"{LEARNING} {state.exchanged / 1e6:.1f} MB exchanged")
                    for event in events.new():
                        _show_event(event)

                failure = wait_for_run(layout, link, configuration, show)
            if failure is not None:
                raise InputError(failure)
            read_and_show_fit(out, json)


def follow_owners(link: control.Control, configuration: Job, out: Path, layout: Layout) -> set[str]:
    """Let the program at the center learn for several owners, with one line of progress for all of them.

    Returns:
        The warnings that were shown.
    """
    events, shown = EventReader(events_beside(out), only_new=True), set[str]()
    furthest: dict[str, int] = {}
    with notes.status(LEARNING) as status:

        def show(state: control.RunStatus) -> None:
            for event in events.new():
                if isinstance(event, StepDone):
                    method = event.run.partition(": ")[0]
                    furthest[method] = max(furthest.get(method, 0), event.step)
                elif isinstance(event, Warned):
                    _show_event(event)
                    shown.add(event.message)
            doing = ", ".join(f"{method}: step {step}" for method, step in furthest.items())
            status.update(f"{LEARNING} {doing} ({state.exchanged / 1e6:.1f} MB exchanged)")

        failure = wait_for_run(layout, link, configuration, show)
    if failure is not None:
        raise InputError(failure)
    return shown


def check_fit_out(out: Path) -> None:
    """Refuse a directory that cannot take the result of a fit, before the run starts."""
    if out.is_dir() and any(out.iterdir()):
        raise InputError(f"{out} is not empty: choose another --out")
    result_directory.check_writable(out, force=False)


def check_ready(
    layout: Layout, federation: FederationFile, link: control.Control, out: Path
) -> None:
    """Refuse to begin without a SuperLink, or while a run writes there; print which nodes are missing."""
    if SUPERLINK not in processes.find(federation.id).values():
        raise InputError(
            f"{layout.directory} is down: start it with fedkin federation up {layout.directory}"
        )
    if str(out) in {run.out for run in link.runs_under_way()}:
        raise InputError(
            f"a run for {out} is still under way at the center: wait for it, or stop it with fedkin "
            f"federation stop {layout.directory}"
        )
    states = {node.name: node.status for node in link.nodes()}
    absent = [name for name, status in states.items() if status != "online"]
    if absent:
        print_note(
            f"note: waiting for nodes that are not online: {', '.join(absent)} (see fedkin federation "
            "logs)"
        )


def _show_event(event: Event) -> None:
    """Show how far training is; how it ends is shown with the result."""
    if isinstance(event, RunStarted | StepDone):
        print_note(event_text(event))
    elif isinstance(event, Warned):
        print_warning(event_text(event))


def read_and_show_fit(out: Path, json: bool) -> None:
    """Show the result that the center has written, as `fedkin fit` does."""
    result = load(out / result_directory.MODEL)
    metrics = json_module.loads((out / result_directory.METRICS).read_text(encoding="utf-8"))
    fit.show_fit(result, read_rows(out), metrics, out, json)
