"""A run with secure sums that is killed in the step in which a node had failed, and resumed."""

import numpy as np
import pytest

from fedkin.errors import FedkinError
from fedkin.federation.secure.book import SumBook
from fedkin.flower import node as node_module
from fedkin.flower import wire
from fedkin.flower.messenger import Messenger
from fedkin.flower.wire import MEMBERS
from fedkin.studies.cell import do_run
from flower.fake_grid import FakeGrid, error_reply
from flower.killed import KilledError
from flower.test_secure_sums_over_flower import FIVE, exchanges, nodes
from flower.trials import assert_same, config, engines, outcome

FAILING = FIVE[2]
RUN = {"majority_nodes": 3}


class Fate:
    """What happens in the exchanges with masked sums, which are counted from one: repeated ones count."""

    def __init__(self, grid, *, fails, dies=None):
        self.grid, self.fails, self.dies = grid, fails, dies
        grid.tamper = self

    def __call__(self, name, reply):
        count = len(exchanges(self.grid, name))
        masked = reply.has_content() and any(
            label.endswith(".words")
            for label in wire.unpack("answer", reply.content, 10**6).vectors
        )
        if masked and count == self.dies:
            raise KilledError
        if masked and name == FAILING and count == self.fails:
            return error_reply(reply, "broken")
        return reply


def made_grid(tmp_path):
    node_module._ANSWERED.clear()
    return FakeGrid([own | {"state": str(tmp_path / own["name"])} for own in nodes(4)])


def learn(grid, run, out):
    return do_run(run, out, engine=engines(Messenger(grid), plain_sums=False))


def members(sent):
    """Who was to be in the sums of each message."""
    found = []
    for message in sent:
        values = wire.unpack("request", message.content, 10**6).values
        found.append({own for name, own in values.items() if name.endswith(f".{MEMBERS}")})
    return found


@pytest.fixture(params=["bilevel-cg", "fedavg"])
def run(request):
    rounds = 4 if request.param == "fedavg" else 2
    return config(request.param, steps=3, rounds=rounds).model_copy(update=RUN)


def sums_per_step(run, tmp_path):
    """How many exchanges with masked sums a step has: the first node is in all of them."""
    grid = made_grid(tmp_path / "counted")
    learn(grid, run, tmp_path / "counted" / "out")
    return len(exchanges(grid, FIVE[0])) // run.steps


@pytest.mark.parametrize("place", [1, 2])
def test_the_resumed_step_leaves_out_the_same_node_of_the_same_sum(run, place, tmp_path):
    """It ends as the run without the kill does, nobody refuses, and no sum has more nodes than before."""
    each = sums_per_step(run, tmp_path)
    fails = each + place  # in the second step
    grid = made_grid(tmp_path / "expected")
    Fate(grid, fails=fails)
    learn(grid, run, tmp_path / "expected" / "out")
    expected = outcome(tmp_path / "expected" / "out", run)

    grid = made_grid(tmp_path / "killed")
    Fate(grid, fails=fails, dies=fails + 2)
    with pytest.raises(KilledError):
        learn(grid, run, tmp_path / "killed" / "out")
    before = exchanges(grid, FIVE[0])
    grid.tamper = lambda name, reply: reply
    grid.sent.clear()
    outcome_ = learn(grid, run, tmp_path / "killed" / "out")
    assert outcome_["warnings"] == []
    assert not list((tmp_path / "killed").rglob("*sums.json"))
    # The cost of the exchange that was repeated is only in the run without the kill.
    (history, models), (wanted, wanted_models) = outcome(tmp_path / "killed" / "out", run), expected
    costs = ["synchronizations", "rounds", "points", "bytes_up", "bytes_down", "nodes_asked"]
    wanted = wanted.assign(**{name: history[name] for name in costs})
    assert_same((history, models), (wanted, wanted_models), 1e-5)

    everybody, others = {"0,1,2,3"}, {"0,1,3"}
    first, second = members(before)[each:], members(exchanges(grid, FIVE[0]))
    assert first == [everybody] * place + [others, everybody]  # the spoiled sum was repeated
    assert second[:place] == [everybody] * (place - 1) + [others]
    assert second[place:] == [everybody] * (2 * each - place)


def test_without_its_record_the_others_refuse(run, tmp_path, monkeypatch):
    """So the test above can fail."""
    each = sums_per_step(run, tmp_path)
    grid = made_grid(tmp_path / "killed")
    Fate(grid, fails=each + 1, dies=each + 3)
    with pytest.raises(KilledError):
        learn(grid, run, tmp_path / "killed" / "out")
    grid.tamper = lambda name, reply: reply
    monkeypatch.setattr(SumBook, "keep", lambda book, path: None)
    with pytest.raises(FedkinError, match="for fewer nodes"):
        learn(grid, run, tmp_path / "killed" / "out")


def test_a_run_that_is_killed_before_its_first_checkpoint_starts_over_with_its_record(tmp_path):
    run = config("fedavg", steps=2).model_copy(update=RUN)
    grid = made_grid(tmp_path)
    Fate(grid, fails=1, dies=3)
    with pytest.raises(KilledError):
        learn(grid, run, tmp_path / "out")
    assert len(list(tmp_path.rglob("checkpoint.sums.json"))) == 1
    grid.tamper = lambda name, reply: reply
    assert learn(grid, run, tmp_path / "out")["warnings"] == []
    history, _ = outcome(tmp_path / "out", run)
    assert np.isfinite(history["validation_loss"]).all()
