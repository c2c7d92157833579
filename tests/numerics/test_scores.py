"""Scores against scikit-learn's and against cases known by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from fedkin.numerics.scores import area_under_curve, classification_scores, regression_scores


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.booleans(), st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0])),
        min_size=2,
        max_size=30,
    )
)
def test_area_under_curve_with_ties_is_scikit_learns(pairs):
    positive = np.array([first for first, _ in pairs])
    score = np.array([second for _, second in pairs])
    if positive.all() or not positive.any():
        assert area_under_curve(positive, score) is None
    else:
        expected = metrics.roc_auc_score(positive, score)
        assert area_under_curve(positive, score) == pytest.approx(expected)


def test_three_classes():
    random = np.random.default_rng(0)
    probabilities = random.dirichlet(np.ones(3), size=50)
    classes = random.integers(0, 3, size=50)
    scores = classification_scores(classes, probabilities)
    assert scores["log_loss"] == pytest.approx(metrics.log_loss(classes, probabilities))
    assert scores["accuracy"] == metrics.accuracy_score(classes, probabilities.argmax(axis=1))
    assert "auc" not in scores


def test_a_certain_and_wrong_answer_has_a_finite_loss():
    scores = classification_scores(np.array([0]), np.array([[0.0, 1.0]]))
    assert scores["log_loss"] == pytest.approx(-np.log(2.0**-52))


def test_regression():
    random = np.random.default_rng(1)
    truth, predicted = random.normal(size=(2, 40))
    scores = regression_scores(truth, predicted)
    assert scores["r2"] == pytest.approx(metrics.r2_score(truth, predicted))
    assert scores["rmse"] == pytest.approx(metrics.root_mean_squared_error(truth, predicted))
    assert regression_scores(np.ones(3), np.zeros(3)) == {"rows": 3, "rmse": 1.0, "r2": None}
