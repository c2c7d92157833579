"""What a node answers: only what makes sense, only what its owner allows, and always something."""

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
from fedkin.flower import node_data, node_preparation, wire
from fedkin.flower.guard import remote_tasks
from fedkin.flower.node import answer
from fedkin.flower.node_settings import NodeSettings, node_settings
from fedkin.flower.wire import FORMS, Parcel, Refusal
from fedkin.methods.bilevel.node import HESSIAN_PRODUCT, SLOPE
from fedkin.methods.local_svrg.node import INNER_SVRG_ROUND
from fedkin.methods.registry import METHODS
from fedkin.methods.step_size import SMOOTHNESS
from flower.fake_grid import through_bytes
from flower.trials import JOIN, settings
from flower.well_formed import HEADER, exchange, request

SOURCE = Path(fedkin.__file__).parents[1]
SIZE = 650


def ask_for(task, **more):
    """Return the values and vectors of an exchange with one request, called `ask`."""
    values, vectors = exchange(task, SIZE, **more)
    return HEADER | values, vectors


SMOOTH, _ = ask_for(SMOOTHNESS)
SVRG, POINT = ask_for(INNER_SVRG_ROUND)


def message(values, vectors=None):
    return raw(wire.pack("request", Parcel(values, vectors or {})))


def raw(content, kind="train"):
    made = Message(content, 1, kind)
    made.metadata.__dict__["_message_id"] = "one"
    return made


class Node:
    def __init__(self, **more):
        self.context = Context(1, 1, settings("minority-1", **more), RecordDict(), {})

    def ask(self, values, vectors=None):
        return self.answer(message(values, vectors))

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


def content(reply):
    assert reply.has_content(), reply.error.reason
    return wire.unpack("answer", reply.content, 3 * SIZE)


def test_a_node_describes_itself_and_none_of_its_points():
    reply = Node().ask({"kind": "describe"})
    values = wire.unpack("answer", reply.content, 0).values
    assert values == {"name": "minority-1", "summary": "", "shape": "8,8,1"}


def test_a_task_is_done_on_the_nodes_own_data(node):
    values, _ = ask_for(INNER_SVRG_ROUND)
    reply = content(
        node.ask(values | {"ask.option.steps": 1}, {"ask/point": 0 * POINT["ask/point"]})
    )
    # Ten classes that a model of zeros does not tell apart
    assert reply.values["ask.number.loss"] == pytest.approx(np.log(10), rel=1e-5)
    assert reply.values["evaluations"] == 200 + 2 * 50  # all points, and a mini-batch twice
    assert set(reply.vectors) == {"ask.vector.point"}
    assert reply.vectors["ask.vector.point"].shape == (SIZE,)
    assert set(reply.values) == {"evaluations", "ask.number.loss"}


def test_several_requests_are_answered_together(node):
    product, places = request(HESSIAN_PRODUCT, "one")
    slope, _ = request(SLOPE, "two")
    slope |= {f"two.vector.{name}": f"one/{name}" for name in ("vector", "theta")}
    vectors = dict(zip(places, np.random.default_rng(0).normal(size=(2, SIZE)), strict=True))
    vectors = {place: vector.astype(np.float32) for place, vector in vectors.items()}
    both = content(node.ask({**HEADER, "requests": "one,two", **product, **slope}, vectors))
    assert set(both.vectors) == {"one.vector.product"}
    assert set(both.values) == {"evaluations", "two.number.slope"}
    # The gradient at θ, which both need, is computed once; then the product.
    assert both.values["evaluations"] == 200 + 200
    alone = content(node.ask({**HEADER, "requests": "one", **product}, vectors))
    np.testing.assert_array_equal(
        alone.vectors["one.vector.product"], both.vectors["one.vector.product"]
    )


