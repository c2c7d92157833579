"""A study that was collected in part is finished elsewhere: nothing is run twice, nothing lost."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from fedkin.errors import InputError
from fedkin.studies.store import Store
from reproduction.commands import app
from reproduction.page import condensed

STUDY = """
dataset = "digits"
setting = 2
method = ["fedavg", "bilevel", "pfedme"]
seed = [0, 1]
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
TIMES = ("seconds", "best_seconds", "total_seconds", "reach95_seconds")


def call(*arguments):
    answer = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if answer.exception is not None and not isinstance(answer.exception, SystemExit):
        raise answer.exception
    return answer


def write_study(results, *changes):
    """Write the study's file, with each former text replaced by a new one."""
    text = STUDY
    for former, new in changes:
        assert text.count(former) == 1
        text = text.replace(former, new)
    file = results / "studies" / "digits.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


FIRST, SECOND = ("seed = [0, 1]", "seed = 0"), ("seed = [0, 1]", "seed = 1")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Run a study whole, and its first seed alone, as what was collected of it."""
    place = tmp_path_factory.mktemp("made")
    for name, changes in (("whole", []), ("half", [FIRST])):
        store = place / name / "store" / "digits"
        results = place / name / "results"
        call("run", write_study(results, *changes), "--out", store)
        condensed.read_store(store, results).write()
    results = place / "half" / "results"
    call("run", write_study(results), "--out", place / "rest" / "digits", "--collected", results)
    return place


@pytest.fixture
def half(made, tmp_path):
    """Return results that have the study's first seed only; no store of it is left."""
    shutil.copytree(made / "half" / "results", tmp_path / "results")
    return tmp_path / "results"


def read_rows(results, name="index.csv"):
    rows = condensed.read_table(results / "results" / "digits" / name)
    return [{key: value for key, value in row.items() if key not in TIMES} for row in rows]


def read_history(results):
    return pd.read_csv(results / "results" / "digits" / "history.csv.gz").drop(columns="seconds")


def read_files(results):
    return [(results / "results" / "digits" / name).read_bytes() for name in FILES]


def test_only_what_is_missing_is_run_with_the_parameters_that_were_chosen(made):
    store = Store(made / "rest" / "digits")
    assert {config.seed for config, *_ in store.finished()} == {1}
    assert len(store.finished()) == 3
    assert list(store.tuning.iterdir()) == []


def test_what_was_collected_and_the_rest_are_the_whole(made, half):
    whole = made / "whole" / "results"
    former = (half / "results" / "digits" / "index.csv").read_text().splitlines()
    condensed.read_store(made / "rest" / "digits", half, keep=True).write()
    assert read_rows(half) == read_rows(whole)
    pd.testing.assert_frame_equal(read_history(half), read_history(whole))
    rows = (half / "results" / "digits" / "index.csv").read_text().splitlines()
    assert set(former) < set(rows)  # to the last digit
    assert read_rows(half, "tuning.csv") == read_rows(whole, "tuning.csv")
    once = read_files(half)
    condensed.read_store(made / "rest" / "digits", half, keep=True).write()
    assert read_files(half) == once


def test_where_nothing_is_left_nothing_is_made(made, tmp_path):
    whole = made / "whole" / "results"
    store = tmp_path / "digits"
    answer = call("run", whole / "studies" / "digits.toml", "--out", store, "--collected", whole)
    assert "has 6 of the 6 runs of digits\nnothing is left to run" in answer.output
    assert not store.exists()


def test_a_store_that_has_collected_runs_keeps_them(made, tmp_path):
    whole = made / "whole" / "results"
    store = tmp_path / "digits"
    shutil.copytree(made / "whole" / "store" / "digits", store)
    file = whole / "studies" / "digits.toml"
    answer = call("run", file, "--out", store, "--collected", whole, "--resume", "--json")
    assert len(Store(store).finished()) == 6
    assert json.loads(answer.stdout)["collected"] == 6


def test_a_collected_run_that_a_store_has_half_is_not_done_again(made, half, tmp_path):
    store = tmp_path / "digits"
    shutil.copytree(made / "half" / "store" / "digits", store)
    for finished in store.glob("runs/*/finished.json"):
        finished.unlink()
    file = half / "studies" / "digits.toml"
    call("run", file, "--out", store, "--collected", half, "--resume")
    assert {config.seed for config, *_ in Store(store).finished()} == {1}


def test_fewer_runs_of_a_changed_study_do_not_replace_what_was_collected(made, half, tmp_path):
    store = tmp_path / "digits"
    call("run", write_study(half, ("steps = 2\ntune", "steps = 3\ntune"), SECOND), "--out", store)
    write_study(half, ("steps = 2\ntune", "steps = 3\ntune"))
    with pytest.raises(InputError, match=r"3 runs that .* would be lost"):
        condensed.read_store(store, half)


def test_a_changed_study_does_not_take_former_runs_for_its_own(made, half, tmp_path):
    store = tmp_path / "digits"
    file = write_study(half, ("period = 5", "period = 4"))
    answer = call("run", file, "--out", store, "--collected", half)
    assert "has 0 of the 6 runs" in answer.output
    assert all(config.settings["period"] == 4 for config, *_ in Store(store).finished())
    with pytest.raises(InputError, match=r"3 of the 3 runs .* cannot be kept"):
        condensed.read_store(store, half, keep=True)
    assert len(condensed.read_store(store, half).runs) == 6  # as many as there were, and more
    with pytest.raises(InputError, match=r"no finished run that .* asks for"):
        condensed.read_store(made / "rest" / "digits", half, keep=True)


