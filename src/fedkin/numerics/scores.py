"""Scores of predictions; a score that is not defined for the data is None."""

import numpy as np


def classification_scores(
    classes: np.ndarray, probabilities: np.ndarray
) -> dict[str, float | int | None]:
    """Score probabilities of shape (rows, classes) against the true class numbers.

    >>> scores = classification_scores(np.array([0, 1]), np.array([[0.9, 0.1], [0.5, 0.5]]))
    >>> {name: round(score, 3) for name, score in scores.items()}
    {'rows': 2, 'accuracy': 0.5, 'log_loss': 0.399, 'auc': 1.0}
    """
    rows = np.arange(len(classes))
    # A certain but wrong prediction costs 36 nats (minus the logarithm of float64's spacing), not infinity.
    likelihood = np.maximum(probabilities[rows, classes], np.finfo(np.float64).eps)
    scores: dict[str, float | int | None] = {
        "rows": len(classes),
        "accuracy": float(np.mean(np.argmax(probabilities, axis=1) == classes)),
        "log_loss": float(-np.mean(np.log(likelihood))),
    }
    if probabilities.shape[1] == 2:
        scores["auc"] = area_under_curve(classes == 1, probabilities[:, 1])
    return scores


def area_under_curve(positive: np.ndarray, score: np.ndarray) -> float | None:
    """Return the chance that a positive row scores higher than a negative one; ties count half.

    >>> area_under_curve(np.array([True, False, False]), np.array([0.7, 0.7, 0.1]))
    0.75
    """
    wanted, others = score[positive], np.sort(score[~positive])
    if wanted.size == 0 or others.size == 0:
        return None
    below = np.searchsorted(others, wanted, side="left")
    not_above = np.searchsorted(others, wanted, side="right")
    return float(np.mean(below + not_above) / (2 * others.size))


def regression_scores(truth: np.ndarray, predicted: np.ndarray) -> dict[str, float | int | None]:
    """Score predicted numbers: root mean square error and share of the variance explained.

    >>> regression_scores(np.array([1.0, 3.0]), np.array([1.0, 2.0]))["r2"]
    0.5
    """
    errors = np.asarray(truth, dtype=np.float64) - predicted
    variance = float(np.var(truth))
    return {
        "rows": len(truth),
        "rmse": float(np.sqrt(np.mean(errors**2))),
        "r2": 1 - float(np.mean(errors**2)) / variance if variance > 0 else None,
    }
