"""What a run on another machine sends home, and what becomes of it, without a cluster."""

import pytest

from fedkin.errors import FedkinError, InputError
from fedkin.events import EventReader, RunFailed, RunFinished, RunStarted, StepDone
from fedkin.studies import away, cluster
from fedkin.studies.away import Arrived, AwayRun, News, do_away
from fedkin.studies.cell import do_run
from fedkin.studies.config import RunConfig, with_settings
from fedkin.studies.store import read_finished
from fedkin.studies.study import attempt
from run_files import files

RUN = RunConfig(
    dataset="digits",
    setting=2,
    method="fedavg",
    model="logistic",
    steps=6,
    train_size=30,
    test_size=50,
    settings={"rounds": 2},
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    parent = tmp_path_factory.mktemp("whole")
    do_run(RUN, parent)
    return parent


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(away, "SECONDS_BETWEEN_NEWS", 0.0)


class LostWorkerError(BaseException):
    pass


def test_what_arrives_is_what_a_run_here_leaves_behind(whole, tmp_path):
    run = AwayRun(RUN, tmp_path)
    news = []

    def send(each):
        news.append(each)
        run.take(each)
        return True

    arrived = do_away(run.order(None), attempt, send)
    steps = [
        event.step
        for event in EventReader(run.directory.events).new()
        if isinstance(event, StepDone)
    ]
    assert steps == [1, 2, 3, 4, 5, 6]
    assert any(each.files for each in news)
    assert read_finished(run.directory.path) is None
    assert run.end(arrived) is None
    assert files(tmp_path, RUN) == files(whole, RUN)
    assert not list(run.directory.path.glob("checkpoint*"))
    kinds = [type(event) for event in EventReader(run.directory.events).new()]
    assert kinds == [RunStarted, *[StepDone] * 6, RunFinished]


def test_a_lost_worker_costs_the_steps_since_its_last_news_only(whole, tmp_path):
    run = AwayRun(RUN, tmp_path)

    def send_until(last):
        def send(news):
            run.take(news)
            if news.events.count(b'"step"') and len(steps_at_home(run)) == last:
                raise LostWorkerError
            return True

        return send

    for last in (2, 4):
        with pytest.raises(LostWorkerError):
            do_away(run.order(None), attempt, send_until(last))
    arrived = do_away(run.order(None), attempt, lambda news: run.take(news) is None)
    assert run.end(arrived) is None
    starts = [
        event for event in EventReader(run.directory.events).new() if isinstance(event, RunStarted)
    ]
    assert [each.resumed_after for each in starts] == [None, 2, 4]
    assert steps_at_home(run) == [1, 2, 3, 4, 5, 6]
    assert files(tmp_path, RUN) == files(whole, RUN)


def steps_at_home(run):
    events = EventReader(run.directory.events).new()
    return [event.step for event in events if isinstance(event, StepDone)]


def test_news_that_are_lost_come_again_at_the_end(tmp_path):
    run = AwayRun(RUN, tmp_path)
    taken = []

    def send(news):
        taken.append(news)
        if len(taken) != 3:
            run.take(news)
        return True  # as far as the worker knows, all of them were

    arrived = do_away(run.order(None), attempt, send)
    assert steps_at_home(run) == [1]
    assert run.end(arrived) is None
    assert steps_at_home(run) == [1, 2, 3, 4, 5, 6]


def test_what_could_not_be_sent_comes_with_the_next(tmp_path):
    run = AwayRun(RUN, tmp_path)
    count = 0

    def send(news):
        nonlocal count
        count += 1
        if count % 2:
            return False
        run.take(news)
        return True

    arrived = do_away(run.order(None), attempt, send)
    assert run.end(arrived) is None
    assert steps_at_home(run) == [1, 2, 3, 4, 5, 6]


def test_news_of_an_attempt_that_was_given_up_are_ignored(tmp_path):
    run = AwayRun(RUN, tmp_path)
    run.order(None)
    run.losses = 2
    run.order(None)
    line = b'{"event": "warning", "message": "late"}\n'
    run.take(News(RUN.directory, 0, 0, line, {"checkpoint.npz": b"old"}))
    assert not run.directory.events.exists()
    assert not run.directory.checkpoint.exists()
    assert run.losses == 2
    run.take(News(RUN.directory, 1, 0, line, {"checkpoint.npz": b"new"}))
    assert run.directory.events.read_bytes() == line
    assert run.directory.checkpoint.read_bytes() == b"new"
    assert run.losses == 0


def test_a_run_that_fails_away_says_why(tmp_path):
    diverging = with_settings(RUN, {"learning_rate": 1e30})
    run = AwayRun(diverging, tmp_path)
    arrived = do_away(run.order(None), attempt, lambda news: True)
    reason = run.end(arrived)
    assert "diverged" in reason
    assert read_finished(run.directory.path) is None
    assert EventReader(run.directory.events).new()[-1].reason == reason


def test_a_fault_away_names_the_file_at_home(tmp_path, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("fedkin.studies.study.do_run", broken)
    run = AwayRun(RUN, tmp_path)
    arrived = do_away(run.order(None), attempt, lambda news: True)
    reason = run.end(arrived)
    assert str(run.directory.events) in reason
    assert "ZeroDivisionError" in EventReader(run.directory.events).new()[-1].traceback


def test_workers_with_other_versions_are_refused(tmp_path, monkeypatch):
    order = AwayRun(RUN, tmp_path).order(None)
    monkeypatch.setattr(away, "versions", lambda: {**order.versions, "numpy": "1.0"})
    with pytest.raises(
        InputError, match=r"a worker of the cluster has numpy 1\.0, and this machine"
    ):
        do_away(order, attempt, lambda news: True)


def test_a_result_that_is_damaged_on_its_way_is_not_taken(tmp_path):
    run = AwayRun(RUN, tmp_path)
    arrived = do_away(run.order(None), attempt, lambda news: True)
    damaged = {**arrived.files, "models.npz": arrived.files["models.npz"][:-1]}
    reason = run.end(Arrived(None, arrived.events, damaged))
    assert "damaged" in reason


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "", "..", "a/b", ".hidden"])
def test_files_stay_in_the_directory_of_the_run(tmp_path, name):
    run = AwayRun(RUN, tmp_path / "runs")
    run.order(None)
    with pytest.raises(FedkinError, match="has sent a file with the name"):
        run.take(News(RUN.directory, 0, 0, b"", {name: b""}))


