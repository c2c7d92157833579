"""Secure sums over messages that go through bytes: results, faults, and centers that ask for too much."""

import base64
import json
import subprocess
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flwr.app import Message
from scipy import stats

from fedkin.errors import FedkinError, InputError
from fedkin.federation.base import PerNode, Revealed, WeightedSum
from fedkin.federation.secure.cards import KeyCard, fingerprint_of, make_card, read_identity
from fedkin.flower import wire
from fedkin.flower.certificates import make_node_key, public_key_path, read_public_key
from fedkin.flower.discovery import describe_nodes
from fedkin.flower.engine import FlowerFederation
from fedkin.flower.joining import RunDescription
from fedkin.flower.messenger import Messenger
from fedkin.flower.wire import MASKED, Parcel, Refusal
from fedkin.methods.bilevel.node import GRADIENT, SLOPE
from fedkin.methods.local_svrg.node import INNER_SVRG_ROUND
from fedkin.models.linear import Logistic
from fedkin.models.objective import Objective
from fedkin.studies.cell import do_run
from flower.fake_grid import FakeGrid, error_reply, through_bytes
from flower.trials import assert_same, config, engines, outcome, settings

FIVE = ("minority-1", "majority-1", "majority-2", "majority-3", "majority-4")
NUMBERS = {"learning_rate": 0.05, "refresh_probability": 0.1, "averaging_rate": 0.0}
KEY = jax.random.key(7)


def nodes(count=5, **more):
    shape = {"minority-nodes": 1, "majority-nodes": count - 1}
    return [settings(name) | shape | more for name in FIVE[:count]]


def federation(grid, *, secure=True, patience=60.0, **more):
    messenger = Messenger(grid, patience=patience, interval=0.01)
    model = Logistic(classes=10, l2=1e-3)
    names = [each["name"] for each in grid.settings.values()]
    run = RunDescription(
        run="a run",
        seed=0,
        batch_size=50,
        model="logistic",
        task="classification",
        classes=10,
        preprocessing=None,
    )
    objective = Objective.create(model, jnp.zeros((2, 64)))
    found = describe_nodes(messenger, len(grid.get_node_ids()), 1.0)
    return FlowerFederation(
        messenger, objective, names, found, run, secure=secure, largest_share=0.5, **more
    )


def train(made, point=0.0, weights=None):
    count = len(made.names)
    weights = jnp.ones(count) / count if weights is None else jnp.asarray(weights)
    return WeightedSum(
        INNER_SVRG_ROUND,
        {"point": jnp.full(made.objective.size, point), **NUMBERS},
        weights=weights,
        begin=True,
        steps=3,
        reply="point",
    )


def impatient(made):
    """Let the center wait for a second only, now that nodes need not compile any more."""
    made.exchange(key=KEY, train=train(made, 2.0))
    made._messenger = replace(made._messenger, patience=1.0)
    return made


def exchanges(grid, name=None):
    """The messages with masked sums that were sent."""
    found = []
    for sent in grid.sent:
        parcel = wire.unpack("request", sent.content, 10**6)
        own = name is None or grid.name(sent.metadata.dst_node_id) == name
        if own and MASKED in parcel.values.values():
            found.append(sent)
    return found


def words(message):
    return wire.unpack("answer", message.content, 10**6).vectors["train.vector.words"]


@pytest.mark.parametrize("case", ["bilevel-cg", "bilevel-svrg", "fedavg", "ditto", "pfedme"])
def test_every_method_learns_the_same_with_secure_sums(case, tmp_path):
    run = config(case)
    found = []
    for secure in (True, False):
        grid = FakeGrid(nodes(3))
        do_run(run, tmp_path / str(secure), engine=engines(Messenger(grid), plain_sums=not secure))
        assert bool(exchanges(grid)) == secure
        found.append(outcome(tmp_path / str(secure), run))
    (history, models), (expected, expected_models) = found
    models = {name: models[name] for name in expected_models}
    for name, model in expected_models.items():
        assert np.linalg.norm(models[name] - model) <= 1e-5 * np.linalg.norm(model)
    assert_same(
        (history.assign(bytes_up=expected.bytes_up), models), (expected, expected_models), 1e-5
    )
    assert (history.bytes_up > 1.9 * expected.bytes_up).all() or case == "bilevel-cg"


