"""Carrying out a study: tuning, then every run, in one process or several."""

import json
import multiprocessing
import os
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from fedkin.compilation import keep_compiled_code_like_parent
from fedkin.data.sources import data_directory as find_data_directory
from fedkin.data.sources import resolve
from fedkin.errors import FedkinError, InputError
from fedkin.events import EVENTS_FILE, Event, EventReader, OnEvent, RunFailed
from fedkin.files import write_atomically
from fedkin.studies.cell import RunEngine, do_run, simulate
from fedkin.studies.cluster import Cluster
from fedkin.studies.config import (
    CELL_FIELDS,
    FOLLOWED,
    RunConfig,
    StudyConfig,
    with_same_choices,
    with_settings,
)
from fedkin.studies.everyone import do_run_for_all
from fedkin.studies.store import RunDirectory, Store, read_finished

POLL_SECONDS = 0.2
"""How often the events of runs in other processes are read."""


class Display(Protocol):
    """Shows the progress of a study."""

    def begin(self, phase: str, total: int, finished: int) -> None:
        """Show that a phase of `total` runs begins, of which some are finished already."""
        ...

    def event(self, event: Event) -> None:
        """Show what a run reports."""
        ...

    def done(self, run: str, error: str | None) -> None:
        """Show that a run is finished, or why it failed."""
        ...


@dataclass(frozen=True)
class StudyOutcome:
    """How the runs of a study ended."""

    finished: int
    failed: dict[str, str]
    """The runs that failed, with the reason."""
    failed_trials: dict[str, str]
    """The short runs of tuning that failed; their parameters were not chosen."""

    @property
    def failure(self) -> str | None:
        """How many runs failed, and why the first did; None if none did."""
        if not self.failed:
            return None
        total, first = len(self.failed) + self.finished, next(iter(self.failed.values()))
        return f"{len(self.failed)} of {total} runs failed; the first: {first}"


def carry_out(
    study: StudyConfig,
    directory: Path,
    *,
    resume: bool,
    jobs: int,
    display: Display,
    data_directory: Path | None = None,
    engine: RunEngine = simulate,
    elsewhere: Sequence[RunConfig] = (),
    cluster: Cluster | None = None,
) -> StudyOutcome:
    """Do all runs of a study that are not finished yet.

    A run that fails, for example because its training diverges, does not stop the others. Only a
    simulation can do several runs at the same time.

    Args:
        study: What to run.
        directory: Where the results are kept.
        resume: Whether the directory may already contain a part of the study.
        jobs: How many runs to do at the same time.
        display: Shows the progress.
        data_directory: Where data sets are; by default `FEDKIN_DATA`.
        engine: Makes the federation of a run.
        elsewhere: Finished runs of the study that are kept elsewhere. They are not repeated, and the
            parameters chosen for them are used for the same run with another seed.
        cluster: Does the runs in place of this machine's processes; it is connected.
    """
    if jobs < 1:
        raise InputError(f"--jobs must be 1 or more, not {jobs}")
    find_data_directory(
        data_directory
    )  # one that does not exist is refused, even if no run needs it
    left = Counter(run.dataset for run in study.runs()) - Counter(run.dataset for run in elsewhere)
    for dataset in left:
        resolve(dataset, data_directory)  # an unknown data set is refused before any run
    store = Store(directory)
    store.open(resume=resume)
    run_all = partial(
        _run_all,
        jobs=jobs,
        display=display,
        data_directory=data_directory,
        engine=engine,
        cluster=cluster,
    )
    with store.locked():
        store.write_study(study)
        runs, failed, failed_trials = _tune(study, store, run_all, elsewhere)
        store.select(runs)
        kept = {run.directory for run in elsewhere}
        runs = [
            run
            for run in runs
            if run.directory not in kept or RunDirectory(store.runs, run).is_finished()
        ]
        failed |= run_all(runs, store.runs, "running", after_run=store.write_index)
        store.write_index()
    finished = sum(RunDirectory(store.runs, run).is_finished() for run in runs)
    return StudyOutcome(finished, failed, failed_trials)


