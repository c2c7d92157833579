"""The reference: a plain PyTorch loop over nodes, as well written as a good user would.

Every node keeps its parameters in a dictionary; a step is `functional_call` and autograd on one
mini-batch of one node. Images are `uint8` tensors, divided into mini-batches beforehand.
"""

# pyright: reportMissingImports=false
# PyTorch is an extra.

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as torch_functions

from fedkin.models.cnn import CNN, PADDING

Parameters = dict[str, Tensor]
Draws = tuple[np.ndarray, np.ndarray]
"""For each node and step: the mini-batch drawn, and whether the reference point is refreshed."""


class Network(nn.Module):
    """The paper's network, from PyTorch's own layers."""

    def __init__(self, model: CNN, places: int) -> None:
        super().__init__()
        channels = model.image_shape[2]
        first, second = model.kernels
        self.first = nn.Conv2d(channels, channels, first, first, PADDING)
        self.first_norm = nn.BatchNorm2d(channels, track_running_stats=False)
        self.second = nn.Conv2d(channels, model.channels, second, second, PADDING)
        self.second_norm = nn.BatchNorm2d(model.channels, track_running_stats=False)
        self.last = nn.Linear(model.channels * places, model.classes)

    def forward(self, images: Tensor) -> Tensor:
        """Compute the scores of each class."""
        activations = torch.relu(self.first_norm(self.first(images)))
        activations = torch.relu(self.second_norm(self.second(activations)))
        return self.last(activations.flatten(1))


class TorchNode(NamedTuple):
    """The mini-batches of a node."""

    images: Tensor
    """(mini-batches, batch size, channel, row, column), as bytes."""
    labels: Tensor


class TorchLoop:
    """The computations of the methods for a list of nodes, node by node.

    Args:
        model: The network to rebuild.
        nodes: Each node's images (mini-batches, batch size, row, column, channel) and labels.
    """

    def __init__(self, model: CNN, nodes: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
        height, width, _ = model.image_shape
        for kernel in model.kernels:
            height, width = (height + 2 * PADDING) // kernel, (width + 2 * PADDING) // kernel
        self.model = model
        self.network = Network(model, height * width)
        self.nodes = self.divided(nodes)

    @staticmethod
    def divided(nodes: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[TorchNode]:
        """Return the mini-batches in PyTorch's arrangement."""
        return [
            TorchNode(
                torch.from_numpy(np.ascontiguousarray(images.transpose(0, 1, 4, 2, 3))),
                torch.from_numpy(labels.astype(np.int64)),
            )
            for images, labels in nodes
        ]

    def parameters(self, params: list[dict[str, np.ndarray]]) -> Parameters:
        """Translate fedkin's parameters."""
        first, second, last = params
        channels, (kernel, next_kernel) = self.model.image_shape[2], self.model.kernels
        filters = first["kernel"].reshape(kernel, kernel, channels, -1).transpose(3, 2, 0, 1)
        next_filters = second["kernel"].reshape(channels, next_kernel, next_kernel, -1)
        arrays = {
            "first.weight": filters,
            "first.bias": first["bias"],
            "first_norm.weight": first["scale"],
            "first_norm.bias": first["offset"],
            "second.weight": next_filters.transpose(3, 0, 1, 2),
            "second.bias": second["bias"],
            "second_norm.weight": second["scale"],
            "second_norm.bias": second["offset"],
            "last.weight": last["kernel"].T,
            "last.bias": last["bias"],
        }
        return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}

    def flat(self, parameters: Parameters) -> np.ndarray:
        """Translate back, to fedkin's flat vector."""
        arrays = {name: tensor.detach().numpy() for name, tensor in parameters.items()}
        first, second = arrays["first.weight"], arrays["second.weight"]
        # A dictionary of parameters is flattened in the order of its keys.
        ordered = [
            arrays["first.bias"],
            first.transpose(2, 3, 1, 0),
            arrays["first_norm.bias"],
            arrays["first_norm.weight"],
            arrays["second.bias"],
            second.transpose(1, 2, 3, 0),
            arrays["second_norm.bias"],
            arrays["second_norm.weight"],
            arrays["last.bias"],
            arrays["last.weight"].T,
        ]
        return np.concatenate([array.ravel() for array in ordered])

    def loss(self, node: TorchNode, batch: int, parameters: Parameters) -> Tensor:
        """Return the loss of one mini-batch."""
        images = node.images[batch].float() / 255
        scores = functional_call(self.network, parameters, (images,))
        return torch_functions.cross_entropy(scores, node.labels[batch])

    def gradient(self, node: TorchNode, batch: int, parameters: Parameters) -> list[Tensor]:
        """Return the gradient of one mini-batch's loss."""
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in parameters.items()}
        return list(torch.autograd.grad(self.loss(node, batch, leaves), list(leaves.values())))

    def hessian_product(
        self, node: TorchNode, batch: int, parameters: Parameters, vector: Sequence[Tensor]
    ) -> list[Tensor]:
        """Return the Hessian of one mini-batch's loss times a vector, by differentiating twice."""
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in parameters.items()}
        tensors = list(leaves.values())
        gradient = torch.autograd.grad(self.loss(node, batch, leaves), tensors, create_graph=True)
        return list(torch.autograd.grad(gradient, tensors, list(vector)))

    def full_gradient(self, node: TorchNode, parameters: Parameters) -> list[Tensor]:
        """Return the mean gradient over all mini-batches of a node."""
        return _mean([self.gradient(node, b, parameters) for b in range(len(node.labels))])

    def full_hessian_product(
        self, node: TorchNode, parameters: Parameters, vector: Sequence[Tensor]
    ) -> list[Tensor]:
        """Return the mean Hessian product over all mini-batches of a node."""
        return _mean(
            [self.hessian_product(node, b, parameters, vector) for b in range(len(node.labels))]
        )


