"""Studies whose every node is an owner: what they store, and that they can be stopped and resumed."""

import json

import numpy as np
import pandas as pd
import pytest

from fedkin.errors import InputError
from fedkin.events import StepDone
from fedkin.report.everyone import everyone_of
from fedkin.report.html import render
from fedkin.report.reading import read_record
from fedkin.studies.cell import draw_problem
from fedkin.studies.everyone import do_run_for_all
from fedkin.studies.partitioned import draw_nodes
from fedkin.studies.study import carry_out
from fedkin.studies.study_file import check_study

STUDY = {
    "dataset": "digits",
    "partition": "groups",
    "setting": 2,
    "minority_nodes": 2,
    "majority_nodes": 3,
    "points_per_node": 60,
    "method": ["local", "fedavg", "bilevel"],
    "seed": [0, 1],
    "model": "logistic",
    "synchronizations": 12,
    "settings": {"fedavg": {"rounds": 4}, "local": {"rounds": 4}},
}


class Silent:
    def begin(self, phase, total, finished): ...
    def event(self, event): ...
    def done(self, run, error):
        assert error is None


@pytest.fixture(scope="module")
def study():
    return check_study(STUDY, "a test")


@pytest.fixture(scope="module")
def store(study, tmp_path_factory):
    path = tmp_path_factory.mktemp("study") / "out"
    outcome = carry_out(study, path, resume=False, jobs=1, display=Silent())
    assert (outcome.finished, outcome.failed) == (6, {})
    return path


def run_of(study, method, seed=0):
    return next(run for run in study.runs() if (run.method, run.seed) == (method, seed))


def test_every_owner_is_in_the_store(store, study):
    run = run_of(study, "bilevel")
    path = store / "runs" / run.directory
    owners = json.loads((path / "owners.json").read_text())
    outcome = json.loads((path / "finished.json").read_text())
    names = [node.name for node in draw_nodes(run).nodes]
    assert [row["name"] for row in owners["owners"]] == names
    assert np.sum(owners["matrix"], axis=1) == pytest.approx(1)
    accuracies = [row["test_accuracy"] for row in owners["owners"]]
    assert outcome["test_accuracy"] == pytest.approx(np.mean(accuracies))
    assert outcome["worst_accuracy"] == min(accuracies)
    history = pd.read_parquet(path / "history.parquet")
    assert history["synchronizations"].iloc[-1] == outcome["total_synchronizations"] <= 12
    models = np.load(path / "models.npz")
    assert set(models) == {f"best {name}" for name in names}
    index = pd.read_csv(store / "index.csv")
    assert set(index["target"]) == {"all"}


def test_equal_weights_cost_what_one_owner_costs(store, study):
    path = store / "runs" / run_of(study, "fedavg").directory
    history = pd.read_parquet(path / "history.parquet")
    outcome = json.loads((path / "finished.json").read_text())
    assert history["bytes_up"].iloc[-1] == outcome["bytes_up"]
    size = 650 * 4
    rounds = outcome["total_synchronizations"] - 1  # the first asks for the curvature
    assert outcome["bytes_down"] >= rounds * 5 * size
    assert outcome["bytes_down"] < 2 * rounds * 5 * size


def test_an_interrupted_run_continues_to_the_same_result(study, store, tmp_path):
    run = run_of(study, "bilevel")

    class StoppedError(Exception):
        pass

    def interrupt(event):
        if isinstance(event, StepDone) and event.step == 4:
            raise StoppedError

    with pytest.raises(StoppedError):
        do_run_for_all(run, tmp_path, on_event=interrupt)
    kept = tmp_path / run.directory
    assert len(list(kept.glob("checkpoint-*.npz"))) == 5
    steps = []
    do_run_for_all(
        run, tmp_path, on_event=lambda e: steps.append(e.step) if isinstance(e, StepDone) else None
    )
    assert min(steps) > 3
    assert not list(kept.glob("checkpoint-*.npz"))
    again = json.loads((kept / "owners.json").read_text())
    assert again == json.loads((store / "runs" / run.directory / "owners.json").read_text())
    first, second = (
        json.loads((parent / run.directory / "finished.json").read_text())
        for parent in (store / "runs", tmp_path)
    )
    assert second["total_synchronizations"] == first["total_synchronizations"]


def test_a_damaged_file_of_owners_makes_the_run_unfinished(study, store, tmp_path):
    import shutil

    from fedkin.studies.store import read_finished

    run = run_of(study, "local")
    shutil.copytree(store / "runs" / run.directory, tmp_path / run.directory)
    assert read_finished(tmp_path / run.directory) is not None
    (tmp_path / run.directory / "owners.json").write_text("{}")
    assert read_finished(tmp_path / run.directory) is None


def test_the_report_shows_everyone(store):
    record = read_record(store)
    (view,) = everyone_of(record)
    assert view.learner == "Bi-level"
    assert view.averaged
    assert len(view.nodes) == 5
    assert {each.label for each in view.summaries} == {"Bi-level", "FedAvg", "Local-train"}
    for node in view.nodes:
        runs = [run for run in record.runs if run.label == "Local-train"]
        scores = [
            row["score"] for run in runs for row in run.owners["owners"] if row["name"] == node.name
        ]
        assert node.scores["Local-train"][0] == pytest.approx(np.mean(scores))
    order = [name for group in view.matrix.groups for name in group]
    assert list(view.matrix.names) == order
    assert view.matrix.weights.sum(axis=1) == pytest.approx(1)
    page = render(record)
    assert page.count('class="frame"') == len(view.matrix.groups)
    assert f"{order[0]} learns with" in page
    assert "nodes that gain" in page


def test_one_owners_problem_is_not_drawn_from_everyones_run(study):
    with pytest.raises(InputError, match="a problem is the question of one owner"):
        draw_problem(study.runs()[0])
