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


@pytest.mark.parametrize("method", get_args(MethodName))
def test_a_study_killed_at_random_moments_ends_with_the_same_bits(method, tmp_path):
    study = tmp_path / "study.toml"
    study.write_text(STUDY.format(method=method))
    (run,) = load_study(study).runs()
    run_cell(run, tmp_path / "whole" / "runs")
    generator = random.Random(method)
    kills = 0
    killed = tmp_path / "killed"
    checkpoint = RunDirectory(killed / "runs", run).checkpoint
    for _ in range(KILLS_A_METHOD):
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else None
        process = start(study, killed, *(["--resume"] if killed.exists() else []))
        while process.poll() is None and not (
            checkpoint.exists() and checkpoint.stat().st_mtime_ns != before
        ):
            time.sleep(0.005)
        time.sleep(generator.random() * 0.2)
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
    assert kills == KILLS_A_METHOD
    assert start(study, killed, "--resume").wait(timeout=300) == 0
    assert files(killed / "runs", run) == files(tmp_path / "whole" / "runs", run)
