"""Studies killed without warning, at moments that nobody chose, end with the same bits."""

import os
import random
import signal
import subprocess
import sys
import time
from typing import get_args

import pytest

from experiments.test_contract import files
from fedkin.experiments.cell import run_cell
from fedkin.experiments.config import load_study
from fedkin.experiments.methods import MethodName
from fedkin.experiments.store import RunDirectory

KILLS_A_METHOD = int(os.environ.get("FEDKIN_KILLS", "1"))
"""How often each method is killed; five take some minutes."""

STUDY = """
dataset = "digits"
setting = 2
method = ["{method}"]
model = "logistic"
synchronizations = 240

[settings]
learning_rate = 0.05
period = 5
rounds = 4
"""


def start(study, out, *options):
    command = [sys.executable, "-c", "from fedkin.cli import main; main()", "run"]
    return subprocess.Popen(
        [*command, str(study), "--out", str(out), *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def lines_of_log(directory):
    log = directory.path / "log.txt"
    return len(log.read_text().splitlines()) if log.exists() else 0


@pytest.mark.parametrize("method", get_args(MethodName))
def test_a_study_killed_at_random_moments_ends_with_the_same_bits(method, tmp_path):
    study = tmp_path / "study.toml"
    study.write_text(STUDY.format(method=method))
    (run,) = load_study(study).runs()
    run_cell(run, tmp_path / "whole")
    steps = lines_of_log(RunDirectory(tmp_path / "whole", run))
    generator = random.Random(method)
    for number in range(KILLS_A_METHOD):
        killed = tmp_path / f"killed-{number}"
        directory = RunDirectory(killed / "runs", run)
        # Anywhere from before the first step to while the results are written.
        last_step = generator.randrange(steps + 1)
        process = start(study, killed)
        while process.poll() is None and (
            not directory.path.exists() or lines_of_log(directory) < last_step
        ):
            time.sleep(0.002)
        time.sleep(generator.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        status = process.wait()
        assert status == -signal.SIGKILL or last_step == steps, f"ended before step {last_step}"
        assert start(study, killed, "--resume").wait(timeout=300) == 0
        assert files(killed / "runs", run) == files(tmp_path / "whole", run)
