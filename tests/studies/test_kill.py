"""Studies killed without warning, at moments that nobody chose, end with the same bits."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from fedkin.events import EventReader, StepDone
from fedkin.methods.registry import PAPER_METHODS
from fedkin.studies.cell import do_run
from fedkin.studies.store import RunDirectory
from fedkin.studies.study_file import load_study
from run_files import files

TIMES = int(os.environ.get("FEDKIN_KILLS", "1"))
"""How often the study is done; each time it is killed once in each method's run."""

STUDY = """
dataset = "digits"
setting = 2
model = "logistic"
synchronizations = 120

[settings]
learning_rate = 0.05
period = 5
rounds = 4
"""


def start(study, out, *options):
    command = [sys.executable, "-c", "from fedkin.cli.app import main; main()", "run"]
    return subprocess.Popen(
        [*command, str(study), "--out", str(out), *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def steps_done(directory):
    return sum(isinstance(event, StepDone) for event in EventReader(directory.events).new())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Do the study without a disturbance; return its file, its runs and where they are."""
    place = tmp_path_factory.mktemp("whole")
    study = place / "study.toml"
    study.write_text(STUDY)
    runs = load_study(study).runs()
    assert [run.method for run in runs] == list(PAPER_METHODS)
    for run in runs:
        do_run(run, place / "runs")
    return study, runs, place / "runs"


@pytest.mark.slow
@pytest.mark.parametrize("number", range(TIMES))
def test_a_study_killed_at_random_moments_ends_with_the_same_bits(whole, number, tmp_path):
    study, runs, expected = whole
    generator = random.Random(number)
    out, options = tmp_path / "killed", []
    for run in runs:
        directory = RunDirectory(out / "runs", run)
        steps = steps_done(RunDirectory(expected, run))
        # Anywhere from before the first step to while the results are written.
        last_step = generator.randrange(steps + 1)
        process = start(study, out, *options)
        while process.poll() is None and (
            not directory.path.exists() or steps_done(directory) < last_step
        ):
            time.sleep(0.002)
        time.sleep(generator.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        status = process.wait()
        at_the_end = run is runs[-1] and last_step == steps
        assert status == -signal.SIGKILL or at_the_end, (
            f"{run.method} ended before step {last_step}"
        )
        options = ["--resume"]
    assert start(study, out, *options).wait(timeout=300) == 0
    for run in runs:
        assert files(out / "runs", run) == files(expected, run)
