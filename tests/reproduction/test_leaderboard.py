"""The leaderboard's page is made of its tables, and what it counts is what they say."""

import json
import re

import numpy as np
import pandas as pd
import pytest

from fedkin.methods.registry import METHODS
from reproduction.leaderboard import index, plan
from reproduction.leaderboard.board import OURS, Board
from reproduction.leaderboard.index import COLUMNS, has_diverged, known_runs, make_row
from reproduction.leaderboard.page import FINDINGS, PAGE, claims, missing_lines, summary, text


@pytest.fixture(scope="module")
def real():
    return Board()


def test_the_page_is_that_of_the_tables(real):
    assert text(real) == (plan.DIRECTORY / PAGE).read_text(encoding="utf-8")


def test_prose_has_no_results_of_its_own():
    """Numbers come from the tables: what is written by hand has no decimals and no percentages."""
    assert not re.search(r"\d[.,]\d|\d ?%", (plan.DIRECTORY / FINDINGS).read_text(encoding="utf-8"))


def test_every_row_belongs_to_the_plan(real):
    for study in plan.ORDER:
        rows = index.read_rows(study)
        assert list(rows.columns) == COLUMNS
        if rows.empty:
            continue
        planned = {cell.key for cell in real.cells if cell.study == study}
        assert set(rows["cell"]) <= planned
        assert set(rows["method"]) <= set(real.methods)
        assert not rows.duplicated(index.KEY).any()
        diverged = rows["owners"] == "[]"
        assert rows.loc[diverged, "accuracy"].isna().all()
        rows = rows[~diverged]
        owners = [json.loads(each) for each in rows["owners"]]
        np.testing.assert_allclose(rows["accuracy"], [np.mean(each) for each in owners], atol=1e-4)
        np.testing.assert_allclose(rows["worst"], [min(each) for each in owners], atol=1e-4)
        assert (rows["synchronizations"] <= plan.SYNCHRONIZATIONS).all()


def test_all_methods_have_the_same_budget_and_about_as_much_tuning():
    study = plan.read_study("a-mnist")
    assert {run.synchronizations for run in study.runs()} == {plan.SYNCHRONIZATIONS}
    assert plan.TUNING_SEED not in study.seed
    first = {run.method: run for run in reversed(study.runs())}
    assert set(first) == set(METHODS.names())
    trials = {method: study.candidates(run) for method, run in first.items()}
    assert trials.pop(OURS) == []
    assert {len(each) for each in trials.values()} == {6, 9}
    budgets = {(t.seed, t.synchronizations) for each in trials.values() for t in each}
    assert budgets == {(plan.TUNING_SEED, plan.TUNING_SYNCHRONIZATIONS)}
    for method, values in plan.OWN_SETTINGS.items():
        grid = METHODS.get(method).tuning_grid
        assert all(set(own) <= set(grid[name]) for name, own in values.items())


def test_a_study_knows_which_of_its_runs_are_in_the_table():
    """A row of another budget, or of parameters that nobody may choose, is not one of its runs."""
    study = plan.read_study("c-digits", ["fedavg", "bilevel"])
    runs = {run.method: study.candidates(run)[0] for run in study.runs()}
    rows = []
    for run in study.runs():
        chosen = run.model_copy(update={"settings": runs[run.method].settings})
        name = chosen.directory[-12:] if run.seed != plan.SEEDS[2] else "another-run"
        rows.append(row(run.cell, run.method, run.seed, 0.5, settings=chosen.settings, run=name))
    known = known_runs(study, pd.DataFrame(rows))
    assert len(known) == 4
    assert {run.seed for run in known} == set(plan.SEEDS[:2])


def row(cell, method, seed, accuracy, bad_weight=None, settings=None, run="run"):
    return make_row(
        cell=cell,
        method=method,
        seed=seed,
        settings=settings or {},
        owners=[accuracy],
        validation_accuracy=accuracy,
        bad_weight=bad_weight,
        synchronizations=60,
        sent=1000,
        seconds=1.0,
        run=run,
    )


def invented(study, accuracy, methods=None, bad_weight=None):
    """A board with one study, whose accuracies are a function of cell, method and seed."""
    board = Board({})
    rows = [
        row(cell.key, method, seed, accuracy(cell, method, seed), bad_weight and bad_weight(cell))
        for cell in board.cells
        if cell.study == study
        for method in methods or board.methods
        for seed in plan.SEEDS
    ]
    return Board({study: pd.DataFrame(rows)})


