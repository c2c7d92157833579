import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import fedkin
from fedkin.studies.config import RunConfig
from fedkin.studies.store import RunDirectory, Store, pack_arrays
from fedkin.studies.study_file import check_study

STUDY = check_study({"dataset": "digits", "setting": [1, 2], "method": "fedavg"}, "study.toml")
FILES = {
    "history.parquet": pd.DataFrame(
        {"step": [1, 2], "validation_accuracy": [0.5, 0.4], "test_accuracy": [0.3, 0.6]}
    ).to_parquet(),
    "weights.json": b"null",
    "data.json": b"{}",
    "models.npz": pack_arrays({"best": np.zeros(3)}),
}


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "out")
    store.open(resume=False)
    store.write_study(STUDY)
    return store


def finish(store, config):
    directory = RunDirectory(store.runs, config)
    directory.create()
    directory.checkpoint.write_bytes(b"unfinished")
    assert not directory.is_finished()
    directory.finish({"step": 1, "test_accuracy": 0.3}, FILES)
    return directory


def test_results_are_one_table(store):
    for config in STUDY.runs():
        finish(store, config)
    table = fedkin.results(store.path)
    assert list(table.setting) == ["1", "1", "2", "2"]
    assert list(table.columns[:7]) == [
        "dataset",
        "setting",
        "target",
        "method",
        "seed",
        "parameters",
        "run",
    ]
    best = fedkin.results(store.path, best=True)
    assert list(best.test_accuracy) == [
        0.3,
        0.3,
    ]  # at the best validation accuracy, not the best test
    store.write_index()
    index = pd.read_csv(store.path / "index.csv")
    assert list(index.run) == [config.directory for config in STUDY.runs()]


def test_a_finished_run_leaves_no_checkpoint_and_a_damaged_file_makes_it_unfinished(store):
    directory = finish(store, STUDY.runs()[0])
    assert directory.is_finished()
    assert not directory.checkpoint.exists()
    history = directory.path / "history.parquet"
    history.write_bytes(history.read_bytes()[:-10])
    assert not directory.is_finished()
    with (
        pytest.warns(UserWarning, match="1 runs in .* have a damaged file"),
        pytest.raises(fedkin.InputError, match="no finished run"),
    ):
        fedkin.results(store.path)


def test_a_damaged_study_file_costs_no_finished_run(store):
    finish(store, STUDY.runs()[0])
    file = store.path / "study.json"
    file.write_text("{")
    with pytest.raises(fedkin.InputError, match=r"delete it and run the study again .* --resume"):
        store.open(resume=True)
    file.unlink()
    store.open(resume=True)
    store.write_study(STUDY)
    assert len(fedkin.results(store.path, best=True)) == 1


def test_an_edited_config_is_refused(store):
    directory = finish(store, STUDY.runs()[0])
    file = directory.path / "config.json"
    file.write_text(file.read_text().replace('"seed": 0', '"seed": 9'))
    with pytest.raises(fedkin.InputError, match="was edited"):
        directory.create()
    file.write_text("{")
    with pytest.raises(fedkin.InputError, match="damaged or was edited"):
        directory.create()


def test_another_version_is_refused(store):
    finish(store, STUDY.runs()[0])
    file = store.path / "study.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 99}))
    for action in (lambda: store.open(resume=True), lambda: fedkin.results(store.path)):
        with pytest.raises(fedkin.InputError, match="format 99"):
            action()


def test_a_study_is_gone_on_with_only_when_asked(store, tmp_path):
    with pytest.raises(fedkin.InputError, match="add --resume"):
        store.open(resume=False)
    store.open(resume=True)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").touch()
    with pytest.raises(fedkin.InputError, match="has other files"):
        Store(other).open(resume=True)


