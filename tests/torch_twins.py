"""Ordinary PyTorch modules that compute what fedkin's own models do, and how their parameters correspond."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from fedkin.federation.center import Center
from fedkin.federation.simulation import SimulatedFederation
from fedkin.models.base import Model
from fedkin.models.cnn import CNN, PADDING
from fedkin.models.image_networks import FedAvgCNN
from fedkin.models.linear import Logistic
from fedkin.models.mlp import MLP
from fedkin.models.objective import Objective
from fedkin.models.torch_module import TorchModel
from fedkin.training.keys import initial_model_key

# Two workers run the tests on two cores, and waiting threads would slow both.
torch.set_num_threads(1)


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


def fedavg_cnn(model: FedAvgCNN):
    height, width, colors = model.image_shape
    for _ in range(2):
        height, width = (height - 4) // 2, (width - 4) // 2
    return nn.Sequential(
        Images(),
        nn.Conv2d(colors, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * height * width, 512),
        nn.ReLU(),
        nn.Linear(512, model.classes),
    )


def in_order_of_torch(model: Model, params) -> list[np.ndarray]:
    """Return the parameters of one of fedkin's models in the order and the shapes of its twin."""
    if isinstance(model, Logistic):
        return [params["kernel"].T, params["bias"]]
    if isinstance(model, MLP):
        return [part for layer in params for part in (layer["kernel"].T, layer["bias"])]
    if isinstance(model, FedAvgCNN):
        *filters, hidden, last = params
        kernels = [each["kernel"].reshape(5, 5, -1, each["kernel"].shape[-1]) for each in filters]
        # PyTorch has the channel first when it flattens; in the last images one place is left.
        assert model.image_shape[:2] == (16, 16)
        kernels = [each.transpose(3, 2, 0, 1) for each in kernels]
        kernels += [hidden["kernel"].T, last["kernel"].T]
        biases = [layer["bias"] for layer in params]
        return [part for pair in zip(kernels, biases, strict=True) for part in pair]
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
    elif isinstance(model, FedAvgCNN):
        module = fedavg_cnn(model)
    else:
        assert isinstance(model, CNN)
        module = paper_cnn(model)
    fill(module, np.asarray(objective.init(initial_model_key(0)))[order])
    return Twin(TorchModel(module, model.task, model.l2), order)


def fill(module: nn.Module, vector: np.ndarray) -> None:
    """Set all parameters of a module."""
    with torch.no_grad():
        nn.utils.vector_to_parameters(torch.tensor(vector), module.parameters())


MODELS = {
    "logistic": Logistic(classes=3, l2=0.01),
    "mlp": MLP(outputs=3, hidden=5),
    "cnn": CNN((10, 10, 1), classes=3, kernels=(2, 2)),
}
SIZES = (23, 30, 17)
"""Mini-batches of 8 then differ in size: some have padding in JAX, and none in PyTorch."""


def images(rows, seed, side=10):
    draw = np.random.default_rng(seed)
    inputs = draw.normal(size=(rows, side, side, 1)).astype(np.float32)
    half = inputs[:, : side // 2].mean(axis=(1, 2, 3)) * side / 10
    labels = np.digitize(half + (seed == 2) * 0.3, [-0.06, 0.06])
    return inputs, labels.astype(np.int32)


NODES = [images(size, seed) for seed, size in enumerate(SIZES)]
VALIDATION = images(20, 9)


class Pair:
    """A model and its twin on the same nodes."""

    def __init__(self, model, nodes=NODES, validation=VALIDATION):
        self.model, self.nodes, self.validation = model, nodes, validation
        prepared = [(np.asarray(self.model.prepare(jnp.asarray(x))), y) for x, y in nodes]
        own = np.asarray(self.model.prepare(jnp.asarray(validation[0])))
        objective = Objective.create(self.model, prepared[0][0])
        # The twin gets the images themselves, so its model is made for their shape.
        self.twin, self.order = twin_of(objective)
        theirs = Objective.create(self.twin, nodes[0][0][:2])
        self.objectives = objective, theirs
        self.federations = [
            SimulatedFederation(each, own_nodes, batch_size=8, seed=3)
            for each, own_nodes in ((objective, prepared), (theirs, nodes))
        ]
        self.centers = [
            Center(each, inputs, validation[1], batch_size=8, seed=3)
            for each, inputs in ((objective, own), (theirs, validation[0]))
        ]

    def vector(self, seed, scale=1.0):
        start = self.objectives[0].init(jax.random.key(0))
        noise = jax.random.normal(jax.random.key(seed), start.shape)
        found = start + 0.1 * noise if scale == 1 else scale * noise
        return found, found[self.order]
