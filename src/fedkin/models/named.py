"""Models by name, sized for the data."""

from typing import Any

from fedkin.errors import InputError
from fedkin.models.base import LinearModel, Model
from fedkin.models.cnn import CNN
from fedkin.models.linear import Logistic, Ridge
from fedkin.models.mlp import MLP
from fedkin.types import LearningTask

MODEL_TASKS: dict[str, LearningTask | None] = {
    "logistic": "classification",
    "ridge": "regression",
    "mlp": None,
    "cnn": "classification",
}
"""The learning task of every named model; None if it can do both."""

BUILT_IN_MODELS = frozenset({CNN, Logistic, MLP, Ridge})
"""fedkin's own model classes. Their settings determine what they compute, so their compiled code may be
kept on disk. A user's class may compute something else tomorrow under the same name."""


def named_model(
    name: str,
    task: LearningTask,
    classes: int,
    point_shape: tuple[int, ...],
    l2: float | None = None,
) -> Model:
    """Create a model by its name.

    >>> named_model("logistic", "classification", classes=10, point_shape=(8, 8, 1), l2=0.01)
    Logistic(l2=0.01, intercept=True, classes=10, task='classification')

    Args:
        name: `logistic`, `ridge`, `mlp` or `cnn`.
        task: Classification or regression, for models that can do both.
        classes: The number of classes.
        point_shape: The shape of one raw input point.
        l2: The factor of ½‖θ‖² in the loss; None for the model's default.
    """
    if name not in MODEL_TASKS:
        raise InputError(f"model={name!r} is unknown; choose one of {', '.join(MODEL_TASKS)}")
    if l2 is not None and not (isinstance(l2, (int, float)) and 0 <= l2 < float("inf")):
        raise InputError(f"l2 must be a number of at least 0, not {l2!r}")
    settings: dict[str, Any] = {} if l2 is None else {"l2": float(l2)}
    if name == "logistic":
        model = Logistic(classes=classes, **settings)
    elif name == "ridge":
        model = Ridge(**settings)
    elif name == "mlp":
        model = MLP(outputs=classes, task=task, **settings)
    else:
        model = _cnn(point_shape, classes, settings)
    if isinstance(model, LinearModel) and model.l2 == 0:
        raise InputError(f"the model {name!r} needs l2 above 0: its minimizer must be unique")
    return model


def _cnn(point_shape: tuple[int, ...], classes: int, settings: dict[str, Any]) -> CNN:
    if len(point_shape) != 3:
        raise InputError(
            "the model 'cnn' needs images of shape (height, width, channels), not points of shape "
            f"{point_shape}; add an axis for the channels, or choose 'logistic' or 'mlp'"
        )
    height, width, channels = point_shape
    # The paper's kernels, or smaller ones for images that these would reduce to almost nothing.
    kernels = (4, 2) if min(height, width) >= 14 else (2, 2)
    return CNN(
        (height, width, channels),
        classes=classes,
        channels=2 if channels == 1 else 5,
        kernels=kernels,
        **settings,
    )
