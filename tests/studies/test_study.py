"""Whole studies: tuning, parallel processes, failures, the command line."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import fedkin
from fedkin.cli.app import app
from fedkin.events import EventReader, StepDone
from fedkin.studies.cell import draw_problem
from fedkin.studies.config import with_settings
from fedkin.studies.follower import StudyFollower
from fedkin.studies.store import RunDirectory, Store
from fedkin.studies.study import carry_out
from fedkin.studies.study_file import check_study
from run_files import files


class Silent:
    """A display that only remembers."""

    def __init__(self):
        self.phases, self.events, self.ended = [], [], []

    def begin(self, phase, total, finished):
        self.phases.append((phase, total, finished))

    def event(self, event):
        self.events.append(event)

    def done(self, run, error):
        self.ended.append((run, error))


def study(**content):
    common = {
        "dataset": "digits",
        "setting": 2,
        "model": "logistic",
        "synchronizations": None,
        "steps": 2,
    }
    settings = {"learning_rate": 0.05, "period": 5, "rounds": 2} | content.pop("settings", {})
    return check_study(common | {"settings": settings} | content, "study.toml")


def test_what_the_owner_holds_out_is_not_trained_on_and_has_its_share_of_each_class():
    (run,) = study(method="local", held_out=0.2).runs()
    (whole,) = study(method="local").runs()
    assert run.directory != whole.directory
    assert "held_out" not in whole.model_dump_json(
        exclude_none=True
    )  # former runs keep their names
    owner, all_rows = (draw_problem(each).problem.center for each in (run, whole))
    trains = np.moveaxis(np.asarray(owner.alone.data.inputs[0]), -1, 0)  # a node's points come last
    every, judging, training = (
        {row.tobytes() for row in part}
        for part in (all_rows.rows.inputs, owner.rows.inputs, trains)
    )
    assert judging | training == every
    assert not judging & training
    assert len(judging) == 12
    counts, of_all = (np.bincount(each.rows.labels, minlength=10) for each in (owner, all_rows))
    assert np.all(np.abs(counts - 0.2 * of_all) <= 1)  # cut at the rows, not at each class


def test_tuning_takes_the_best_validation_accuracy_and_the_others_follow(tmp_path):
    made = study(
        method=["fedavg", "bilevel", "pfedme"],
        seed=[0, 1],
        settings={"period": 5},
        tune={
            "bilevel": {"learning_rate": [1e-6, 0.1]},
            "pfedme": {"proximal": [5.0, 1e-4]},
        },
        tune_steps=2,
        follow_bilevel=True,
    )
    display = Silent()
    outcome = carry_out(made, tmp_path / "out", resume=False, jobs=1, display=display)
    assert (outcome.finished, outcome.failed, outcome.failed_trials) == (6, {}, {})
    assert display.phases == [("tuning", 2, 0), ("tuning", 2, 0), ("running", 6, 0)]
    best = fedkin.results(tmp_path / "out", best=True)
    # A step size of a millionth learns nothing in two steps; all methods take the other.
    assert best.parameters.str.contains("learning_rate=0.1").all()
    tuning = json.loads((tmp_path / "out" / "tuning.json").read_text())
    for choice in tuning.values():
        tried = {json.dumps(t["parameters"]): t["validation_accuracy"] for t in choice["trials"]}
        assert tried[json.dumps(choice["chosen"])] == max(tried.values())
    again = Silent()
    carry_out(made, tmp_path / "out", resume=True, jobs=1, display=again)
    assert again.ended == []  # nothing is done twice


def test_parameters_that_cost_synchronizations_are_chosen_at_equal_synchronizations(tmp_path):
    """A solver of one iteration gets more outer steps out of the same budget, and wins by them."""
    made = study(
        method="bilevel",
        seed=[0, 1],
        settings={"solver": "cg", "learning_rate": 0.005},
        tune={"bilevel": {"solver_iterations": [12, 1]}},
        tune_synchronizations=45,
    )
    carry_out(made, tmp_path / "out", resume=False, jobs=1, display=Silent())
    totals = {}
    for path in Store(tmp_path / "out").tuning.iterdir():
        config = json.loads((path / "config.json").read_text())["config"]
        last = pd.read_parquet(path / "history.parquet").iloc[-1]
        totals[config["settings"]["solver_iterations"]] = (last.step, last.synchronizations)
    assert totals[12][0] < totals[1][0]
    assert all(45 / 2 < spent <= 45 for _, spent in totals.values())
    best = fedkin.results(tmp_path / "out", best=True)
    assert best.parameters.str.contains(r"solver_iterations=1\b").all()


def test_what_was_chosen_in_one_cell_elsewhere_is_not_chosen_again(tmp_path):
    """With `tune_once` the parameters of a finished run are those of every cell, whatever short runs say."""
    made = study(
        setting=[1, 2],
        method="fedavg",
        settings={"fedavg": {"rounds": 1, "period": 2}},
        tune={"fedavg": {"learning_rate": [0.1, 1e-6]}},
        tune_once=True,
        tune_seed=5,
        synchronizations=2,
    )
    first, second = made.runs()
    known = with_settings(first, {"learning_rate": 1e-6})
    for elsewhere, phases, rate in (
        ([known], [("running", 1, 0)], 1e-6),
        ([], [("tuning", 2, 0), ("running", 2, 0)], 0.1),
    ):
        out, display = tmp_path / str(rate), Silent()
        carry_out(made, out, resume=False, jobs=1, display=display, elsewhere=elsewhere)
        assert display.phases == phases
        assert len(list(Store(out).tuning.iterdir())) == 2 * (not elsewhere)
        (done,) = (path for path in Store(out).runs.iterdir() if "digits-2-" in path.name)
        assert done.name == with_settings(second, {"learning_rate": rate}).directory


def test_a_changed_study_shows_its_own_runs_and_loses_none(tmp_path):
    out = tmp_path / "out"

    def ended(learning_rate, seeds):
        display = Silent()
        made = study(method="local", seed=seeds, settings={"learning_rate": learning_rate})
        carry_out(made, out, resume=out.exists(), jobs=1, display=display)
        return display.ended

    assert len(ended(0.05, [0, 1])) == 2
    assert len(ended(0.02, [0])) == 1
    table = fedkin.results(out, best=True)
    assert table.parameters.str.contains("learning_rate=0.02").tolist() == [True]
    assert len(pd.read_csv(out / "index.csv")) == 1
    # Back to the first, with one seed more: only that one is run.
    assert [run.split("-")[4] for run, _ in ended(0.05, [0, 1, 2])] == ["2"]
    assert fedkin.results(out, best=True).seed.tolist() == [0, 1, 2]


def test_seeds_come_one_after_the_other_so_that_half_a_study_has_every_cell(tmp_path):
    display = Silent()
    made = study(method=["fedavg", "local"], setting=[1, 2], seed=[4, 3], steps=1)
    carry_out(made, tmp_path / "out", resume=False, jobs=1, display=display)
    names = [run.split("-") for run, _ in display.ended]
    assert [(int(name[4]), name[1], name[3]) for name in names] == [
        (seed, setting, method)
        for seed in (4, 3)
        for setting in ("1", "2")
        for method in ("fedavg", "local")
    ]


def test_a_run_that_fails_does_not_stop_the_others(tmp_path):
    made = study(method=["fedavg", "local"], settings={"learning_rate": [1e30, 0.05]})
    display = Silent()
    outcome = carry_out(made, tmp_path / "out", resume=False, jobs=1, display=display)
    assert outcome.finished == 2
    assert len(outcome.failed) == 2
    assert all(
        "learning rate γ = 1e+30 is too large" in reason for reason in outcome.failed.values()
    )
    assert len(pd.read_csv(tmp_path / "out" / "index.csv")) == 2


def events_of(directory, run):
    return EventReader(RunDirectory(directory / "runs", run).events).new()


def test_every_run_reports_its_start_its_steps_and_its_end(tmp_path):
    made = study(method=["bilevel", "local"])
    display = Silent()
    carry_out(made, tmp_path / "out", resume=False, jobs=1, display=display)
    on_disk = [event for run in made.runs() for event in events_of(tmp_path / "out", run)]
    assert display.events == on_disk
    assert [event.kind for event in on_disk] == ["started", "step", "step", "finished"] * 2
    started, first, *_ = on_disk
    assert started.method == "bilevel"
    assert len(started.nodes) == len(first.weights) == 15
    history = fedkin.results(tmp_path / "out")
    steps = [event for event in on_disk if isinstance(event, StepDone)]
    assert [event.validation_loss for event in steps] == history.validation_loss.tolist()
    assert [event.synchronizations for event in steps] == history.synchronizations.tolist()
    assert [event.bytes_up for event in steps] == history.bytes_up.tolist()


def test_a_fault_of_fedkin_is_kept_with_its_traceback(tmp_path, monkeypatch):
    def fault(*_, **__):
        raise ZeroDivisionError("by zero")

    made = study(method="local")
    monkeypatch.setattr("fedkin.studies.cell.draw_problem", fault)
    outcome = carry_out(made, tmp_path / "out", resume=False, jobs=1, display=Silent())
    (reason,) = outcome.failed.values()
    assert reason.startswith("ZeroDivisionError: by zero (a fault in fedkin; ")
    (failed,) = events_of(tmp_path / "out", made.runs()[0])
    assert "in fault" in failed.traceback
    assert failed.reason == "ZeroDivisionError: by zero"


def test_a_study_of_another_process_is_followed_by_its_events(tmp_path):
    made = study(method=["fedavg", "local"], settings={"learning_rate": [1e30, 0.05]})
    out = tmp_path / "out"
    carry_out(made, out, resume=False, jobs=1, display=Silent())
    before = Silent()
    follower = StudyFollower(out, 4, before)
    follower.poll()
    assert before.phases == [("running", 4, 2)]
    assert before.events == []  # of an earlier attempt
    carry_out(made, out, resume=True, jobs=1, display=Silent())
    outcome = follower.outcome()
    assert [event.kind for event in before.events if event.kind != "started"] == ["failed"] * 2
    assert {run for run, _ in before.ended} == set(outcome.failed)
    assert outcome.finished == 2
    assert all("too large" in reason for reason in outcome.failed.values())


def test_trials_of_a_followed_study_are_shown_but_do_not_count_as_runs(tmp_path):
    made = study(method="fedavg", tune={"fedavg": {"learning_rate": [1e30, 0.05]}})
    display = Silent()
    follower = StudyFollower(tmp_path / "out", 1, display)
    follower.poll()  # before there is a directory
    carry_out(made, tmp_path / "out", resume=False, jobs=1, display=Silent())
    outcome = follower.outcome()
    assert len(display.ended) == outcome.finished == 1
    assert len({event.run for event in display.events}) == 3
    assert outcome.failed == {}
    assert len(outcome.failed_trials) == 1


def test_a_cell_whose_trials_all_fail_does_not_stop_the_others(tmp_path):
    made = study(method=["fedavg", "local"], tune={"fedavg": {"learning_rate": [1e30, 2e30]}})
    outcome = carry_out(made, tmp_path / "out", resume=False, jobs=1, display=Silent())
    assert outcome.finished == 1
    assert len(outcome.failed_trials) == 2
    (reason,) = outcome.failed.values()
    assert "all 2 combinations of parameters failed for fedavg" in reason
    assert "learning rate γ = 1e+30 is too large" in reason


def test_what_was_chosen_for_open_parameters_is_kept(tmp_path):
    made = study(method="bilevel", setting=1, settings={"solver": "svrg"})
    carry_out(made, tmp_path / "out", resume=False, jobs=1, display=Silent())
    ((_, outcome, _),) = Store(tmp_path / "out").finished()
    assert outcome["parameters"]["differentiation"]["inner"]["learning_rate"] == 0.05
    assert outcome["parameters"]["differentiation"]["cap"] == pytest.approx(
        1 / 3
    )  # open in the study


def test_two_processes_give_the_bits_of_one_and_a_study_is_worked_on_once(tmp_path):
    made = study(method=["bilevel", "fedavg", "ditto"], seed=[0, 1], steps=3)
    for jobs in (1, 2):
        display = Silent()
        outcome = carry_out(made, tmp_path / str(jobs), resume=False, jobs=jobs, display=display)
        assert (outcome.finished, outcome.failed) == (6, {})
        for run in made.runs():
            shown = [event for event in display.events if event.run == run.directory]
            assert shown == events_of(tmp_path / str(jobs), run)
            assert [event.kind for event in shown] == ["started", *["step"] * 3, "finished"]
    for run in made.runs():
        assert files(tmp_path / "1" / "runs", run) == files(tmp_path / "2" / "runs", run)
    store = Store(tmp_path / "1")
    asked = (store.path / "study.json").read_bytes()
    with store.locked(), pytest.raises(fedkin.InputError, match="another process is working"):
        carry_out(study(method="local"), store.path, resume=True, jobs=1, display=Silent())
    assert (store.path / "study.json").read_bytes() == asked


def test_a_setting_of_ones_own_is_part_of_the_run(tmp_path):
    file = tmp_path / "mine.toml"
    text = "merged_classes = [[0, 1], [2, 3]]\nminority = [{0}, {1}]\nmajority = [0.1, 0.9]\n"
    text += "train_size = 60\nvalidation_size = 30\ntest_size = 30\n"
    names = set()
    for probability in (0.8, 0.7):
        file.write_text(text.format(probability, 1 - probability))
        made = study(setting=str(file), method="fedavg")
        (run,) = made.runs()
        names.add(run.directory)
        out = tmp_path / str(probability)
        assert carry_out(made, out, resume=False, jobs=1, display=Silent()).finished == 1
        assert list(fedkin.results(out).setting.unique()) == ["mine"]
    assert len(names) == 2  # an edited file is another run


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_reproduce_runs_the_papers_cells(tmp_path):
    out = tmp_path / "out"
    answer = call(
        "reproduce", "--dataset", "digits", "--setting", 2, "--target", "minority", "--method", "local",
        "--seeds", 2, "--synchronizations", 9, "--out", out, "--json",
    )  # fmt: skip
    assert answer.exit_code == 0, answer.output
    content = json.loads(answer.stdout)
    assert (content["finished"], content["failed"]) == (2, {})
    assert {run["seed"] for run in content["runs"]} == {0, 1}
    table = fedkin.results(out)
    assert set(table.setting) == {"2"}
    assert table.rounds.max() <= 9


BAD = {
    "unknown method": (["--method", "fedprox"], "--method: 'fedprox' is unknown"),
    "unknown target": (
        ["--target", "both"],
        "--target: 'both' is unknown; choose one of minority, majority",
    ),
    "unknown solver": (
        ["--solver", "lu"],
        "--solver: 'lu' is unknown; choose one of cg, svrg, neumann, own",
    ),
    "rate": (["--learning-rate", "-1"], "positive"),
    "setting": (["--setting", "7"], "--setting"),
    "data set": (["--dataset", "fashion_mnist"], "did you mean"),
    "near method": (["--method", "bi-level"], "did you mean bilevel"),
    "pull": (["--learning-rate", "0.3", "--method", "pfedme"], "must be below 1"),
    "nothing to tune": (["--tune", "--method", "fedavg"], "nothing to tune"),
    "tuned rate": (["--tune", "--learning-rate", "0.05"], "--learning-rate has no effect"),
    "solver of no method": (["--method", "local", "--solver", "svrg"], "--solver is for bilevel"),
}


@pytest.mark.parametrize("name", BAD)
def test_mistakes_on_the_command_line_are_refused(name, tmp_path):
    options, message = BAD[name]
    answer = call("reproduce", "--dataset", "digits", "--out", tmp_path / "out", *options)
    assert answer.exit_code != 0
    text = answer.output + str(answer.exception)
    assert message in text
    assert not (tmp_path / "out").exists()