def test_several_models_are_those_asked_for_alone(node):
    values, _ = ask_for(INNER_SVRG_ROUND, models=(1, 5))
    points = np.random.default_rng(0).normal(size=(2, SIZE)).astype(np.float32)
    both = content(node.ask(values, {"ask/point": points}))
    assert both.vectors["ask.vector.point"].shape == (2, SIZE)
    losses = both.values["ask.number.loss"]
    for point, found, loss in zip(points, both.vectors["ask.vector.point"], losses, strict=True):
        alone = content(node.ask(SVRG, {"ask/point": point}))
        np.testing.assert_allclose(found, alone.vectors["ask.vector.point"], rtol=1e-5, atol=1e-6)
        assert loss == pytest.approx(alone.values["ask.number.loss"], rel=1e-5)
    # Each has a memory of its own: a model that has not begun says so, the others continue.
    for model, has_begun in ((5, True), (3, False)):
        values, _ = ask_for(INNER_SVRG_ROUND, models=(model,), begin=False)
        reply = node.ask(values, {"ask/point": points[:1]})
        if has_begun:
            assert reply.has_content()
        else:
            refused(reply, Refusal.NOT_BEGUN)


def test_unknown_tasks_are_refused(node):
    refused(node.ask(SMOOTH | {"ask.task": "read_file"}), Refusal.INVALID, "read_file")
    refused(node.ask(SMOOTH | {"kind": "shell"}), Refusal.INVALID, "shell")


@pytest.mark.parametrize("task", ["ditto_personal_round", "pfedme_personal_round", "constants"])
def test_a_personal_model_is_not_given_away(node, task):
    """Tasks for data at hand do not exist for a node."""
    refused(node.ask(SVRG | {"ask.task": task}, POINT), Refusal.INVALID, "there is no task", task)


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
    refused(node.ask(SVRG, {"ask/point": vector}), Refusal.INVALID, "ask/point")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ask.number.learning_rate", -1.0),
        ("ask.number.learning_rate", float("nan")),
        ("ask.option.steps", 10**9),
        ("ask.option.reply", "gradient"),
        ("ask.models", "0"),
        ("ask.series.inner", -1),
        ("step", "first"),
        ("step", -1),
        ("key", "not a key"),
        ("key", "00"),
        ("key", 7),
        ("data", "/etc/passwd"),
    ],
)
def test_values_out_of_range_are_refused(node, name, value):
    """The whole list is in test_guard.py; here it is that the node goes through the guard."""
    assert node.ask(SVRG, POINT).has_content()
    refused(node.ask(SVRG | {name: value}, POINT), Refusal.INVALID)


def test_what_the_owner_does_not_allow_is_refused():
    node = Node(allow="describe,smoothness")
    node.ask(JOIN)
    assert node.ask(SMOOTH).has_content()
    refused(node.ask(SVRG, POINT), Refusal.FORBIDDEN, "inner_svrg_round")
    refused(Node(allow="smoothness").ask({"kind": "describe"}), Refusal.FORBIDDEN, "describe")


def test_a_nodes_own_vectors_are_for_owners_who_allow_it(node):
    revealed = SVRG | {"ask.form": "revealed"}
    refused(node.ask(revealed, POINT), Refusal.FORBIDDEN, "reveal")
    open_node = Node(reveal=True)
    open_node.ask(JOIN)
    assert open_node.ask(revealed, POINT).has_content()


def test_settings_that_name_nothing_are_refused():
    for more, words in {
        ("methods", "flower.outside:Nothing"): "has no Nothing",
        ("methods", "no_such_package:Method"): "cannot be imported",
        ("methods", "flower.outside:narrow"): "derives from fedkin.Method",
        ("allow", "outside_descents"): "there is no request",
    }.items():
        with pytest.raises(InputError, match=words):
            node_settings(settings("a", **dict([more])))


def test_settings_are_checked_without_registering_anything(monkeypatch):
    monkeypatch.setattr(METHODS, "_things", dict(METHODS._things))
    written = settings("a", methods="flower.outside:Median", allow="outside_descent")
    NodeSettings.model_validate(written)
    assert "outside_descent" not in remote_tasks()
    assert node_settings(written).allowed == ("outside_descent",)
    assert "outside_descent" in remote_tasks()


