"""Models by name, of the size that the data need."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any

from fedkin.errors import InputError
from fedkin.models.base import LinearModel, Model, as_model, is_torch_module
from fedkin.models.cnn import CNN
from fedkin.models.image_networks import FedAvgCNN, ResNet
from fedkin.models.linear import Logistic, Ridge
from fedkin.models.mlp import MLP
from fedkin.registry import Registry
from fedkin.types import LearningTask

BUILT_IN_MODELS = frozenset({CNN, FedAvgCNN, Logistic, MLP, ResNet, Ridge})
"""fedkin's own classes of models: with their settings they say all that is computed. Those of users,
wrapped or derived from these, may compute something else tomorrow under the same name."""

ModelFactory = Callable[[int, tuple[int, ...]], Any]
"""Takes the number of classes (1 for regression) and the shape of a point; returns a fedkin model, a PyTorch
module, or any object with `init(key, inputs)` and `apply(params, inputs)`."""

MODELS: Registry[ModelFactory] = Registry("model", "fedkin.models")
"""All known models. fedkin's own have further settings, see `named_model`."""


@dataclass(frozen=True)
class _OwnModel:
    """One of fedkin's own models, with the task it is for; None where it can do both."""

    task: LearningTask | None
    make: Callable[[LearningTask, int, tuple[int, ...], dict[str, Any]], Model]

    def __call__(self, classes: int, point_shape: tuple[int, ...]) -> Model:
        return self.make(self.task or "classification", classes, point_shape, {})


def register_model(name: str, factory: ModelFactory) -> None:
    """Make a model known by a name to `fit`, studies and the command line.

    Other processes do not see it: for them, name the model as `package.module:factory`, or declare an
    entry point in the group `fedkin.models`.

    >>> register_model("wide", lambda classes, shape: MLP(outputs=classes, hidden=200))
    >>> named_model("wide", "classification", 3, (5,)).hidden
    200
    """
    if not callable(factory):
        raise InputError(
            f"a model is registered by a function of (classes, point_shape), not by {factory!r}"
        )
    MODELS.add(name, factory)


def known_task(name: str) -> LearningTask | None:
    """Return the task that a named model is for; None if it can do both, or nobody knows."""
    model = MODELS.get(name)
    return model.task if isinstance(model, _OwnModel) else None


def model_for(task: LearningTask, model: str | None) -> str:
    """Return the model for a table: the one asked for, if it suits the task, else the task's own.

    Args:
        task: What the label is.
        model: The model asked for; None for `logistic`, or `ridge` for regression.

    >>> model_for("regression", None)
    'ridge'
    """
    if model is None:
        return "ridge" if task == "regression" else "logistic"
    known = known_task(model)
    if known == "classification" and task == "regression":
        raise InputError(f"the model {model} gives classes; use ridge or mlp for regression")
    if known == "regression" and task == "classification":
        raise InputError(
            f"the model {model} gives numbers; use logistic or mlp, or choose the task regression"
        )
    return model


def takes_l2(name: str) -> bool:
    """Return whether `l2` is a setting of a named model: of fedkin's own, but not of any other.

    >>> takes_l2("mlp")
    True
    """
    return isinstance(MODELS.get(name), _OwnModel)


def l2_factor(model: Model) -> float | None:
    """Return the factor of ½‖θ‖² in the loss of one of fedkin's own models; None for any other."""
    return getattr(model, "l2") if type(model) in BUILT_IN_MODELS else None  # noqa: B009 - not typed


