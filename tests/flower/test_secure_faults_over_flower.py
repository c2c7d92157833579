"""Secure sums with nodes that have missed something, end in between, or try to stop the others."""

import copy
import json

import jax.numpy as jnp
import numpy as np
import pytest
from flwr.app import Message

from fedkin.errors import InputError
from fedkin.federation.base import WeightedSum
from fedkin.federation.secure.cards import KeyCard, make_card
from fedkin.flower import node as node_module
from fedkin.flower import node_sums, wire
from fedkin.flower.node_sums import AnsweredQuestions
from fedkin.flower.wire import CARD, Parcel, Refusal
from fedkin.methods.bilevel.node import GRADIENT, HESSIAN_PRODUCT
from flower.fake_grid import FakeGrid
from flower.test_secure_sums_over_flower import (
    FAULTS,
    FIVE,
    KEY,
    changed,
    deliver,
    exchanges,
    federation,
    nodes,
    refused,
    tampering,
)

EQUAL = jnp.ones(5) / 5


def gradient(made, at=0.0):
    return WeightedSum(
        GRADIENT, {"theta": jnp.full(made.objective.size, at)}, weights=EQUAL, begin=True
    )


def product(made, along=1.0):
    vector = jnp.full(made.objective.size, along)
    return WeightedSum(HESSIAN_PRODUCT, {"vector": vector}, weights=EQUAL)


def expected_product():
    plain = federation(FakeGrid(nodes()), secure=False)
    plain.exchange(key=KEY, sum=gradient(plain))
    return plain.exchange(key=KEY, sum=product(plain)).sum["product"]


@pytest.mark.parametrize("how", ["was left out", "has lost its memory"])
def test_a_node_that_missed_the_beginning_of_a_series_is_in_the_next_sum(how):
    grid = FakeGrid(nodes())
    made = federation(grid)
    if how == "was left out":
        grid.tamper = tampering("majority-2", FAULTS["cut off"], request="sum")
    made.exchange(key=KEY, sum=gradient(made))
    if how == "has lost its memory":
        state = grid.contexts[102].state
        for record in ("slots", "series"):
            state[record].clear()
    found = made.exchange(key=KEY, sum=product(made))
    assert found.cost.nodes_asked == 5
    np.testing.assert_allclose(found.sum["product"], expected_product(), rtol=1e-4, atol=1e-6)


def test_a_worker_that_ended_before_its_memory_was_kept_answers_no_number_again(tmp_path):
    """With another weight, the same streams would leave a multiple of the node's own vector."""
    grid = FakeGrid([own | {"state": str(tmp_path / own["name"])} for own in nodes()])
    made = federation(grid)
    context = grid.contexts[100]
    before = copy.deepcopy(context.state)
    made.exchange(key=KEY, sum=gradient(made))
    context.state = before
    node_module._ANSWERED.clear()
    node_sums._KEPT.clear()
    message = exchanges(grid, FIVE[0])[0]
    again = changed(message, **{"sum.weights": [0.1]})
    refused(deliver(grid, again), Refusal.ASKED_BEFORE, "answers each once")


def test_a_line_that_was_not_written_to_its_end_is_forgotten(tmp_path):
    own = [each | {"state": str(tmp_path / each["name"])} for each in nodes()]
    made = federation(FakeGrid(own))
    made.exchange(key=KEY, sum=gradient(made))
    (path,) = (tmp_path / FIVE[0]).glob("run-*.sums")
    whole = path.read_bytes()
    path.write_bytes(whole + b"0123456789abcdef 0.")
    answered = AnsweredQuestions(path.parent, "a run")
    assert len(answered._answered) == 1
    assert path.read_bytes() == whole
    path.write_bytes(b"damaged\n" + whole)
    with pytest.raises(InputError, match="cannot be continued with this node"):
        AnsweredQuestions(path.parent, "a run")


def test_a_node_keeps_the_replies_of_its_last_exchange_only():
    grid = FakeGrid(nodes())
    made = federation(grid)
    node_sums._KEPT.clear()
    made.exchange(key=KEY, one=gradient(made), two=product(made))
    made.exchange(key=KEY, three=product(made, 2.0))
    assert [set(own) for own in node_sums._KEPT.values()] == [{(0, "three")}] * 5


def test_a_node_whose_key_makes_every_secret_the_same_does_not_stop_the_others():
    grid = FakeGrid(nodes())

    def tamper(name, reply):
        parcel = wire.unpack("answer", reply.content, 10**6)
        if name != FIVE[2] or CARD not in parcel.values:
            return reply
        card = KeyCard(name, 2, bytes(32)).write()
        made = Message(wire.pack("answer", Parcel({**parcel.values, CARD: card})), reply_to=reply)
        made.metadata.__dict__.update(reply.metadata.__dict__)
        return made

    grid.tamper = tamper
    with pytest.raises(InputError, match=r"majority-2 cannot take part.*every secret the same"):
        federation(grid)


def test_one_node_with_two_numbers_does_not_count_twice():
    grid = FakeGrid(nodes())
    made = federation(grid)
    made.exchange(key=KEY, sum=gradient(made))
    run = json.dumps(["a run", made._attempt])
    twice = {"exchange-number": 2, "peer.2": make_card(FIVE[1], 2, run, None)[0].write()}
    reply = deliver(grid, changed(exchanges(grid, FIVE[0])[0], **twice))
    refused(reply, Refusal.INVALID, "has another number")


def test_a_node_that_fails_costs_one_repeat_however_many_questions_a_message_has(tmp_path):
    own = [each | {"repeats-per-run": 1, "state": str(tmp_path / each["name"])} for each in nodes()]
    grid = FakeGrid(own, tampering("majority-2", FAULTS["cut off"], request="one"))
    made = federation(grid)
    found = made.exchange(key=KEY, one=gradient(made), two=product(made))
    assert found.cost.synchronizations == 2
    assert AnsweredQuestions(tmp_path / FIVE[0], "a run").repeats == 1


def test_the_audit_log_says_how_many_nodes_are_in_a_sum_and_what_was_refused(tmp_path):
    grid = FakeGrid([own | {"state": str(tmp_path / own["name"])} for own in nodes()])
    made = federation(grid)
    made.exchange(key=KEY, sum=gradient(made))
    message = exchanges(grid, FIVE[0])[0]
    deliver(grid, changed(message, **{"exchange-number": 2, "sum.nodes": "0,1"}))
    deliver(grid, changed(message, **{"exchange-number": 2, "sum.weights": [0.9]}))
    log = (tmp_path / FIVE[0] / "audit.jsonl").read_text().splitlines()
    answered, too_few, too_much = map(json.loads, log[-3:])
    assert (answered["outcome"], answered["nodes"]) == ("answered", 5)
    assert (too_few["outcome"], too_few["rows"]) == ("refused", 0)
    assert "fewest-nodes" in too_few["cause"]
    assert "largest-share" in too_much["cause"]
