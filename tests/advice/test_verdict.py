"""The statistics of a verdict, against closed forms and brute force."""

import itertools
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest

from fedkin.advice.candidates import ALL_ROWS, Federated, Splits, fold_name
from fedkin.advice.conclusion import weight_table
from fedkin.advice.verdict import MIXTURE_STRENGTH, Gain, cross_fit, gain, mix, weight_intervals
from fedkin.federation.base import Cost
from fedkin.training.alone import OwnRows, add_ones, losses


def test_the_gain_is_the_mean_difference_and_its_interval_is_wider_than_the_test():
    scores = np.array([[1.0, 0.5], [2.0, 1.0], [0.0, 0.0], [1.0, 1.5]])
    found = gain(scores, 1)
    assert found.value == pytest.approx(0.25)
    assert found.error == pytest.approx(np.std([0.5, 1.0, 0.0, -0.5], ddof=1) / 2)
    assert found.interval.high - found.value == pytest.approx(1.75 * 1.645 * found.error)
    assert found.value - found.interval.low == pytest.approx(1.75 * 1.645 * found.error)


@pytest.mark.parametrize(
    ("value", "positive", "negative"),
    [(0.165, True, False), (0.164, False, False), (-0.437, False, False), (-0.438, False, True)],
)
def test_giving_up_the_others_needs_more_standard_errors_than_joining(value, positive, negative):
    """1.645 for joining, and 2.5 of those that are wider by 1.75."""
    found = Gain(value, 0.1)
    assert (found.is_positive, found.is_negative) == (positive, negative)


def test_the_mixture_is_the_best_on_a_fine_grid():
    random = np.random.default_rng(1)
    rows = OwnRows(
        add_ones(random.normal(size=(30, 1))), random.integers(0, 2, 30), "classification", 2
    )
    outputs = random.normal(size=(2, 30, 3, 2))
    prior = np.array([0.5, 0.2, 0.3])
    found = mix(outputs, rows, prior)

    def value(m):
        mixed = np.einsum("rijk,j->rik", outputs, m)
        held = np.mean([losses(each, rows.labels, "classification").mean() for each in mixed])
        return held + 0.5 * MIXTURE_STRENGTH / 30 * np.sum((m - prior) ** 2 / prior)

    grid = [
        np.array([a, b, 40 - a - b]) / 40
        for a, b in itertools.product(range(41), repeat=2)
        if a + b <= 40
    ]
    assert found.sum() == pytest.approx(1)
    assert value(found) <= min(map(value, grid)) + 1e-6


def test_a_row_has_no_part_in_the_shares_that_predict_it():
    """With one fold's labels turned around, only the other folds' predictions change."""
    random = np.random.default_rng(2)
    folds = np.arange(30)[None] % 3
    labels = random.integers(0, 2, 30)
    outputs = random.normal(size=(1, 30, 3, 2))
    prior = np.array([0.5, 0.2, 0.3])

    def predict(own):
        rows = OwnRows(np.ones((30, 1)), own, "classification", 2)
        return cross_fit(outputs, rows, folds, prior)[0]

    before = predict(labels)
    after = predict(np.where(folds[0] == 0, 1 - labels, labels))
    np.testing.assert_array_equal(before[folds[0] == 0], after[folds[0] == 0])
    assert np.abs(before - after)[folds[0] != 0].max() > 1e-3


def test_intervals_of_weights_are_the_jackknife_s():
    """Of a mean, leaving out one of n at a time gives its variance s²/n exactly."""
    sample = np.array([0.1, 0.4, 0.3, 0.2, 0.6])
    left_out = np.array([np.delete(sample, i).mean() for i in range(5)])
    of_folds = np.stack([left_out, 1 - left_out], axis=1)[None]
    weights = np.array([sample.mean(), 1 - sample.mean()])
    low, high = weight_intervals(weights, of_folds, cap=1.0)
    error = sample.std(ddof=1) / np.sqrt(5)
    quantile = 2.132  # Student's, 95%, 4 degrees of freedom
    assert high[0] - weights[0] == pytest.approx(quantile * np.sqrt(2) * error, rel=1e-3)
    assert weights[0] - low[0] == pytest.approx(quantile * np.sqrt(2) * error, rel=1e-3)
    assert (low >= 0).all()
    assert (weight_intervals(weights, of_folds, cap=0.5)[1] <= 0.5).all()


def test_a_node_whose_folds_agree_still_has_an_interval():
    of_folds = np.array([[[0.0, 0.3, 0.7], [0.0, 0.5, 0.5]]])
    low, high = weight_intervals(np.array([0.0, 0.4, 0.6]), of_folds, cap=1.0)
    assert low[0] == 0
    assert high[0] > 0.05


def test_weights_above_the_cap_where_a_node_is_lost_lie_in_their_intervals():
    weights = np.array([0.571, 0.429, 0.0])
    splits = Splits(np.zeros((2, 10), int), folds=2, seed=0)
    names = [ALL_ROWS, *(fold_name(repeat, fold) for repeat in range(2) for fold in range(2))]
    federated = Federated(
        joined={},
        without=np.zeros(0),
        weights=dict.fromkeys(names, weights),
        cost=Cost(),
        objective=cast(Any, None),
        point_shape=(1,),
        present=np.array([True, True, False]),
    )
    rows = pd.Series({"a": 20, "b": 20, "c": 20})
    table = weight_table(splits, federated, np.array([0.1, 0.3, 0.3, 0.3]), rows, 10, cap=0.4)
    assert (table["low"] <= table["weight"]).all()
    assert (table["weight"] <= table["high"]).all()