def test_no_message_makes_a_node_import_anything(tmp_path, monkeypatch):
    """Only what its owner has named in the settings: neither as a model nor as a task."""
    (tmp_path / "never_imported.py").write_text("raise AssertionError('it was imported')")
    monkeypatch.syspath_prepend(tmp_path)
    name = "never_imported:thing"
    less = {key: value for key, value in JOIN.items() if key != "l2"}
    for node in (Node(), Node(models="flower.outside:narrow")):
        for join in (JOIN, less):
            refused(node.ask(join | {"model": name}), Refusal.INVALID, "no model", name)
        assert node.ask(JOIN).has_content()
        refused(node.ask(SVRG | {"ask.task": name}, POINT), Refusal.INVALID, "no task", name)
    assert "never_imported" not in sys.modules
    other = {"model": "flower.outside:Linear"}
    refused(Node(models="flower.outside:narrow").ask(less | other), Refusal.INVALID, "no model")
    assert Node(models="flower.outside:Linear").ask(less | other).has_content()


def test_a_node_with_too_few_points_does_not_take_part(caplog):
    few = Node(**{"minimum-points": 201})
    refused(few.ask({"kind": "describe"}), Refusal.DATA, "owner's log")
    refused(few.ask(JOIN), Refusal.DATA, "owner's log")
    assert caplog.text.count("200 points, fewer than the 201") == 2
    refused(few.ask(SMOOTH), Refusal.NOT_JOINED)
    assert Node(**{"minimum-points": 200}).ask(JOIN).has_content()


def test_what_has_not_begun_cannot_continue(node):
    values, vectors = ask_for(INNER_SVRG_ROUND, begin=False)
    refused(node.ask(values, vectors), Refusal.NOT_BEGUN)
    values, vectors = ask_for(HESSIAN_PRODUCT, begin=False, series=3)
    refused(node.ask(values, vectors), Refusal.NOT_BEGUN)
    assert node.ask(*ask_for(HESSIAN_PRODUCT, series=3)).has_content()
    assert node.ask(values, vectors).has_content()
    # Another series is about another model: an old linearization must not answer for it.
    refused(node.ask(values | {"ask.series.linearization": 4}, vectors), Refusal.NOT_BEGUN)


def test_a_message_that_is_refused_in_part_leaves_nothing_behind(node):
    """A round of training is not taken twice because something else in its message had not begun."""
    begun = content(node.ask(SVRG, POINT))
    training, _ = request(INNER_SVRG_ROUND, "ask", begin=False)
    slope, _ = request(SLOPE, "two", begin=False)
    both = {**HEADER, "requests": "ask,two", **training, **slope}
    point = {"ask/point": begun.vectors["ask.vector.point"]}
    refused(node.ask(both, point | {"two/vector": POINT["ask/point"]}), Refusal.NOT_BEGUN)
    later = content(node.ask({**HEADER, "requests": "ask", **training}, point))
    other = Node()
    other.ask(JOIN)
    other.ask(SVRG, POINT)
    expected = content(other.ask({**HEADER, "requests": "ask", **training}, point))
    np.testing.assert_array_equal(
        later.vectors["ask.vector.point"], expected.vectors["ask.vector.point"]
    )


def continued(node, step, attempt):
    """What a node answers to a round that continues where an earlier step has ended."""
    values, _ = ask_for(INNER_SVRG_ROUND, begin=False)
    more = {"step": step, "attempt": attempt, "ask.option.steps": 2}
    return node.ask(values | more, POINT)


def begun_on_disk(place):
    """A node that has done the step 0 of a run, and is killed then."""
    node = Node(state=str(place))
    node.ask(JOIN)
    numbers = {"ask.option.steps": 7, "ask.number.refresh_probability": 0.5}
    assert node.ask(SVRG | numbers, POINT).has_content()
    return node


@pytest.mark.parametrize("asked_before", [False, True])
def test_two_kills_within_a_step_lose_nothing_of_the_step_before(tmp_path, asked_before):
    """Each time the run is resumed, the node continues from the end of the last finished step."""
    expected = content(continued(begun_on_disk(tmp_path / "one"), 1, "one"))
    begun_on_disk(tmp_path / "two")
    for attempt in ("two", "three", "four"):
        again = Node(state=str(tmp_path / "two"))
        again.ask(JOIN | {"attempt": attempt})
        if asked_before:  # before the first step: it is of step 0, and leaves nothing behind
            assert again.ask(SMOOTH | {"attempt": attempt}).has_content()
        reply = content(continued(again, 1, attempt))
        np.testing.assert_array_equal(
            reply.vectors["ask.vector.point"], expected.vectors["ask.vector.point"]
        )


