"""What a node answers: only what makes sense, only what its owner allows, and always something."""

import io
import json
import os
import pickle
import stat
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import fedkin
from fedkin.errors import InputError
from fedkin.flower import node as node_module
from fedkin.flower import node_data, wire
from fedkin.flower.guard import FORMS
from fedkin.flower.node import answer
from fedkin.flower.node_settings import node_settings
from fedkin.flower.wire import Parcel, Refusal
from flower.fake_grid import through_bytes
from flower.trials import JOIN, settings

SOURCE = Path(fedkin.__file__).parents[1]
SIZE = 650
TASK = {
    "kind": "task",
    "task": "loss",
    "begin": False,
    "attempt": "one",
    "series": 0,
    "step": 0,
    "key": "0000000000000001",
}


def message(values, **vectors):
    return raw(wire.pack("request", Parcel(values, vectors)))


def raw(content, kind="train"):
    made = Message(content, 1, kind)
    made.metadata.__dict__["_message_id"] = "one"
    return made


class Node:
    def __init__(self, **more):
        self.context = Context(1, 1, settings("minority-1", **more), RecordDict(), {})

    def ask(self, values, **vectors):
        return self.answer(message(values, **vectors))

    def answer(self, message):
        return through_bytes(answer(through_bytes(message), self.context))


@pytest.fixture
def node():
    made = Node()
    assert made.ask(JOIN).has_content()
    return made


def refused(reply, refusal, *words):
    assert reply.has_error()
    assert reply.error.code == refusal, reply.error
    assert all(word in reply.error.reason for word in words), reply.error.reason


def theta(**more):
    return np.zeros(SIZE, np.float32)


def test_a_node_says_who_it_is_and_nothing_of_its_points():
    reply = Node().ask({"kind": "describe"})
    values = wire.unpack("answer", reply.content, 0).values
    assert values == {"name": "minority-1", "summary": "", "shape": "8,8,1"}


def test_a_task_is_done_on_the_nodes_own_data(node):
    reply = wire.unpack("answer", node.ask(TASK, theta=theta()).content, SIZE)
    assert reply.values["number.loss"] == pytest.approx(
        np.log(10), rel=1e-5
    )  # ten classes, no idea
    assert reply.values["evaluations"] == 200
    assert not reply.vectors


def test_unknown_tasks_are_refused(node):
    refused(node.ask(TASK | {"task": "read_file"}, theta=theta()), Refusal.INVALID, "read_file")
    refused(node.ask(TASK | {"kind": "shell"}), Refusal.INVALID, "shell")


def test_a_personal_model_is_not_given_away(node):
    refused(node.ask(TASK | {"task": "ditto_personal_round"}), Refusal.INVALID)
    numbers = {"number.learning_rate": 0.1, "number.proximal": 1.0, "number.tolerance": 0.1}
    options = {"option.steps": 1, "option.iterations": 1, "option.reply": "personal"}
    refused(
        node.ask(TASK | {"task": "pfedme_round"} | numbers | options, shared=theta()),
        Refusal.INVALID,
        "reply",
    )


@pytest.mark.parametrize(
    "vector",
    [
        np.zeros(SIZE - 1, np.float32),
        np.zeros(SIZE, np.float64),
        np.zeros(SIZE, np.int32),
        np.full(SIZE, np.nan, np.float32),
        np.float32(0),
    ],
    ids=["short", "double", "whole", "not a number", "a number"],
)
def test_vectors_that_do_not_fit_are_refused(node, vector):
    refused(node.ask(TASK, theta=vector), Refusal.INVALID, "theta")


SVRG = TASK | {
    "task": "inner_svrg_round",
    "begin": True,
    "number.learning_rate": 0.1,
    "number.refresh_probability": 0.1,
    "number.averaging_rate": 0.0,
    "option.steps": 2,
    "option.reply": "point",
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("number.learning_rate", -1.0),
        ("number.learning_rate", float("nan")),
        ("number.learning_rate", 1e9),
        ("number.learning_rate", "fast"),
        ("number.refresh_probability", 1.5),
        ("option.steps", 0),
        ("option.steps", 10**9),
        ("option.steps", 2.0),
        ("option.reply", "gradient"),
        ("option.reply", 7),
        ("begin", 1),
        ("series", -1),
        ("step", "first"),
        ("key", "not a key"),
        ("key", "00"),
        ("number.more", 1.0),
        ("data", "/etc/passwd"),
    ],
)
def test_numbers_out_of_range_are_refused(node, name, value):
    assert node.ask(SVRG, point=theta()).has_content()
    refused(node.ask(SVRG | {name: value}, point=theta()), Refusal.INVALID)


