"""What every method has to keep, whatever it does: no second compilation, exact resume, seeds, costs."""

import jax
import numpy as np
import pandas as pd
import pytest

from fedkin.compilation import COMPILED
from fedkin.events import StepDone
from fedkin.federation.base import Cost
from fedkin.methods.registry import PAPER_METHODS
from fedkin.studies.cell import do_run, draw_problem
from fedkin.studies.config import RunConfig, with_settings
from fedkin.studies.store import RunDirectory
from fedkin.training.keys import initial_model_key
from run_files import files

STEPS = 4


def config(method, seed=0, model="logistic", **changes):
    return RunConfig(
        dataset="digits",
        setting=2,
        method=method,
        seed=seed,
        model=model,
        synchronizations=None,
        steps=STEPS,
        settings={"preset": "paper", "learning_rate": 0.05, "period": 5},
        **changes,
    )


class KilledError(Exception):
    pass


@pytest.mark.parametrize("method", PAPER_METHODS)
def test_a_run_interrupted_at_any_step_ends_as_if_it_had_not_been(method, tmp_path):
    run = with_settings(config(method), {"rounds": 2})
    do_run(run, tmp_path / "whole")
    for stop_after in range(1, STEPS):

        def interrupt(event, stop_after=stop_after):
            if isinstance(event, StepDone) and event.step == stop_after:
                raise KilledError

        parent = tmp_path / str(stop_after)
        with pytest.raises(KilledError):
            do_run(run, parent, on_event=interrupt)
        assert not RunDirectory(parent, run).is_finished()
        do_run(run, parent)
        assert files(parent, run) == files(tmp_path / "whole", run)


@pytest.mark.parametrize("method", PAPER_METHODS)
def test_another_seed_compiles_nothing_and_gives_another_result(method, tmp_path):
    first, second = (with_settings(config(method, seed=seed), {"rounds": 2}) for seed in (0, 1))
    do_run(first, tmp_path)
    known = set(COMPILED)
    do_run(second, tmp_path)
    assert set(COMPILED) == known
    assert files(tmp_path, first) != files(tmp_path, second)


@pytest.mark.parametrize("method", PAPER_METHODS)
def test_every_method_learns(method, tmp_path):
    outcome = do_run(config(method).model_copy(update={"steps": 12}), tmp_path)
    assert outcome["test_accuracy"] > 0.3  # ten classes
    assert outcome["steps"] == 12


SIZE = 65 * 10  # parameters of logistic regression on 64 pixels
NODES, NUMBER = 15, 4
ROUNDS = 4  # five passes over the four mini-batches of 200 points, five steps per round


def history(method, tmp_path):
    """A run in which no coin comes up, so that every count is exact."""
    run = with_settings(config(method), {"refresh_probability": 1e-9})
    do_run(run, tmp_path)
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
    # Full passes of 200 points: ∇f at the start of both solves, and ∇L_k(θ); two gradients a point in
    # a step for θ, one product a point in a step for h.
    points = 3 * 200 + ROUNDS * 5 * 50 * 2 + ROUNDS * 5 * 50
    assert list(table.points) == [points * step for step in range(1, STEPS + 1)]


def test_cost_of_fedavg_as_in_docs_costs(tmp_path):
    table = history("fedavg", tmp_path)
    rounds = 2 * ROUNDS + 1
    assert list(table.synchronizations) == [rounds * step for step in range(1, STEPS + 1)]
    assert table.bytes_up.iloc[-1] == NODES * NUMBER * rounds * STEPS * (SIZE + 1)
    assert table.bytes_down.iloc[-1] == NODES * NUMBER * rounds * STEPS * (SIZE + 3)
    # One full gradient at the beginning, then two gradients a point.
    assert list(table.points) == [200 + rounds * 5 * 50 * 2 * step for step in range(1, STEPS + 1)]


def test_local_training_costs_no_communication(tmp_path):
    table = history("local", tmp_path)
    assert (table[["synchronizations", "bytes_up", "bytes_down"]] == 0).all().all()
    # 60 validation points in two mini-batches of 30.
    rounds = 2 * ROUNDS + 1
    assert list(table.points) == [60 + rounds * 5 * 30 * 2 * step for step in range(1, STEPS + 1)]
    assert list(table.rounds) == [
        rounds * step for step in range(1, STEPS + 1)
    ]  # as long as the others


def test_points_are_those_of_the_node_that_has_done_most_in_all():
    first = Cost(1, node_points=(30, 10, 0))
    second = Cost(1, node_points=(0, 25, 0, 8))
    assert (first + second).node_points == (30, 35, 0, 8)
    assert (first + second).points == 35  # not 30 + 25


def test_all_methods_start_from_the_same_model(tmp_path):
    """With steps too small to move anything, every method is left with the initial model."""
    initial, other = (
        draw_problem(config("fedavg", seed=seed, model="mlp")).problem.objective.init(
            initial_model_key(seed)
        )
        for seed in (0, 1)
    )
    assert float(jax.numpy.abs(initial - other).max()) > 0.1  # the network begins at random
    for method in PAPER_METHODS:
        run = with_settings(config(method, model="mlp"), {"learning_rate": 1e-30, "rounds": 1})
        run = run.model_copy(update={"steps": 1})
        do_run(run, tmp_path)
        with np.load(RunDirectory(tmp_path, run).path / "models.npz") as arrays:
            np.testing.assert_allclose(
                arrays["last"], initial, rtol=1e-6, atol=1e-27, err_msg=method
            )
