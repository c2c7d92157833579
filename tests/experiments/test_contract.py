"""What every method has to keep, whatever it does: no second compilation, exact resume, seeds, costs."""

from typing import get_args

import jax
import numpy as np
import pandas as pd
import pytest

from fedkin.experiments.cell import run_cell, set_up
from fedkin.experiments.config import RunConfig
from fedkin.experiments.methods import MethodName, MethodSettings
from fedkin.experiments.store import RunDirectory
from fedkin.federation.simulation import TRACES

METHODS = get_args(MethodName)
STEPS = 4


def config(method, seed=0, **changes):
    return RunConfig(
        dataset="digits",
        setting=2,
        method=method,
        seed=seed,
        model="logistic",
        synchronizations=None,
        steps=STEPS,
        settings=MethodSettings(preset="paper", learning_rate=0.05, period=5),
        **changes,
    )


class KilledError(Exception):
    pass


def files(parent, run):
    """Everything a run leaves behind that does not tell the time."""
    path = RunDirectory(parent, run).path
    history = pd.read_parquet(path / "history.parquet").drop(columns="seconds")
    with np.load(path / "models.npz") as models:
        arrays = {name: models[name].tobytes() for name in models.files}
    return history.to_csv(index=False), arrays, (path / "weights.json").read_text()


@pytest.mark.parametrize("method", METHODS)
def test_a_run_interrupted_at_any_step_ends_as_if_it_had_not_been(method, tmp_path):
    run = config(method)
    run_cell(run, tmp_path / "whole")
    for stop_after in range(1, STEPS):

        def interrupt(state, stop_after=stop_after):
            if len(state.history) == stop_after:
                raise KilledError

        parent = tmp_path / str(stop_after)
        with pytest.raises(KilledError):
            run_cell(run, parent, after_step=interrupt)
        assert not RunDirectory(parent, run).is_finished()
        run_cell(run, parent)
        assert files(parent, run) == files(tmp_path / "whole", run)


@pytest.mark.parametrize("method", METHODS)
def test_another_seed_compiles_nothing_and_gives_another_result(method, tmp_path):
    first, second = config(method), config(method, seed=1)
    run_cell(first, tmp_path)
    traces = TRACES.copy()
    run_cell(second, tmp_path)
    assert traces == TRACES
    assert files(tmp_path, first) != files(tmp_path, second)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns(method, tmp_path):
    outcome = run_cell(config(method).model_copy(update={"steps": 12}), tmp_path)
    assert outcome["test_accuracy"] > 0.3  # ten classes
    assert outcome["steps"] == 12


SIZE = 65 * 10  # parameters of logistic regression on 64 pixels
NODES, NUMBER = 15, 4
ROUNDS = 4  # five passes over the four mini-batches of 200 points, five steps a round


def history(method, tmp_path):
    run = config(method)
    run_cell(run, tmp_path)
    return pd.read_parquet(RunDirectory(tmp_path, run).path / "history.parquet")


def test_cost_of_bilevel_as_in_docs_costs(tmp_path):
    table = history("bilevel", tmp_path)
    assert list(table.synchronizations) == [9, 18, 27, 36]  # 4 + 4 rounds and the slopes
    # Up: an iterate and a loss each round, an iterate each round, a number.
    up = ROUNDS * (SIZE + 1) + ROUNDS * SIZE + 1
    # Down: an iterate and three numbers each round, θ and ∇L_0 once, h.
    down = 2 * ROUNDS * (SIZE + 3) + 2 * SIZE + SIZE
    assert list(table.bytes_up) == [NODES * NUMBER * up * step for step in range(1, STEPS + 1)]
    assert list(table.bytes_down) == [NODES * NUMBER * down * step for step in range(1, STEPS + 1)]
    # Full passes of 200 points: ∇f at the start of both solves, ∇L_k(θ), and refreshes on top; two
    # gradients a point in a step for θ, one product a point in a step for h.
    least = 3 * 200 + ROUNDS * 5 * 50 * 2 + ROUNDS * 5 * 50
    extra = np.diff([0, *table.points]) - least
    assert (extra >= 0).all()
    assert (extra % 200 == 0).all()


def test_cost_of_fedavg_as_in_docs_costs(tmp_path):
    table = history("fedavg", tmp_path)
    rounds = 2 * ROUNDS + 1
    assert list(table.synchronizations) == [rounds * step for step in range(1, STEPS + 1)]
    assert table.bytes_up.iloc[-1] == NODES * NUMBER * rounds * STEPS * (SIZE + 1)
    assert table.bytes_down.iloc[-1] == NODES * NUMBER * rounds * STEPS * (SIZE + 3)
    extra = np.diff([0, *table.points]) - rounds * 5 * 50 * 2
    assert extra[0] >= 200  # the first full gradient
    assert (extra % 200 == 0).all()


def test_local_training_costs_no_communication(tmp_path):
    table = history("local", tmp_path)
    assert (table[["synchronizations", "bytes_up", "bytes_down"]] == 0).all().all()
    # 60 validation points in two mini-batches of 30; refreshes on top, the first gradient at first.
    extra = np.diff([0, *table.points]) - (2 * ROUNDS + 1) * 5 * 30 * 2
    assert (extra >= 0).all()
    assert (extra % 60 == 0).all()


def test_all_methods_start_from_the_same_model_and_data():
    scenes = [set_up(config(method)) for method in ("bilevel", "local")]
    for one, two in zip(*(jax.tree.leaves(scene.federation.data) for scene in scenes), strict=True):
        np.testing.assert_array_equal(one, two)
