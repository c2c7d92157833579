"""Studies on a real local Ray cluster, whose workers are killed in between."""

import signal
import subprocess
import sys
import time

import psutil
import pytest

from fedkin.errors import InputError
from fedkin.events import EventReader, RunStarted, StepDone, Warned
from fedkin.studies import cluster
from fedkin.studies.cell import do_run
from fedkin.studies.store import RunDirectory
from fedkin.studies.study_file import load_study
from run_files import files

pytest.importorskip("ray", reason="needs the extra cluster")

STUDY = """
dataset = "digits"
setting = 2
method = ["bilevel", "fedavg", "local"]
model = "logistic"
synchronizations = 400

[settings]
learning_rate = 0.05
period = 5
rounds = 1
"""
COMMAND = """
import signal
# Who runs these tests in the background may have told its children to ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
from fedkin.cli.app import main
main()
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Do the study here; return its file, its runs and where they are."""
    place = tmp_path_factory.mktemp("whole")
    study = place / "study.toml"
    study.write_text(STUDY)
    runs = load_study(study).runs()
    for run in runs:
        do_run(run, place / "runs")
    return study, runs, place / "runs"


def start(study, out, *options):
    command = [sys.executable, "-c", COMMAND, "run"]
    return subprocess.Popen(
        [*command, str(study), "--out", str(out), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def workers(parents):
    """The processes that do tasks: those that run one have its name."""
    found = []
    for parent in parents:
        for each in parent.children(recursive=True):
            try:
                if "ray::_task" in " ".join(each.cmdline()):
                    found.append(each)
            except psutil.NoSuchProcess:
                continue
    return found


def wait_for_steps(directory, count, process):
    until = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < until:
        events = EventReader(directory.events).new()
        if sum(isinstance(event, StepDone) for event in events) >= count:
            return
        time.sleep(0.02)
    raise AssertionError(process.communicate())


@pytest.mark.slow
def test_a_killed_worker_of_two_changes_no_bit(whole, tmp_path):
    study, runs, expected = whole
    out = tmp_path / "out"
    process = start(study, out, "--cluster", "local", "--jobs", "2")
    directory = RunDirectory(out / "runs", runs[1])
    wait_for_steps(directory, 3, process)
    at_work = workers([psutil.Process(process.pid)])
    assert len(at_work) == 2
    for worker in at_work:
        worker.kill()
        break
    _, notes = process.communicate(timeout=300)
    assert process.returncode == 0, notes
    for run in runs:
        assert files(out / "runs", run) == files(expected, run)
    events = [EventReader(RunDirectory(out / "runs", run).events).new() for run in runs]
    lost = [each for of_run in events for each in of_run if isinstance(each, Warned)]
    assert len([each for each in lost if "the worker was lost" in each.message]) == 1
    assert "the worker was lost" in notes
    starts = sum(isinstance(each, RunStarted) for of_run in events for each in of_run)
    assert starts in (len(runs), len(runs) + 1)  # it may not have begun yet
    assert not list(out.glob("runs/*/checkpoint*"))


@pytest.mark.slow
def test_ctrl_c_keeps_checkpoints_and_leaves_no_process(whole, tmp_path):
    study, runs, expected = whole
    out = tmp_path / "out"
    process = start(study, out, "--cluster", "local", "--jobs", "2")
    wait_for_steps(RunDirectory(out / "runs", runs[1]), 3, process)
    started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    _, notes = process.communicate(timeout=60)
    assert process.returncode == 130, notes
    assert "continue with the same command and --resume" in notes
    _, alive = psutil.wait_procs(started, timeout=30)
    assert alive == []
    again = start(study, out, "--cluster", "local", "--jobs", "1", "--resume")
    _, notes = again.communicate(timeout=300)
    assert again.returncode == 0, notes
    for run in runs:
        assert files(out / "runs", run) == files(expected, run)


def test_ray_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setattr(cluster, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"--cluster needs ray.*pip install 'fedkin\[cluster\]'"):
        cluster.check_address("local")
