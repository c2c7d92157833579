"""The oracles of `nodes.oracles` for PyTorch modules: the same names, arguments and results, with tensors."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedkin.data.batches import NodeData
from fedkin.models.torch_module import TorchObjective
from fedkin.models.torch_network import Network
from fedkin.nodes.foreign import BatchPlace, NodePlaces


class TorchPool:
    """The mini-batches of all nodes as tensors on the module's device, without padding.

    Args:
        objective: The model.
        data: The points of all nodes.
    """

    def __init__(self, objective: TorchObjective, data: NodeData) -> None:
        inputs = np.moveaxis(np.asarray(data.inputs), -1, 1)
        labels = np.asarray(data.labels)
        classification = objective.model.task == "classification"
        labels = labels.astype(np.int64 if classification else np.float32)
        self.inputs = objective.points(inputs)
        self.labels = objective.tensor(labels)
        width = labels.shape[1]
        if data.weights is None:
            self.sizes = np.full(len(labels), width, np.int32)
            self.weights = np.full(len(labels), 1 / width)
        else:
            weights = np.asarray(data.weights)
            self.sizes = np.count_nonzero(weights, axis=1).astype(np.int32)
            self.weights = weights[:, 0]

    def places(self, data: NodeData) -> NodePlaces:
        """Return the nodes that these points belong to, as tasks see them."""
        first, batches, points = map(np.asarray, (data.first, data.batches, data.points))
        turns = np.arange(batches.max(), dtype=np.int32)[None]
        return NodePlaces(self.sizes, first, batches, points, turns, np.float32(self.inputs.nbytes))

    def batch(self, place: int) -> tuple[Tensor, Tensor, float]:
        """Return the points of a mini-batch, their labels, and the weight of each."""
        size = self.sizes[place]
        return self.inputs[place, :size], self.labels[place, :size], float(self.weights[place])


class TorchOracles:
    """What a node knows of its own loss; for one thread at a time.

    Args:
        network: The model.
        pool: All mini-batches.
    """

    def __init__(self, network: Network, pool: TorchPool) -> None:
        self._network = network
        self._pool = pool

    def batch_loss_and_gradient(self, theta: Tensor, batch: BatchPlace) -> tuple[Tensor, Tensor]:
        """Return one mini-batch's loss and its gradient."""
        return self._at(theta, int(batch.place))

    def batch_loss_and_difference(
        self, point: Tensor, reference: Tensor, batch: BatchPlace
    ) -> tuple[Tensor, Tensor]:
        """Return one mini-batch's loss at a point, and its gradient there minus that at another point."""
        place = int(batch.place)
        _, known = self._at(reference, place)
        loss, gradient = self._at(point, place)
        return loss, gradient.sub_(known)

    def batch_hessian_product(self, theta: Tensor, batch: BatchPlace, vector: Tensor) -> Tensor:
        """Return the Hessian of one mini-batch's loss times a vector."""
        return self._product(theta, [int(batch.place)], vector)

    def full_loss_and_gradient(self, theta: Tensor, data: NodePlaces) -> tuple[Tensor, Tensor]:
        """Return L_k(θ) and ∇L_k(θ) in one pass over the node's data."""
        places = _places(data)
        loss, gradient = self._at(theta, places[0])
        for place in places[1:]:
            other, change = self._at(theta, place)
            loss, gradient = loss + other, gradient.add_(change)
        return loss / len(places), gradient.div_(len(places))

    def full_and_batch_gradients(self, theta: Tensor, data: NodePlaces) -> tuple[Tensor, Tensor]:
        """Return ∇L_k(θ) and the gradients of the single mini-batches, in one pass."""
        rows = theta.new_zeros(data.turns.size, len(theta))
        places = _places(data)
        for row, place in zip(rows, places, strict=False):
            row.copy_(self._at(theta, place)[1])
        return rows[: len(places)].mean(dim=0), rows

    def full_hessian_product(self, theta: Tensor, data: NodePlaces, vector: Tensor) -> Tensor:
        """Return ∇²L_k(θ) v in one pass over the node's data."""
        return self._product(theta, _places(data), vector)

    def drawn_hessian_product(
        self, theta: Tensor, data: NodePlaces, indices: np.ndarray, vector: Tensor
    ) -> Tensor:
        """Return the mean Hessian of some mini-batches times a vector."""
        return self._product(theta, (data.first + indices).tolist(), vector)

    def _at(self, theta: Tensor, place: int) -> tuple[Tensor, Tensor]:
        return self._network.loss_and_gradient(theta, *self._pool.batch(place))

    def _product(self, theta: Tensor, places: Sequence[int], vector: Tensor) -> Tensor:
        total = torch.zeros_like(theta)
        for place in places:
            total += self._network.hessian_product(theta, *self._pool.batch(place), vector)
        return total.div_(len(places))


def _places(data: NodePlaces) -> range:
    first = int(data.first)
    return range(first, first + int(data.batches))
