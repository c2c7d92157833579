"""Secure sums with real SuperLink, SuperNode and worker processes: results of plain sums, and no vectors."""

import json
import re

import numpy as np
import pytest

from fedkin.studies.store import RunDirectory
from flower.processes import Processes, wait_until
from flower.recorder import Recorder
from flower.trials import NAMES, config, outcome, settings

PATIENCE = 900

STUDY = """
dataset = "digits"
setting = 2
method = "{method}"
model = "logistic"
steps = 2
minority_nodes = 1
majority_nodes = 2

[federation]
plain-sums = {plain}

[settings]
"""


class Trial:
    """Three nodes, the first of them behind a recorder."""

    def __init__(self, directory):
        self.directory, self.processes = directory, Processes(directory)
        self.processes.start_superlink()
        self.recorder = Recorder(self.processes.port)
        for name in NAMES:
            link = self.recorder.port if name == NAMES[0] else None
            state = directory / "state" / name
            self.processes.start_node(superlink=link, **settings(name, state=state))

    def learn(self, case, *, plain):
        """Do a run; return its result, and the arrays that the first node has sent, with their types."""
        # A study has a default budget, which is part of the run's name.
        run = config(case).model_copy(update={"synchronizations": 800})
        out = self.directory / f"{case}-{plain}"
        study = self.directory / f"{out.name}.toml"
        lines = [f"{name} = {json.dumps(value)}" for name, value in run.settings.items()]
        written = STUDY.format(method=run.method, plain=json.dumps(plain))
        study.write_text(written + "\n".join(lines))
        before = len(self.recorder.recorded["up"])
        self.processes.submit(study, out)
        directory = RunDirectory(out / "runs", run)
        wait_until(directory.is_finished, PATIENCE, f"the end of {out.name}")
        sent = bytes(self.recorder.recorded["up"][before:])
        kinds = {match[1] for match in re.finditer(rb"\.vector\.\w+=(\w\d):", sent)}
        return outcome(out / "runs", run), kinds, sent

    def stop(self):
        self.processes.stop()
        self.recorder.close()


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    made = Trial(tmp_path_factory.mktemp("federation"))
    try:
        yield made
    finally:
        made.stop()


@pytest.mark.flower
@pytest.mark.parametrize("case", ["bilevel-cg", "fedavg", "ditto", "pfedme"])
def test_results_are_those_of_plain_sums_and_no_vector_crosses(trial, case):
    (history, models), kinds, sent = trial.learn(case, plain=False)
    (expected, expected_models), plain_kinds, plain_sent = trial.learn(case, plain=True)
    assert (kinds, plain_kinds) == ({b"u8"}, {b"f4"})
    for name, model in expected_models.items():
        difference = np.linalg.norm(models[name] - model) / np.linalg.norm(model)
        print(f"{case}, {name}: {difference:.1e}")  # noqa: T201
        assert difference <= 1e-5
    weights = [column for column in expected.columns if column.startswith("weight ")]
    np.testing.assert_allclose(history[weights], expected[weights], rtol=1e-5, atol=1e-6)
    # What a plain vector looks like on the wire is nowhere in the other recording.
    vectors = [
        plain_sent[match.end() : match.end() + 4000]
        for match in re.finditer(rb"\.vector\.\w+=f4:650", plain_sent)
    ]
    assert vectors
    assert not any(part[200:216] in sent for part in vectors if len(set(part[200:216])) > 8)
