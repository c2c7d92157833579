"""What a node accepts, for every task: what the task declares passes, and nothing that differs from it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fedkin.flower.guard import MOST_REQUESTS, check_exchange, remote_tasks
from fedkin.flower.wire import MOST_MODELS, Parcel, Refusal, RefusedError
from fedkin.methods.registry import known_tasks
from flower.well_formed import exchange, request

SIZE = 7
TASKS = remote_tasks()
AXES = [None, (0, 2)]


def check(values, vectors, *, allowed=tuple(TASKS), reveal=False):
    return check_exchange(values, Parcel(values, vectors), SIZE, allowed, reveal=reveal)


def refused(values, vectors, *, refusal=Refusal.INVALID, **more):
    with pytest.raises(RefusedError) as caught:
        check(values, vectors, **more)
    assert caught.value.refusal == refusal
    assert str(caught.value)


@pytest.mark.parametrize("models", AXES)
@pytest.mark.parametrize("begin", [True, False])
@pytest.mark.parametrize("name", TASKS)
def test_what_a_task_declares_passes(name, begin, models):
    task = TASKS[name]
    values, vectors = exchange(task, SIZE, begin=begin, models=models)
    (found,) = check(values, vectors)
    expected = {*task.vectors, *task.numbers, *(task.begin_vectors if begin else ())}
    assert (found.name, found.task, set(found.message)) == ("ask", task, expected)
    assert found.options == {option: allowed[0] for option, allowed in task.options.items()}
    assert found.models == (models or (0,))
    assert found.has_models == (models is not None)
    assert dict(found.begins) == {slot.name: models or (0,) for slot in task.slots if begin}
    for vector in task.vectors:
        np.testing.assert_array_equal(found.message[vector], vectors[f"ask/{vector}"])


def in_range(allowed):
    if isinstance(allowed[0], str):
        return st.sampled_from(allowed)
    return st.integers(*allowed) if type(allowed[0]) is int else st.floats(*allowed)


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.numbers])
@hypothesis_settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_all_numbers_and_options_in_their_ranges_pass(name, data):
    task = TASKS[name]
    values, vectors = exchange(task, SIZE)
    drawn = {
        kind + each: data.draw(in_range(allowed))
        for kind, group in (("number.", task.numbers), ("option.", task.options))
        for each, allowed in group.items()
    }
    (found,) = check(values | {f"ask.{key}": value for key, value in drawn.items()}, vectors)
    for each in task.numbers:
        assert found.message[each] == np.float32(drawn[f"number.{each}"])
    for each in task.options:
        assert found.options[each] == drawn[f"option.{each}"]


WRONG_VECTORS = {
    "short": np.zeros(SIZE - 1, np.float32),
    "long": np.zeros(SIZE + 1, np.float32),
    "empty": np.zeros(0, np.float32),
    "a number": np.float32(0),
    "rows": np.zeros((1, SIZE), np.float32),
    "doubles": np.zeros(SIZE),
    "halves": np.zeros(SIZE, np.float16),
    "whole numbers": np.zeros(SIZE, np.int32),
    "bools": np.zeros(SIZE, bool),
    "NaN": np.where(np.arange(SIZE) == 3, np.nan, 0).astype(np.float32),
    "infinite": np.where(np.arange(SIZE) == 3, np.inf, 0).astype(np.float32),
}
NO_NUMBERS = [float("nan"), float("inf"), -float("inf"), "0.1", True, [0.1]]


def wrong_values(task):
    """Yield each value of a request, and what it may not be."""
    for number, (least, largest) in task.numbers.items():
        for value in (*NO_NUMBERS, np.nextafter(least, -1), largest * 1.001 + 1e-9):
            yield f"ask.number.{number}", value
    for option, allowed in task.options.items():
        others = [0, 1, 1.0, "", [1.0]] if isinstance(allowed[0], str) else ["1", 1.0, [1.0]]
        if type(allowed[0]) is int:
            others += [allowed[0] - 1, allowed[1] + 1, True]
        for value in (*others, "everything"):
            yield f"ask.option.{option}", value
    for slot in task.slots:
        for value in (-1, 1.0, "1", True, [1.0]):
            yield f"ask.series.{slot.name}", value
        for value in ("0", "1", "x", 1, True, [1.0]):
            yield f"ask.begin.{slot.name}", value
    for vector in (*task.vectors, *task.begin_vectors):
        for value in ("", "elsewhere", 0, [1.0]):
            yield f"ask.vector.{vector}", value
    for value in ("", "ask", "everything", 1, [1.0]):
        yield "ask.form", value
    for value in (None, "", "read_file", f"{task.name} ", 1, [1.0]):
        yield "ask.task", value
    for value in ("0", 0, "-1", "0,0", [1.0]):  # its vectors have no axis of models
        if task.vectors or value != "0":
            yield "ask.models", value
    for value in ("", "ask,ask", "ask,more", "other", 1, [1.0]):
        yield "requests", value


@pytest.mark.parametrize("name", TASKS)
def test_no_other_value_passes(name):
    values, vectors = exchange(TASKS[name], SIZE)
    tried = 0
    for key, value in wrong_values(TASKS[name]):
        refused(values | {key: value}, vectors)
        tried += 1
    assert tried >= 20


@pytest.mark.parametrize("name", TASKS)
def test_every_value_is_needed(name):
    values, vectors = exchange(TASKS[name], SIZE)
    for key in values:
        less = {other: value for other, value in values.items() if other != key}
        if key.startswith("ask.begin."):
            # What begins needs its vectors: without the beginning they are too many.
            slots = {slot.name: slot for slot in TASKS[name].slots}
            if not slots[key.removeprefix("ask.begin.")].vectors:
                assert key.removeprefix("ask.begin.") not in check(less, vectors)[0].begins
                continue
        refused(less, vectors)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize(
    "key",
    [
        "path",
        "ask.path",
        "ask.number.more",
        "ask.option.more",
        "ask.series.more",
        "ask.begin.more",
        "ask.vector.more",
        "rows-of.more",
        "other.task",
    ],
)
def test_nothing_else_passes(name, key):
    values, vectors = exchange(TASKS[name], SIZE)
    for value in (1, 1.0, "", "0", next(iter(vectors), "0")):
        refused(values | {key: value}, vectors)


@pytest.mark.parametrize("wrong", WRONG_VECTORS)
@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.vectors])
def test_no_other_vector_passes(name, wrong):
    values, vectors = exchange(TASKS[name], SIZE)
    for place in vectors:
        refused(values, vectors | {place: WRONG_VECTORS[wrong]})
        refused(values, {other: each for other, each in vectors.items() if other != place})
    refused(values, vectors | {"more": next(iter(vectors.values()))})


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.vectors])
def test_rows_belong_to_the_models_of_the_request(name):
    task = TASKS[name]
    values, vectors = exchange(task, SIZE, models=(0, 2))
    for place in vectors:
        for rows in ("0,1", "2,0", "0", "0,2,3", "", "0,0", "-1,2", "0,2.0", 2, "0,99999999999"):
            refused(values | {f"rows-of.{place}": rows}, vectors)
        refused(values, vectors | {place: np.zeros((3, SIZE), np.float32)})
    for models in (
        "0,2,3",
        "2,0",
        "0,0",
        ",",
        "0,x",
        7,
        ",".join(map(str, range(MOST_MODELS + 1))),
    ):
        refused(values | {"ask.models": models}, vectors)
    # A row more, of a model that another request may be about, does no harm.
    more = {place: np.zeros((3, SIZE), np.float32) for place in vectors}
    wider = {f"rows-of.{place}": "0,1,2" for place in vectors}
    (found,) = check(values | wider, more)
    assert found.message[task.vectors[0]].shape == (2, SIZE)
    for slot in task.slots:
        for models in ("", "1", "0,1,2", "2,0"):
            refused(values | {f"ask.begin.{slot.name}": models}, vectors)


def test_a_slot_may_begin_for_some_models_only():
    task = TASKS["hessian_product"]
    values, vectors = exchange(task, SIZE, models=(0, 2))
    values |= {"ask.begin.linearization": "2", "rows-of.ask/theta": "2"}
    theta = np.full((1, SIZE), 5, np.float32)
    (found,) = check(values, vectors | {"ask/theta": theta})
    assert found.begins == {"linearization": (2,)}
    np.testing.assert_array_equal(found.message["theta"], [[0] * SIZE, [5] * SIZE])


def test_a_model_with_a_high_number_takes_no_room():
    values, vectors = exchange(TASKS["hessian_product"], SIZE, models=(MOST_MODELS - 1,))
    (found,) = check(values, vectors)
    assert found.message["vector"].shape == (1, SIZE)


def test_a_center_cannot_make_a_node_remember_ever_more_models():
    values, vectors = exchange(TASKS["hessian_product"], SIZE, models=(MOST_MODELS,))
    with pytest.raises(RefusedError, match=f"numbers of models are below {MOST_MODELS}"):
        check(values, vectors)


def test_requests_share_vectors():
    first, places = request(TASKS["hessian_product"], "one")
    second, _ = request(TASKS["slope"], "two")
    second |= {f"two.vector.{name}": f"one/{name}" for name in ("vector", "theta")}
    vectors = {place: np.full(SIZE, 0.5, np.float32) for place in places}
    found = check({"requests": "one,two", **first, **second}, vectors)
    assert [each.task.name for each in found] == ["hessian_product", "slope"]
    for each in found:
        np.testing.assert_array_equal(each.message["theta"], vectors["one/theta"])


def test_there_may_not_be_too_many_requests():
    def ask(count):
        names = [f"ask{number}" for number in range(count)]
        values = {"requests": ",".join(names)}
        for name in names:
            values |= request(TASKS["smoothness"], name)[0]
        return values

    assert len(check(ask(MOST_REQUESTS), {})) == MOST_REQUESTS
    refused(ask(MOST_REQUESTS + 1), {})


@pytest.mark.parametrize("name", TASKS)
def test_only_what_the_owner_allows_passes(name):
    values, vectors = exchange(TASKS[name], SIZE)
    others = [other for other in TASKS if other != name]
    refused(values, vectors, refusal=Refusal.FORBIDDEN, allowed=others)
    check(values, vectors, allowed=[name])


@pytest.mark.parametrize("name", TASKS)
def test_a_nodes_own_vectors_are_for_owners_who_allow_it(name):
    values, vectors = exchange(TASKS[name], SIZE)
    revealed = values | {"ask.form": "revealed"}
    refused(revealed, vectors, refusal=Refusal.FORBIDDEN)
    check(revealed, vectors, reveal=True)
    numbers = values | {"ask.form": "numbers"}
    if TASKS[name].vector_replies:
        refused(numbers, vectors, reveal=True)
    else:
        check(numbers, vectors)


def test_personal_models_are_for_data_at_hand():
    at_hand = set(known_tasks()) - set(TASKS)
    assert {"ditto_personal_round", "pfedme_personal_round"} <= at_hand
    for name in at_hand:
        refused(*exchange(known_tasks()[name], SIZE), allowed=[name])
