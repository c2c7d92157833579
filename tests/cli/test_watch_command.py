"""`fedkin watch`: what newcomers get wrong, and the events that commands leave for it."""

import socket

import numpy as np
import pandas as pd
import pytest

from fedkin.cli import fit
from fedkin.events import EventReader, RunFinished, RunStarted, append_event, hidden_events_beside
from fedkin.watch.directory import open_directory


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing argument 'DIR'"),
        (["nowhere"], "nowhere does not exist, and nothing is under way there"),
        (["file"], "file is a file: name the --out of fedkin run"),
        (["."], "has no results, and nothing is under way there"),
        (["damaged"], "is damaged"),
        (["future"], "written by a version of fedkin with format 99"),
        (["federation"], "is the directory of a federation: name the --out"),
        (["here", "--port", "65536"], "--port"),
        (["here", "--port", "web"], "--port"),
        (["here", "there"], "unexpected extra argument"),
        (["here", "--prot", "1"], "--port"),
    ],
)
def test_mistakes(refused, tmp_path, arguments, message):
    (tmp_path / "file").write_text("")
    for name, file, content in (
        ("damaged", "study.json", "{"),
        ("future", "study.json", '{"format": 99}'),
        ("federation", "federation.toml", ""),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(content)
    assert message in refused("watch", *arguments)


def test_a_port_that_is_in_use(refused, tmp_path):
    append_event(hidden_events_beside(tmp_path / "r"), RunStarted(method="bilevel", nodes=("a",)))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused("watch", "r", "--port", port)
    assert f"port {port} is in use: choose another with --port" in line


@pytest.fixture
def tables(tmp_path):
    random = np.random.default_rng(0)
    for name in ("a", "b", "own"):
        x = random.normal(size=40)
        pd.DataFrame({"x": x, "y": x + random.normal(size=40)}).to_csv(
            tmp_path / f"{name}.csv", index=False
        )


NODES = ["--node", "a.csv", "--node", "b.csv", "--label", "y"]
REGRESSION = ["--task", "regression", "--out", "r"]
COMMANDS = {
    "fit": [*NODES, "--validation", "own.csv", *REGRESSION],
    "map": [*NODES, *REGRESSION],
    "advise": [*NODES, "--own", "own.csv", "--folds", 2, "--repeats", 1, *REGRESSION],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_under_way_can_be_watched_and_leaves_no_events_behind(
    command, tables, tmp_path, monkeypatch, name
):
    seen = []

    def look(path, event):
        append_event(path, event)
        seen.append((path, open_directory(tmp_path / "r").in_state("running")))

    monkeypatch.setattr("fedkin.cli.kept_events.append_event", look)
    answer = command(name, *COMMANDS[name])
    assert answer.status == 0, answer.err
    paths, running = zip(*seen, strict=True)
    assert {path.name for path in paths} == {".r.events.jsonl"}
    assert any(running)
    assert not hidden_events_beside(tmp_path / "r").exists()
    watched = open_directory(tmp_path / "r")
    assert watched.is_over()
    assert "fedkin" in watched.report()


def test_a_command_that_is_stopped_leaves_no_events_behind(command, tables, tmp_path, monkeypatch):
    def stop(*_):
        assert isinstance(EventReader(file).new()[-1], RunFinished)
        raise KeyboardInterrupt

    file = hidden_events_beside(tmp_path / "r")
    monkeypatch.setattr(fit, "write_result", stop)
    assert command("fit", *COMMANDS["fit"]).status == 130
    assert not file.exists()
