"""Carrying out a study: tune, then run every cell, in one process or several."""

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
from queue import Empty
from typing import Any, Protocol

import pandas as pd

from fedkin.compilation import keep_compiled_code_like_parent
from fedkin.data.sources import resolve
from fedkin.errors import FedkinError, InputError
from fedkin.studies.cell import Engine, run_cell, simulate
from fedkin.studies.config import (
    FOLLOWED,
    RunConfig,
    StudyConfig,
    given_settings,
    with_choices_of,
    with_settings,
)
from fedkin.studies.store import RunDirectory, Store, read_finished
from fedkin.training.checkpoint import write_atomically
from fedkin.training.runner import RunState


@dataclass(frozen=True)
class Report:
    """What a run under way has to tell."""

    run: str
    step: int
    synchronizations: int
    validation_accuracy: float | None
    test_accuracy: float | None


class Display(Protocol):
    """Shows how a study goes on."""

    def begin(self, phase: str, total: int, finished: int) -> None:
        """Show the beginning of a phase of `total` runs, of which some are finished already."""
        ...

    def report(self, report: Report) -> None:
        """Show how a run goes on."""
        ...

    def done(self, run: str, error: str | None) -> None:
        """Show that a run is finished, or why it failed."""
        ...


@dataclass(frozen=True)
class StudyOutcome:
    """What has become of a study's runs."""

    finished: int
    failed: dict[str, str]
    """The runs that failed, with the reason."""
    failed_trials: dict[str, str]
    """The short runs of tuning that failed; their parameters were not chosen."""


def carry_out(
    study: StudyConfig,
    directory: Path,
    *,
    resume: bool,
    jobs: int,
    display: Display,
    data_directory: Path | None = None,
    engine: Engine = simulate,
    elsewhere: Sequence[RunConfig] = (),
) -> StudyOutcome:
    """Do all runs of a study that are not finished yet.

    A run that fails (its training diverges, say) does not stop the others. Only a simulation can do
    several runs at the same time.

    Args:
        study: What is to be run.
        directory: Where the results are kept.
        resume: Whether the directory may hold a part of the study already.
        jobs: How many runs are done at the same time.
        display: Shows how it goes on.
        data_directory: Where data sets are; by default the environment tells.
        engine: What carries out a run.
        elsewhere: Runs of the study that are finished and kept elsewhere. They are not done again, and
            what was chosen for them holds for the same run with another seed.
    """
    if jobs < 1:
        raise InputError(f"--jobs must be 1 or more, not {jobs}")
    left = Counter(run.dataset for run in study.runs()) - Counter(run.dataset for run in elsewhere)
    for dataset in left:
        resolve(dataset, data_directory)  # a name that stands for nothing is refused before any run
    store = Store(directory)
    store.open(resume=resume)
    do = partial(_do, jobs=jobs, display=display, data_directory=data_directory, engine=engine)
    with store.locked():
        store.write_study(study)
        runs, failed, failed_trials = _tune(study, store, do, elsewhere)
        store.select(runs)
        kept = {run.directory for run in elsewhere}
        runs = [
            run
            for run in runs
            if run.directory not in kept or RunDirectory(store.runs, run).is_finished()
        ]
        failed |= do(runs, store.runs, "running", after_run=store.write_index)
        store.write_index()
    finished = sum(RunDirectory(store.runs, run).is_finished() for run in runs)
    return StudyOutcome(finished, failed, failed_trials)


def _tune(
    study: StudyConfig,
    store: Store,
    do: Callable[..., dict[str, str]],
    elsewhere: Sequence[RunConfig],
) -> tuple[list[RunConfig], dict[str, str], dict[str, str]]:
    """Give every run its parameters: Bi-level first, since the others may follow it.

    Returns:
        The runs; those left out because all their trials failed, with the reason; and the trials that
        failed, with theirs.
    """
    tuned: list[RunConfig] = []
    choices: dict[str, Any] = {}
    without: dict[str, str] = {}
    failed: dict[str, str] = {}
    followed: dict[tuple[str, int], dict[str, Any]] = {}
    runs = study.runs()
    leaders = [run for run in runs if run.method == "bilevel"]
    for group in (leaders, [run for run in runs if run.method != "bilevel"]):
        group = [with_settings(run, followed.get((run.cell, run.seed), {})) for run in group]
        settled = [
            _chosen_elsewhere(run, study.tune.get(run.method, {}), elsewhere) for run in group
        ]
        candidates = [
            study.candidates(run) if chosen is None else []
            for run, chosen in zip(group, settled, strict=True)
        ]
        trials = {each.directory: each for of_run in candidates for each in of_run}
        if trials:
            failed |= do(trials.values(), store.tuning, "tuning")
        for run, known, tried in zip(group, settled, candidates, strict=True):
            try:
                chosen, record = _choose(known or run, tried, store, failed)
            except InputError as error:
                without[run.directory] = str(error)
                continue
            if record is not None:
                choices[chosen.directory] = record
            if study.follow_bilevel and run.method == "bilevel":
                given = given_settings(chosen)
                followed[run.cell, run.seed] = {
                    name: given[name] for name in FOLLOWED if name in given
                }
            tuned.append(chosen)
    if choices:
        write_atomically(store.path / "tuning.json", json.dumps(choices, indent=2).encode())
    # One seed after the other: a study that is half done then has something to say on every cell.
    order = {(run.cell, run.method): place for place, run in enumerate(runs)}
    tuned.sort(key=lambda run: (study.seed.index(run.seed), order[run.cell, run.method]))
    return tuned, without, failed


