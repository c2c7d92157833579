"""`--contributions` of fit and advise, as a user runs it."""

import json

import numpy as np
import pandas as pd
import pytest


def table(rows, seed, sign=1):
    random = np.random.default_rng(seed)
    age = random.normal(50, 10, rows)
    sick = random.uniform(size=rows) < 1 / (1 + np.exp(-sign * (age - 50) / 4))
    cost = 100 + 5 * sign * (age - 50) + 10 * random.normal(size=rows)
    return pd.DataFrame({"age": age, "sick": np.where(sick, "yes", "no"), "cost": cost})


@pytest.fixture
def files(tmp_path):
    for seed, name in enumerate(("a", "b", "own")):
        table(60, seed, -1 if name == "b" else 1).to_csv(tmp_path / f"{name}.csv", index=False)


NODES = ["--node", "a.csv", "--node", "b.csv"]
FIT = ["fit", *NODES, "--validation", "own.csv"]
ADVISE = ["advise", *NODES, "--own", "own.csv", "--folds", 2, "--repeats", 1]
SICK = ["--label", "sick", "--drop", "cost"]


def test_fit_prints_writes_and_reports_what_each_node_contributes(command, files, tmp_path):
    answer = command(*FIT, *SICK, "--out", "r", "--contributions")
    assert answer.status == 0, answer.err
    assert "what each node contributes (log loss, ± one standard error)" in answer.out
    assert "Shapley values divide the difference" in answer.out
    written = json.loads((tmp_path / "r" / "contributions.json").read_text())
    good, bad = (node["shapley"] for node in written["nodes"])
    assert bad < 0 < good
    assert good + bad == pytest.approx(written["everyone"] - written["nobody"])
    page = (tmp_path / "r" / "report.html").read_text()
    assert "A second opinion: what each node contributes" in page
    assert "Two nodes with the same data both look useless" in page
    # The page can be made again, and the directory replaced.
    assert command("report", "r").status == 0
    assert (tmp_path / "r" / "report.html").read_text() == page
    assert command(*FIT, *SICK, "--out", "r", "--force").status == 0
    assert not (tmp_path / "r" / "contributions.json").exists()
    assert "A second opinion" not in (tmp_path / "r" / "report.html").read_text()


def test_advise_shows_contributions_in_each_nodes_card(command, files, tmp_path):
    answer = command(*ADVISE, *SICK, "--out", "advice", "--contributions", "--json")
    assert answer.status == 0, answer.err
    found = json.loads(answer.out)["contributions"]
    assert [node["node"] for node in found["nodes"]] == ["a", "b"]
    page = (tmp_path / "advice" / "report.html").read_text()
    assert page.count("<dt>contribution</dt>") == page.count("<dt>lost without it</dt>") == 2


def test_squared_errors_are_in_the_labels_unit(command, files):
    options = ["--label", "cost", "--drop", "sick", "--task", "regression", "--out", "r"]
    answer = command(*FIT, *options, "--contributions", "--json")
    found = json.loads(answer.out)["contributions"]
    assert found["score_name"] == "squared error"
    own = table(60, 2)["cost"]
    assert -found["nobody"] == pytest.approx(np.var(own), rel=1e-3)


def test_the_options_choose_score_weights_and_orders(command, files):
    options = ["--contribution-score", "accuracy", "--contribution-weights", "equal", "--orders", 4]
    answer = command(*FIT, *SICK, "--out", "r", "--contributions", *options, "--json")
    found = json.loads(answer.out)["contributions"]
    assert (found["score"], found["weights"], found["orders"]) == ("accuracy", "equal", 4)
    assert not found["exact"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--orders", 8], "--orders changes nothing without --contributions"),
        (["--contributions", "--orders", 7], "--orders must be even"),
        (["--contributions", "--orders", 2], "2 must be at least 4"),
        (
            ["--contributions", "--contribution-score", "acuracy"],
            "'acuracy' is unknown; did you mean accuracy?",
        ),
        (
            ["--contributions", "--contribution-weights", "none"],
            "--contribution-weights: 'none' is unknown; choose one of size, equal, learned",
        ),
        (
            ["--contributions", "--contribution-weights", "learned", "--method", "local"],
            "needs learned weights, which 'local' has not",
        ),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else None,
)
def test_bad_options_end_in_one_line(refused, files, tmp_path, given, says):
    assert says in refused(*FIT, *SICK, "--out", "r", *given)
    assert not (tmp_path / "r").exists()


def test_accuracy_of_numbers_is_refused_before_any_work(refused, files):
    options = ["--label", "cost", "--task", "regression", "--out", "r", "--contributions"]
    line = refused(*FIT, *options, "--contribution-score", "accuracy")
    assert "--contribution-score accuracy is for classes" in line


def test_real_nodes_are_not_asked_to_train_on_groups(refused, tmp_path):
    pytest.importorskip("flwr", reason="needs the extra flower")
    line = refused("federation", "run", "trial", "--out", "r", "--contributions")
    assert "where all tables are at hand" in line


def test_a_damaged_file_is_named(command, refused, files, tmp_path):
    command(*FIT, *SICK, "--out", "r", "--contributions")
    (tmp_path / "r" / "contributions.json").write_text('{"score": 1}')
    assert "contributions.json is damaged: run the command again" in refused("report", "r")