def test_what_the_owner_does_not_allow_is_refused():
    node = Node(allow="describe,loss")
    node.ask(JOIN)
    assert node.ask(TASK, theta=theta()).has_content()
    refused(node.ask(SVRG, point=theta()), Refusal.FORBIDDEN, "inner_svrg_round")
    refused(Node(allow="loss").ask({"kind": "describe"}), Refusal.FORBIDDEN, "describe")


def test_a_node_with_too_few_points_does_not_take_part():
    few = Node(**{"minimum-points": 201})
    refused(few.ask({"kind": "describe"}), Refusal.FORBIDDEN, "fewer points")
    refused(few.ask(JOIN), Refusal.FORBIDDEN, "fewer points")
    refused(few.ask(TASK, theta=theta()), Refusal.NOT_JOINED)
    assert Node(**{"minimum-points": 200}).ask(JOIN).has_content()


def test_what_has_not_begun_cannot_go_on(node):
    refused(node.ask(SVRG | {"begin": False}, point=theta()), Refusal.NOT_BEGUN)
    product = TASK | {"task": "hessian_product", "series": 3}
    refused(node.ask(product, vector=theta()), Refusal.NOT_BEGUN)
    assert node.ask(product | {"begin": True}, vector=theta(), theta=theta()).has_content()
    assert node.ask(product, vector=theta()).has_content()
    # Another series is about another model: an old linearization must not answer for it.
    refused(node.ask(product | {"series": 4}, vector=theta()), Refusal.NOT_BEGUN)


def going_on(node, step, attempt):
    """What a node answers to a round that goes on where the step before has ended."""
    more = {"begin": False, "step": step, "attempt": attempt}
    return node.ask(SVRG | more, point=theta())


def begun_on_disk(place):
    """A node that has done the step 0 of a run, and is killed then."""
    node = Node(state=str(place))
    node.ask(JOIN)
    assert node.ask(SVRG | {"option.steps": 7}, point=theta()).has_content()
    return node


@pytest.mark.parametrize("asked_before", [False, True])
def test_two_kills_within_a_step_lose_nothing_of_the_step_before(tmp_path, asked_before):
    """Each time the run is resumed, the node goes on from the end of the last finished step."""
    expected = wire.unpack(
        "answer", going_on(begun_on_disk(tmp_path / "one"), 1, "one").content, SIZE
    )
    begun_on_disk(tmp_path / "two")
    for attempt in ("two", "three", "four"):
        again = Node(state=str(tmp_path / "two"))
        again.ask(JOIN | {"attempt": attempt})
        if asked_before:  # before the first step: it is of step 0, and leaves nothing behind
            assert again.ask(TASK | {"task": "smoothness", "attempt": attempt}).has_content()
        reply = wire.unpack("answer", going_on(again, 1, attempt).content, SIZE)
        np.testing.assert_array_equal(reply.vectors["point"], expected.vectors["point"])


def test_what_is_kept_on_disk_is_for_the_owner_only(tmp_path):
    before = os.umask(0)
    try:
        going_on(begun_on_disk(tmp_path / "state"), 1, "one")
    finally:
        os.umask(before)
    kept = list((tmp_path / "state").glob("run-*.npz"))
    assert len(kept) == 2
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700


@pytest.mark.parametrize("l2", [-1.0, float("nan"), float("inf"), 1e7, 0, "none"])
def test_an_l2_out_of_its_range_is_refused(l2):
    refused(Node().ask(JOIN | {"l2": l2}), Refusal.INVALID, "l2")


def test_a_node_trains_with_the_l2_that_it_was_given():
    """The loss bends by l2 more in every direction, so its smoothness grows by just that."""
    found = []
    for l2 in (0.25, 1e-3):
        node = Node()
        assert node.ask(JOIN | {"l2": l2}).has_content()
        reply = wire.unpack("answer", node.ask(TASK | {"task": "smoothness"}).content, SIZE)
        found.append(reply.values["number.smoothness"])
    assert found[0] - found[1] == pytest.approx(0.249, rel=1e-3)


