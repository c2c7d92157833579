"""What is known of runs that are under way, from files alone."""

import os
import time
from pathlib import Path

import pytest
from live_studies import begin_fit, begin_run, begin_study, started, step

from fedkin.errors import InputError
from fedkin.events import (
    GroupsTrained,
    RunFailed,
    RunFinished,
    Warned,
    append_event,
    events_beside,
    hidden_events_beside,
)
from fedkin.flower import layout
from fedkin.report import html
from fedkin.watch import directory as watching
from fedkin.watch import page
from fedkin.watch.directory import open_directory
from fedkin.watch.runs import LiveRun
from stores import invent_run, invent_study, study

CONFIG = study(method=["bilevel", "fedavg"], seed=[0, 1])


def test_a_run_that_starts_over_or_resumes_forgets_the_steps_it_takes_again():
    run = LiveRun("a")
    run.take([started(), *(step(number) for number in range(1, 6)), step(1), step(2)])
    assert [each.step for each in run.steps] == [1, 2]
    run.take([started(resumed_after=1), step(2), step(3)])
    assert [each.step for each in run.steps] == [1, 2, 3]
    run.take([started()])
    assert run.steps == []


def test_time_left_is_what_the_limit_that_is_nearest_leaves():
    run = LiveRun("a")
    run.take([started(most_steps=20, most_synchronizations=None), step(5)])
    assert run.share_done == pytest.approx(0.25)
    assert run.seconds_left == pytest.approx(30)  # 10 s were a quarter
    run.take([started(most_steps=20, most_synchronizations=100), step(5)])
    assert run.share_done == pytest.approx(0.5)
    run.take([started(most_steps=None, most_synchronizations=None), step(5)])
    assert run.seconds_left is None
    run.take([RunFinished(stopped="converged")])
    assert (run.state, run.reason, run.seconds_left) == ("finished", "converged", None)


def test_a_study_is_followed_from_its_first_run_to_its_report(tmp_path):
    store = begin_study(tmp_path / "out", CONFIG)
    runs = CONFIG.runs()
    watched = open_directory(tmp_path / "out")
    watched.refresh()
    assert (watched.total, watched.runs, watched.is_over()) == (4, {}, False)
    begin_run(store, runs[0])
    watched.refresh()
    (run,) = watched.in_state("running")
    assert run.last.step == 5
    # One run of 40 s in all, 10 s of which are over, and three that wait.
    assert watched.seconds_left() == pytest.approx(30 + 3 * 40)
    for each in runs[:3]:
        invent_run(store, each)
    failing = begin_run(store, runs[3], steps=1)
    failing.record(RunFailed(run=runs[3].directory, reason="diverged"))
    watched.refresh()
    assert watched.is_over()
    assert [each.reason for each in watched.in_state("failed")] == ["diverged"]
    assert "1 of 4 runs are missing" in watched.report()


def test_a_study_that_is_resumed_waits_for_what_was_interrupted_or_failed(tmp_path):
    store = begin_study(tmp_path / "out", CONFIG)
    runs = CONFIG.runs()
    interrupted = begin_run(store, runs[0])
    begin_run(store, runs[1]).record(RunFailed(run=runs[1].directory, reason="no data"))
    for each in runs[2:]:
        invent_run(store, each)
    later = time.time() + 5
    os.utime(store.path / "study.json", (later, later))
    watched = open_directory(tmp_path / "out")
    watched.refresh()
    assert {run.name for run in watched.in_state("waiting")} == {
        runs[0].directory,
        runs[1].directory,
    }
    assert not watched.is_over()
    again = started(runs[0].directory, resumed_after=5, time=later + 1)
    interrupted.record(again)
    watched.refresh()
    (running,) = watched.in_state("running")
    assert (running.name, running.last.step) == (runs[0].directory, 5)


def test_the_steps_of_a_finished_run_are_read_when_they_are_asked_for(tmp_path):
    store = begin_study(tmp_path / "out", CONFIG)
    run = CONFIG.runs()[0]
    begin_run(store, run, steps=7).record(RunFinished(run=run.directory, stopped="converged"))
    watched = open_directory(tmp_path / "out")
    watched.refresh()
    assert len(watched.runs[run.directory].steps) == 1
    assert len(watched.steps_of(run.directory).steps) == 7


