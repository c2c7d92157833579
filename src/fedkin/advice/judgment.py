"""From held-out losses to a verdict, and to the shares of the final model."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedkin.advice.candidates import CANDIDATES, Candidates, Splits, row_losses
from fedkin.advice.verdict import MIXTURE_PRIOR, Gain, VerdictName, cross_fit, gain, mix
from fedkin.training.alone import OwnRows, points_along

FEWEST_OF_A_CLASS = 3
"""The fewest rows of a class by which a verdict other than `unclear` can be given."""


class Judgment(NamedTuple):
    """What the owner's rows say about the candidates."""

    verdict: VerdictName
    shares: np.ndarray
    """The shares of the candidates in the final model."""
    models: Candidates
    """The candidates and, in the last place, the final model."""
    losses: np.ndarray
    """Their losses on held-out rows: (rows, models)."""
    best: int
    """The place of the best way of joining."""

    @property
    def compared(self) -> int:
        """The place of what is compared with `alone`: the final model, or the best way of joining where the
        final model is `alone` itself."""
        return self.best if self.verdict == "alone" else len(CANDIDATES)

    @property
    def gain(self) -> Gain:
        """How much lower the loss is than alone."""
        return gain(self.losses, self.compared)


def judge(
    rows: OwnRows, splits: Splits, candidates: Candidates, without_owner: np.ndarray
) -> Judgment:
    """Choose the final model's mixture, compare by cross-validated losses, and decide.

    Args:
        rows: The owner's rows.
        splits: Their folds.
        candidates: What was trained on them.
        without_owner: The models of all ways of joining that no row of the owner has trained.
    """
    prior = np.array([MIXTURE_PRIOR[name] for name in CANDIDATES])
    shares = mix(candidates.held_out, rows, prior)
    crossed = cross_fit(candidates.held_out, rows, splits.of_rows, prior)
    models = candidates.with_final(shares, crossed)
    scores = mean_scores(rows, models, row_losses)
    best = 1 + int(np.argmin(scores.mean(axis=0)[1 : len(CANDIDATES)]))
    enough = rarest_class(rows)[1] >= FEWEST_OF_A_CLASS
    contradicted = not any(points_along(model, rows) for model in without_owner)
    if enough and (contradicted or gain(scores, best).is_negative):
        alone = np.eye(len(CANDIDATES))[0]
        models = candidates.with_final(alone, candidates.held_out[:, :, 0])
        return Judgment("alone", alone, models, mean_scores(rows, models, row_losses), best)
    joins = enough and gain(scores, len(CANDIDATES)).is_positive
    return Judgment("join" if joins else "unclear", shares, models, scores, best)


def rarest_class(rows: OwnRows) -> tuple[int, int]:
    """Return the class that the fewest of the owner's rows have, and how many.

    Classes that no row has are left out, unless only one is left.

    >>> rarest_class(OwnRows(np.ones((3, 1)), np.array([0, 0, 2]), "classification", 3))
    (2, 1)
    """
    if rows.task == "regression":
        return 0, rows.total
    counts = np.bincount(rows.labels, minlength=rows.outputs)
    present = np.flatnonzero(counts) if np.count_nonzero(counts) > 1 else np.arange(len(counts))
    rarest = int(present[counts[present].argmin()])
    return rarest, int(counts[rarest])


def mean_scores(
    rows: OwnRows, models: Candidates, of_rows: Callable[[np.ndarray, OwnRows], np.ndarray]
) -> np.ndarray:
    """Return the mean score of each held-out row over repetitions, by each model."""
    return np.mean([of_rows(outputs, rows) for outputs in models.held_out], axis=0)
