"""A node that protects its rows: its budget outlives runs and restarts, and what it refuses."""

import json
import os
import re
import stat
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from attacks.victim import Center, RefusedByNodeError, agreed, make_table
from fedkin.errors import InputError
from fedkin.federation.privacy import BudgetSpentError, Privacy
from fedkin.flower import node as node_module
from fedkin.flower import node_preparation
from fedkin.flower.audit import read_entries
from fedkin.flower.jobs.loading import load_job
from fedkin.flower.messenger import Messenger
from fedkin.flower.node import SEE_LOG
from fedkin.flower.node_settings import node_settings
from fedkin.flower.owner_privacy import BUDGET_FILE, KeptBudget
from fedkin.flower.wire import Refusal
from fedkin.methods.bilevel.node import GRADIENT, HESSIAN_PRODUCT, SLOPE
from fedkin.methods.descent.node import DESCENT_ROUND
from fedkin.studies.cell import do_run
from flower.fake_grid import FakeGrid
from flower.trials import NAMES, config, engines, outcome
from flower.trials import settings as settings_of
from flower.well_formed import HEADER, exchange


@pytest.fixture
def plain(tmp_path):
    make_table(tmp_path / "table.csv")
    state = tmp_path / "state"
    yield {
        "name": "hospital",
        "data": str(tmp_path / "table.csv"),
        "label": "outcome",
        "state": str(state),
        "plain-sums": True,
    }
    restart(state)


@pytest.fixture
def settings(plain):
    return plain | {"epsilon": 1.0, "delta": 1e-3, "private-steps": 10}


def restart(state):
    """Let a node forget what is only in its memory."""
    node_module._USAGE.pop(Path(state), None)
    node_preparation._PREPARED.clear()


def joined(settings):
    center = Center(settings)
    center.join(agreed(center.describe()))
    return center


def train(center, steps):
    point = np.zeros(center.size)
    return center.ask(DESCENT_ROUND, {"point": point}, learning_rate=0.1, steps=steps).vectors[
        "point"
    ]


def refused(ask):
    with pytest.raises(RefusedByNodeError) as caught:
        ask()
    return caught.value


def test_it_is_off_unless_asked_for(plain):
    assert node_settings(plain).privacy is None
    center = joined(plain)
    np.testing.assert_array_equal(train(center, 3), train(center, 3))
    assert not (Path(plain["state"]) / BUDGET_FILE).exists()
    assert {entry["epsilon"] for entry in read_entries(Path(plain["state"]))} == {0.0}


def test_the_same_question_gets_new_noise(settings):
    center = joined(settings)
    assert not np.allclose(train(center, 1), train(center, 1), atol=1e-3)


def test_a_new_run_or_a_restart_is_no_new_budget(settings):
    center = joined(settings)
    train(center, 6)
    center.join(agreed(center.describe()), run="another run")
    assert "3 more steps" not in str(train(center, 2))
    restart(settings["state"])
    center = joined(settings)
    error = refused(lambda: train(center, 3))
    assert error.code == Refusal.LIMIT
    assert re.match(
        r"the privacy budget of this node is spent: ε = 0\.8\d* of 1 \(δ = 0\.001\) is used, and 3 more "
        r"steps would exceed it; only its owner can grant more \(epsilon\)",
        error.reason,
    )
    train(center, 2)
    assert refused(lambda: train(center, 1)).code == Refusal.LIMIT
    entries = list(read_entries(Path(settings["state"])))
    spent = [entry["epsilon"] for entry in entries if entry["request"] == "exchange"]
    assert spent == sorted(spent)
    assert spent[-1] == pytest.approx(1.0)
    assert "budget" in entries[-1]["cause"]


def test_an_owner_can_grant_more_and_what_was_spent_counts(settings):
    train(joined(settings), 10)
    more = joined(settings | {"epsilon": 1.5})
    train(more, 1)
    spent = list(read_entries(Path(settings["state"])))[-1]["epsilon"]
    assert 1.0 < spent < 1.5


def test_what_is_spent_is_written_down_before_anything_is_released(tmp_path):
    granted = Privacy(1.0, 1e-3, 1.0, 10)
    budget = KeptBudget(granted, tmp_path / "state")
    budget.spend(7)
    path = tmp_path / "state" / BUDGET_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = KeptBudget(granted, tmp_path / "state")
    assert again.spent == pytest.approx(7 * granted.cost_of_step)
    assert json.loads(path.read_text())["epsilon"] == pytest.approx(again.epsilon)
    with pytest.raises(BudgetSpentError):
        again.spend(4)
    budget.spend(3)
    with pytest.raises(BudgetSpentError):
        again.spend(1)  # another process of the node sees it