def _chosen_elsewhere(
    run: RunConfig, grid: Mapping[str, list[Any]], elsewhere: Iterable[RunConfig]
) -> RunConfig | None:
    """Return the run with the parameters that were chosen for the same run, with whatever seed."""
    for other in elsewhere:
        chosen = with_choices_of(other, run, grid)
        if chosen is not None and chosen.model_copy(update={"seed": other.seed}) == other:
            return chosen
    return None


def _choose(
    run: RunConfig, trials: list[RunConfig], store: Store, failed: Mapping[str, str]
) -> tuple[RunConfig, dict[str, Any] | None]:
    """Give a run the parameters of its best trial: the highest validation accuracy at the end.

    Returns:
        The run, and what was tried with what outcome; None if nothing was to be tuned.
    """
    if not trials:
        return run, None
    scores = [_trial_score(store.tuning / trial.directory) for trial in trials]
    best = max(range(len(trials)), key=lambda number: scores[number] or (-1.0, 0.0))
    if scores[best] is None:
        raise InputError(
            f"all {len(trials)} combinations of parameters failed for {run.method} on {run.cell}, the "
            f"first since: {failed[trials[0].directory]} (logs in {store.tuning})"
        )
    record = {
        "chosen": given_settings(trials[best]),
        "trials": [
            {
                "parameters": given_settings(trial),
                "validation_accuracy": None if score is None else score[0],
            }
            for trial, score in zip(trials, scores, strict=True)
        ],
    }
    return with_settings(run, given_settings(trials[best])), record


def _trial_score(path: Path) -> tuple[float, float] | None:
    if read_finished(path) is None:
        return None
    last = pd.read_parquet(path / "history.parquet").iloc[-1]
    return float(last.validation_accuracy), -float(last.validation_loss)


def _do(
    runs: Iterable[RunConfig],
    parent: Path,
    phase: str,
    *,
    jobs: int,
    display: Display,
    data_directory: Path | None,
    engine: Engine,
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

    if jobs == 1 or len(pending) <= 1:
        for run in pending:
            finish(run, _attempt(run, parent, data_directory, display.report, engine))
    else:
        _in_processes(pending, parent, jobs, display, data_directory, finish)
    return failed


def _attempt(
    run: RunConfig,
    parent: Path,
    data_directory: Path | None,
    report: Callable[[Report], None],
    engine: Engine = simulate,
) -> str | None:
    """Do one run; return what was wrong, or None."""

    def tell(state: RunState) -> None:
        last = state.history[-1]
        test = None if last.test is None else last.test.accuracy
        report(
            Report(
                run.directory,
                last.step,
                last.cost.synchronizations,
                last.validation.accuracy,
                test,
            )
        )

    try:
        run_cell(run, parent, data_directory=data_directory, engine=engine, after_step=tell)
    except FedkinError as error:
        reason = " ".join([str(error), *getattr(error, "__notes__", [])])
        directory = RunDirectory(parent, run)
        if directory.path.is_dir():
            directory.log(f"failed: {reason}")  # so that a report can tell why the run is missing
        return reason
    except Exception as error:
        # A fault of fedkin's own: the other runs go on, and the traceback is kept for a report.
        RunDirectory(parent, run).log(traceback.format_exc())
        return f"{type(error).__name__}: {error} (a fault of fedkin's; log.txt has the traceback)"
    return None


_reports: Any = None
"""In a worker process: where it sends its reports."""


def _start_worker(reports: Any, shares: Any) -> None:
    """Confine a worker to its share of the cores, so that workers do not get into each other's way.

    XLA sizes its thread pools by the cores a process may use, when it is first used.
    """
    global _reports
    _reports = reports
    keep_compiled_code_like_parent()
    share = shares.get()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, share)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()


def _end_with_parent(parent: int) -> None:
    """End a worker whose parent was killed: it must not work beside a resumed study."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def _work(run: RunConfig, parent: Path, data_directory: Path | None) -> str | None:
    return _attempt(run, parent, data_directory, _reports.put)


def _in_processes(
    runs: list[RunConfig],
    parent: Path,
    jobs: int,
    display: Display,
    data_directory: Path | None,
    finish: Callable[[RunConfig, str | None], None],
) -> None:
    jobs = min(jobs, len(runs))  # each process has its share of the cores to itself
    context = multiprocessing.get_context("spawn")
    reports, shares = context.Queue(), context.Queue()
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    for worker in range(jobs):
        shares.put(set(cores[worker::jobs]) or {cores[worker % len(cores)]})
    pool = ProcessPoolExecutor(jobs, context, initializer=_start_worker, initargs=(reports, shares))
    try:
        waiting: dict[Future[str | None], RunConfig] = {
            pool.submit(_work, run, parent, data_directory): run for run in runs
        }
        while waiting:
            done, _ = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
            _pass_on(reports, display)
            for future in done:
                finish(waiting.pop(future), future.result())
    except BrokenProcessPool as error:
        raise InputError(
            "a worker process ended unexpectedly (out of memory?): nothing that was finished is lost; "
            "continue with --resume, perhaps with fewer --jobs"
        ) from error
    finally:
        workers = list(pool._processes.values())
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.terminate()


def _pass_on(reports: Any, display: Display) -> None:
    while True:
        try:
            display.report(reports.get_nowait())
        except Empty:
            return
