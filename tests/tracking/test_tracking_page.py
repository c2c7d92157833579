"""docs/tracking.md: every example on the page is complete and works."""

import json
import re
import runpy
from dataclasses import fields
from pathlib import Path

import pytest

from fedkin import events
from fedkin.tracking.with_mlflow import DEFAULTS

PAGE = (Path(__file__).parents[2] / "docs" / "tracking.md").read_text()
TRACKERS, CALLBACK, OWN = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(example):
    Path("example.py").write_text(example)
    return runpy.run_path("example.py")


@pytest.mark.filterwarnings("ignore")  # of MLflow about its own dependencies
def test_the_trackers_write_where_the_page_says(tmp_path):
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    pytest.importorskip("tensorboardX", reason="needs the extra tensorboard")
    run(TRACKERS)
    assert (tmp_path / "tracking" / "mlflow.db").is_file()
    assert list((tmp_path / "logs").glob("events.out.tfevents.*"))


def test_a_callback_of_one_s_own(capsys):
    run(CALLBACK)
    first, second, end = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"step 2: loss \d\.\d{3}", first)
    assert second.startswith("step 4")
    assert end.startswith("converged")


def test_a_tracker_of_one_s_own(tmp_path):
    names = run(OWN)
    event = events.RunFinished(stopped="converged")
    with names["LinesTracker"]("lines") as tracker:
        tracker(event)
    assert events.from_json(json.loads((tmp_path / "lines").read_text())) == event


def test_every_event_and_field_is_described():
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*\|[^|]*) \|$", PAGE, flags=re.M))
    assert set(rows) == {kind.__name__ for kind in events.KINDS.values()}
    for kind in events.KINDS.values():
        own = {each.name for each in fields(kind)} - {"run", "time"}
        assert own <= set(re.findall(r"`(\w+)`", rows[kind.__name__])), kind
    for kind in events.KINDS:
        assert f"`{kind}`" in PAGE
    for name in DEFAULTS:
        assert name in PAGE or name == "MLFLOW_LOGGING_LEVEL"
