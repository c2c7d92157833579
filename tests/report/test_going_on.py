"""A study that was collected in part is finished elsewhere: nothing is run twice, nothing lost."""

import shutil

import pytest
from typer.testing import CliRunner

from fedkin.cli import app
from fedkin.errors import InputError
from fedkin.experiments.store import Store
from fedkin.report import condensed

STUDY = """
dataset = "digits"
setting = 2
method = ["fedavg", "bilevel", "pfedme"]
seed = {seeds}
model = "logistic"
steps = 2
tune_steps = 2
follow_bilevel = true

[settings]
period = 5
rounds = 2

[tune.bilevel]
learning_rate = [1e-6, 0.1]

[tune.pfedme]
proximal = [5.0, 1e-4]
"""
FILES = ("index.csv", "history.csv.gz", "tuning.csv")
TIMES = ("best_seconds", "total_seconds", "reach95_seconds")


def call(*arguments):
    answer = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if answer.exception is not None and not isinstance(answer.exception, SystemExit):
        raise answer.exception
    return answer


def write_study(results, seeds="[0, 1]"):
    file = results / "studies" / "digits.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(STUDY.format(seeds=seeds))
    return file


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Run a study whole, and its first seed alone, as what was collected of it."""
    place = tmp_path_factory.mktemp("made")
    for name, seeds in (("whole", "[0, 1]"), ("half", "[0]")):
        store = place / name / "store" / "digits"
        results = place / name / "results"
        call("run", write_study(results, seeds), "--out", store)
        condensed.read_store(store, results).write()
    write_study(place / "half" / "results")
    return place


@pytest.fixture
def half(made, tmp_path):
    """Return results that have the study's first seed only; no store of it is left."""
    shutil.copytree(made / "half" / "results", tmp_path / "results")
    return tmp_path / "results"


def outcome(results):
    rows = condensed.read_table(results / "digits" / "index.csv")
    return [{key: value for key, value in row.items() if key not in TIMES} for row in rows]


def test_what_is_missing_is_run_with_the_parameters_that_were_chosen(made, half, tmp_path):
    store = tmp_path / "digits"
    former = {name: (half / "digits" / name).read_text() for name in ("index.csv", "tuning.csv")}
    answer = call(
        "run", half / "studies" / "digits.toml", "--out", store, "--collected", half, "--jobs", 2
    )
    assert "has 3 runs of digits already" in answer.output
    assert {config.seed for config, *_ in Store(store).finished()} == {1}
    assert list(Store(store).tuning.iterdir()) == []

    condensed.read_store(store, half, keep=True).write()
    assert outcome(half) == outcome(made / "whole" / "results")
    assert (half / "digits" / "tuning.csv").read_text() == former["tuning.csv"]
    rows = (half / "digits" / "index.csv").read_text().splitlines()
    assert set(former["index.csv"].splitlines()) < set(rows)  # to the last digit

    again = call(
        "run", half / "studies" / "digits.toml", "--out", tmp_path / "new", "--collected", half
    )
    assert "has 6 runs of digits already" in again.output
    assert Store(tmp_path / "new").finished() == []


def test_collecting_a_store_twice_changes_nothing(made, half):
    store = made / "half" / "store" / "digits"
    before = [(half / "digits" / name).read_bytes() for name in FILES]
    condensed.read_store(store, half, keep=True).write()
    assert [(half / "digits" / name).read_bytes() for name in FILES] == before


def test_a_study_of_which_nothing_was_collected_is_run_whole(half, tmp_path):
    shutil.rmtree(half / "digits")
    store = tmp_path / "digits"
    call("run", half / "studies" / "digits.toml", "--out", store, "--collected", half)
    assert len(Store(store).finished()) == 6


def test_runs_whose_parameters_were_chosen_otherwise_are_not_put_together(half, tmp_path):
    file = write_study(half, "[1]")
    file.write_text(file.read_text().replace("[1e-6, 0.1]", "[0.05]"))
    store = tmp_path / "digits"
    call("run", file, "--out", store)
    write_study(half)
    before = (half / "digits" / "index.csv").read_bytes()
    with pytest.raises(InputError, match=r"different parameters.*--collected"):
        call("compare", half, "--add", store, "--keep")
    assert (half / "digits" / "index.csv").read_bytes() == before


def test_mistakes(half, tmp_path):
    study = half / "studies" / "digits.toml"
    other = tmp_path / "other.toml"
    other.write_text(study.read_text())
    out = tmp_path / "out"
    with pytest.raises(InputError, match=r"no file .*other\.toml"):
        call("run", other, "--out", out, "--collected", half)
    with pytest.raises(InputError, match="no file"):
        call("run", study, "--out", out, "--collected", tmp_path / "nowhere")
    with pytest.raises(InputError, match="exclude each other"):
        call("compare", half, "--keep", "--replace")
    (half / "digits" / "history.csv.gz").write_bytes(b"damaged")
    with pytest.raises(InputError, match="damaged"):
        call("run", study, "--out", out, "--collected", half)
    assert not out.exists()
