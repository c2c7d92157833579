"""Networks of usual size: the engine against the PyTorch loop, by gradient and by Hessian-vector product.

The paper's networks are so small that starting operations takes most of the time. Here arithmetic does.
"""

# pyright: reportMissingImports=false
# PyTorch and Flax are extras.

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
from flax import linen

from benchmarks.contests import Contest
from benchmarks.engine import ADJOINT_LEARNING_RATE, LEARNING_RATE, FedkinEngine
from benchmarks.problem import BATCH_SIZE, CLASSES, BenchProblem, svrg_draws
from benchmarks.torch_loop import Parameters, TorchSvrg
from benchmarks.torch_networks import NetworkLoop, Twin, fedavg_twin, resnet_twin
from fedkin.models.base import Model, as_model
from fedkin.models.image_networks import FedAvgCNN, ResNet
from fedkin.models.operations import count_operations

STEPS = 2
"""Steps of a round: one takes a loop tenths of a second with 20 nodes."""

IMAGE_SHAPE = (28, 28, 1)


class FlaxFedAvgCNN(linen.Module):
    """The network of federated averaging as a user of Flax writes it."""

    @linen.compact
    def __call__(self, images: Any) -> Any:
        """Compute the scores of each class."""
        for channels in (32, 64):
            images = linen.relu(linen.Conv(channels, (5, 5), padding="VALID")(images))
            images = linen.max_pool(images, (2, 2), strides=(2, 2))
        hidden = linen.relu(linen.Dense(512)(images.reshape(len(images), -1)))
        return linen.Dense(CLASSES)(hidden)


@dataclass(frozen=True)
class LargerNetwork:
    """A network in fedkin, and its twin in PyTorch."""

    model: Model
    twin: Callable[[], Twin]


LARGER: dict[str, LargerNetwork] = {
    "cnn-fedavg": LargerNetwork(FedAvgCNN(IMAGE_SHAPE), lambda: fedavg_twin(in_flax=False)),
    "cnn-fedavg in Flax": LargerNetwork(
        as_model(FlaxFedAvgCNN(), "classification"), lambda: fedavg_twin(in_flax=True)
    ),
    "resnet": LargerNetwork(ResNet(IMAGE_SHAPE), resnet_twin),
}
"""The networks by name."""


@dataclass(frozen=True)
class LargerProblem(BenchProblem):
    """Nodes with a few mini-batches of images each, and one of the larger networks."""

    nodes: int = 20
    points: int = 2 * BATCH_SIZE
    own_points: int = 2 * BATCH_SIZE

    @property
    def model(self) -> Any:
        """The network."""
        return LARGER[self.network].model

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the images."""
        return IMAGE_SHAPE

    @cached_property
    def forward_operations(self) -> int:
        """Operations of the matrix products of one point's outputs."""
        objective, (images, _) = self.objective, self.prepared(0, 1)
        traced = jax.make_jaxpr(
            lambda vector, images: self.model.apply(objective.unflatten(vector), images)
        )(self.theta, images)
        return count_operations(traced.jaxpr)


class LargerContests:
    """Both contests on one network: each side takes the same steps of all nodes."""

    def __init__(self, problem: LargerProblem) -> None:
        self.problem = problem
        self.engine = FedkinEngine(problem, period=STEPS)
        nodes = [problem.batched(node, problem.points) for node in range(problem.nodes)]
        self.loop = NetworkLoop(LARGER[problem.network].twin(), nodes)
        self.start = self.loop.parameters(problem.parameters(problem.theta))
        self.draws = svrg_draws(
            self.engine.key, problem.nodes, STEPS, problem.points // BATCH_SIZE, 0.0
        )

    def __iter__(self) -> Any:
        """Make the contests one after the other."""
        yield self.gradient()
        yield self.product()

    def gradient(self) -> Contest:
        """Steps of Local-SVRG, each with two gradients of a mini-batch."""
        problem, engine = self.problem, self.engine
        point = problem.theta * 0.9
        engine.begin_svrg(problem.theta)
        count = 2 * problem.nodes * STEPS
        return Contest(
            "gradient",
            "gradient of a node's mini-batch",
            count,
            count * BATCH_SIZE,
            count * BATCH_SIZE * 3 * problem.forward_operations,
            lambda: engine.svrg_round(point),
            self.torch_gradients(),
        )

    def product(self) -> Contest:
        """Steps of the solve for h, each with one Hessian-vector product of a mini-batch."""
        problem, engine = self.problem, self.engine
        target = engine.validation_gradient(problem.theta)
        engine.begin_adjoint(problem.theta, target)
        count = problem.nodes * STEPS
        return Contest(
            "Hessian-vector product",
            "product of a node's mini-batch",
            count,
            count * BATCH_SIZE,
            count * BATCH_SIZE * 9 * problem.forward_operations,
            lambda: engine.adjoint_round(target),
            self.torch_products(self.loop.parameters(problem.parameters(target))),
        )

    def torch_gradients(self) -> Callable[[], np.ndarray]:
        """Return PyTorch's side of the contest `gradient`."""
        point = {name: 0.9 * tensor for name, tensor in self.start.items()}
        state = TorchSvrg(self.loop, self.start)
        return lambda: self._flat(state.round(point, self.draws, LEARNING_RATE))

    def torch_products(self, target: Parameters) -> Callable[[], np.ndarray]:
        """Return PyTorch's side of the contest `product`."""
        nothing = {name: 0.0 * tensor for name, tensor in target.items()}
        state = TorchSvrg(self.loop, nothing, self.start, target)
        return lambda: self._flat(state.round(target, self.draws, ADJOINT_LEARNING_RATE))

    def _flat(self, models: Sequence[Parameters]) -> np.ndarray:
        return np.stack([self.loop.flat(model) for model in models])