def test_places_that_hold_no_study_are_refused(tmp_path):
    with pytest.raises(fedkin.InputError, match="there is no directory"):
        fedkin.results(tmp_path / "none")
    with pytest.raises(fedkin.InputError, match="has no study"):
        fedkin.results(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(fedkin.InputError, match="cannot write"):
        Store(tmp_path / "file" / "below").open(resume=False)


def test_a_full_disk_is_reported_and_loses_nothing(store):
    """A limit on the size of files makes the system refuse the write, as a full disk would."""
    directory = finish(store, STUDY.runs()[0])
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from fedkin.errors import InputError\n"
        "from fedkin.files import write_atomically\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "try:\n"
        "    write_atomically(Path(sys.argv[1]), bytes(10_000))\n"
        "except InputError as error:\n"
        "    sys.exit(str(error))\n"
    )
    before = (directory.path / "models.npz").read_bytes()
    answer = subprocess.run(
        [sys.executable, "-c", script, directory.path / "models.npz"],
        capture_output=True,
        text=True,
    )
    assert "cannot write" in answer.stderr
    assert "make room" in answer.stderr
    assert (directory.path / "models.npz").read_bytes() == before
    assert directory.is_finished()
    assert not list(directory.path.glob("*.partial"))


def test_the_config_is_written_with_versions(store):
    directory = RunDirectory(store.runs, RunConfig(dataset="digits", setting=3))
    directory.create()
    content = json.loads((directory.path / "config.json").read_text())
    assert content["versions"]["fedkin"] == fedkin.__version__
    assert {"jax", "numpy", "python"} <= set(content["versions"])


def edit(directory, change):
    """Change what the outcome of a finished run says."""
    file = directory.path / "finished.json"
    content = json.loads(file.read_text())
    changed = change(content)
    file.write_text(json.dumps(content if changed is None else changed))


@pytest.mark.parametrize(
    "change",
    [
        lambda outcome: outcome.update(test_accuracy=0.99),
        lambda outcome: outcome.update(step=2),
        lambda outcome: outcome.update(stopped="budget"),
        lambda outcome: outcome.update(checksum="0" * 64),
        lambda outcome: outcome.update(checksum=[]),
    ],
)
def test_an_edited_outcome_makes_a_run_unfinished(store, change):
    """It is in its own checksum: the accuracy of a paper's table is not a matter of an editor."""
    directory = finish(store, STUDY.runs()[0])
    assert directory.is_finished()
    edit(directory, change)
    assert not directory.is_finished()
    assert store.finished() == []


def without_checksum(outcome, **values):
    return {name: value for name, value in outcome.items() if name != "checksum"} | values


@pytest.mark.parametrize(
    "change",
    [
        lambda outcome: [],
        lambda outcome: "finished",
        lambda outcome: without_checksum(outcome, files=[]),
        lambda outcome: without_checksum(outcome, files={"config.json": 1}),
        lambda outcome: without_checksum(
            outcome, files=outcome["files"] | {"../../secret": "0" * 64}
        ),
        lambda outcome: without_checksum(outcome, step="two"),
        lambda outcome: without_checksum(outcome, test_accuracy={"a": 1}),
        lambda outcome: without_checksum(outcome, stopped="\x1b[2J"),
    ],
)
def test_an_outcome_of_the_wrong_form_makes_a_run_unfinished(store, change):
    directory = finish(store, STUDY.runs()[0])
    edit(directory, change)
    assert not directory.is_finished()
    assert store.finished() == []


def test_an_outcome_that_is_nested_deeply_makes_a_run_unfinished(store):
    directory = finish(store, STUDY.runs()[0])
    (directory.path / "finished.json").write_text("[" * 100_000)
    assert not directory.is_finished()


def test_a_run_of_an_earlier_version_is_finished_without_a_checksum_of_its_outcome(store):
    directory = finish(store, STUDY.runs()[0])
    edit(directory, without_checksum)
    assert directory.is_finished()
    assert [outcome["step"] for _, outcome, _ in store.finished()] == [1]
