"""`fedkin.contributions` on small federations whose values are known."""

import dataclasses
from itertools import combinations

import numpy as np
import pandas as pd
import pytest

import fedkin
from fedkin.errors import InputError
from fedkin.events import GroupsTrained
from fedkin.training.alone import OwnRows, PenalizedLoss, add_ones, losses
from fedkin.valuation import contributions as module
from fedkin.valuation.game import Game, sampled_shapley
from fedkin.valuation.result import Contributions
from tests.federations import classification_nodes, regression_nodes

NAMES = "abcdef"


@pytest.fixture(scope="module")
def six():
    nodes, validation = classification_nodes([60, 80, 40, 100, 50, 70], seed=4)
    named = dict(zip(NAMES, nodes, strict=True))
    return fedkin.fit(named, validation, cap=1.0), named, validation


@pytest.fixture(scope="module")
def played(six):
    """The contributions, and the game with the worth of all groups."""
    games = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "Game", lambda *rest: games.append(Game(*rest)) or games[0])
        return fedkin.contributions(*six), games[0]


@pytest.fixture(scope="module")
def exact(played):
    return played[0]


def test_six_nodes_are_valued_by_all_their_groups(exact):
    assert exact.exact
    assert exact.groups == 63
    assert not exact.table["sampling_error"].any()
    assert exact.table["shapley"].to_numpy().sum() == pytest.approx(exact.everyone - exact.nobody)


def test_sampled_values_agree_with_exact_ones_within_two_standard_errors(six, exact):
    sampled = fedkin.contributions(*six, orders=40, seed=1)
    away = sampled.table["shapley"] - exact.table["shapley"]
    assert not sampled.exact
    assert (away.abs() <= 2 * sampled.table["sampling_error"]).all()
    assert sampled.table["sampling_error"].max() < 0.25 * exact.table["shapley"].abs().max()
    total = sampled.table["shapley"].to_numpy().sum()
    assert total == pytest.approx(exact.everyone - exact.nobody)
    np.testing.assert_allclose(
        sampled.table["leave_one_out"], exact.table["leave_one_out"], atol=1e-4
    )


@pytest.mark.parametrize("orders", [20, 40])
def test_two_standard_errors_cover_the_exact_value_as_often_as_they_should(played, orders):
    """100 draws of orders for six nodes: 2 standard errors of a normal distribution cover 95%."""
    found, game = played
    truth = found.table["shapley"].to_numpy()
    covered = []
    for seed in range(100):
        sampled = sampled_shapley(game, orders, np.random.default_rng(seed))
        covered.append(np.abs(sampled.values.mean(axis=1) - truth) <= 2 * sampled.error)
    assert 0.9 < np.mean(covered) < 0.99
    assert game.groups == 63  # nothing was trained for it


def test_the_worth_of_a_group_is_the_score_of_a_model_fitted_to_its_rows(six):
    """Two nodes, by hand: four groups, and Newton's method on the rows of each, pooled."""
    _, named, validation = six
    nodes = {name: named[name] for name in "ad"}
    result = fedkin.fit(nodes, validation, cap=1.0)
    found = fedkin.contributions(result, nodes, validation)
    x, y = validation

    def loss(group):
        if not group:
            shares = np.bincount(y) / len(y)
            return -np.log(shares[y]).mean()
        pooled = tuple(
            np.concatenate(part) for part in zip(*(nodes[n] for n in group), strict=True)
        )
        rows = OwnRows(add_ones(pooled[0]), pooled[1], "classification", 3)
        counts = np.full(rows.total, 1 / rows.total)
        model = PenalizedLoss(rows, counts, np.full(4, 1e-3)).minimize().reshape(3, 4).T
        return losses(add_ones(x) @ model, y, "classification").mean()

    worth = {group: -loss(group) for size in range(3) for group in combinations("ad", size)}
    first = 0.5 * (worth["a",] - worth[()]) + 0.5 * (worth["a", "d"] - worth["d",])
    assert found.table.loc["a", "shapley"] == pytest.approx(first, abs=2e-3)
    assert found.table.loc["a", "leave_one_out"] == pytest.approx(
        worth["a", "d"] - worth["d",], abs=2e-3
    )
    assert found.nobody == pytest.approx(worth[()])


