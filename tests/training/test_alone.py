"""Models at the center, against scikit-learn, closed forms and the nodes' own training."""

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import approx_fprime, minimize
from sklearn.linear_model import LogisticRegression

import fedkin
from fedkin.training.alone import (
    STRENGTHS,
    OwnRows,
    PenalizedLoss,
    add_ones,
    losses,
    points_along,
    recalibrate,
    train,
    train_alone,
)
from fedkin.training.comparison import warning
from fedkin.training.folds import draw_folds


def classified(count, classes, seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(count, 3))
    scores = x @ random.normal(size=(3, classes)) + random.gumbel(size=(count, classes))
    return OwnRows(add_ones(x), scores.argmax(axis=1), "classification", classes)


@pytest.mark.parametrize("classes", [2, 4])
def test_training_agrees_with_scikit_learn(classes):
    """Its intercept is free; ours has the penalty of 0.1 rows, which 400 rows do not feel."""
    rows = classified(400, classes)
    model = train(rows, l2=0.05)
    # One column for two classes, whose penalty counts it whole.
    strength = (2 if classes == 2 else 1) / (0.05 * 400)
    other = LogisticRegression(C=strength, tol=1e-10, max_iter=10_000)
    other.fit(rows.inputs[:, :-1], rows.labels)
    if classes == 2:
        found, intercept = (model[:, 1] - model[:, 0])[:, None], other.intercept_
    else:
        found, intercept = model - model.mean(axis=1, keepdims=True), other.intercept_
    np.testing.assert_allclose(found[:-1], other.coef_.T, atol=2e-3)
    np.testing.assert_allclose(found[-1], intercept - intercept.mean() * (classes > 2), atol=5e-3)


def test_a_strong_penalty_leaves_the_share_of_an_unbalanced_class():
    rows = OwnRows(
        add_ones(np.random.default_rng(0).normal(size=(60, 5))),
        np.arange(60) // 54,
        "classification",
        2,
    )
    model = train(rows, l2=1000.0)
    assert np.abs(model[:-1]).max() < 1e-3
    chance = 1 / (1 + np.exp(model[-1, 0] - model[-1, 1]))
    assert chance == pytest.approx(6 / 60, abs=0.005)


def test_rows_of_one_class_lead_to_a_finite_model():
    rows = OwnRows(
        add_ones(np.random.default_rng(0).normal(size=(30, 2))),
        np.zeros(30, int),
        "classification",
        2,
    )
    model = train_alone(rows, np.arange(30) % 5)
    assert np.abs(model).max() < 10


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_the_derivatives_of_a_weighted_loss(task):
    random = np.random.default_rng(0)
    classes = 3 if task == "classification" else 1
    labels = random.integers(0, 3, 20) if task == "classification" else random.normal(size=20)
    rows = OwnRows(add_ones(random.normal(size=(20, 2))), labels, task, classes)
    loss = PenalizedLoss(rows, random.uniform(size=20), np.array([0.3, 0.2, 0.1]))
    point = random.normal(size=3 * classes)
    gradient, hessian = loss.derivatives(point)
    np.testing.assert_allclose(gradient, approx_fprime(point, loss.value), atol=1e-5)
    by_difference = approx_fprime(point, lambda p: loss.derivatives(p)[0])
    np.testing.assert_allclose(hessian, by_difference, atol=1e-5)


def test_ridge_is_the_closed_form():
    random = np.random.default_rng(0)
    x, y = add_ones(random.normal(size=(30, 4))), random.normal(size=30)
    model = train(OwnRows(x, y, "regression", 1), l2=0.3)
    penalty = np.diag([0.3, 0.3, 0.3, 0.3, 0.1 / 30])
    closed = np.linalg.solve(x.T @ x / 30 + penalty, x.T @ y / 30)
    np.testing.assert_allclose(model[:, 0], closed, atol=1e-8)