def test_ranks_firsts_and_leads():
    order = {method: number for number, method in enumerate(plan.method_names())}

    def accuracy(cell, method, seed):
        ours = 0.1 * (cell.title.endswith("2") and method == OURS)  # first in one of four cells
        return 0.5 + 0.01 * order[method] + ours * 5 + 0.001 * (seed - plan.SEEDS[1])

    board = invented("a-mnist", accuracy)
    assert len(board.ranked()) == 4
    count = len(board.methods)
    ranks = board.mean_ranks()
    assert list(ranks) == ["a", "all"]
    last, first = board.methods[-1], board.methods[0]
    assert first == OURS
    assert ranks["a"][OURS] == pytest.approx((1 + 3 * count) / 4)
    assert ranks["a"][last] == pytest.approx((2 + 3 * 1) / 4)
    assert board.firsts()[last] == 3
    assert board.firsts()[OURS] == 1
    told = summary(board, "a")
    # The k-th of the others has the mean rank k + 1/4.
    place = 1 + sum(k + 0.25 < (1 + 3 * count) / 4 for k in range(1, count))
    assert (told["complete"], told["contested"], told["place"]) == (4, 8, place)
    assert told["best"][0].endswith("setting 2")
    assert told["best"][1] == pytest.approx(0.5 - 0.01 * (count - 1))
    assert told["worst"][1:] == (pytest.approx(-0.01 * (count - 1)), last)
    page = text(board)
    assert "4 complete cells of" in page
    assert "**1.010**" not in page


def test_a_run_that_diverged_counts_as_the_last_place_and_is_shown():
    def accuracy(cell, method, seed):
        return np.nan if (method, seed) == ("tawt", plan.SEEDS[0]) else 0.5 + 0.1 * (method == OURS)

    board = invented("c-digits", accuracy)
    (cell,) = board.ranked()
    assert board.ranks(cell)["tawt"] == len(board.methods)
    assert board.ranks(cell)[OURS] == 1
    assert board.paired([cell], "tawt") == pytest.approx((0.1, 0))
    assert f"diverged (1 of {len(plan.SEEDS)} seeds)" in text(board)


def test_only_a_run_that_ended_with_divergence_has_diverged(tmp_path):
    events = tmp_path / "events.jsonl"
    started, failed = {"event": "started"}, {"event": "failed", "reason": "it diverged in round 4"}
    assert not has_diverged(tmp_path)
    for course, expected in (
        ([started], False),
        ([started, failed], True),
        ([started, failed, started], False),
        ([started, failed | {"reason": "no room on the disk"}], False),
    ):
        events.write_text("".join(f"{json.dumps(event)}\n" for event in course))
        assert has_diverged(tmp_path) is expected


def test_a_cell_with_a_missing_run_is_not_ranked_and_said_to_be_missing():
    board = invented("c-digits", lambda *_: 0.5, methods=plan.method_names()[1:])
    assert board.ranked() == []
    assert summary(board, "c")["complete"] == 0
    (line,) = (line for line in missing_lines(board) if "c-digits" in line)
    assert line == f"`c-digits`: 3 of {3 * len(board.methods)} runs (Bi-level 3)"
    assert (
        sum("that is all of them" in line for line in missing_lines(board)) == len(plan.ORDER) - 1
    )
    assert "digits in three groups, all owners**: 0 of 1 cell complete: not ranked." in text(board)


def test_bad_nodes_are_judged_by_weight_and_by_what_is_lost():
    def accuracy(cell, method, seed):
        return 0.9 - (0.0 if cell.is_reference else 0.02 if cell.kind == "noise-labels" else 0.005)

    board = invented(
        "e-digits", accuracy, [OURS], lambda cell: 0.03 if "100%" in cell.title else 0.01
    )
    found = {each["title"]: (each["weight_holds"], each["loss_holds"]) for each in claims(board)}
    assert found == {
        "digits, 5 nodes with flipped labels (50%)": (True, True),
        "digits, 5 nodes with flipped labels (100%)": (False, True),
        "digits, 5 nodes with noise labels (100%)": (False, False),
    }
    assert [each["loss"] for each in claims(board)] == pytest.approx([0.005, 0.005, 0.02])


def test_what_a_method_sees_is_what_it_declares():
    for method in plan.method_names():
        assert (plan.seen_by(method) == "models") == METHODS.get(method).reveals_models
