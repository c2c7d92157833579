"""`fedkin advise` from the command line, as a user runs it."""

import json

import numpy as np
import pandas as pd
import pytest


def table(rows, seed, sign=1):
    random = np.random.default_rng(seed)
    age = random.normal(50, 10, rows)
    risk = random.uniform(size=rows) < 1 / (1 + np.exp(-sign * (age - 50) / 4))
    return pd.DataFrame(
        {
            "age": age.round(1),
            "sex": random.choice(["f", "m"], rows),
            "sick": np.where(risk, "yes", "no"),
            "cost": (100 + 5 * sign * (age - 50) + 10 * random.normal(size=rows)).round(2),
        }
    )


@pytest.fixture
def files(tmp_path):
    for seed, name in enumerate(("a", "b", "own", "test")):
        table(60, seed, -1 if name == "b" else 1).to_csv(tmp_path / f"{name}.csv", index=False)


NODES = ["advise", "--node", "a.csv", "--node", "b.csv"]
OWNER = [
    "--own",
    "own.csv",
    "--label",
    "sick",
    "--drop",
    "cost",
    "--folds",
    "2",
    "--repeats",
    "1",
]


def test_it_answers_writes_a_report_and_a_model_that_predicts(command, files, tmp_path):
    answer = command(*NODES, *OWNER, "--test", "test.csv", "--out", "advice")
    assert answer.status == 0, answer.err
    assert answer.out.split(".")[0] in ("Join", "Stay alone", "Not clear yet")
    assert "columns used: age, sex (f m)" in answer.out
    assert "synchronizations" in answer.out
    written = {path.name for path in (tmp_path / "advice").iterdir()}
    assert {
        "advice.json",
        "model.fedkin",
        "report.html",
        "candidates.csv",
        "weights.csv",
    } <= written
    page = (tmp_path / "advice" / "report.html").read_text()
    assert "Should you join?" in page
    content = json.loads((tmp_path / "advice" / "advice.json").read_text())
    assert content["nodes"]["a"]["rows"] == 60
    assert sum(content["nodes"]["a"]["classes"].values()) == 60
    predicted = command("predict", "advice", "test.csv")
    assert len(predicted.out.splitlines()) == 61
    again = command("report", "advice", "--json")
    assert json.loads(again.out)["report"] == "advice/report.html"


def test_a_node_can_be_the_owner(command, files):
    options = ["--node", "own.csv", "--target-node", "own", "--label", "sick", "--drop", "cost"]
    answer = command(
        *NODES, *options, "--test-fraction", "0.3", "--folds", "2", "--repeats", "1", "--json"
    )
    content = json.loads(answer.out)
    assert content["owner_rows"] == 42
    assert [each["node"] for each in content["weights"]] == ["a", "b"]
    assert content["test"]["test_accuracy"] > 0.5


def test_numbers_are_shown_in_their_own_unit(command, files):
    options = ["--own", "own.csv", "--label", "cost", "--task", "regression", "--drop", "sick"]
    answer = command(*NODES, *options, "--folds", "2", "--repeats", "1", "--json")
    content = json.loads(answer.out)
    losses = {each["candidate"]: each["loss"] for each in content["candidates"]}
    assert content["score"] == "squared error"
    assert 60 < losses["alone"] < 180  # the noise has variance 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--label", "sick"], "whose question is it?"),
        ([*OWNER, "--target-node", "a"], "either --own or --target-node"),
        (["--target-node", "x", "--label", "sick"], "there is no node 'x'"),
        (["--own", "a.csv", "--label", "sick"], "both node 'a' and the owner's table"),
        (["--own", "none.csv", "--label", "sick"], "there is no file none.csv"),
        (["--own", "own.csv", "--label", "sik"], "did you mean 'sick'?"),
        ([*OWNER, "--cap", "0.1"], "cap on a node's weight is 0.1"),
        ([*OWNER, "--folds", "1"], "--folds"),
        ([*OWNER, "--force"], "--force replaces the directory of --out"),
        ([*OWNER, "--out", "own.csv"], "own.csv is a file"),
        ([*OWNER, "c.csv"], "every node's file needs its own --node"),
        ([*OWNER, "--minimum-rows", "100"], "fewer than the 100"),
    ],
)
def test_every_mistake_gets_one_line_and_status_2(refused, files, options, message):
    assert message in refused(*NODES, *options)


def test_a_damaged_advice_is_refused(refused, files, tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "advice.json").write_text("{")
    assert "run fedkin advise again" in refused("report", "old")
