"""What a node that is an owner is asked about the rows it has held out: gradients and scores, never rows.

A question is declared like any other task, so that the guard of a node, the center's checks and the table in
docs/federation.md know it. Where other tasks compute on the node's training rows, a question is answered by
the owner's `Center`, which is at the node.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.federation.center import Center, Score
from fedkin.federation.task import STEPS, Task
from fedkin.numerics.scores import classification_scores, regression_scores
from fedkin.types import Key, Message, Points, Vector

HUGE = 1e30
"""The largest size of a number that has no natural bound."""

MOST_DAMPING = 1e6
"""The largest damping that a question may ask for."""

LONGEST_LINE = 1e3
"""The largest multiple of a step that a line search may be asked to go."""

SCORES = ("validation_loss", "validation_accuracy", "test_loss", "test_accuracy")
"""The scores of every judged model. Those that the node does not have are zero."""

FINAL = ("rows", "accuracy", "log_loss", "auc", "rmse", "r2")
"""The scores of a final model, for validation and test rows each. Those that do not exist are NaN."""


class HeldOut(NamedTuple):
    """What a node has held out of its own rows."""

    center: Center
    """Computes on the validation rows, and trains alone on the training rows."""
    test: Points | None
    """Prepared points that only scores are for."""
    restore: Callable[[np.ndarray], np.ndarray] = np.asarray
    """Returns numbers of a regression in the label's own unit."""


Replies = dict[str, Vector | float]


@dataclass(frozen=True, eq=False, repr=False)
class Question(Task):
    """A task whose function is `(held_out, message, key, **options)` and returns the replies."""


def _scores(held_out: HeldOut, theta: Vector) -> Replies:
    def named(part: str, score: Score | None) -> Replies:
        loss, accuracy = (0.0, None) if score is None else (score.loss, score.accuracy)
        return {f"{part}_loss": loss, f"{part}_accuracy": accuracy or 0.0}

    test = held_out.test
    tested = None if test is None else held_out.center.score(theta, *test)
    return named("validation", held_out.center.validate(theta)) | named("test", tested)


def _gradient(held_out: HeldOut, theta: Vector) -> Replies:
    loss, gradient = held_out.center.loss_and_gradient(theta)
    return {"loss": loss, "gradient": gradient} | _scores(held_out, theta)


def validation_scores(held_out: HeldOut, message: Message, key: Key) -> Replies:
    """Reply with loss and accuracy on the validation and test rows."""
    return _scores(held_out, message["theta"])


def validation_gradient(held_out: HeldOut, message: Message, key: Key) -> Replies:
    """Reply with the gradient and the loss of the validation rows, and the scores."""
    return _gradient(held_out, message["theta"])


def validation_loss(held_out: HeldOut, message: Message, key: Key) -> Replies:
    """Reply with the loss of the validation rows."""
    return {"loss": held_out.center.loss_and_gradient(message["theta"])[0]}


def validation_comparison(held_out: HeldOut, message: Message, key: Key) -> Replies:
    """Reply with two models' losses on the validation rows, and the standard error of the difference."""
    reference, compared = held_out.center.compare(message["reference"], [message["theta"]])
    return {"reference_loss": reference} | compared[0]._asdict()


def validation_line(held_out: HeldOut, message: Message, key: Key) -> Replies:
    """Find the model on a line where the validation loss is lowest, and reply with what is known there."""
    theta, direction = (np.asarray(message[name], np.float64) for name in ("theta", "direction"))
    found = held_out.center.search_line(
        theta, direction, float(message["offset"]), float(message["longest"])
    )
    reached = end_of_line(theta, direction, found.share)
    return found._asdict() | _gradient(held_out, reached)


def end_of_line(theta: np.ndarray, direction: np.ndarray, share: float) -> Vector:
    """Return the model at a share of a line, as both sides compute it."""
    return jnp.asarray(theta + share * direction, jnp.result_type(float))