def _tune(
    study: StudyConfig,
    store: Store,
    run_all: Callable[..., dict[str, str]],
    elsewhere: Sequence[RunConfig],
) -> tuple[list[RunConfig], dict[str, str], dict[str, str]]:
    """Choose the parameters of every run: Bi-level first, since the others may follow it.

    Returns:
        The runs; those left out because all their trials failed, with the reason; and the trials that
        failed, with theirs.
    """
    tuned: list[RunConfig] = []
    choices: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    failed_trials: dict[str, str] = {}
    followed: dict[tuple[str, int], dict[str, Any]] = {}
    runs = study.runs()
    leaders = [run for run in runs if run.method == "bilevel"]
    for group in (leaders, [run for run in runs if run.method != "bilevel"]):
        group = [with_settings(run, followed.get((run.cell, run.seed), {})) for run in group]
        settled = [_chosen_elsewhere(run, study, elsewhere) for run in group]
        candidates = [
            study.candidates(run) if chosen is None else []
            for run, chosen in zip(group, settled, strict=True)
        ]
        trials = {each.directory: each for of_run in candidates for each in of_run}
        if trials:
            failed_trials |= run_all(trials.values(), store.tuning, "tuning")
        for run, known, tried in zip(group, settled, candidates, strict=True):
            try:
                chosen, record = _choose(known or run, tried, store, failed_trials)
            except InputError as error:
                left_out[run.directory] = str(error)
                continue
            if record is not None:
                choices[chosen.directory] = record
            if study.follow_bilevel and run.method == "bilevel":
                given = chosen.settings
                followed[run.cell, run.seed] = {
                    name: given[name] for name in FOLLOWED if name in given
                }
            tuned.append(chosen)
    if choices:
        write_atomically(store.path / "tuning.json", json.dumps(choices, indent=2).encode())
    # One seed after the other: a study that is half done then has results in every cell.
    order = {(run.cell, run.method): place for place, run in enumerate(runs)}
    tuned.sort(key=lambda run: (study.seed.index(run.seed), order[run.cell, run.method]))
    return tuned, left_out, failed_trials


def _chosen_elsewhere(
    run: RunConfig, study: StudyConfig, elsewhere: Iterable[RunConfig]
) -> RunConfig | None:
    """Return the run with the parameters chosen for it with any seed, or in any cell, if there are any."""
    grid = study.tune.get(run.method, {})
    ignored = ("seed", *CELL_FIELDS) if study.tune_once else ("seed",)
    for other in elsewhere:
        if other.method != run.method:
            continue
        chosen = with_same_choices(other, run, grid)
        same = {name: getattr(other, name) for name in ignored}
        if chosen is not None and chosen.model_copy(update=same) == other:
            return chosen
    return None


def _choose(
    run: RunConfig, trials: list[RunConfig], store: Store, failed: Mapping[str, str]
) -> tuple[RunConfig, dict[str, Any] | None]:
    """Give a run the parameters of its best trial: the highest validation accuracy at the end.

    Returns:
        The run, and what was tried with which outcome; None if there was nothing to tune.
    """
    if not trials:
        return run, None
    scores = [_trial_score(store.tuning / trial.directory) for trial in trials]
    best = max(range(len(trials)), key=lambda number: scores[number] or (-1.0, 0.0))
    if scores[best] is None:
        raise InputError(
            f"all {len(trials)} combinations of parameters failed for {run.method} on {run.cell}; the "
            f"first: {failed[trials[0].directory]} (every {EVENTS_FILE} in {store.tuning} "
            "has the details)"
        )
    record = {
        "chosen": trials[best].settings,
        "trials": [
            {
                "parameters": trial.settings,
                "validation_accuracy": None if score is None else score[0],
            }
            for trial, score in zip(trials, scores, strict=True)
        ],
    }
    return with_settings(run, trials[best].settings), record


def _trial_score(path: Path) -> tuple[float, float] | None:
    if read_finished(path) is None:
        return None
    last = pd.read_parquet(path / "history.parquet").iloc[-1]
    return float(last.validation_accuracy), -float(last.validation_loss)