class TorchSvrg:
    """Local-SVRG of all nodes, on their losses or, with `theta` and `target`, on the adjoint problem.

    Args:
        loop: The nodes.
        start: The first reference point.
        theta: The model to differentiate at.
        target: The gradient ∇L_0(θ).
        keep: Keep the gradients of all mini-batches at the first reference point, as fedkin does. For
            steps without refreshes only.
    """

    def __init__(
        self,
        loop: TorchLoop,
        start: Parameters,
        theta: Parameters | None = None,
        target: Parameters | None = None,
        *,
        keep: bool = False,
    ) -> None:
        self.loop = loop
        self.theta = theta
        self.target = None if target is None else list(target.values())
        count = len(loop.nodes)
        self.points = [start] * count
        self.references = [start] * count
        self.full = [self._full(node, start) for node in loop.nodes]
        self.kept = [
            [loop.gradient(node, batch, start) for batch in range(len(node.labels) if keep else 0)]
            for node in loop.nodes
        ]

    def round(self, start: Parameters, draws: Draws, learning_rate: float) -> list[Parameters]:
        """Take the steps of one round, all nodes from the same point."""
        self.points = [start] * len(self.points)
        batches, coins = draws
        for step in range(batches.shape[1]):
            for number, node in enumerate(self.loop.nodes):
                batch = int(batches[number, step])
                point, reference = self.points[number], self.references[number]
                kept = self.kept[number][batch] if self.kept[number] else None
                difference = self._difference(node, batch, point, reference, kept)
                moved = {
                    name: tensor - learning_rate * (change + full)
                    for (name, tensor), change, full in zip(
                        point.items(), difference, self.full[number], strict=True
                    )
                }
                if coins[number, step]:
                    self.references[number] = point
                    self.full[number] = self._full(node, point)
                self.points[number] = moved
        return self.points

    def _difference(
        self,
        node: TorchNode,
        batch: int,
        point: Parameters,
        reference: Parameters,
        kept: list[Tensor] | None,
    ) -> list[Tensor]:
        if self.theta is None:
            gradient = self.loop.gradient(node, batch, point)
            known = kept or self.loop.gradient(node, batch, reference)
            return [own - other for own, other in zip(gradient, known, strict=True)]
        vector = [point[name] - reference[name] for name in point]
        return self.loop.hessian_product(node, batch, self.theta, vector)

    def _full(self, node: TorchNode, point: Parameters) -> list[Tensor]:
        if self.theta is None or self.target is None:
            return self.loop.full_gradient(node, point)
        product = self.loop.full_hessian_product(node, self.theta, list(point.values()))
        return [own - goal for own, goal in zip(product, self.target, strict=True)]


def descend(
    loop: TorchLoop,
    node: TorchNode,
    start: Parameters,
    anchor: Parameters,
    batches: np.ndarray,
    *,
    learning_rate: float,
    proximal: float,
) -> Parameters:
    """Take Ditto's steps on one node, v ← v − η (∇F_k(v; batch) + λ(v − w))."""
    point = start
    for batch in batches:
        gradient = loop.gradient(node, int(batch), point)
        point = {
            name: point[name] - learning_rate * (own + proximal * (point[name] - anchor[name]))
            for name, own in zip(point, gradient, strict=True)
        }
    return point


def proximal_rounds(
    loop: TorchLoop,
    node: TorchNode,
    shared: Parameters,
    batches: np.ndarray,
    *,
    learning_rate: float,
    proximal: float,
    tolerance: float,
    iterations: int,
) -> tuple[Parameters, Parameters]:
    """Take pFedMe's local rounds on one node; return its shared and its personal model."""
    personal = shared
    for batch in batches:
        personal = shared
        for _ in range(iterations):
            gradient = [
                own + proximal * (personal[name] - shared[name])
                for name, own in zip(
                    personal, loop.gradient(node, int(batch), personal), strict=True
                )
            ]
            if float(sum(part.square().sum() for part in gradient)) ** 0.5 < tolerance:
                break
            personal = {
                name: personal[name] - learning_rate * own
                for name, own in zip(personal, gradient, strict=True)
            }
        rate = learning_rate * proximal
        shared = {name: shared[name] - rate * (shared[name] - personal[name]) for name in shared}
    return shared, personal


def average(models: Sequence[Parameters], weights: np.ndarray) -> Parameters:
    """Return Σ_k w_k x_k."""
    return {
        name: sum(
            (float(w) * m[name] for w, m in zip(weights, models, strict=True)),
            torch.zeros_like(models[0][name]),
        )
        for name in models[0]
    }


def _mean(lists: Sequence[list[Tensor]]) -> list[Tensor]:
    return [torch.stack(parts).mean(0) for parts in zip(*lists, strict=True)]
