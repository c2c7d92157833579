"""What version 0.1 has left behind: it loads, or is refused with a sentence that says what to do.

The files in `data_files` were written by that version: `saved_by_0.1.fedkin` by `fit` on three nodes with
two features, then `Result.save`; `checkpoint_of_0.1.npz` by Bi-level after one outer step on three nodes
with two features.
"""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedkin
from fedkin.errors import InputError
from fedkin.report.reading import read_record
from fedkin.studies.cell import do_run
from fedkin.studies.config import RunConfig
from fedkin.studies.store import RunDirectory, Store, pack_arrays
from fedkin.training.problem import Problem, simulation

DATA_FILES = Path(__file__).parents[1] / "data_files"


def test_a_saved_model_loads():
    result = fedkin.load(DATA_FILES / "saved_by_0.1.fedkin")
    # As that version printed them.
    assert result.weights == pytest.approx(
        {"north": 0.46949, "south": 0.44718, "west": 0.08333}, abs=1e-5
    )
    assert (result.cost.synchronizations, result.cost.bytes_up, result.cost.points) == (
        17,
        1356,
        6420,
    )
    points = np.array([[1.0, 0.5], [-1.0, 0.5]])
    np.testing.assert_allclose(
        result.predict_proba(points), [[0.02704885, 0.97295117], [0.9715792, 0.02842082]], atol=1e-6
    )
    assert list(result.predict(points)) == ["yes", "no"]
    assert result.stopped == "stopped: reached the limit of 2 outer steps"
    assert len(result.history) == 2


def test_a_checkpoint_is_refused(tmp_path):
    checkpoint = tmp_path / "checkpoint.npz"
    shutil.copy(DATA_FILES / "checkpoint_of_0.1.npz", checkpoint)
    draw = np.random.default_rng(0)
    nodes = {name: (draw.normal(size=(20, 2)), np.arange(20) % 2) for name in "abc"}
    made = Problem.build(
        simulation(nodes, batch_size=10, seed=0), nodes["a"], classes=np.arange(2), batch_size=10
    )
    method = fedkin.Bilevel(learning_rate=0.1, period=2, rounds=2)
    with pytest.raises(InputError, match=r"made with other .*versions \(fedkin 0\.1\.0") as refused:
        made.train(method, checkpoint=checkpoint)
    assert "delete the checkpoint to start this run over" in str(refused.value)


CONFIG = """{
  "format": 1,
  "config": {
    "dataset": "digits", "setting": 2, "declared": null, "target": "minority", "method": "bilevel",
    "seed": 0, "model": "logistic", "synchronizations": 100, "points": null, "steps": 2,
    "batch_size": 50, "minority_nodes": 5, "majority_nodes": 10, "train_size": null,
    "validation_size": null, "test_size": null,
    "settings": {
      "preset": "paper", "learning_rate": 0.05, "period": 5, "rounds": 2, "refresh_probability": null,
      "averaging": null, "cap": null, "solver": null, "damping": null, "solver_iterations": null,
      "adjoint_learning_rate": null, "outer": null, "outer_learning_rate": null, "warm_start": null,
      "warm_start_adjoint": null, "proximal": null, "personal_steps": null
    }
  },
  "versions": {"fedkin": "0.1.0"}
}"""
NAME = "digits-2-minority-bilevel-0-f8b6d78ac67b"
"""The directory that version 0.1 gave to that run."""


def former_store(path):
    """A store as version 0.1 wrote it: the open parameters are there, as null; what is new is not."""
    run = path / "runs" / NAME
    run.mkdir(parents=True)
    (path / "study.json").write_text('{"format": 1, "study": {"dataset": ["digits"]}}')
    columns = ["step", "synchronizations", "rounds", "points", "bytes_up", "bytes_down", "seconds"]
    history = pd.DataFrame([dict.fromkeys(columns, step) for step in (1, 2)])
    history["test_accuracy"] = [0.5, 0.6]
    files = {
        "config.json": CONFIG.encode(),
        "history.parquet": history.to_parquet(index=False),
        "weights.json": b"{}",
        "data.json": b"{}",
        "models.npz": pack_arrays({"best": np.zeros(3), "last": np.zeros(3)}),
    }
    for name, content in files.items():
        (run / name).write_bytes(content)
    checksums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    (run / "finished.json").write_text(json.dumps({"step": 2, "files": checksums}))
    return run


def test_a_store_is_read_and_its_runs_are_not_done_again(tmp_path):
    run = former_store(tmp_path)
    table = fedkin.results(tmp_path, best=True)
    assert list(table.test_accuracy) == [0.6]
    assert table.parameters[0] == "preset=paper learning_rate=0.05 period=5 rounds=2"
    [(config, _, path)] = Store(tmp_path).finished()
    assert path == run
    asked = RunConfig(
        dataset="digits",
        setting=2,
        model="logistic",
        synchronizations=100,
        steps=2,
        settings={"preset": "paper", "learning_rate": 0.05, "period": 5, "rounds": 2},
    )
    assert asked == config
    directory = RunDirectory(tmp_path / "runs", asked)
    assert directory.path == run
    directory.create()
    assert directory.is_finished()


def test_the_preset_of_a_study_that_named_none_was_the_paper_s(tmp_path):
    run = former_store(tmp_path)
    study = json.loads((tmp_path / "study.json").read_text())["study"]
    study |= {"setting": [2], "method": ["bilevel"], "model": "logistic", "steps": 2}
    study |= {"synchronizations": 100}
    study |= {"settings": {"learning_rate": 0.05, "period": 5, "rounds": 2}}
    (tmp_path / "study.json").write_text(json.dumps({"format": 1, "study": study}))
    record = read_record(tmp_path)
    assert [each.name for each in record.runs] == [run.name]
    assert record.missing == []


def test_a_run_of_a_store_that_was_interrupted_says_what_to_do(tmp_path):
    run = former_store(tmp_path)
    (run / "finished.json").unlink()
    shutil.copy(DATA_FILES / "checkpoint_of_0.1.npz", run / "checkpoint.npz")
    config = RunConfig.model_validate(json.loads(CONFIG)["config"])
    with pytest.raises(InputError, match=r"0\.1\.0.*delete the checkpoint to start this run over"):
        do_run(config, tmp_path / "runs")
    (run / "checkpoint.npz").unlink()
    do_run(config, tmp_path / "runs")
    assert RunDirectory(tmp_path / "runs", config).is_finished()