def test_mini_batches_of_single_points_are_refused():
    """A step on one point would tell the center that point's gradient."""
    refused(Node().ask(JOIN | {"batch-size": 1}), Refusal.FORBIDDEN, "batch-size 1", "5")
    # 200 points in mini-batches of at most 7: 29 of them, some with 6 points
    assert Node().ask(JOIN | {"batch-size": 7}).has_content()
    cautious = Node(**{"minimum-batch": 7})
    refused(cautious.ask(JOIN | {"batch-size": 7}), Refusal.FORBIDDEN, "minimum-batch")
    everything = Node(**{"minimum-batch": 1000})
    refused(everything.ask(JOIN | {"batch-size": 100}), Refusal.FORBIDDEN, "minimum-batch")
    assert everything.ask(JOIN | {"batch-size": 200}).has_content()
    assert Node(**{"minimum-batch": 1}).ask(JOIN | {"batch-size": 1}).has_content()


def test_a_request_cannot_exhaust_the_nodes_memory(tmp_path, monkeypatch, caplog):
    with monkeypatch.context() as patch:
        patch.setattr(node_module, "LARGEST_MODEL", SIZE - 1)
        reply = Node().ask(JOIN | {"run": "large"})
    refused(reply, Refusal.INVALID, f"{SIZE} parameters: at most {SIZE - 1}")
    path = tmp_path / "mine.csv"
    frame = pd.DataFrame({"site": ["left", "right"] * 100, "outcome": ["ill", "well"] * 100})
    frame.to_csv(path, index=False)
    wanted = {
        "columns": [{"kind": "categorical", "name": "site", "categories": ["left", "right"]}],
        "label": {"kind": "classes", "name": "outcome", "classes": ["ill", "well"]},
    }
    table = Node(data=str(path), label="outcome")
    join = JOIN | {"classes": 2, "preprocessing": json.dumps(wanted)}
    assert table.ask(join).has_content()
    monkeypatch.setattr(node_data, "LARGEST_MATRIX", 599)
    refused(table.ask(join | {"run": "another"}), Refusal.DATA, "owner's log")
    assert "3 features of each of 200 rows" in caplog.text


@pytest.mark.parametrize("ending", [".pq", ".dat", ""])
def test_a_table_is_one_whatever_its_files_ending(tmp_path, ending):
    frame = pd.DataFrame({"age": np.arange(20.0), "outcome": ["ill", "well"] * 10})
    path = tmp_path / f"mine{ending}"
    if ending == ".pq":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False)
    reply = Node(data=str(path), label="outcome").ask({"kind": "describe"})
    values = wire.unpack("answer", reply.content, 0).values
    assert '"rows":20' in str(values["summary"])
    with pytest.raises(InputError, match="label"):
        node_settings({"name": "a", "data": str(path)})


def test_what_is_wrong_with_the_data_is_told_to_the_owner_only(tmp_path, caplog):
    table = tmp_path / "secret-place.csv"
    table.write_text("age,outcome\n" + "\n".join(f"name {row},{row % 2}" for row in range(200)))
    node = Node(data=str(table), label="outcome")
    for kind in ({"kind": "describe"}, JOIN):
        reply = node.ask(kind)
        assert reply.has_error()
        assert "secret" not in reply.error.reason
        assert "name 1" not in reply.error.reason
    assert "age" in caplog.text  # the owner's log says what is wrong


# Whatever a message holds

texts = st.text(max_size=20)
scalars = st.one_of(
    st.integers(-(2**62), 2**62), st.floats(), st.booleans(), texts, st.binary(max_size=9)
)
paths = st.sampled_from(
    ["/etc/passwd", "../secret.csv", "data", "settings", "state", "preprocessing"]
)
known_keys = st.sampled_from([*JOIN, *TASK, "format", "data", "settings", "number.learning_rate"])
known_values = st.sampled_from(
    ["task", "join", "describe", *FORMS, "one", "logistic", "cnn", "ridge"]
)
configs = st.dictionaries(
    st.one_of(known_keys, texts), st.one_of(scalars, known_values, paths), max_size=3
)
arrays = st.dictionaries(
    st.one_of(st.sampled_from(["theta", "point", "vector", "target", "shared"]), texts),
    st.one_of(
        st.sampled_from(
            [np.zeros(SIZE, np.float32), np.zeros((2, 2)), np.array("text"), np.zeros(0)]
        ),
        st.builds(lambda size: np.ones(size, np.float32), st.integers(0, 700)),
    ),
    max_size=3,
)


