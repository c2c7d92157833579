"""`fedkin fit` and `fedkin predict` from the command line, as a user runs them."""

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedkin.cli import app as cli
from fedkin.errors import InputError
from fedkin.training import result_directory


class Answer:
    def __init__(self, status, out, err):
        self.status, self.out, self.err = status, out, err


@pytest.fixture
def fedkin(monkeypatch, capsys, tmp_path):
    """Run the command line in a directory of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments) -> Answer:
        monkeypatch.setattr(sys, "argv", ["fedkin", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        captured = capsys.readouterr()
        return Answer(left.value.code, captured.out, captured.err)

    return run


def made_table(rows, seed, direction=(1.0, 0.0)) -> pd.DataFrame:
    """A table whose outcome depends on age and pressure along `direction`, and on sex."""
    random = np.random.default_rng(seed)
    standard = random.normal(size=(rows, 2))
    sex = random.choice(["f", "m"], rows)
    logit = 3 * standard @ np.array(direction) + np.where(sex == "f", 0.5, -0.5)
    outcome = np.where(random.uniform(size=rows) < 1 / (1 + np.exp(-logit)), "sick", "well")
    age = np.where(random.uniform(size=rows) < 0.05, np.nan, 50 + 10 * standard[:, 0])
    return pd.DataFrame(
        {"age": age.round(2), "pressure": 120 + standard[:, 1], "sex": sex, "outcome": outcome}
    )


@pytest.fixture
def tables(tmp_path):
    """Two nodes like the center, two whose outcome goes the other way."""
    for seed, (name, direction) in enumerate(
        {"near1": (1, 0), "near2": (1, 0), "far1": (-1, 1), "far2": (-1, 1)}.items()
    ):
        made_table(150, seed, direction).to_csv(tmp_path / f"{name}.csv", index=False)
    made_table(100, 10).to_csv(tmp_path / "own.csv", index=False)
    made_table(300, 11).to_csv(tmp_path / "test.csv", index=False)
    made_table(150, 0).to_parquet(tmp_path / "near1.parquet")
    return tmp_path


NODES = [f"--node={name}.csv" for name in ("near1", "near2", "far1", "far2")]
CENTER = ["--validation=own.csv", "--label=outcome"]


def test_fit_finds_the_nodes_like_the_center_and_predict_uses_the_model(fedkin, tables):
    fitted = fedkin(
        "fit", *NODES, *CENTER, "--test=test.csv", "--cap=0.5", "--out=r", "--no-refit", "--json"
    )
    assert fitted.status == 0, fitted.err
    answer = json.loads(fitted.out)
    weights = answer["weights"]
    assert weights["near1"] + weights["near2"] > 0.9
    assert sum(weights.values()) == pytest.approx(1, abs=1e-5)
    assert answer["metrics"]["test"]["auc"] > 0.85

    unasked = {result_directory.CONTRIBUTIONS}
    assert {path.name for path in Path("r").iterdir()} == result_directory.FILES - unasked
    assert json.loads(Path("r/weights.json").read_text()) == weights
    assert json.loads(Path("r/metrics.json").read_text()) == answer["metrics"]
    table = pd.read_csv("r/weights.csv")
    assert dict(zip(table["node"], table["weight"], strict=True)) == pytest.approx(weights)

    predicted = fedkin("predict", "r", "test.csv", "--out=p.csv")
    assert predicted.status == 0, predicted.err
    predictions = pd.read_csv("p.csv")
    truth = pd.read_csv("test.csv")["outcome"]
    accuracy = float((predictions["prediction"] == truth).mean())
    assert accuracy == pytest.approx(answer["metrics"]["test"]["accuracy"])
    total = predictions["probability_sick"] + predictions["probability_well"]
    np.testing.assert_allclose(total, 1, atol=1e-5)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A result to predict with, and the test table; never written to."""
    directory = tmp_path_factory.mktemp("fitted")
    names = ("near1", "near2", "own", "test")
    for seed, name in enumerate(names):
        made_table(100, seed).to_csv(directory / f"{name}.csv", index=False)
    arguments = [f"--node={directory}/{name}.csv" for name in names[:2]]
    arguments += [f"--validation={directory}/own.csv", "--label=outcome", "--method=local"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fedkin", "fit", *arguments, f"--out={directory}/r"])
        with pytest.raises(SystemExit, match="0"):
            cli.main()
    return directory


def test_local_training_gives_no_node_a_weight(fitted):
    assert json.loads((fitted / "r/weights.json").read_text()) == {}
    table = pd.read_csv(fitted / "r/weights.csv")
    assert list(table["node"]) == ["near1", "near2"]
    assert table["weight"].isna().all()


def test_predict_needs_no_label_and_any_order_of_columns(fedkin, fitted):
    rows = pd.read_csv(fitted / "test.csv").head(5)
    rows.to_csv("whole.csv", index=False)
    rows[["sex", "pressure", "age"]].assign(note="x").to_csv("bare.csv", index=False)
    whole = fedkin("predict", fitted / "r", "whole.csv")
    bare = fedkin("predict", fitted / "r", "bare.csv", "--json")
    from_csv = [line.split(",")[1] for line in whole.out.splitlines()[1:]]
    from_json = [row["prediction"] for row in json.loads(bare.out)["predictions"]]
    assert from_csv == from_json
    assert len(from_csv) == 5


def test_a_category_that_no_node_had_is_told(fedkin, fitted):
    pd.read_csv(fitted / "test.csv").head(2).assign(sex="x").to_csv("new.csv", index=False)
    answer = fedkin("predict", fitted / "r", "new.csv")
    assert answer.status == 0
    assert "column 'sex' holds 'x', which no node had" in answer.err


def test_target_node_gives_the_validation_rows(fedkin, tables):
    nodes = ["--node=near1.parquet", *NODES[1:]]
    target = ["--target-node=near1", "--validation-fraction=0.4", "--test-fraction=0.2"]
    rest = ["--label=outcome", "--method=local", "--out=r", "--json"]
    answer = fedkin("fit", *nodes, *target, *rest)
    assert answer.status == 0, answer.err
    made = json.loads(answer.out)
    assert made["metrics"]["validation"]["rows"] == 60
    assert made["metrics"]["test"]["rows"] == 30
    assert made["rows"] == {"near1": 60, "near2": 150, "far1": 150, "far2": 150}


def test_rows_whose_label_is_a_missing_code_are_left_out_and_told(fedkin, tmp_path):
    for name, last in (("a", -9), ("b", 1), ("own", 0)):
        (tmp_path / f"{name}.csv").write_text(f"x,outcome\n1,0\n2,1\n3,0\n4,1\n5,{last}\n")
    options = ["--missing=outcome=-9", "--method=local", "--minimum-rows=4", "--out=r", "--json"]
    answer = fedkin("fit", *NEIGHBORS, *CENTER, *options)
    assert answer.status == 0, answer.err
    assert "node 'a': 1 of 5 rows have no 'outcome' and are left out" in answer.err
    assert json.loads(answer.out)["rows"] == {"a": 4, "b": 5}


def test_regression_is_scored_in_the_label_s_own_unit(fedkin, tmp_path):
    random = np.random.default_rng(0)
    for name in ("a", "b", "v", "t"):
        x = random.normal(size=200)
        y = 1000 + 50 * x + 10 * random.normal(size=200)
        pd.DataFrame({"x": x, "y": y}).to_csv(tmp_path / f"{name}.csv", index=False)
    files = ["--node=a.csv", "--node=b.csv", "--validation=v.csv", "--test=t.csv"]
    answer = fedkin(
        "fit", *files, "--label=y", "--task=regression", "--no-refit", "--out=r", "--json"
    )
    assert answer.status == 0, answer.err
    # The noise has standard deviation 10, the label 51: the best possible R2 is 0.96.
    test = json.loads(answer.out)["metrics"]["test"]
    assert 8 < test["rmse"] < 13
    assert 0.93 < test["r2"] < 0.98
    predicted = fedkin("predict", "r", "t.csv", "--json")
    values = [row["prediction"] for row in json.loads(predicted.out)["predictions"]]
    truth = pd.read_csv("t.csv")["y"]
    assert np.sqrt(np.mean((truth - values) ** 2)) == pytest.approx(test["rmse"], rel=1e-4)


def test_the_same_seed_gives_the_same_result(fedkin, tables):
    for out in ("one", "two"):
        assert fedkin("fit", *NODES[:3], *CENTER, f"--out={out}", "--seed=3").status == 0
    # The model's file, the history and the report also hold times.
    timed = {result_directory.HISTORY, result_directory.MODEL, result_directory.REPORT}
    for name in result_directory.FILES - timed - {result_directory.CONTRIBUTIONS}:
        assert Path("one", name).read_bytes() == Path("two", name).read_bytes()
    one, two = fedkin("predict", "one", "test.csv"), fedkin("predict", "two", "test.csv")
    assert one.out == two.out


def test_earlier_results_are_replaced_only_when_asked(fedkin, tables):
    quick = [*NODES, *CENTER, "--method=local"]
    assert fedkin("fit", *quick, "--out=r").status == 0
    refused = fedkin("fit", *quick, "--out=r")
    assert refused.status == 2
    assert "--force" in refused.err
    assert fedkin("fit", *quick, "--out=r", "--force").status == 0
    Path("r/thesis.txt").write_text("years of work")
    guarded = fedkin("fit", *quick, "--out=r", "--force")
    assert guarded.status == 2
    assert "thesis.txt" in guarded.err
    assert Path("r/thesis.txt").read_text() == "years of work"


def test_a_failure_while_writing_leaves_nothing_behind(tmp_path):
    def fill(directory):
        (directory / "weights.json").write_text("{}")
        raise OSError("disk full")

    with pytest.raises(InputError, match="cannot be written: disk full"):
        result_directory.write_directory(tmp_path / "r", fill)
    assert list(tmp_path.iterdir()) == []


HEART_COLUMNS = "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,num"


def test_heart_disease_from_the_readme_s_command_line(fedkin):
    directory = Path(os.environ.get("FEDKIN_DATA", ""), "heart-disease")
    if not os.environ.get("FEDKIN_DATA") or not directory.is_dir():
        pytest.skip("FEDKIN_DATA does not hold heart-disease")
    hospitals = {"cleveland": 303, "hungarian": 294, "switzerland": 123, "va": 200}
    answer = fedkin(
        "fit",
        *[f"--node={name}={directory}/processed.{name}.data" for name in hospitals],
        *["--columns", HEART_COLUMNS, "--label", "num", "--positive", ">0"],
        *["--categorical", "cp,restecg,slope,thal", "--missing", "chol=0,trestbps=0"],
        *["--target-node", "va", "--validation-fraction", "0.3", "--test-fraction", "0.3"],
        *["--out", "heart", "--json"],
    )
    assert answer.status == 0, answer.err
    made = json.loads(answer.out)
    assert made["rows"] == {**hospitals, "va": 80}
    assert set(made["weights"]) == set(hospitals)
    preprocessing = json.loads(Path("heart/preprocessing.json").read_text())
    assert preprocessing["label"]["classes"] == ["no", "yes"]
    thal = next(column for column in preprocessing["columns"] if column["name"] == "thal")
    assert thal["categories"] == ["3", "6", "7"]


SMALL = "x,sex,outcome\n" + "1,f,no\n2,m,yes\n3,f,no\n4,m,yes\n" * 3
NEIGHBORS = ["--node=a.csv", "--node=b.csv"]
MISTAKES = {
    "missing file": ([*NEIGHBORS, "--node=c.csv", *CENTER], "node 'c': there is no file c.csv"),
    "empty file": ([*NEIGHBORS, "--node=empty.csv", *CENTER], "empty.csv is empty"),
    "no rows": ([*NEIGHBORS, "--node=norows.csv", *CENTER], "no rows"),
    "corrupt parquet": ([*NEIGHBORS, "--node=bad.parquet", *CENTER], "damaged"),
    "wrong label": ([*NEIGHBORS, "--validation=own.csv", "--label=outcom"], "'outcome'?"),
    "missing column": (
        [*NEIGHBORS, "--node=nosex.csv", *CENTER, "--strict"],
        "missing on node 'nosex'",
    ),
    "text for numbers": ([*NEIGHBORS, "--node=text.csv", *CENTER], "text on node 'text'"),
    "unknown label": ([*NEIGHBORS, "--node=typo.csv", *CENTER], "'yess' is on node 'typo'"),
    "one class": (
        ["--node=one.csv", "--validation=one2.csv", "--label=outcome"],
        "'no' in every row",
    ),
    "same name": (["--node=a.csv", "--node=a=b.csv", *CENTER], "two nodes are called 'a'"),
    "same file": (["--node=a.csv", "--node=b=a.csv", *CENTER], "both node 'a' and node 'b'"),
    "no --node": (["--node=a.csv", "b.csv", *CENTER], "needs its own --node"),
    "no judge": ([*NEIGHBORS, "--label=outcome"], "--target-node"),
    "two judges": ([*NEIGHBORS, *CENTER, "--target-node=a"], "not both"),
    "no target": ([*NEIGHBORS, *CENTER, "--test-fraction=0.3"], "needs --target-node"),
    "unknown target": ([*NEIGHBORS, "--label=outcome", "--target-node=z"], "no node 'z'"),
    "wrong fraction": (
        [*NEIGHBORS, "--label=outcome", "--target-node=a", "--validation-fraction=30"],
        "between 0 and 1",
    ),
    "misspelt drop": ([*NEIGHBORS, *CENTER, "--drop=sexx"], "--drop: no table"),
    "dropped label": ([*NEIGHBORS, *CENTER, "--drop=outcome"], "cannot be left out"),
    "misspelt category": ([*NEIGHBORS, *CENTER, "--categorical=X"], "did you mean 'x'"),
    "missing code": ([*NEIGHBORS, *CENTER, "--missing=x:0"], "COLUMN=NUMBER"),
    "rule": ([*NEIGHBORS, *CENTER, "--positive=maybe"], "fits no row"),
    "rule for numbers": (
        [*NEIGHBORS, "--validation=own.csv", "--label=x", "--task=regression", "--positive=>0"],
        "leave it out for regression",
    ),
    "regression": ([*NEIGHBORS, *CENTER, "--task=regression"], "regression needs numbers"),
    "model": ([*NEIGHBORS, *CENTER, "--model=ridge"], "ridge gives numbers"),
    "model name": ([*NEIGHBORS, *CENTER, "--model=boosting"], "choose one of logistic"),
    "model for images": ([*NEIGHBORS, *CENTER, "--model=cnn"], "needs images"),
    "separator": ([*NEIGHBORS, *CENTER, "--separator=, "], "one character"),
    "cap": ([*NEIGHBORS, *CENTER, "--cap=0.1"], "cap"),
    "option": ([*NEIGHBORS, *CENTER, "--labl=x"], "--label"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_every_mistake_gets_one_line_and_status_2(fedkin, tmp_path, mistake):
    for name in ("a", "b", "own"):
        (tmp_path / f"{name}.csv").write_text(SMALL)
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "norows.csv").write_text("x,sex,outcome\n")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nonsense PAR1")
    (tmp_path / "nosex.csv").write_text("x,outcome\n" + "1,no\n2,yes\n" * 5)
    (tmp_path / "text.csv").write_text(SMALL.replace("1,", "old,"))
    (tmp_path / "typo.csv").write_text(SMALL.replace("4,m,yes", "4,m,yess"))
    for name in ("one", "one2"):
        (tmp_path / f"{name}.csv").write_text(SMALL.replace("yes", "no"))
    arguments, message = MISTAKES[mistake]
    answer = fedkin("fit", *arguments, "--out=r")
    assert answer.status == 2
    assert answer.out == ""
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    assert message in answer.err
    assert not (tmp_path / "r").exists()


def test_mistakes_in_predict(fedkin, fitted):
    def message(*arguments):
        answer = fedkin("predict", *arguments)
        assert answer.status == 2
        assert answer.err.startswith("error: ")
        return answer.err

    shutil.copytree(fitted / "r", "r")
    shutil.copy(fitted / "test.csv", "test.csv")
    assert "there is no directory q" in message("q", "test.csv")
    assert "not a result of fedkin fit" in message(".", "test.csv")
    assert "is the file to read" in message("r", "test.csv", "--out=test.csv")
    Path("p.csv").write_text("mine")
    assert "p.csv exists" in message("r", "test.csv", "--out=p.csv")
    assert Path("p.csv").read_text() == "mine"
    assert "no directory" in message("r", "test.csv", "--out=deep/p.csv")
    pd.read_csv("test.csv").rename(columns={"age": "Age"}).to_csv("new.csv", index=False)
    assert "has the column 'Age', and the model 'age'" in message("r", "new.csv")
    pd.read_csv("test.csv").assign(pressure="high").to_csv("new.csv", index=False)
    assert "'pressure' has 'high' in line 2" in message("r", "new.csv")
    model = Path("r", result_directory.MODEL)
    model.write_bytes(model.read_bytes()[:100])
    assert "damaged" in message("r", "test.csv")
    Path("r/preprocessing.json").write_text("{}")
    assert "damaged" in message("r", "test.csv")
