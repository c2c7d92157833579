"""The statistics of a verdict, against closed forms and brute force."""

import itertools

import numpy as np
import pytest

from fedkin.advice.verdict import Interval, Scored, decide, mix, score, weight_intervals
from fedkin.training.alone import OwnRows, add_ones, losses


def test_the_correction_removes_the_bias_of_smaller_folds():
    """Estimating a mean: the expected squared error is σ²(1 + 1/n), with folds left out σ²(1 + 1/(0.8 n))."""
    random = np.random.default_rng(0)
    plain, corrected = [], []
    for _ in range(3000):
        y = random.normal(size=10)
        folds = np.arange(10) % 5
        means = np.array([y[folds != fold].mean() for fold in range(5)])
        held = ((y - means[folds]) ** 2)[None, :, None]
        of_folds = np.array([((y - mean) ** 2).mean() for mean in means])[None, :, None]
        of_all = np.array([((y - y.mean()) ** 2).mean()])
        plain.append(held.mean())
        corrected.append(score(held, of_folds, of_all).means[0])
    assert np.mean(plain) == pytest.approx(1 + 1 / 8, abs=0.02)
    assert np.mean(corrected) == pytest.approx(1 + 1 / 10, abs=0.02)


def test_the_gain_is_the_difference_of_means_with_a_symmetric_interval():
    per_row = np.array([[1.0, 0.5], [2.0, 1.0], [0.0, 0.0], [1.0, 1.5]])
    gain = Scored(per_row, np.array([1.0, 0.7])).gain(1)
    assert gain.value == pytest.approx(0.3)
    error = 1.5 * np.std([0.5, 1.0, 0.0, -0.5], ddof=1) / 2
    assert gain.high - gain.value == pytest.approx(1.645 * error)
    assert gain.value - gain.low == pytest.approx(1.645 * error)


@pytest.mark.parametrize(
    ("gain", "verdict"),
    [
        (Interval(0.10, 0.001, 0.2), "join"),
        (Interval(0.10, -0.001, 0.2), "unclear"),
        (Interval(-0.10, -0.2, 0.0), "alone"),
        (Interval(-0.07, -0.17, 0.03), "alone"),
        (Interval(-0.06, -0.16, 0.04), "unclear"),
        (Interval(0.0, -0.1, 0.1), "unclear"),
    ],
)
def test_joining_needs_more_evidence_than_staying(gain, verdict):
    assert decide(gain) == verdict


def test_the_mixture_is_the_best_on_a_fine_grid():
    random = np.random.default_rng(1)
    rows = OwnRows(
        add_ones(random.normal(size=(30, 1))), random.integers(0, 2, 30), "classification", 2
    )
    outputs = random.normal(size=(2, 30, 3, 2))
    correction = np.array([0.05, -0.02, 0.0])
    prior = np.array([0.5, 0.2, 0.3])
    found = mix(outputs, rows, correction, prior)

    def value(m):
        mixed = np.einsum("rijk,j->rik", outputs, m)
        held = np.mean([losses(each, rows.labels, "classification").mean() for each in mixed])
        return held + correction @ m + 0.5 / 30 * np.sum((m - prior) ** 2 / prior)

    grid = [
        np.array([a, b, 40 - a - b]) / 40
        for a, b in itertools.product(range(41), repeat=2)
        if a + b <= 40
    ]
    assert found.sum() == pytest.approx(1)
    assert value(found) <= min(map(value, grid)) + 1e-6


def test_intervals_of_weights_are_the_jackknife_s():
    """Of a mean, leaving out one of n at a time gives its variance s²/n exactly."""
    sample = np.array([0.1, 0.4, 0.3, 0.2, 0.6])
    left_out = np.array([np.delete(sample, i).mean() for i in range(5)])
    of_folds = np.stack([left_out, 1 - left_out], axis=1)[None]
    weights = np.array([sample.mean(), 1 - sample.mean()])
    low, high = weight_intervals(weights, of_folds, cap=1.0)
    error = sample.std(ddof=1) / np.sqrt(5)
    assert high[0] - weights[0] == pytest.approx(1.645 * np.sqrt(2) * error)
    assert weights[0] - low[0] == pytest.approx(1.645 * np.sqrt(2) * error)
    assert (low >= 0).all()
    assert (weight_intervals(weights, of_folds, cap=0.5)[1] <= 0.5).all()


def test_a_node_whose_folds_agree_still_has_an_interval():
    of_folds = np.array([[[0.0, 0.3, 0.7], [0.0, 0.5, 0.5]]])
    low, high = weight_intervals(np.array([0.0, 0.4, 0.6]), of_folds, cap=1.0)
    assert low[0] == 0
    assert high[0] > 0.05