@st.composite
def contents(draw):
    records = {}
    any_names = st.sets(st.sampled_from(["request", "vectors", "answer", "x"]), max_size=3)
    formed = (
        draw(st.integers(0, 3)) > 0
    )  # most have the right records, so that their content counts
    for name in ["request", "vectors"] if formed else draw(any_names):
        kind = "arrays" if formed else draw(st.sampled_from(["config", "metrics", "damaged"]))
        if name == "request" or kind == "config":
            start = draw(st.sampled_from([{}, JOIN, TASK, SVRG, {"kind": "describe"}]))
            records[name] = ConfigRecord({"format": 1, **start, **draw(configs)})
        elif kind == "metrics":
            records[name] = MetricRecord({"a": 1.0})
        elif kind == "damaged":
            data = draw(st.one_of(st.binary(max_size=200), st.just(huge_header())))
            array = Array("float32", (3,), "numpy.ndarray", data)
            records[name] = ArrayRecord({"theta": array})
        else:
            records[name] = ArrayRecord({n: Array(a) for n, a in draw(arrays).items()})
    return RecordDict(records)


def huge_header():
    """An array that claims to be far larger than any memory."""
    header = (
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }".ljust(117) + "\n"
    )
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()


watched: list[str] | None = None
"""While it is a list: the files that this process opens."""


def watch(event, arguments):
    if event == "open" and watched is not None:
        watched.append(str(arguments[0]))


sys.addaudithook(watch)


def is_code(path):
    """Python's own modules may be loaded late; the digits come with one of them."""
    return any(Path(path).is_relative_to(place) for place in (sys.prefix, sys.base_prefix, SOURCE))


@hypothesis_settings(
    max_examples=600,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(content=contents(), kind=st.sampled_from(["train", "evaluate", "query"]))
def test_whatever_a_message_holds_there_is_an_answer(content, kind):
    """Never an exception, never another file: errors are answers, and only the owner's data are read."""
    global watched
    watched = []
    try:
        reply = fuzzed.answer(raw(content, kind))
    finally:
        opened, watched = watched, None
    assert [path for path in opened if not is_code(path)] == []
    assert reply.has_error() or reply.has_content()
    if reply.has_error():
        assert reply.error.reason
        assert reply.error.code in set(Refusal) - {Refusal.INTERNAL}, reply.error.reason


fuzzed = Node()


@pytest.fixture(autouse=True, scope="module")
def _warm():
    """Let everything that is read lazily (digits, the model's code) be read before opening is watched."""
    fuzzed.ask(JOIN)
    fuzzed.ask({"kind": "describe"})
    fuzzed.ask(TASK, theta=theta())
    fuzzed.ask(SVRG, point=theta())
    yield
    node_module._PREPARED.clear()


def test_an_array_is_not_believed_before_its_size_is():
    array = Array("float32", (3,), "numpy.ndarray", huge_header())
    content = RecordDict(
        {"request": ConfigRecord({"format": 1, **TASK}), "vectors": ArrayRecord({"theta": array})}
    )
    refused(fuzzed.answer(raw(content)), Refusal.INVALID, "theta")


def test_nothing_pickled_is_ever_loaded():
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("it was executed",))

    buffer = io.BytesIO()
    np.save(buffer, np.array([Trap()], object), allow_pickle=True)
    for data in (buffer.getvalue(), pickle.dumps(Trap())):
        content = RecordDict(
            {
                "request": ConfigRecord({"format": 1, **TASK}),
                "vectors": ArrayRecord({"theta": Array("object", (1,), "numpy.ndarray", data)}),
            }
        )
        refused(fuzzed.answer(raw(content)), Refusal.INVALID, "theta")