def test_each_variant_keeps_its_own_choice(half, tmp_path):
    variants = ("[tune.bilevel]", '[settings.bilevel]\nsolver = ["svrg", "cg"]\n\n[tune.bilevel]')
    of_one = [('["fedavg", "bilevel", "pfedme"]', '"bilevel"'), variants]
    of_one += [("follow_bilevel = true\n", ""), ("[tune.pfedme]\nproximal = [5.0, 1e-4]\n", "")]
    shutil.rmtree(half / "results" / "digits")
    first = tmp_path / "first" / "digits"
    call("run", write_study(half, *of_one, FIRST), "--out", first)
    condensed.read_store(first, half).write()
    rest = tmp_path / "rest" / "digits"
    call("run", write_study(half, *of_one), "--out", rest, "--collected", half)
    done = {(config.settings["solver"], config.seed) for config, *_ in Store(rest).finished()}
    assert done == {("svrg", 1), ("cg", 1)}
    assert list(Store(rest).tuning.iterdir()) == []
    condensed.read_store(rest, half, keep=True).write()
    assert len(read_rows(half)) == 4


def test_a_study_of_which_nothing_was_collected_is_run_whole(half, tmp_path):
    shutil.rmtree(half / "results" / "digits")
    store = tmp_path / "digits"
    call("run", half / "studies" / "digits.toml", "--out", store, "--collected", half)
    assert len(Store(store).finished()) == 6


def test_runs_whose_parameters_were_chosen_otherwise_are_not_put_together(half, tmp_path):
    store = tmp_path / "digits"
    call("run", write_study(half, SECOND, ("[1e-6, 0.1]", "[0.05]")), "--out", store)
    write_study(half, ("[1e-6, 0.1]", "[0.05, 0.1]"))
    before = read_files(half)
    with pytest.raises(InputError, match=r"learning_rate=0\.1.* and .*learning_rate=0\.05"):
        call("compare", half, "--add", store, "--keep")
    assert read_files(half) == before


def test_mistakes(made, half, tmp_path):
    study = half / "studies" / "digits.toml"
    other = tmp_path / "other.toml"
    other.write_text(study.read_text())
    out = tmp_path / "digits"
    with pytest.raises(InputError, match=r"no file .*studies/other\.toml"):
        call("run", other, "--out", tmp_path / "other", "--collected", half)
    with pytest.raises(InputError, match=r"no file .*typo\.toml$"):
        call("run", tmp_path / "typo.toml", "--out", tmp_path / "typo", "--collected", half)
    with pytest.raises(InputError, match=r"no file .*nowhere/studies/digits\.toml"):
        call("run", study, "--out", out, "--collected", tmp_path / "nowhere")
    with pytest.raises(InputError, match="must end with digits"):
        call("run", study, "--out", tmp_path / "rest", "--collected", half)
    out.touch()
    for options in ([], ["--collected", half]):
        with pytest.raises(InputError, match="is a file: choose a new or empty directory"):
            call("run", study, "--out", out, *options)
    out.unlink()
    with pytest.raises(InputError, match="exclude each other"):
        call("compare", half, "--keep", "--replace")
    with pytest.raises(InputError, match="of no use without --add"):
        call("compare", half, "--keep")
    changed = tmp_path / "digits.toml"
    changed.write_text(study.read_text().replace("[0, 1]", "[0, 1, 2]"))
    with pytest.raises(InputError, match="asks for other runs than the file that was given"):
        call("run", changed, "--out", out, "--collected", half)
    history = half / "results" / "digits" / "history.csv.gz"
    for damage in (lambda: history.write_bytes(b"damaged"), history.unlink):
        damage()
        with pytest.raises(InputError, match="damaged"):
            call("run", study, "--out", out, "--collected", half)
        with pytest.raises(InputError, match="damaged"):
            condensed.read_store(made / "rest" / "digits", half, keep=True)
    assert not out.exists()


def test_make_reproduce_continues_after_a_study_that_fails_and_collects_the_others(tmp_path):
    """The recipe itself, in the present environment instead of a new one."""
    root = tmp_path / "reproduction"
    small = (('["fedavg", "bilevel", "pfedme"]', '"local"'), FIRST)
    file = write_study(root, *small, (STUDY[STUDY.index("tune_steps") :], ""))
    absent = file.with_stem("absent")
    absent.write_text(file.read_text().replace("digits", "nowhere"))
    environment = tmp_path / "environment"
    environment.mkdir()
    for name in ("pyproject.toml", "constraints.txt", environment / ".base"):
        (tmp_path / name).touch()  # the last of them last: there is nothing to install
    repository = Path(__file__).parents[2]
    paths = [str(repository), str(repository / "src"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [
            *("make", "--file", str(repository / "Makefile"), "reproduce"),
            *("STUDIES=absent digits", "ONLY_MISSING=1", "JOBS=1", "STORES=stores"),
            *(f"VENV={environment}", f"BIN={Path(sys.executable).parent}"),
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    assert "error: unfinished runs in: absent; run it again" in done.stdout
    (row,) = read_rows(root)
    assert (row["method"], row["seed"]) == ("local", 0)
    assert "- absent: all 1 runs" in (root / "README.md").read_text(encoding="utf-8")
