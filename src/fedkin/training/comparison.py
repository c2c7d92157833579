"""What learned weights have to beat: training alone, and the weights that they began with."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from fedkin.federation.center import Center
from fedkin.models.base import LinearModel
from fedkin.training.alone import INNER_FOLDS, OwnRows, add_ones, losses, train_alone
from fedkin.training.folds import draw_folds
from fedkin.training.runner import RunState

MOST_PARAMETERS = 400
"""The largest model that is also trained alone: the center solves systems of this size."""

FEWEST_ROWS = 10
"""The fewest validation rows by which training alone can be judged."""


def own_rows(center: Center) -> OwnRows | None:
    """Return the owner's rows for a linear model; None for other models, or where it would be too large.

    None also where the rows are not here.
    """
    model = center.objective.model
    if center.rows is None:
        return None
    inputs, labels = center.rows
    if not isinstance(model, LinearModel) or not getattr(model, "intercept", False):
        return None
    shape = center.objective.output_shape()
    outputs = shape[0] if shape else 1
    features = add_ones(inputs)
    if features.shape[1] * outputs > MOST_PARAMETERS or len(labels) < FEWEST_ROWS:
        return None
    return OwnRows(features, labels, model.task, outputs)


def compare(
    center: Center, state: RunState, names: Sequence[str], seed: int
) -> pd.DataFrame | None:
    """Return loss and accuracy on the validation rows: alone, with the first weights, and learned.

    `alone` is cross-validated, and the first weights have not seen these rows. The learned weights were
    chosen by them, which flatters a little.

    Args:
        center: The owner's data.
        state: The finished run of a method that learns weights.
        names: The names of the nodes.
        seed: Decides the folds.
    """
    rows = own_rows(center)
    kept = state.kept
    if rows is None or kept is None or kept.node_weights is None:
        return None
    first = state.history[0].node_weights
    if first is None:
        return None
    same = [
        each
        for each in state.history
        if each.node_weights is not None and np.allclose(each.node_weights, first, atol=1e-6)
    ]
    start = same[-1]
    equal = np.allclose(first, 1 / len(names), atol=1e-4)
    table = [
        ("alone", *_alone(rows, seed)),
        ("equal" if equal else "prior", start.validation.loss, start.validation.accuracy),
        ("learned", kept.validation.loss, kept.validation.accuracy),
    ]
    found = pd.DataFrame(table, columns=["weights", "loss", "accuracy"]).set_index("weights")
    return found if rows.task == "classification" else found.drop(columns="accuracy")


def _alone(rows: OwnRows, seed: int) -> tuple[float, float | None]:
    """Return the cross-validated loss and accuracy of a model trained on the owner's rows."""
    random = np.random.default_rng(seed)
    stratify = rows.task == "classification"
    folds = draw_folds(rows.labels, INNER_FOLDS, random, stratify)
    outputs = np.zeros((rows.total, rows.outputs))
    for fold in range(INNER_FOLDS):
        kept = rows.take(folds != fold)
        inner = draw_folds(kept.labels, INNER_FOLDS, random, stratify)
        outputs[folds == fold] = rows.inputs[folds == fold] @ train_alone(kept, inner)
    loss = float(losses(outputs, rows.labels, rows.task).mean())
    if not stratify:
        return loss, None
    return loss, float(np.mean(outputs.argmax(axis=1) == rows.labels))


def warning(comparison: pd.DataFrame | None) -> str | None:
    """Say so where learned weights do not beat training alone."""
    if comparison is None:
        return None
    alone, learned = (float(comparison.loc[name, "loss"]) for name in ("alone", "learned"))
    if learned < alone:
        return None
    return (
        f"the learned weights do not beat training alone: the loss on the validation rows is {learned:.3g}, "
        f"and {alone:.3g} (cross-validated) for a model trained on these rows only; fedkin advise says "
        "whether to join at all"
    )
