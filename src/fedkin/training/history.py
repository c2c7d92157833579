"""The history of a run as rows of a table, and back."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from fedkin.federation.base import Cost
from fedkin.federation.center import Score
from fedkin.training.runner import Evaluation

WEIGHT_PREFIX = "weight "


def to_row(evaluation: Evaluation, names: Sequence[str]) -> dict[str, Any]:
    """Arrange an evaluation as one row: costs, scores, the weight of each node, diagnostics."""
    cost, validation, test = evaluation.cost, evaluation.validation, evaluation.test
    row: dict[str, Any] = {
        "step": evaluation.step,
        "synchronizations": cost.synchronizations,
        "rounds": evaluation.rounds,
        "points": cost.points,
        "bytes_up": cost.bytes_up,
        "bytes_down": cost.bytes_down,
        "nodes_asked": cost.nodes_asked,
        "seconds": evaluation.seconds,
        "validation_loss": validation.loss,
    }
    if validation.accuracy is not None:
        row["validation_accuracy"] = validation.accuracy
    if test is not None:
        row["test_loss"] = test.loss
        if test.accuracy is not None:
            row["test_accuracy"] = test.accuracy
    if evaluation.node_weights is not None:
        row |= {
            WEIGHT_PREFIX + name: float(weight)
            for name, weight in zip(names, evaluation.node_weights, strict=True)
        }
    return row | evaluation.diagnostics


def to_json(evaluation: Evaluation) -> dict[str, Any]:
    """Return all of an evaluation as plain JSON values, exactly."""
    plain = asdict(evaluation)
    if evaluation.node_weights is not None:
        plain["node_weights"] = evaluation.node_weights.tolist()
        plain["weights_dtype"] = str(evaluation.node_weights.dtype)
    return plain


def cost_from_json(plain: dict[str, Any]) -> Cost:
    """Return the cost that was written with `asdict`."""
    return Cost(**{**plain, "node_points": tuple(plain["node_points"])})


def from_json(plain: dict[str, Any]) -> Evaluation:
    """Return the evaluation that `to_json` was given."""
    plain = dict(plain)
    dtype = plain.pop("weights_dtype", None)
    return Evaluation(
        step=plain["step"],
        rounds=plain["rounds"],
        cost=cost_from_json(plain["cost"]),
        seconds=plain["seconds"],
        validation=Score(**plain["validation"]),
        test=None if plain["test"] is None else Score(**plain["test"]),
        node_weights=None if dtype is None else np.array(plain["node_weights"], dtype),
        diagnostics=plain["diagnostics"],
        warnings=tuple(plain["warnings"]),
    )