def test_noise_gets_a_strong_penalty_and_signal_a_weak_one():
    random = np.random.default_rng(0)
    x = add_ones(random.normal(size=(60, 5)))
    folds = draw_folds(np.zeros(60), 5, random, stratify=False)
    noise = train_alone(OwnRows(x, random.normal(size=60), "regression", 1), folds)
    signal = train_alone(OwnRows(x, x[:, 0] * 3, "regression", 1), folds)
    assert np.abs(noise).max() < 0.2
    assert signal[0, 0] == pytest.approx(3, abs=0.05)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_every_penalty_counts_by_the_likelihood_of_held_out_rows(task):
    random = np.random.default_rng(3)
    x = random.normal(size=(30, 4))
    y = x[:, 0] + 2 * random.normal(size=30)
    labels = (y > 0).astype(int) if task == "classification" else y
    rows = OwnRows(add_ones(x), labels, task, 2 if task == "classification" else 1)
    folds = np.arange(30) % 5
    held_out = []
    for strength in STRENGTHS:
        total = 0.0
        for fold in range(5):
            model = train(rows.take(folds != fold), strength / 24)
            held = rows.take(folds == fold)
            total += losses(held.inputs @ model, held.labels, task).sum()
        held_out.append(total)
    log_likelihood = -np.array(held_out)
    if task == "regression":
        log_likelihood *= 30 / (
            2 * min(held_out)
        )  # the best model's mean squared error is the variance
    shares = np.exp((log_likelihood - log_likelihood.max()) / 3)
    models = [train(rows, strength / 30) for strength in STRENGTHS]
    expected = np.average(models, axis=0, weights=shares)
    np.testing.assert_allclose(train_alone(rows, folds), expected, atol=2e-3)
    assert np.abs(expected - models[int(np.argmin(held_out))]).max() > 0.01


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_a_model_that_has_nothing_to_do_with_the_rows_mostly_does_not_point_along(task):
    """Twice the log-likelihood's rise is half a chi-squared variable: it is above 1 in 16% of cases.

    Recalibration's own penalties make it a little less.
    """
    random = np.random.default_rng(0)
    model = random.normal(size=(4, 2 if task == "classification" else 1))
    along = 0
    for _ in range(200):
        x = add_ones(random.normal(size=(40, 3)))
        labels = random.integers(0, 2, 40) if task == "classification" else random.normal(size=40)
        along += points_along(model, OwnRows(x, labels, task, model.shape[1]))
    assert 10 <= along <= 45


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_recalibration_minimizes_its_penalized_loss(task):
    random = np.random.default_rng(0)
    x = add_ones(random.normal(size=(40, 2)))
    labels = random.integers(0, 2, 40) if task == "classification" else random.normal(size=40)
    outputs = 2 if task == "classification" else 1
    rows = OwnRows(x, labels, task, outputs)
    model = random.normal(size=(3, outputs))
    unit = 1.0 if task == "classification" else np.var(labels)

    def value(point):
        calibrated = point[1:] + point[0] * (x @ model)
        penalty = 0.5 * (point[0] - 1) ** 2 + np.sum(point[1:] ** 2)
        return losses(calibrated, labels, task).sum() + unit * penalty

    start = np.array([1.0, *np.zeros(outputs)])
    bounds = [(0, None)] + [(None, None)] * outputs
    best = minimize(value, start, bounds=bounds, method="SLSQP", options={"ftol": 1e-12}).x
    found = recalibrate(model, rows)
    np.testing.assert_allclose(found[:-1], best[0] * model[:-1], atol=1e-3)
    np.testing.assert_allclose(found[-1], best[0] * model[-1] + best[1:], atol=1e-3)


def made(seed, sign=1, count=40):
    random = np.random.default_rng(seed)
    x = random.normal(size=(count, 3))
    return x, (sign * x[:, 0] + 0.5 * random.normal(size=count) > 0).astype(int)


NODES = {"a": made(0), "b": made(1), "c": made(2, -1)}


def test_refit_minimizes_the_loss_of_nodes_and_owner_together():
    owner = made(3, count=30)
    plain = fedkin.fit(NODES, owner)
    again = fedkin.fit(NODES, owner, refit=True)
    assert again.before is not None
    np.testing.assert_array_equal(again.before.theta, plain.theta)
    assert again.weights == plain.weights
    weights = np.array(list(plain.weights.values()))
    share = 30 / (30 + 1 / np.sum(weights**2 / 40))
    x = add_ones(np.concatenate([*(x for x, _ in NODES.values()), owner[0]]))
    y = np.concatenate([*(y for _, y in NODES.values()), owner[1]])
    counts = np.concatenate(
        [*(np.full(40, (1 - share) * each / 40) for each in weights), np.full(30, share / 30)]
    )

    def value(point):
        outputs = x @ point.reshape(4, 2)
        return counts @ losses(outputs, y, "classification") + 0.5e-3 * np.sum(point**2)

    best = minimize(value, np.zeros(8), tol=1e-12).x.reshape(4, 2)
    kernel = again.theta[2:].reshape(3, 2)
    np.testing.assert_allclose(kernel, best[:3], atol=1e-4)
    np.testing.assert_allclose(again.theta[:2], best[3], atol=1e-4)