def test_a_copy_of_a_node_looks_useless_when_left_out_and_shares_the_credit():
    random = np.random.default_rng(0)

    def rows(count, noise):
        x = random.normal(size=(count, 4))
        return x, (x.sum(axis=1) + noise * random.normal(size=count) > 0).astype(int)

    good = rows(400, 0.5)
    nodes = {"good": good, "copy": good, "small": rows(40, 1.0), "other": rows(40, 2.0)}
    validation = rows(200, 0.5)
    found = fedkin.contributions(fedkin.fit(nodes, validation), nodes, validation)
    table = found.table
    assert table.loc["good", "shapley"] == pytest.approx(table.loc["copy", "shapley"], abs=1e-4)
    assert table.loc["copy", "shapley"] > 0.1
    assert abs(table.loc["copy", "leave_one_out"]) < 0.05 * table.loc["copy", "shapley"]
    assert set(found.replaceable) >= {"good", "copy"}
    assert found.caution is not None
    assert "other nodes can stand in" in found.caution
    assert found.caution in repr(found)


def test_a_node_without_weight_adds_nothing_to_the_models_own_weights(six):
    result, named, validation = six
    found = fedkin.contributions(result, named, validation, weights="learned")
    zero = [name for name, weight in result.weights.items() if weight == 0]
    assert zero
    assert (found.table.loc[zero, ["shapley", "row_error", "leave_one_out"]] == 0).all(axis=None)
    assert found.groups == 2 ** (6 - len(zero)) - 1
    # All nodes with their weights are the result's own model.
    assert -found.everyone == pytest.approx(result.history["validation_loss"].iloc[-1], abs=1e-4)


def test_the_start_makes_no_difference_where_training_converges(six, exact):
    cold = fedkin.contributions(*six, warm_start=False)
    np.testing.assert_allclose(cold.table["shapley"], exact.table["shapley"], atol=2e-4)


def test_the_same_seed_gives_the_same_values(six):
    first, second, other = (fedkin.contributions(*six, orders=4, seed=s) for s in (5, 5, 6))
    pd.testing.assert_frame_equal(first.table, second.table, check_exact=True)
    assert not first.table.equals(other.table)


def test_accuracy_is_a_score_too(six):
    found = fedkin.contributions(*six, score="accuracy")
    labels = six[2][1]
    assert found.nobody == pytest.approx(np.bincount(labels).max() / len(labels))
    assert 0 < found.everyone <= 1
    assert found.score_name == "accuracy"


def test_numbers_are_scored_by_their_squared_error():
    nodes, validation = regression_nodes([30, 40, 50])
    result = fedkin.fit(nodes, validation, model="ridge")
    found = fedkin.contributions(result, nodes, validation)
    assert found.nobody == pytest.approx(-np.var(validation[1]), rel=1e-5)
    assert found.score_name == "squared error"
    larger = found.in_unit(10.0)
    np.testing.assert_allclose(larger.table["shapley"], 100 * found.table["shapley"])
    assert larger.everyone == pytest.approx(100 * found.everyone)


def test_networks_take_a_few_rounds_on_each_group(six):
    _, named, validation = six
    nodes = {name: named[name] for name in "abc"}
    result = fedkin.fit(nodes, validation, model="mlp", method="fedavg", steps=1)
    found = fedkin.contributions(result, nodes, validation, rounds=2)
    assert not found.converged
    assert found.groups == 7
    assert found.table["shapley"].to_numpy().sum() == pytest.approx(found.everyone - found.nobody)
    assert "a few rounds" in found.method


def test_standard_errors_over_rows_are_those_of_other_rows():
    """Many draws of the owner's rows: values vary as much as each draw's error says."""
    random = np.random.default_rng(1)

    def rows(count, slope):
        x = random.normal(size=(count, 2))
        return x, (slope * x[:, 0] + random.normal(size=count) > 0).astype(int)

    nodes = [rows(100, 2.0), rows(100, 0.5), rows(100, -1.0)]
    result = fedkin.fit(nodes, rows(50, 2.0))
    found = [fedkin.contributions(result, nodes, rows(50, 2.0)).table for _ in range(20)]
    for value, error in (("shapley", "row_error"), ("leave_one_out", "leave_one_out_error")):
        values = np.stack([table[value] for table in found])
        claimed = np.sqrt(np.mean([table[error] ** 2 for table in found], axis=0))
        # The standard deviation of 20 values has an error of a sixth.
        np.testing.assert_allclose(values.std(axis=0), claimed, rtol=0.5)