def test_what_arrives_at_the_center_is_masked_and_never_the_same():
    runs = []
    for _ in range(2):
        grid = FakeGrid(nodes(4))
        made = federation(grid)
        grid.received.clear()
        made.exchange(
            key=KEY,
            train=train(made),
            slope=PerNode(SLOPE, {"vector": jnp.ones(650), "theta": jnp.zeros(650)}, begin=True),
        )
        runs.append([words(each) for each in grid.received])
    plain = [each.astype(np.float64) for each in runs[0]]
    assert all(own.dtype == np.uint64 for own in runs[0])
    assert np.ptp(plain) > 2.0**60
    for one, other in zip(*runs, strict=True):
        counts = np.bincount(np.concatenate([one, other]).view(np.uint8), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-6
        assert not (one == other).any()


def tampering(name, change, times=1, request="train"):
    """Change the first answers of a node that are masked words."""
    left = [times]

    def tamper(node, reply):
        if node != name or left[0] == 0 or not reply.has_content():
            return reply
        parcel = wire.unpack("answer", reply.content, 10**6)
        if f"{request}.vector.words" not in parcel.vectors:
            return reply
        left[0] -= 1
        return change(reply, parcel)

    return tamper


def with_vectors(change):
    def changed(reply, parcel):
        vectors = {name: change(array) for name, array in parcel.vectors.items()}
        made = Message(wire.pack("answer", Parcel(parcel.values, vectors)), reply_to=reply)
        made.metadata.__dict__.update(reply.metadata.__dict__)
        return made

    return changed


FAULTS = {
    "killed after it has answered": lambda reply, parcel: None,
    "an error": lambda reply, parcel: error_reply(reply, "broken"),
    "cut off": with_vectors(lambda array: array[:-1]),
    "plain numbers": with_vectors(lambda array: np.ones(650, np.float32)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_node_that_fails_costs_one_exchange_without_it(fault):
    grid = FakeGrid(nodes())
    made = impatient(federation(grid))
    grid.tamper = tampering("majority-2", FAULTS[fault])
    before = len(grid.sent)
    found = made.exchange(key=KEY, train=train(made))
    assert found.cost.synchronizations == 2
    assert len(grid.sent) - before == 5 + 4
    expected = federation(FakeGrid(nodes()), secure=False)
    left = np.array([0.25, 0.25, 0.0, 0.25, 0.25])
    plain = expected.exchange(key=KEY, train=train(expected, weights=left))
    for part in ("point", "loss"):
        np.testing.assert_allclose(found.train[part], plain.train[part], rtol=1e-4, atol=1e-6)
    # Those who have answered have computed nothing again.
    points = plain.cost.node_points
    assert [found.cost.node_points[node] for node in (0, 1, 3, 4)] == [
        points[node] for node in (0, 1, 3, 4)
    ]
    # And the next exchange has all five again.
    again = made.exchange(key=KEY, train=train(made, 0.1))
    assert again.cost.synchronizations == 1
    assert again.cost.nodes_asked == 5
    (note,) = made.end_step()
    assert "majority-2 was left out" in note


def test_a_node_that_is_away_before_it_answers_is_left_out_and_comes_back_with_a_new_key():
    grid = FakeGrid(nodes())
    made = impatient(federation(grid))
    before = made._cards[2]
    grid.away = {"majority-2"}
    for number in range(1, 4):
        made.exchange(key=KEY, train=train(made, number / 10))
    assert made.present.tolist() == [True, True, False, True, True]
    grid.away = set()
    grid.forget("majority-2")
    made.begin_step(2)
    assert made.present.all()
    assert made._cards[2] != before
    weights = np.array([0.1, 0.2, 0.3, 0.2, 0.2])
    found = made.exchange(key=KEY, train=train(made, 0.5, weights))
    other = federation(FakeGrid(nodes()), secure=False)
    plain = other.exchange(key=KEY, train=train(other, 0.5, weights))
    np.testing.assert_allclose(found.train["point"], plain.train["point"], rtol=1e-4, atol=1e-6)


def deliver(grid, message):
    """Deliver a message a second time, and return the answer."""
    node = message.metadata.dst_node_id
    from fedkin.flower.node import answer

    return through_bytes(answer(through_bytes(message), grid.contexts[node]))


def changed(message, **values):
    """Return a message with other values; names have `__` for dots and `_` for dashes."""
    parcel = wire.unpack("request", message.content, 10**6)
    new = dict(parcel.values) | values
    made = Message(wire.pack("request", Parcel(new, parcel.vectors)), 1, "train")
    made.metadata.__dict__.update(message.metadata.__dict__)
    return made


@pytest.fixture
def asked():
    """A federation whose nodes have answered exchange 1, and what the first node was sent."""
    grid = FakeGrid(nodes())
    made = federation(grid)
    made.exchange(key=KEY, train=train(made))
    return grid, exchanges(grid, FIVE[0])[0]


def refused(reply, refusal, *text):
    assert reply.has_error()
    assert reply.error.code == refusal, reply.error
    assert all(each in reply.error.reason for each in text), reply.error.reason


def test_an_exchange_that_comes_twice_is_answered_once(asked):
    grid, message = asked
    refused(deliver(grid, message), Refusal.ASKED_BEFORE, "answers each once")
    older = changed(message, **{"exchange-number": 0})
    refused(deliver(grid, older), Refusal.ASKED_BEFORE)


@pytest.mark.parametrize(
    ("values", "refusal", "text"),
    [
        ({"train.nodes": "0,1,2"}, None, ""),  # as after a failure: once, and once more
        ({"train.nodes": "0,1"}, Refusal.LIMIT, "fewest-nodes"),
        ({"train.nodes": "0"}, Refusal.LIMIT, "fewest-nodes"),
        ({"train.nodes": "1,2,3,4"}, Refusal.INVALID, "not in a sum"),
        ({"train.nodes": "0,1,2,9"}, Refusal.INVALID, "no card of node 9"),
        ({"train.weights": [0.9]}, Refusal.LIMIT, "largest-share"),
        ({"train.weights": [2.0]}, Refusal.INVALID, "larger than all weights"),
        ({"train.weights": [float("nan")]}, Refusal.INVALID, "finite"),
        ({"train.weights": []}, Refusal.INVALID, "finite"),
        ({"train.exponent.point": 10**6}, Refusal.INVALID, "exponent"),
        ({"train.form": "sum"}, Refusal.INVALID, "exponent"),
        ({"exchange-number": 1}, Refusal.ASKED_BEFORE, ""),
        ({"exchange-number": "two"}, Refusal.INVALID, "whole number"),
        ({"answer-within": 0.0}, Refusal.LIMIT, "answer-within"),
    ],
)
def test_what_a_center_asks_that_deviates(asked, values, refusal, text):
    grid, message = asked
    reply = deliver(grid, changed(message, **({"exchange-number": 2} | values)))
    if refusal is None:
        assert reply.has_content(), reply.error
    else:
        refused(reply, refusal, text)


def test_the_same_question_with_other_peers_or_weights_is_answered_a_few_times_and_never_for_more(
    asked,
):
    grid, message = asked

    def ask(number, **values):
        return deliver(grid, changed(message, **{"exchange-number": number, **values}))

    assert ask(2, **{"train.nodes": "0,1,2,3"}).has_content()
    refused(ask(3, **{"train.nodes": "0,1,2,3,4"}), Refusal.ASKED_BEFORE, "fewer nodes")
    assert ask(3, **{"train.nodes": "0,1,2,3"}).has_content()  # the same again tells nothing
    assert ask(4, **{"train.nodes": "0,1,2"}).has_content()
    refused(ask(5, **{"train.nodes": "0,1,2", "train.weights": [0.1]}), Refusal.ASKED_BEFORE)
    refused(ask(5, **{"train.nodes": "0,1,3"}), Refusal.ASKED_BEFORE, "fewer nodes")


def test_repeats_of_all_questions_together_are_limited():
    grid = FakeGrid(nodes(**{"repeats-per-run": 1}), tampering("majority-2", FAULTS["an error"], 2))
    made = federation(grid)
    made.exchange(key=KEY, train=train(made))
    with pytest.raises(FedkinError, match="repeats-per-run"):
        made.exchange(key=KEY, train=train(made, 0.1))


def test_what_was_answered_outlives_the_nodes_memory(tmp_path):
    def made_grid():
        return FakeGrid([own | {"state": str(tmp_path / own["name"])} for own in nodes()])

    grid = made_grid()
    made = federation(grid)
    made.exchange(key=KEY, train=train(made))
    from fedkin.flower import node

    node._ANSWERED.clear()
    grid = made_grid()
    made = federation(grid)  # another attempt at the same run, with new keys
    made.exchange(key=KEY, train=train(made))  # the same nodes and weights
    for weights in ([0.1, 0.25, 0.2, 0.25, 0.2], [0.25, 0.1, 0.2, 0.25, 0.2]):
        made.exchange(key=KEY, train=train(made, weights=weights))
    assert made.end_step() == ()
    # Three of the five have the weights that they had; the first two answer no more.
    made.exchange(key=KEY, train=train(made, weights=[0.15, 0.2, 0.2, 0.25, 0.2]))
    assert [note.partition(" ")[0] for note in made.end_step()] == list(FIVE[:2])


def test_plain_sums_and_single_vectors_need_the_owners_consent(tmp_path):
    real = {"reproducible": False}
    own = [each | real | {"state": str(tmp_path / each["name"])} for each in nodes()]
    made = federation(FakeGrid(own), secure=False)
    with pytest.raises(FedkinError, match="masked sums only"):
        made.exchange(key=KEY, train=train(made))
    made = federation(FakeGrid([each | {"plain-sums": True} for each in own]), secure=False)
    assert np.isfinite(made.exchange(key=KEY, train=train(made)).train["point"]).all()
    made = federation(FakeGrid(own))
    assert np.isfinite(made.exchange(key=KEY, train=train(made)).train["point"]).all()
    with pytest.raises(InputError, match="single nodes, which secure sums hide"):
        made.exchange(key=KEY, g=Revealed(GRADIENT, {"theta": jnp.zeros(650)}, begin=True))


def test_keys_are_signed_with_the_registered_ones_and_fingerprints_can_be_pinned(tmp_path):
    paths = {name: tmp_path / name / "node.key" for name in FIVE}
    for path in paths.values():
        make_node_key(path)
    prints = {
        name: fingerprint_of(read_identity(public_key_path(path))) for name, path in paths.items()
    }
    peers = {name: prints[name] for name in FIVE[1:]}
    own = [each | {"key": str(paths[each["name"]])} for each in nodes()]
    own[0] |= {"peers": ",".join(f"{name}={each}" for name, each in peers.items())}

    class Registered(FakeGrid):
        def get_nodes(self):
            found = super().get_nodes()
            for info in found:
                info.name = self.name(info.node_id)
                info.public_key = read_public_key(public_key_path(paths[info.name]))
            return found

    made = federation(Registered(own))
    assert np.isfinite(made.exchange(key=KEY, train=train(made)).train["point"]).all()
    # A node that signs with another key than the registered one
    make_node_key(tmp_path / "other.key")
    wrong = [dict(each) for each in own]
    wrong[3]["key"] = str(tmp_path / "other.key")
    with pytest.raises(InputError, match="not signed with the key that it is registered with"):
        federation(Registered(wrong))
    # A center that does not look: the owner who has pinned the others refuses
    made = federation(FakeGrid(wrong))
    found = made.exchange(key=KEY, train=train(made))
    assert found.cost.synchronizations == 2
    (note,) = made.end_step()
    assert f"{FIVE[0]} was left out" in note
    assert "fingerprint" in note


def test_a_fingerprint_is_the_one_that_ssh_shows(tmp_path):
    make_node_key(tmp_path / "node.key")
    public = public_key_path(tmp_path / "node.key")
    try:
        shown = subprocess.run(
            ["ssh-keygen", "-lf", public], capture_output=True, text=True, check=True
        )
    except FileNotFoundError:
        pytest.skip("there is no ssh-keygen here")
    assert fingerprint_of(read_identity(public)) in shown.stdout


def test_a_card_that_is_changed_is_not_believed(tmp_path):
    make_node_key(tmp_path / "node.key")
    card, _ = make_card("a", 1, "run", tmp_path / "node.key")
    assert KeyCard.read(card.write(), "run") == card
    content = json.loads(card.write())
    other = make_card("b", 2, "run", None)[0]
    for name, value in (
        ("public", other.public.hex()),
        ("number", 2),
        ("name", "b"),
        ("signature", ""),
        ("identity", base64.b64encode(b"key").hex()),
    ):
        with pytest.raises(Exception, match=r"signed|read"):
            KeyCard.read(json.dumps(content | {name: value}), "run")
    with pytest.raises(Exception, match="signed"):
        KeyCard.read(card.write(), "another run")
    for garbage in ("", "{}", "[]", None, 3, "x" * 10_000):
        with pytest.raises(Exception, match=r"read|text"):
            KeyCard.read(garbage, "run")
