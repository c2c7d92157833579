"""What learned weights have to beat: training alone, and the weights that they began with."""

import jax.numpy as jnp
import numpy as np
import pandas as pd

from fedkin.federation.center import Center
from fedkin.federation.simulation import SimulatedFederation
from fedkin.methods.bilevel.method import Bilevel
from fedkin.models.base import LinearModel
from fedkin.training.alone import (
    FEWEST_OWN_ROWS,
    INNER_FOLDS,
    OwnRows,
    add_ones,
    losses,
    train_alone,
)
from fedkin.training.folds import draw_folds
from fedkin.training.keys import refit_key
from fedkin.training.problem import Problem, TrainedRun
from fedkin.training.refit import refit, refits_cheaply
from fedkin.training.runner import RunState

MOST_PARAMETERS = 400
"""The largest model that is also trained alone: the center solves systems of this size, and `fit` is not to
wait for that long."""

FREE = 1e-3
"""A weight above this was free to move."""


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
    if features.shape[1] * outputs > MOST_PARAMETERS or len(labels) < FEWEST_OWN_ROWS:
        return None
    return OwnRows(features, labels, model.task, outputs)


def compare(problem: Problem, trained: TrainedRun) -> pd.DataFrame | None:
    """Return loss and accuracy on the validation rows: alone, with equal or the prior's weights, and learned.

    `alone` is cross-validated, and equal weights have not seen these rows. The learned weights were chosen
    by them, so their loss is a little too low.

    Args:
        problem: What was trained.
        trained: The finished run of a method that learns weights.
    """
    rows = own_rows(problem.center)
    kept, method = trained.state.kept, trained.method
    if rows is None or kept is None or kept.node_weights is None:
        return None
    table = [("alone", *_alone(rows, problem.seed))]
    # Other methods move the weights before a model has been trained with the first ones.
    if isinstance(method, Bilevel) and method.takes_newton_steps(problem.objective):
        table += _with_first_weights(problem, trained.state)
    table.append(("learned", kept.validation.loss, kept.validation.accuracy))
    found = pd.DataFrame(table, columns=["weights", "loss", "accuracy"]).set_index("weights")
    return found if rows.task == "classification" else found.drop(columns="accuracy")


def _with_first_weights(problem: Problem, state: RunState) -> list[tuple[str, float, float | None]]:
    """Return the scores with the weights that the run began with, and with equal ones."""
    first = state.history[0].node_weights
    if first is None:
        return []
    start = [
        each
        for each in state.history
        if each.node_weights is not None and np.allclose(each.node_weights, first, atol=1e-6)
    ][-1]
    nodes = len(problem.federation.names)
    if np.allclose(first, 1 / nodes, atol=1e-4):
        return [("equal", start.validation.loss, start.validation.accuracy)]
    found = [("prior", start.validation.loss, start.validation.accuracy)]
    if isinstance(problem.federation, SimulatedFederation) and refits_cheaply(problem.center):
        equal = np.full(nodes, 1 / nodes)
        key = refit_key(problem.seed)
        theta = jnp.asarray(state.kept_theta)
        theta, _ = refit(problem.federation, problem.center, theta, equal, 0.0, key)
        scored = problem.center.validate(theta)
        found.insert(0, ("equal", scored.loss, scored.accuracy))
    return found


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


def warning(comparison: pd.DataFrame | None, weights: np.ndarray, rows: int) -> str | None:
    """Say so where learned weights do not beat training alone.

    The rows have chosen the weights, which makes their loss too low, by about one row's share for every
    free weight.

    Args:
        comparison: What `compare` returned.
        weights: The learned weights.
        rows: How many rows have chosen them.
    """
    if comparison is None:
        return None
    alone, learned = (float(comparison.loc[name, "loss"]) for name in ("alone", "learned"))
    free = max(int(np.sum(weights > FREE)) - 1, 0)
    unit = 1.0 if "accuracy" in comparison else 2 * learned
    too_low = unit * free / rows
    if learned + too_low < alone:
        return None
    flattered = (
        f" (about {too_low:.2g} too low, because these rows have chosen the weights)"
        if too_low
        else ""
    )
    return (
        f"the learned weights do not beat training alone: the loss on the validation rows is {learned:.3g}"
        f"{flattered}, and {alone:.3g} (cross-validated) for a model trained on these rows only; fedkin "
        "advise says whether to join at all"
    )