def named_model(
    name: str,
    task: LearningTask,
    classes: int,
    point_shape: tuple[int, ...],
    l2: float | None = None,
) -> Model:
    """Create a model by its name.

    Args:
        name: `logistic`, `ridge`, `mlp`, `cnn`, `cnn-fedavg`, `resnet`, a registered name, or
            `package.module:factory`.
        task: Classification or regression, for models that can do both.
        classes: The number of classes.
        point_shape: The shape of one raw input point.
        l2: The factor of ½‖θ‖² in the loss; None for the model's own default.

    >>> named_model("logistic", "classification", 3, (5,), l2=0.01)
    Logistic(l2=0.01, intercept=True, classes=3, task='classification')
    """
    l2 = checked_l2(l2)
    found = MODELS.get(name)
    if not isinstance(found, _OwnModel):
        if l2 is not None:
            raise InputError(f"l2 is not a setting of the model {name!r}: leave it out")
        return _made_by(found, task, classes, point_shape)
    settings: dict[str, Any] = {} if l2 is None else {"l2": l2}
    model = found.make(task, classes, point_shape, settings)
    if isinstance(model, LinearModel) and model.l2 == 0:
        raise InputError(f"the model {name!r} needs l2 above 0: its minimizer must be unique")
    return model


def checked_l2(l2: float | None) -> float | None:
    """Return the factor of ½‖θ‖² that a user gave, or None; refuse what is not a number from 0 on."""
    is_number = isinstance(l2, Real) and not isinstance(l2, bool)
    if l2 is not None and not (is_number and 0 <= l2 < float("inf")):
        raise InputError(f"l2 must be a number from 0 on, not {l2!r}")
    return None if l2 is None else float(l2)


def _made_by(
    factory: ModelFactory, task: LearningTask, classes: int, point_shape: tuple[int, ...]
) -> Model:
    """Return the model that a user's factory makes."""
    made = factory(classes, point_shape)
    if not is_torch_module(made):
        return as_model(made, task)
    from fedkin.models.torch_module import TorchModel

    # The module draws its parameters when it is made: it is made again, for every seed.
    return TorchModel.from_factory(partial(factory, classes, point_shape), task)


def _logistic(
    task: LearningTask, classes: int, point_shape: tuple[int, ...], settings: Any
) -> Model:
    return Logistic(classes=classes, **settings)


def _ridge(task: LearningTask, classes: int, point_shape: tuple[int, ...], settings: Any) -> Model:
    return Ridge(**settings)


def _mlp(task: LearningTask, classes: int, point_shape: tuple[int, ...], settings: Any) -> Model:
    return MLP(outputs=classes, task=task, **settings)


def _cnn(task: LearningTask, classes: int, point_shape: tuple[int, ...], settings: Any) -> Model:
    height, width, channels = _image_shape("cnn", point_shape)
    # The paper's kernels, or smaller ones for images that these would reduce to almost nothing.
    kernels = (4, 2) if min(height, width) >= 14 else (2, 2)
    return CNN(
        (height, width, channels),
        classes=classes,
        channels=2 if channels == 1 else 5,
        kernels=kernels,
        **settings,
    )


def _cnn_fedavg(
    task: LearningTask, classes: int, point_shape: tuple[int, ...], settings: Any
) -> Model:
    return FedAvgCNN(_image_shape("cnn-fedavg", point_shape), classes=classes, **settings)


def _resnet(task: LearningTask, classes: int, point_shape: tuple[int, ...], settings: Any) -> Model:
    return ResNet(_image_shape("resnet", point_shape), classes=classes, **settings)


def _image_shape(name: str, point_shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Refuse points that are not images."""
    if len(point_shape) != 3:
        raise InputError(
            f"the model {name!r} needs images of shape (height, width, channels), not points of shape "
            f"{point_shape}; add an axis for the channels, or choose 'logistic' or 'mlp'"
        )
    height, width, channels = point_shape
    return height, width, channels


for name, own in {
    "logistic": _OwnModel("classification", _logistic),
    "ridge": _OwnModel("regression", _ridge),
    "mlp": _OwnModel(None, _mlp),
    "cnn": _OwnModel("classification", _cnn),
    "cnn-fedavg": _OwnModel("classification", _cnn_fedavg),
    "resnet": _OwnModel("classification", _resnet),
}.items():
    register_model(name, own)