def test_fit_compares_with_alone_and_warns_where_it_loses():
    owner = made(3, count=30)
    good = fedkin.fit(NODES, owner)
    assert good.comparison is not None
    assert good.comparison.index.tolist() == ["alone", "equal", "learned"]
    assert good.comparison.loc["learned", "loss"] < good.comparison.loc["equal", "loss"]
    assert not good.warnings
    assert good.at_cap == ("b",) or good.at_cap == ("a",)
    # As many nodes and rows as above: nothing is compiled again.
    hostile = fedkin.fit({"x": made(5, -1), "y": made(6, -1), "z": made(7, -1)}, owner)
    assert "do not beat training alone" in hostile.warnings[-1]
    assert fedkin.fit(NODES, owner, model="mlp", steps=1).comparison is None


def test_the_equal_weights_of_the_comparison_are_trained():
    owner = made(3, count=30)
    compared = fedkin.fit(NODES, owner).comparison
    equal = fedkin.fit(NODES, owner, cap=1 / 3)
    expected = equal.history["validation_loss"].iloc[-1]
    assert compared.loc["equal", "loss"] == pytest.approx(expected, rel=0.02)


def test_weights_that_are_never_trained_are_not_compared_with():
    owner = made(3, count=30)
    paper = fedkin.fit(NODES, owner, preset="paper", steps=3)
    assert paper.comparison.index.tolist() == ["alone", "learned"]


def test_with_a_prior_equal_weights_are_trained_for_the_comparison():
    owner = made(3, count=30)
    nodes = NODES | {"c": made(2, -1, count=80)}
    compared = fedkin.fit(nodes, owner, prior="size").comparison
    assert compared.index.tolist() == ["alone", "equal", "prior", "learned"]
    equal = fedkin.fit(nodes, owner, cap=1 / 3).history["validation_loss"].iloc[-1]
    assert compared.loc["equal", "loss"] == pytest.approx(equal, rel=0.01)


def test_the_warning_counts_the_weights_that_the_rows_have_chosen():
    table = pd.DataFrame({"loss": [0.50, 0.48], "accuracy": [0.8, 0.8]}, index=["alone", "learned"])
    weights = np.array([0.6, 0.4, 0.0])
    assert warning(table, weights, rows=100) is None
    found = warning(table, weights, rows=40)
    assert "do not beat training alone" in found
    assert (
        "0.48 (about 0.025 too low, because these rows have chosen the weights), and 0.5" in found
    )


def test_settings_that_exclude_each_other_or_do_not_fit():
    owner = made(3, count=30)
    with pytest.raises(fedkin.InputError, match="leave one out"):
        fedkin.fit(NODES, owner, refit=True, recalibrate=True)
    with pytest.raises(fedkin.InputError, match="refit is for linear models"):
        fedkin.fit(NODES, owner, model="mlp", steps=1, refit=True)
    with pytest.raises(fedkin.InputError, match="recalibrate is for linear models"):
        fedkin.fit(NODES, owner, model="mlp", steps=1, recalibrate=True)
    with pytest.raises(fedkin.InputError, match="'bilevel', not of 'fedavg'"):
        fedkin.fit(NODES, owner, method="fedavg", prior="size")
    with pytest.raises(fedkin.InputError, match="prior='rows' is unknown"):
        fedkin.fit(NODES, owner, prior="rows")
    with pytest.raises(fedkin.InputError, match="prior is for linear models"):
        fedkin.fit(NODES, owner, model="mlp", prior="size")


def test_recalibration_keeps_the_order_of_probabilities():
    owner, test = made(3, count=30), made(4, count=200)
    plain = fedkin.fit(NODES, owner)
    calibrated = fedkin.fit(NODES, owner, recalibrate=True)
    before, after = (each.predict_proba(test[0])[:, 1] for each in (plain, calibrated))
    np.testing.assert_array_equal(np.argsort(before), np.argsort(after))
    assert not np.allclose(before, after, atol=1e-3)