@pytest.mark.parametrize("killed", [False, True])
def test_a_node_that_was_not_asked_for_some_steps_continues_where_it_was(tmp_path, killed):
    """Its weight was zero then: what it has on its disk is of an earlier step than the last."""
    expected = content(continued(begun_on_disk(tmp_path / "one"), 4, "one"))
    begun_on_disk(tmp_path / "two")
    again = Node(state=str(tmp_path / "two"))
    again.ask(JOIN | {"attempt": "two"})
    if killed:  # within the step 4, which is then resumed from its beginning
        continued(again, 4, "two")
        again = Node(state=str(tmp_path / "two"))
        again.ask(JOIN | {"attempt": "three"})
    reply = content(continued(again, 4, "three" if killed else "two"))
    np.testing.assert_array_equal(
        reply.vectors["ask.vector.point"], expected.vectors["ask.vector.point"]
    )


def test_what_is_on_disk_and_does_not_fit_is_forgotten(tmp_path, caplog):
    """Of data that have changed, say: the node begins again, and is not stuck for the rest of the run."""
    begun_on_disk(tmp_path)
    (path,) = tmp_path.glob("run-*.npz")
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    name = "array/slot/inner/0"
    assert arrays[name].shape == (1, SIZE)
    np.savez(path, **(arrays | {name: arrays[name][:, :-1]}))
    again = Node(state=str(tmp_path))
    again.ask(JOIN | {"attempt": "two"})
    refused(continued(again, 1, "two"), Refusal.NOT_BEGUN)
    assert "does not fit" in caplog.text
    assert again.ask(SVRG | {"step": 1, "attempt": "two"}, POINT).has_content()
    assert continued(again, 1, "two").has_content()


def test_what_is_kept_on_disk_is_for_the_owner_only(tmp_path):
    before = os.umask(0)
    try:
        continued(begun_on_disk(tmp_path / "state"), 1, "one")
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
        found.append(content(node.ask(SMOOTH)).values["ask.number.smoothness"])
    assert found[0] - found[1] == pytest.approx(0.249, rel=1e-3)


def test_l2_is_for_models_that_have_it():
    less = {key: value for key, value in JOIN.items() if key != "l2"}
    refused(Node().ask(less), Refusal.INVALID, "l2", "need it")
    model = "flower.outside:narrow"
    refused(Node(models=model).ask(JOIN | {"model": model}), Refusal.INVALID, "l2", "no others")
    assert Node(models=model).ask(less | {"model": model}).has_content()


def test_a_model_that_does_not_suit_the_data_is_the_centers_fault():
    refused(Node().ask(JOIN | {"l2": 0.0}), Refusal.INVALID, "l2 above 0")


def test_mini_batches_of_single_points_are_refused():
    """A step on one point would tell the center that point's gradient."""
    refused(Node().ask(JOIN | {"batch-size": 1}), Refusal.FORBIDDEN, "batch-size 1", "5")
    assert Node().ask(JOIN | {"batch-size": 5}).has_content()
    cautious = Node(**{"minimum-batch": 7})
    refused(cautious.ask(JOIN | {"batch-size": 6}), Refusal.FORBIDDEN, "minimum-batch")
    assert cautious.ask(JOIN | {"batch-size": 7}).has_content()
    assert Node(**{"minimum-batch": 1}).ask(JOIN | {"batch-size": 1}).has_content()


def test_a_request_cannot_exhaust_the_nodes_memory(tmp_path, monkeypatch, caplog):
    with monkeypatch.context() as patch:
        patch.setattr(node_preparation, "LARGEST_MODEL", SIZE - 1)
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


