"""What a node accepts of several owners in one message, and whom it answers about the rows it holds out."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from federation.test_together import federation
from fedkin.federation.questions import QUESTIONS
from fedkin.federation.task import MOST_STEPS
from fedkin.flower import node_exchange
from fedkin.flower.guard import all_tasks, check_message, tasks_of_part
from fedkin.flower.owner_limits import OwnerLimits
from fedkin.flower.wire import (
    MOST_OWNERS,
    Order,
    Parcel,
    Refusal,
    RefusedError,
    read_orders,
    write_orders,
)
from fedkin.methods.local_svrg.alone import TRAIN_ALONE
from fedkin.methods.registry import known_tasks
from flower.well_formed import exchange

SIZE = 7
KEY = "0000000000000001"
EVERYTHING = tuple(all_tasks())


def block(number, task, part="training", **more):
    """What one owner asks for, as a part of a message."""
    values, vectors = exchange(task, SIZE, **more)
    values |= {"key": KEY, "part": part}
    return (
        {f"{number}.{name}": value for name, value in values.items()},
        {f"{number}.{name}": array for name, array in vectors.items()},
    )


def message(*blocks, owners):
    values, vectors = {"owners": owners}, {}
    for own, arrays in blocks:
        values |= own
        vectors |= arrays
    return values, vectors


def check(values, vectors, *, holds_out=True, allowed=EVERYTHING):
    parcel = Parcel(values, vectors)
    return check_message(values, parcel, SIZE, allowed, reveal=False, holds_out=holds_out)


def refused(values, vectors, refusal=Refusal.INVALID, words=None, **more):
    with pytest.raises(RefusedError, match=words) as caught:
        check(values, vectors, **more)
    assert caught.value.refusal == refusal


SLOPE, SCORES = known_tasks()["slope"], QUESTIONS["validation_scores"]
GOOD = message(
    block(3, SLOPE), block(12, SLOPE, "alone"), block(4, SCORES, "validation"), owners="3,4,12"
)


def test_each_owner_gets_its_own_part_checked():
    found = check(*GOOD)
    assert [(own.number, own.part, own.requests[0].task) for own in found] == [
        (3, "training", SLOPE),
        (4, "validation", SCORES),
        (12, "alone", SLOPE),
    ]
    assert [own.prefix for own in found] == ["3.", "4.", "12."]


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("models", [None, (0, 2)])
def test_every_question_passes_and_only_about_held_out_rows(name, models):
    task = QUESTIONS[name]
    check(*message(block(1, task, "validation", models=models), owners="1"))
    for part in ("training", "alone"):
        refused(*message(block(1, task, part, models=models), owners="1"), words="no task")


def test_personal_models_are_for_the_node_alone():
    task = known_tasks()["ditto_personal_round"]
    check(*message(block(1, task, "alone"), owners="1"))
    for part in ("training", "validation"):
        refused(*message(block(1, task, part), owners="1"), words="no task")
    assert set(tasks_of_part("validation")) == set(QUESTIONS)


def test_a_node_that_holds_no_rows_out_trains_for_several_owners_but_is_none():
    others = message(block(3, SLOPE), block(12, SLOPE), owners="3,12")
    assert [own.number for own in check(*others, holds_out=False)] == [3, 12]
    refused(*GOOD, refusal=Refusal.FORBIDDEN, words="validation-fraction", holds_out=False)
    alone = message(block(3, SLOPE), block(12, SLOPE, "alone"), owners="3,12")
    refused(*alone, refusal=Refusal.FORBIDDEN, words="validation-fraction", holds_out=False)


def test_only_what_the_owner_of_the_node_allows():
    refused(*GOOD, refusal=Refusal.FORBIDDEN, words="validation_scores", allowed=("slope",))


@pytest.mark.parametrize("owners", ["", "0,3,4,12", "4,3,12", "3,3", "x", f"{MOST_OWNERS}", 3])
def test_owners_have_numbers_in_order(owners):
    values, vectors = GOOD
    refused(values | {"owners": owners}, vectors)


@pytest.mark.parametrize(
    "changed",
    [
        {"5.part": "training"},
        {"3.part": "basement"},
        {"3.part": 7},
        {"3.key": "zz"},
        {"ask.task": "slope"},
        {"3.ask.task": "read_file"},
        {"3.requests": ""},
    ],
)
def test_what_belongs_to_no_owner_or_is_not_declared_is_refused(changed):
    values, vectors = GOOD
    refused(values | changed, vectors)


def test_vectors_belong_to_one_owner():
    values, vectors = GOOD
    refused(values, vectors | {"stray": np.zeros(SIZE, np.float32)})
    lent = {name: array for name, array in vectors.items() if not name.startswith("12.")}
    refused(values, lent)
    wrong = vectors | {"3.ask/theta": np.full(SIZE, np.nan, np.float32)}
    refused(values, wrong, words="not finite")


def test_owners_cannot_make_a_node_remember_ever_more(monkeypatch):
    """It counts the bytes of what slots hold, which is several vectors for each model."""
    simulated = federation()
    own = SimpleNamespace(objective=simulated.objective, data=simulated.data, slot_bytes={})
    blocks = check(*GOOD)
    (slot,) = SLOPE.slots
    content = slot.empty(own.objective, own.data)
    one = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(content))
    assert one > 4 * own.objective.size
    replies = 3 * 4 * own.objective.size
    # Two of the owners ask for slopes; what is remembered for another one counts, too.
    monkeypatch.setattr(node_exchange, "LARGEST_MEMORY", replies + 3 * one)
    node_exchange._check_memory(own, blocks, {f"{slot.name}/5000": 1, f"{slot.name}/3000": 1})
    with pytest.raises(RefusedError, match="smaller model"):
        node_exchange._check_memory(own, blocks, {f"{slot.name}/{5000 + k}": 1 for k in range(2)})


def test_owners_cannot_occupy_a_node_for_good():
    """Each option is in its range, but the steps of all requests of a message are too many."""
    values, vectors = message(
        block(3, TRAIN_ALONE, "alone"), block(4, SLOPE, "training"), owners="3,4"
    )
    assert OwnerLimits().check(check(values, vectors)) == 2
    longest = {
        name: MOST_STEPS for name in values if name.endswith(("option.steps", "option.rounds"))
    }
    assert len(longest) == 2
    with pytest.raises(RefusedError, match="steps-per-request") as caught:
        OwnerLimits().check(check(values | longest, vectors))
    assert caught.value.refusal == Refusal.LIMIT


def test_orders_are_read_as_they_were_written():
    orders = [Order(1, 4), Order(3, None), Order(4, 12)]
    assert write_orders(orders) == "1-4,3,4-12"
    assert read_orders(write_orders(orders)) == orders


@pytest.mark.parametrize("written", ["0", "1-0", "1-2-3", "-1", "x", "1-", str(MOST_OWNERS), 7])
def test_other_orders_are_refused(written):
    with pytest.raises(RefusedError):
        read_orders(written)