def test_a_result_is_over_when_its_directory_is_newer_than_the_news(tmp_path):
    out = tmp_path / "result"
    begin_fit(out)
    watched = open_directory(out)
    assert [run.last.step for run in watched.in_state("running")] == [2]
    assert not watched.is_over()
    out.mkdir()
    metrics = out / "metrics.json"
    metrics.write_text("{}")
    assert watched.is_over()
    append_event(events_beside(out), started(time=time.time() + 10))  # it is learned again
    watched.refresh()
    assert not watched.is_over()


def test_the_command_on_this_machine_comes_before_an_old_federation(tmp_path):
    out = tmp_path / "result"
    begin_fit(out)
    watched = open_directory(out)
    append_event(hidden_events_beside(out), started(method="fedavg"))
    watched.refresh()
    assert [run.method for run in watched.runs.values()] == ["fedavg"]


@pytest.mark.parametrize("looks_between", [False, True])
def test_a_command_that_is_given_again_is_followed_from_its_start(tmp_path, looks_between):
    out = tmp_path / "result"
    file = hidden_events_beside(out)
    for event in (
        started("north"),
        step(1, "north"),
        step(2, "north"),
        GroupsTrained(done=1, most=3),
    ):
        append_event(file, event)
    watched = open_directory(out)
    assert watched.groups is not None
    file.unlink()
    if looks_between:
        watched.refresh()
    append_event(file, started(method="fedavg"))
    append_event(file, step(1))
    watched.refresh()
    assert [(run.name, run.method, run.last.step) for run in watched.runs.values()] == [
        ("", "fedavg", 1)
    ]
    assert watched.groups is None


def test_the_page_says_what_is_going_on(tmp_path):
    store = begin_study(tmp_path / "out", CONFIG)
    run = CONFIG.runs()[0]
    directory = begin_run(store, run, steps=3, absent=("south",))
    for _ in range(2):
        directory.record(Warned(run=run.directory, message="south <b>did not answer"))
    watched = open_directory(tmp_path / "out")
    watched.refresh()
    text = page.render(watched, None)
    assert "1 run under way" in text
    assert "3 of 20" in text
    assert "1 of 3 nodes is missing." in text
    assert "south: missing since step 1" in text
    assert "2 times" in text
    assert "south &lt;b&gt;did not answer" in text
    assert "alert(1)</script>" not in text
    assert text.count("<svg") == 3
    assert "Show all." in page.render(watched, "../../etc/passwd")


def test_a_page_that_has_heard_nothing_for_long_says_so(tmp_path):
    store = begin_study(tmp_path / "out", CONFIG)
    directory = begin_run(store, CONFIG.runs()[0], steps=0)
    long_ago = time.time() - 3600
    os.utime(store.path / "study.json", (long_ago, long_ago))
    directory.events.unlink()
    directory.record(started(CONFIG.runs()[0].directory, time=long_ago + 1))
    watched = open_directory(tmp_path / "out")
    watched.refresh()
    assert "There has been no news for 60 min" in page.render(watched, None)


def test_numbers_that_are_not_finite_leave_the_charts_standing(tmp_path):
    store = begin_study(tmp_path / "out", CONFIG)
    run = CONFIG.runs()[0]
    nan = float("nan")
    directory = begin_run(store, run, steps=4)
    directory.record(
        step(
            5,
            run.directory,
            validation_loss=nan,
            validation_accuracy=nan,
            test_accuracy=None,
            weights=(nan, nan, nan),
        )
    )
    watched = open_directory(tmp_path / "out")
    watched.refresh()
    text = page.render(watched, None)
    assert "nan," not in text
    assert text.count("<svg") == 3


def test_the_report_is_that_of_fedkin_report(tmp_path):
    invent_study(tmp_path / "out", study(seed=[0]))
    watched = open_directory(tmp_path / "out")
    watched.refresh()
    assert watched.is_over()
    assert watched.report() == html.render(html_record(tmp_path / "out"))


def html_record(path: Path):
    from fedkin.report.reading import read_record

    return read_record(path)


def test_what_cannot_be_watched_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file: name the --out"):
        open_directory(tmp_path / "file")
    with pytest.raises(InputError, match="does not exist, and nothing is under way"):
        open_directory(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="has no results, and nothing is under way"):
        open_directory(tmp_path / "empty")
    (tmp_path / "federation").mkdir()
    assert watching.FEDERATION_FILE == layout.FILE
    (tmp_path / "federation" / layout.FILE).write_text("")
    with pytest.raises(InputError, match="name the --out of fedkin federation run"):
        open_directory(tmp_path / "federation")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "study.json").write_text("{")
    with pytest.raises(InputError, match="is damaged"):
        open_directory(tmp_path / "damaged")
