"""Ordinary PyTorch modules that compute what fedkin's own models do, and how their parameters correspond."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from fedkin.models.base import Model
from fedkin.models.cnn import CNN, PADDING
from fedkin.models.linear import Logistic
from fedkin.models.mlp import MLP
from fedkin.models.objective import Objective
from fedkin.models.torch_module import TorchModel
from fedkin.training.problem import initial_model_key

torch.set_num_threads(
    1
)  # two workers run the tests on two cores, and waiting threads would slow both


class Images(nn.Module):
    """Images (height, width, channel) as PyTorch has them: (channel, height, width)."""

    def forward(self, images):
        return images.movedim(-1, 1)


def linear(features, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(features, classes))


def mlp(features, hidden, classes):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, classes)
    )


def paper_cnn(model: CNN):
    height, width, colors = model.image_shape
    for kernel in model.kernels:
        height, width = (height + 2 * PADDING) // kernel, (width + 2 * PADDING) // kernel
    first, second = model.kernels
    return nn.Sequential(
        Images(),
        nn.Conv2d(colors, colors, first, first, PADDING),
        nn.BatchNorm2d(colors),
        nn.ReLU(),
        nn.Conv2d(colors, model.channels, second, second, PADDING),
        nn.BatchNorm2d(model.channels),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(model.channels * height * width, model.classes),
    )


def in_order_of_torch(model: Model, params) -> list[np.ndarray]:
    """Return the parameters of one of fedkin's models in the order and the shapes of its twin."""
    if isinstance(model, Logistic):
        return [params["kernel"].T, params["bias"]]
    if isinstance(model, MLP):
        return [part for layer in params for part in (layer["kernel"].T, layer["bias"])]
    assert isinstance(model, CNN)
    first, second, last = params
    colors, (kernel, next_kernel) = model.image_shape[2], model.kernels
    filters = first["kernel"].reshape(kernel, kernel, colors, -1).transpose(3, 2, 0, 1)
    next_filters = second["kernel"].reshape(colors, next_kernel, next_kernel, -1)
    return [
        filters,
        first["bias"],
        first["scale"],
        first["offset"],
        next_filters.transpose(3, 0, 1, 2),
        second["bias"],
        second["scale"],
        second["offset"],
        last["kernel"].T,
        last["bias"],
    ]


class Twin(NamedTuple):
    """A PyTorch model, and the place of each of its parameters in the vector of fedkin's model."""

    model: TorchModel
    order: np.ndarray


def twin_of(objective: Objective) -> Twin:
    """Return the twin of a model, with the parameters that fedkin's model starts from with seed 0."""
    model = objective.model
    places = in_order_of_torch(model, objective.unflatten(jnp.arange(objective.size)))
    order = np.concatenate([np.asarray(part).ravel() for part in places])
    features = int(np.prod(objective.point_shape))
    if isinstance(model, Logistic):
        module = linear(features, model.classes)
    elif isinstance(model, MLP):
        module = mlp(features, model.hidden, model.outputs)
    else:
        assert isinstance(model, CNN)
        module = paper_cnn(model)
    fill(module, np.asarray(objective.init(initial_model_key(0)))[order])
    return Twin(TorchModel(module, model.task, model.l2), order)


def fill(module: nn.Module, vector: np.ndarray) -> None:
    """Set all parameters of a module."""
    with torch.no_grad():
        nn.utils.vector_to_parameters(torch.tensor(vector), module.parameters())