def _run_all(
    runs: Iterable[RunConfig],
    parent: Path,
    phase: str,
    *,
    jobs: int,
    display: Display,
    data_directory: Path | None,
    engine: RunEngine,
    cluster: Cluster | None,
    after_run: Callable[[], None] = lambda: None,
) -> dict[str, str]:
    """Do the runs that are not finished; return those that failed, with the reason."""
    runs = list(runs)
    pending = [run for run in runs if not RunDirectory(parent, run).is_finished()]
    display.begin(phase, len(runs), len(runs) - len(pending))
    failed: dict[str, str] = {}

    def finish(run: RunConfig, error: str | None) -> None:
        if error is not None:
            failed[run.directory] = error
        display.done(run.directory, error)
        after_run()

    if cluster is not None:
        cluster.do_runs(pending, parent, display, data_directory, finish)
    elif jobs == 1 or len(pending) <= 1:
        for run in pending:
            finish(run, attempt(run, parent, data_directory, display.event, engine))
    else:
        _in_processes(pending, parent, jobs, display, data_directory, finish)
    return failed


def attempt(
    run: RunConfig,
    parent: Path,
    data_directory: Path | None,
    on_event: OnEvent | None,
    engine: RunEngine = simulate,
) -> str | None:
    """Do one run; return why it failed, or None."""
    directory = RunDirectory(parent, run)
    try:
        if run.target == "all" and engine is simulate:
            do_run_for_all(run, parent, data_directory=data_directory, on_event=on_event)
        else:
            do_run(run, parent, data_directory=data_directory, engine=engine, on_event=on_event)
    except FedkinError as error:
        reason = " ".join([str(error), *getattr(error, "__notes__", [])])
        if directory.path.is_dir():
            # A report then says why the run is missing.
            directory.record(RunFailed(run=run.directory, reason=reason))
        return reason
    except Exception as error:
        # A fault of fedkin itself: the other runs continue, and the traceback is kept.
        reason = f"{type(error).__name__}: {error}"
        directory.record(
            RunFailed(run=run.directory, reason=reason, traceback=traceback.format_exc())
        )
        return f"{reason} (a fault in fedkin; the traceback is in {directory.events})"
    return None


def _start_worker(shares: Any) -> None:
    """Confine a worker to its share of the cores, so that workers do not slow each other down.

    XLA sizes its thread pools by the cores that a process may use when it first runs.
    """
    keep_compiled_code_like_parent()
    share = shares.get()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, share)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()


def _end_with_parent(parent: int) -> None:
    """End a worker whose parent was killed: it must not run alongside a resumed study."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def _in_processes(
    runs: list[RunConfig],
    parent: Path,
    jobs: int,
    display: Display,
    data_directory: Path | None,
    finish: Callable[[RunConfig, str | None], None],
) -> None:
    """Do runs in worker processes, and show the events that they write to their directories."""
    jobs = min(jobs, len(runs))  # each process has its share of the cores to itself
    context = multiprocessing.get_context("spawn")
    shares = context.Queue()
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    for worker in range(jobs):
        shares.put(set(cores[worker::jobs]) or {cores[worker % len(cores)]})
    readers = {
        run.directory: EventReader(RunDirectory(parent, run).events, only_new=True) for run in runs
    }
    pool = ProcessPoolExecutor(jobs, context, initializer=_start_worker, initargs=(shares,))
    try:
        pending: dict[Future[str | None], RunConfig] = {
            pool.submit(attempt, run, parent, data_directory, None): run for run in runs
        }
        while pending:
            done, _ = wait(pending, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
            for future, run in pending.items():
                if future in done or future.running():
                    for event in readers[run.directory].new():
                        display.event(event)
            for future in done:
                finish(pending.pop(future), future.result())
    except BrokenProcessPool as error:
        raise InputError(
            "a worker process ended unexpectedly (out of memory?): finished runs are kept; continue "
            "with --resume, perhaps with fewer --jobs"
        ) from error
    finally:
        workers = list(pool._processes.values())
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.terminate()
