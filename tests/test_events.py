import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedkin.events import (
    EventReader,
    GroupsTrained,
    RunFailed,
    RunFinished,
    RunStarted,
    StepDone,
    Warned,
    append_event,
    events_beside,
    from_json,
    to_json,
)

EVENTS = [
    RunStarted(
        run="a",
        method="bilevel",
        nodes=("north", "south"),
        resumed_after=3,
        most_steps=20,
        most_synchronizations=400,
        parameters={"cap": 0.5, "prior": None},
    ),
    StepDone(
        run="a",
        step=1,
        synchronizations=9,
        seconds=1.5,
        bytes_up=10,
        bytes_down=20,
        validation_loss=0.5,
        validation_accuracy=0.75,
        weights=(0.25, 0.75),
        absent=("south",),
    ),
    Warned(run="a", message="south did not answer"),
    GroupsTrained(done=3, most=63),
    RunFinished(run="a", stopped="converged"),
    RunFailed(run="a", reason="diverged", traceback=None),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.kind)
def test_event_survives_its_line(event):
    assert from_json(json.loads(json.dumps(to_json(event)))) == event


def test_reader_returns_each_event_once_and_waits_for_whole_lines(tmp_path):
    path = tmp_path / "events.jsonl"
    reader = EventReader(path)
    assert reader.new() == []
    append_event(path, EVENTS[0])
    assert reader.new() == [EVENTS[0]]
    line = json.dumps(to_json(EVENTS[1])) + "\n"
    with path.open("a") as file:
        file.write(line[:20])
    assert reader.new() == []
    with path.open("a") as file:
        file.write(line[20:])
    append_event(path, EVENTS[2])
    assert reader.new() == [EVENTS[1], EVENTS[2]]
    assert reader.new() == []


def test_event_after_a_line_that_was_cut_off_is_not_lost(tmp_path):
    path = tmp_path / "events.jsonl"
    append_event(path, EVENTS[0])
    with path.open("a") as file:
        file.write('{"event": "st')
    append_event(path, EVENTS[2])
    assert EventReader(path).new() == [EVENTS[0], EVENTS[2]]


def test_reader_of_new_events_skips_earlier_ones(tmp_path):
    path = tmp_path / "events.jsonl"
    append_event(path, EVENTS[0])
    reader = EventReader(path, only_new=True)
    append_event(path, EVENTS[2])
    assert reader.new() == [EVENTS[2]]
    assert EventReader(tmp_path / "later.jsonl", only_new=True).new() == []


def test_file_beside_the_results():
    assert events_beside(Path("runs/heart")) == Path("runs/heart.events.jsonl")


def test_reader_skips_what_it_does_not_know(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": "of a later version"}\nnot JSON\n{"event": "step"}\n[1]\n')
    append_event(path, EVENTS[3])
    assert EventReader(path).new() == [EVENTS[3]]


def test_field_of_a_later_version_is_ignored():
    event = EVENTS[3]
    assert from_json(to_json(event) | {"mood": "good"}) == replace(event)


@pytest.mark.parametrize(
    "change",
    [
        {"step": "x"},
        {"time": None},
        {"validation_loss": None},
        {"weights": 3},
        {"weights": ["a", "b"]},
        {"absent": 5},
        {"absent": [5]},
        {"run": ["a"]},
    ],
)
def test_reader_skips_fields_of_another_type(tmp_path, change):
    path = tmp_path / "events.jsonl"
    path.write_text(json.dumps(to_json(EVENTS[1]) | change) + "\n" + "[" * 100_000 + "\n")
    append_event(path, EVENTS[1])
    assert EventReader(path).new() == [EVENTS[1]]


@pytest.mark.parametrize("only_new", [False, True])
def test_a_file_that_was_replaced_is_read_from_its_beginning(tmp_path, only_new):
    path = tmp_path / "events.jsonl"
    append_event(path, replace(EVENTS[2], time=1.0))
    reader = EventReader(path, only_new=only_new)
    reader.new()
    assert not reader.replaced
    path.unlink()
    assert reader.new() == []
    assert not reader.replaced
    later = [replace(event, time=2.0) for event in EVENTS[:3]]
    for event in later:
        append_event(path, event)
    assert reader.new() == later
    assert reader.replaced
    append_event(path, later[2])
    assert reader.new() == [later[2]]
    assert not reader.replaced