def test_what_is_wrong_with_the_data_is_for_the_owner_only(tmp_path, caplog):
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
known_keys = st.sampled_from(
    [*JOIN, *SVRG, *ask_for(SLOPE)[0], "format", "data", "settings", "rows-of.ask/point"]
)
known_values = st.sampled_from(
    [
        *(
            "exchange",
            "join",
            "describe",
            *remote_tasks(),
            *FORMS,
            "one",
            "logistic",
            "cnn",
            "ridge",
        ),
        *("ask", "ask,ask", "ask/point", "0", "0,1", "point", [0.5], [1.0] * 3),
    ]
)
configs = st.dictionaries(
    st.one_of(known_keys, texts), st.one_of(scalars, known_values, paths), max_size=3
)
arrays = st.dictionaries(
    st.one_of(st.sampled_from(["ask/theta", "ask/point", "ask/vector", "0", "1"]), texts),
    st.one_of(
        st.sampled_from(
            [
                ("f4", str(SIZE), 4 * SIZE),
                ("f4", f"2x{SIZE}", 8 * SIZE),
                ("f8", "2x2", 32),
                ("f8", "0", 0),
                ("f4", "", 4),
                ("f1", "4", 4),
                ("O", "1", 8),
                ("f4", "999999999x999999999", 4),  # far larger than any memory
                ("f4", "-1", 4),
            ]
        ),
        st.builds(lambda size: ("f4", str(size), 4 * size), st.integers(0, 700)),
    ),
    max_size=3,
)


@st.composite
def contents(draw):
    records = {}
    any_names = st.sets(st.sampled_from(["request", "vectors", "answer", "x"]), max_size=3)
    formed = draw(st.integers(0, 3)) > 0  # most have the right record, so that its content counts
    for name in ["request"] if formed else draw(any_names):
        kind = "config" if formed else draw(st.sampled_from(["config", "metrics", "arrays"]))
        if kind == "config":
            start = draw(
                st.sampled_from([{}, JOIN, SMOOTH, SVRG, ask_for(SLOPE)[0], {"kind": "describe"}])
            )
            described = draw(arrays)
            written = ",".join(f"{n}={dtype}:{shape}" for n, (dtype, shape, _) in described.items())
            size = sum(size for _, _, size in described.values()) + draw(
                st.sampled_from([0, 0, 0, 0, 1, -1])
            )
            numbers = {wire.ARRAYS: written, wire.CONTENT: b"\x00" * max(size, 0)}
            packed = {} if draw(st.booleans()) else numbers
            values = {"format": wire.FORMAT, **start, **packed, **draw(configs)}
            records[name] = ConfigRecord(values)
        elif kind == "metrics":
            records[name] = MetricRecord({"a": 1.0})
        else:
            records[name] = ArrayRecord({"ask/point": Array(np.zeros(SIZE, np.float32))})
    return RecordDict(records)


watched: list[str] | None = None
"""While it is a list: the files that this process opens."""


def watch(event, arguments):
    if event == "open" and watched is not None:
        watched.append(str(arguments[0]))


sys.addaudithook(watch)


def is_code(path):
    """Modules and compiled code may be loaded late; the digits come with one of Python's modules.

    Compiled code is in the directory of a node of an earlier test: JAX stays with its first one.
    """
    places = (sys.prefix, sys.base_prefix, SOURCE)
    is_compiled = Path(path).parent.name == "compiled"
    return is_compiled or any(Path(path).is_relative_to(place) for place in places)


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
    fuzzed.ask(SMOOTH)
    fuzzed.ask(SVRG, POINT)
    fuzzed.ask(*ask_for(SLOPE))
    yield
    node_preparation._PREPARED.clear()


def test_a_message_of_another_version_is_refused():
    content = RecordDict({"request": ConfigRecord({"format": 1, **SMOOTH})})
    refused(fuzzed.answer(raw(content)), Refusal.INVALID, "same version of fedkin")


def test_a_message_of_the_former_format_is_refused():
    records = {"request": ConfigRecord({"format": 3, **SMOOTH}), "vectors": ArrayRecord({})}
    refused(fuzzed.answer(raw(RecordDict(records))), Refusal.INVALID)


def test_nothing_pickled_is_ever_loaded():
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("it was executed",))

    for written in ("ask/point=O:1", "ask/point=V8:1", "ask/point=f4:1"):
        numbers = {wire.ARRAYS: written, wire.CONTENT: pickle.dumps(Trap())}
        values = {"format": wire.FORMAT, **SVRG, **numbers}
        content = RecordDict({"request": ConfigRecord(values)})
        refused(fuzzed.answer(raw(content)), Refusal.INVALID)
