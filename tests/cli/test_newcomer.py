"""What a new user tries with tables: each ends with one line that says what to do, or with a note."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from fedkin.cli import study as study_command
from fedkin.cli.program import without_repetition


def table(rows, seed, sign=1):
    random = np.random.default_rng(seed)
    age = random.normal(50, 10, rows).round(1)
    risk = random.uniform(size=rows) < 1 / (1 + np.exp(-sign * (age - 50) / 3))
    return pd.DataFrame(
        {"age": age, "sex": random.choice(["f", "m"], rows), "sick": np.where(risk, "yes", "no")}
    )


@pytest.fixture
def write(tmp_path):
    """Write three nodes and the owner's table, each changed as asked."""

    def to_files(**changes):
        for seed, (name, rows) in enumerate({"a": 40, "b": 40, "c": 40, "own": 40}.items()):
            made = table(rows, seed)
            changes.get(name, lambda each: each)(made).to_csv(tmp_path / f"{name}.csv", index=False)

    to_files()
    return to_files


def options(*more, nodes=("a", "b", "c")):
    each = [part for name in nodes for part in ("--node", f"{name}.csv")]
    return ["fit", *each, "--validation", "own.csv", "--label", "sick", "--out", "out", *more]


@pytest.mark.parametrize("rows", [12, 70])
def test_texts_that_identify_rows_do_not_leave_a_node(refused, command, write, rows):
    """Fewer than 100 different texts, so that only their being nearly unique gives them away."""
    ids = {
        name: lambda each, name=name: each.head(rows).assign(
            patient=[f"{name}-{i}" for i in range(min(rows, len(each)))]
        )
        for name in ("a", "b", "c", "own")
    }
    write(**ids)
    message = refused(*options())
    assert "node 'a': column 'patient' has" in message
    assert "identifies them" in message
    assert "--drop patient" in message
    answer = command(*options("--drop", "patient"))
    assert answer.status == 0
    assert "columns used: age, sex (f m)" in answer.out


@pytest.mark.parametrize("day", ["2024-03-01", "01.03.2024", "01-Mar-2024", "March 1, 2024"])
def test_dates_do_not_leave_a_node(refused, write, day):
    dated = {
        name: lambda each: each.assign(seen=[day, day.replace("4", "5")] * (len(each) // 2))
        for name in ("a", "b", "c", "own")
    }
    write(**dated)
    message = refused(*options())
    assert f"column 'seen' holds dates, such as '{day}'" in message
    assert "--drop seen" in message


def test_small_nodes_single_nodes_and_one_class(refused, command, write):
    write(b=lambda each: each.head(4))
    assert "node 'b' has 4 rows, fewer than the 10" in refused(*options())
    assert command(*options("--minimum-rows", "4")).status == 0
    assert "only one node" in refused(*options("--force", nodes=("a",)))
    write(own=lambda each: each[each["sick"] == "yes"])
    assert "only the class 'yes'" in refused(*options("--force"))


def test_a_column_without_a_value_at_a_node_is_reported(command, write):
    write(b=lambda each: each.assign(age=np.nan))
    answer = command(*options("--json"))
    assert "node 'b' has no value in 'age'" in answer.err
    assert "--drop age" in answer.err
    assert json.loads(answer.out)["columns"] == ["age", "sex"]
    write(own=lambda each: each.assign(age=np.nan))
    answer = command(*options("--force"))
    assert "note: the validation table has no value in 'age'" in answer.err


MAP = [part for name in ("a", "b", "c") for part in ("--node", f"{name}.csv")]
ADVISE = ["advise", *MAP, "--own", "own.csv", "--label", "sick", "--folds", "2", "--repeats", "1"]
MAP = ["map", *MAP, "--label", "sick", "--out", "out"]


@pytest.mark.parametrize("asked", [ADVISE, MAP], ids=["advise", "map"])
def test_the_same_is_refused_whatever_the_question(refused, command, write, asked):
    write(b=lambda each: each.head(4))
    assert "node 'b' has 4 rows, fewer than the 10" in refused(*asked)
    write(a=lambda each: each.assign(seen=["2024-03-01", "2024-03-02"] * (len(each) // 2)))
    assert "column 'seen' holds dates" in refused(*asked)
    write(a=lambda each: each.assign(patient=[f"P{i}" for i in range(len(each))]))
    assert "identifies them" in refused(*asked)
    write(b=lambda each: each.drop(columns="age"))
    assert "column 'age' is missing on node 'b'" in refused(*asked, "--strict")
    assert "4294967296" in refused(*asked, "--seed", str(2**32))
    single = [part for part in asked if part not in ("b.csv", "c.csv")]
    pairs = zip(single, [*single[1:], ""], strict=True)
    single = [part for part, after in pairs if not (part == "--node" and after.startswith("--"))]
    message = refused(*single)
    assert "one node" in message
    assert "fedavg" not in message  # there is no such option
    write(b=lambda each: each.assign(age=np.nan))
    answer = command(*asked)
    assert answer.status == 0
    assert "node 'b' has no value in 'age'" in answer.err
    assert "columns used: age, sex (f m)" in answer.out


def test_a_large_seed_and_predict_on_no_rows(refused, command, write, tmp_path):
    assert "4294967296" in refused(*options("--seed", str(2**32)))
    assert command(*options()).status == 0
    (tmp_path / "none.csv").write_text("age,sex\n")
    assert "has column names but no rows" in refused("predict", "out", "none.csv")


def test_too_little_memory_is_said_in_one_line(refused, write, monkeypatch):
    def exhausted(*_):
        raise MemoryError

    write()
    monkeypatch.setattr("fedkin.cli.fit.gather", exhausted)
    assert "memory of this machine is exhausted" in refused(*options())


def test_a_hint_is_given_once(refused):
    message = refused("fitt")
    assert message.count("Did you mean") == 1
    assert (
        without_repetition("0.5 is wrong. Did you mean 'a'? Did you mean 'b'?").count("mean") == 2
    )


def test_studies_with_a_wrong_place_fail_once(refused, tmp_path):
    (tmp_path / "study.toml").write_text('dataset = "digits"\nmethod = ["fedavg", "local"]\n')
    assert "is a directory; name a study" in refused("run", tmp_path, "--out", "out")
    assert "/nosuch" in refused("run", "study.toml", "--data", "/nosuch", "--out", "out")


def test_an_interrupted_study_says_what_was_kept(command, tmp_path, monkeypatch):
    def interrupted(study, out, **_):
        run = out / "runs" / "first"
        run.mkdir(parents=True)
        (run / "finished.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(study_command, "carry_out", interrupted)
    (tmp_path / "study.toml").write_text('dataset = "digits"\nmethod = "fedavg"\n')
    answer = command("run", "study.toml", "--out", "out")
    assert answer.status == 130
    assert "interrupted: 1 finished run is kept in out; continue" in answer.err
    assert "--resume" in answer.err


@pytest.mark.parametrize("start", [["-m", "fedkin_start"], ["-m", "fedkin"]])
def test_ctrl_c_while_libraries_are_loaded_shows_no_traceback(start, tmp_path):
    """A stand-in for a library says that it is being loaded, and takes its time."""
    (tmp_path / "pandas.py").write_text(
        "import sys, time\nprint('loading', flush=True)\ntime.sleep(60)\nsys.exit('not interrupted')\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    # Ignored where a shell runs the tests in the background, and then by the programs they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        [sys.executable, *start, "data", "list"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert error == "error: interrupted: nothing was written\n"
    assert process.returncode == 130