def validation_solve(held_out: HeldOut, message: Message, key: Key, *, iterations: int) -> Replies:
    """Solve (∇²L(θ) + λI) h = target by conjugate gradients on the validation rows."""
    solution, curvature, convex, residual = held_out.center.solve(
        message["theta"],
        message["target"],
        damping=float(message["damping"]),
        iterations=iterations,
    )
    return {
        "solution": solution,
        "curvature": float(curvature),
        "convex": float(convex),
        "residual": float(residual),
    }


def validation_hessian_product(held_out: HeldOut, message: Message, key: Key) -> Replies:
    """Reply with the product ∇²L(θ) v on the validation rows."""
    product = held_out.center.hessian_product(message["theta"], message["vector"])
    return {"product": product}


def final_scores(held_out: HeldOut, message: Message, key: Key) -> Replies:
    """Reply with all scores of a final model on the validation and test rows."""
    found: Replies = {}
    for part, points in (("validation", held_out.center.rows), ("test", held_out.test)):
        own = {} if points is None else _all_scores(held_out, message["theta"], points)
        for name in FINAL:
            value = own.get(name)
            found[f"{part}_{name}"] = float("nan") if value is None else float(value)
    return found


def _all_scores(held_out: HeldOut, theta: Vector, points: Points) -> dict[str, float | int | None]:
    outputs = held_out.center.outputs(theta, points.inputs)
    if held_out.center.objective.model.task == "regression":
        return regression_scores(held_out.restore(points.labels), held_out.restore(outputs))
    probabilities = np.asarray(jax.nn.softmax(outputs, axis=1), np.float64)
    return classification_scores(points.labels, probabilities)


VALIDATION_SCORES = Question(
    "validation_scores",
    validation_scores,
    vectors=("theta",),
    number_replies=SCORES,
    reveals="How well a model does on the rows held out.",
)
VALIDATION_GRADIENT = Question(
    "validation_gradient",
    validation_gradient,
    vectors=("theta",),
    vector_replies=("gradient",),
    number_replies=("loss", *SCORES),
    reveals="What `gradient` reveals, of the rows held out for validation.",
)
VALIDATION_LOSS = Question(
    "validation_loss",
    validation_loss,
    vectors=("theta",),
    number_replies=("loss",),
    reveals="How well a model does on the rows held out for validation.",
)
VALIDATION_COMPARISON = Question(
    "validation_comparison",
    validation_comparison,
    vectors=("theta", "reference"),
    number_replies=("loss", "error", "reference_loss"),
    reveals="How well two models do on the rows held out for validation, and how much rows differ in that.",
)
VALIDATION_LINE = Question(
    "validation_line",
    validation_line,
    vectors=("theta", "direction"),
    numbers={"offset": (-HUGE, HUGE), "longest": (0.0, LONGEST_LINE)},
    vector_replies=("gradient",),
    number_replies=("share", "slope", "curvature", "loss", *SCORES),
    reveals="What `gradient` reveals, of the rows held out, at the best model on a line.",
)
VALIDATION_SOLVE = Question(
    "validation_solve",
    validation_solve,
    vectors=("theta", "target"),
    numbers={"damping": (0.0, MOST_DAMPING)},
    options={"iterations": STEPS},
    vector_replies=("solution",),
    number_replies=("curvature", "convex", "residual"),
    reveals="Products of the inverse Hessian over the rows held out with vectors of the center's choice.",
)
VALIDATION_HESSIAN_PRODUCT = Question(
    "validation_hessian_product",
    validation_hessian_product,
    vectors=("theta", "vector"),
    vector_replies=("product",),
    reveals="What `hessian_product` reveals, of the rows held out for validation.",
)
FINAL_SCORES = Question(
    "final_scores",
    final_scores,
    vectors=("theta",),
    number_replies=tuple(f"{part}_{name}" for part in ("validation", "test") for name in FINAL),
    reveals="How well a model does on the rows held out, and how many they are.",
)

QUESTIONS = {
    question.name: question
    for question in (
        VALIDATION_SCORES,
        VALIDATION_GRADIENT,
        VALIDATION_LOSS,
        VALIDATION_COMPARISON,
        VALIDATION_LINE,
        VALIDATION_SOLVE,
        VALIDATION_HESSIAN_PRODUCT,
        FINAL_SCORES,
    )
}
"""All questions by name."""