def test_what_is_spent_survives_a_power_cut(tmp_path, monkeypatch):
    """The file and then its name in the directory are on the disk before anything is released."""
    written = []

    def fsync(opened):
        state = os.fstat(opened)
        name = "directory" if stat.S_ISDIR(state.st_mode) else "file"
        written.append((name, (tmp_path / "state" / BUDGET_FILE).exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    KeptBudget(Privacy(1.0, 1e-3, 1.0, 10), tmp_path / "state").spend(1)
    assert written == [("file", False), ("directory", True)]


def test_a_node_that_was_protected_does_not_answer_without_noise_by_oversight(plain, settings):
    train(joined(settings), 1)
    with pytest.raises(InputError, match=rf"epsilon is missing.*{BUDGET_FILE}"):
        node_settings(plain)
    (Path(plain["state"]) / BUDGET_FILE).unlink()
    assert node_settings(plain).privacy is None


def test_what_was_computed_without_noise_is_not_used_once_rows_are_protected(plain, settings):
    """An owner changes the file of settings during a run. The exact gradient is still remembered."""
    given = dict(plain)
    center = joined(given)
    theta = np.zeros(center.size)
    center.ask(GRADIENT, {"theta": theta})

    def follow():
        """Ask for one number more of the gradient, which the node remembers."""
        values, vectors = exchange(SLOPE, center.size, begin=False)
        vectors["ask/vector"] = np.arange(center.size, dtype=np.float32)
        return center.send(HEADER | {"attempt": str(center.attempts)} | values, vectors)

    assert follow().values["ask.number.slope"] != 0
    given.update(settings)
    assert refused(follow).code == Refusal.NOT_JOINED
    center.join(agreed(center.describe()))
    assert refused(follow).code == Refusal.NOT_BEGUN


@pytest.mark.parametrize("content", ["", "{}", '{"spent": -1.0}', '{"spent": NaN}', "[1]", "\xff"])
def test_a_damaged_count_is_no_new_budget(settings, content):
    state = Path(settings["state"])
    state.mkdir(mode=0o700)
    (state / BUDGET_FILE).write_text(content, encoding="latin-1")
    center = Center(settings)
    preprocessing = agreed(center.describe())
    assert refused(lambda: center.join(preprocessing)).reason == SEE_LOG


def test_requests_without_a_private_answer_are_refused(settings):
    center = joined(settings)
    size = center.size
    for ask in (
        lambda: center.ask(HESSIAN_PRODUCT, {"vector": np.ones(size), "theta": np.zeros(size)}),
        lambda: center.ask(DESCENT_ROUND, {"point": np.zeros(size)}, steps=2_000),
    ):
        error = refused(ask)
        assert error.code == Refusal.FORBIDDEN
        assert "protects its rows" in error.reason


def test_a_gradient_is_clipped_and_noisy(settings):
    center = joined(settings | {"epsilon": 1e4, "clip": 0.01})
    found = center.ask(GRADIENT, {"theta": np.zeros(center.size)}).vectors["gradient"]
    assert 0 < np.linalg.norm(found) < 0.01 * 1.1  # the mean of clipped rows, with next to no noise


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"delta": 1e-3}, "only epsilon turns the protection of rows on"),
        ({"clip": 1.0, "private-steps": 5}, "clip, private-steps"),
        ({"epsilon": 1.0, "validation-fraction": 0.2}, "validation-fraction"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": 1.0, "delta": 1.0}, "delta"),
    ],
)
def test_options_that_protect_nothing_are_refused(plain, changes, words):
    with pytest.raises(InputError, match=words):
        node_settings(plain | changes)


def test_a_missing_accountant_is_reported_before_the_node_starts(settings, monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(InputError, match=r"pip install 'fedkin\[privacy\]'"):
        node_settings(settings)


def test_what_is_spent_needs_a_directory(plain):
    without = {name: value for name, value in plain.items() if name != "state"}
    with pytest.raises(InputError, match="state"):
        node_settings(without | {"epsilon": 1.0, "reproducible": True})


def test_a_delta_that_would_allow_to_publish_a_row_is_refused(settings, caplog):
    center = Center(settings | {"delta": 0.02})
    preprocessing = agreed(center.describe())
    assert refused(lambda: center.join(preprocessing)).reason == SEE_LOG
    assert "choose it well below 0.017" in caplog.text


def test_a_run_over_flower_spends_what_it_should(tmp_path):
    """Of two steps with 5 local steps in each of 2 rounds; the slopes take one more gradient per step."""
    protected = {"epsilon": 5.0, "delta": 1e-4, "private-steps": 2 * (2 * 5 + 1)}
    grid = FakeGrid([settings_of(name, state=str(tmp_path / name), **protected) for name in NAMES])
    run = config("bilevel-own", outer="proximal", outer_learning_rate=0.1, averaging=False)
    do_run(run, tmp_path / "results", engine=engines(Messenger(grid)))
    history, _ = outcome(tmp_path / "results", run)
    losses = history["validation_loss"]
    assert losses.iloc[-1] < losses.iloc[0] < np.log(10)  # better and better than at the start
    for name in NAMES:
        *_, last = read_entries(tmp_path / name)
        assert last["epsilon"] == pytest.approx(5.0, rel=1e-4)


def test_the_job_of_the_documentation_works_with_protected_nodes(tmp_path):
    """It takes the gradients that docs/deploy.md counts, no more, and every step of it."""
    page = (Path(__file__).parents[2] / "docs/deploy.md").read_text(encoding="utf-8")
    job = next(part for part in page.split("```toml\n") if 'solver = "own"' in part)
    for seed, name in enumerate(("own", "test", "north", "south", "west")):
        make_table(tmp_path / f"{name}.csv", seed=seed)
    (tmp_path / "job.toml").write_text(
        'validation = "own.csv"\ntest = "test.csv"\nlabel = "outcome"\n'
        + job.split("```")[0]
        + "\n[federation]\nnodes = 3\n",
        encoding="utf-8",
    )
    nodes = [
        {
            "name": name,
            "data": str(tmp_path / f"{name}.csv"),
            "label": "outcome",
            "state": str(tmp_path / name),
            "epsilon": 50.0,
            "delta": 1e-3,
            "private-steps": 40,
        }
        for name in ("north", "south", "west")
    ]
    messenger = Messenger(FakeGrid(nodes), 0.3, 0.01)
    load_job(tmp_path / "job.toml").carry_out(messenger, tmp_path / "out", resume=False)
    history = pd.read_csv(tmp_path / "out" / "history.csv")
    assert history["step"].iloc[-1] == 10
    for node in nodes:
        *_, last = read_entries(Path(node["state"]))
        assert last["epsilon"] == pytest.approx(50.0, rel=1e-4)
        assert last["outcome"] == "answered"
