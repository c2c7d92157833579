"""How good predictions are: one number a question, None where it has no answer."""

import numpy as np


def classification_scores(
    classes: np.ndarray, probabilities: np.ndarray
) -> dict[str, float | int | None]:
    """Score probabilities of shape (rows, classes) against the true class numbers."""
    rows = np.arange(len(classes))
    # A certain and wrong answer costs 35 nats (the logarithm of float64's spacing), not infinity.
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
    """Return the chance that a positive row has a higher score than a negative one, ties half."""
    wanted, others = score[positive], np.sort(score[~positive])
    if wanted.size == 0 or others.size == 0:
        return None
    below = np.searchsorted(others, wanted, side="left")
    not_above = np.searchsorted(others, wanted, side="right")
    return float(np.mean(below + not_above) / (2 * others.size))


def regression_scores(truth: np.ndarray, predicted: np.ndarray) -> dict[str, float | int | None]:
    """Score predicted numbers: root mean square error and share of the variance explained."""
    errors = np.asarray(truth, dtype=np.float64) - predicted
    variance = float(np.var(truth))
    return {
        "rows": len(truth),
        "rmse": float(np.sqrt(np.mean(errors**2))),
        "r2": 1 - float(np.mean(errors**2)) / variance if variance > 0 else None,
    }