def test_a_checkpoint_that_comes_after_the_end_is_not_kept(tmp_path):
    run = AwayRun(RUN, tmp_path)
    news = []
    arrived = do_away(run.order(None), attempt, lambda each: news.append(each) is None)
    late = [each for each in news if each.files][-1]
    assert run.end(arrived) is None
    whole = run.directory.events.read_bytes()
    run.take(late)
    assert not list(run.directory.path.glob("checkpoint*"))
    assert run.directory.events.read_bytes() == whole


def test_events_after_a_line_that_was_cut_off_here_are_not_lost(tmp_path):
    run = AwayRun(RUN, tmp_path)
    order = run.order(None)
    run.directory.events.write_bytes(b'{"event": "st')  # this process was killed
    do_away(order, attempt, lambda news: run.take(news) is None)
    kinds = [type(event) for event in EventReader(run.directory.events).new()]
    assert kinds[:2] == [RunStarted, StepDone]


def test_a_run_that_loses_its_workers_fails_for_readers_of_events_too(tmp_path):
    run = AwayRun(RUN, tmp_path)
    run.order(None)
    reasons = [cluster._lose_worker(run, OSError("killed")) for _ in range(cluster.MOST_LOSSES)]
    assert reasons[:-1] == [None] * (cluster.MOST_LOSSES - 1)
    assert "workers were lost in a row (killed)" in reasons[-1]
    last = EventReader(run.directory.events).new()[-1]
    assert (type(last), last.reason) == (RunFailed, reasons[-1])