def test_it_survives_its_summary(exact):
    again = Contributions.from_summary(exact.summary())
    pd.testing.assert_frame_equal(again.table, exact.table, check_dtype=False)
    assert again.sentence == exact.sentence
    assert again.method == exact.method


def test_progress_is_reported(six):
    events = []
    fedkin.contributions(*six, on_event=events.append)
    assert all(isinstance(event, GroupsTrained) for event in events)
    assert [event.done for event in events][-1] == events[-1].most == 63


def test_columns_are_matched_by_name():
    random = np.random.default_rng(0)

    def rows(names):
        x = pd.DataFrame(random.normal(size=(40, 2)), columns=["age", "dose"])
        y = (x["age"] > 0.3 * random.normal(size=40)).astype(int)
        return x[names], y

    nodes = {name: rows(["age", "dose"]) for name in "ab"}
    validation = rows(["age", "dose"])
    result = fedkin.fit(nodes, validation)
    turned = {name: (x[["dose", "age"]], y) for name, (x, y) in nodes.items()}
    found = fedkin.contributions(result, nodes, validation).table
    other = fedkin.contributions(result, turned, validation).table
    np.testing.assert_allclose(found["shapley"], other["shapley"], atol=1e-5)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"score": "auc"}, "score='auc' is unknown; choose one of loss, accuracy"),
        ({"weights": "sise"}, "weights='sise' is unknown; did you mean size?"),
        ({"orders": 7}, "orders must be even, since each is drawn with its reverse: give 8"),
        ({"orders": 2}, "orders must be a whole number from 4 on"),
        ({"orders": 8, "exact": True}, "leave orders or exact out"),
        ({"truncation": 1.5}, "truncation must lie between 0 and 1, not 1.5"),
        ({"rounds": 3}, "rounds changes nothing for linear models"),
        ({"learning_rate": 0.1}, "learning_rate changes nothing for linear models"),
        ({"result": {"a": 1.0}}, "contributions are of a result of fedkin.fit"),
        ({"nodes": {"a": None}}, "expected a pair"),
        ({"nodes": "fewer"}, "give the nodes that it was learned from"),
        ({"nodes": "wider"}, r"takes points of shape \(3,\), and these have shape \(4,\)"),
        ({"validation": "one class"}, "have only the class"),
    ],
    ids=str,
)
def test_bad_input_has_a_message_of_its_own(six, change, says):
    result, nodes, (x, y) = six
    given = {"result": result, "nodes": nodes, "validation": (x, y)} | change
    if change.get("nodes") == "fewer":
        given["nodes"] = {name: nodes[name] for name in "abcde"}
    if change.get("nodes") == "wider":
        given["nodes"] = {n: (np.c_[a, a[:, :1]], b) for n, (a, b) in nodes.items()}
        given["validation"] = (np.c_[x, x[:, :1]], y)
    if change.get("validation") == "one class":
        given["validation"] = (x[y == 0], y[y == 0])
    with pytest.raises(InputError, match=says):
        fedkin.contributions(**given)


def test_settings_that_do_not_suit_the_result_are_refused(six):
    result, nodes, validation = six
    without = dataclasses.replace(result, weights=None, method="local")
    with pytest.raises(InputError, match="needs learned weights, which 'local' has not"):
        fedkin.contributions(without, nodes, validation, weights="learned")
    ridge, (numbers, own) = None, regression_nodes([20, 30])
    ridge = fedkin.fit(numbers, own, model="ridge")
    with pytest.raises(InputError, match="'accuracy' is for classes; this model predicts numbers"):
        fedkin.contributions(ridge, numbers, own, score="accuracy")
    many = {f"n{number}": nodes["a"] for number in range(13)}
    weightless = dataclasses.replace(result, weights=None)
    with pytest.raises(InputError, match="exact is for up to 12 nodes, and there are 13"):
        fedkin.contributions(weightless, many, validation, exact=True)
