"""Both engines against the PyTorch loop, by gradient and by Hessian-vector product: the paper's networks and
networks of usual size.

The paper's networks are so small that starting operations takes most of the time. With the larger ones
arithmetic does.
"""

# pyright: reportMissingImports=false
# PyTorch and Flax are extras.

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import linen

from benchmarks.contests import Contest
from benchmarks.engine import ADJOINT_LEARNING_RATE, LEARNING_RATE, FedkinEngine
from benchmarks.problem import BATCH_SIZE, CLASSES, NETWORKS, BenchProblem, svrg_draws
from benchmarks.torch_loop import Parameters, TorchLoop, TorchSvrg
from benchmarks.torch_networks import NetworkLoop, Twin, fedavg_twin, resnet_twin
from fedkin.methods.local_svrg.node import gradients_to_keep
from fedkin.models.base import Model, as_model
from fedkin.models.image_networks import FedAvgCNN, ResNet
from fedkin.models.objective import Objective
from fedkin.models.operations import count_operations
from fedkin.models.torch_module import TorchModel
from fedkin.types import Vector

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


Images = Sequence[tuple[np.ndarray, np.ndarray]]
"""Each node's images and labels in mini-batches."""


@dataclass(frozen=True)
class LargerNetwork:
    """A network in fedkin, and its twin in PyTorch."""

    model: Model
    loop: Callable[[Images], TorchLoop]
    """Makes the plain loop with the twin."""
    image_shape: tuple[int, int, int] = IMAGE_SHAPE
    steps: int = 2
    """Steps of a round. With 20 nodes and a large network, one takes a loop tenths of a second."""


def _with_twin(twin: Callable[[], Twin]) -> Callable[[Images], TorchLoop]:
    return lambda nodes: NetworkLoop(twin(), nodes)


LARGER: dict[str, LargerNetwork] = {
    **{
        name: LargerNetwork(model, partial(TorchLoop, model), model.image_shape, steps=20)
        for name, model in NETWORKS.items()
    },
    "cnn-fedavg": LargerNetwork(
        FedAvgCNN(IMAGE_SHAPE), _with_twin(lambda: fedavg_twin(in_flax=False))
    ),
    "cnn-fedavg in Flax": LargerNetwork(
        as_model(FlaxFedAvgCNN(), "classification"), _with_twin(lambda: fedavg_twin(in_flax=True))
    ),
    "resnet": LargerNetwork(ResNet(IMAGE_SHAPE), _with_twin(resnet_twin)),
}
"""The networks by name: the paper's by the data set they are for."""


@dataclass(frozen=True)
class LargerProblem(BenchProblem):
    """Nodes with a few mini-batches of images each, and one of the networks."""

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
        return LARGER[self.network].image_shape

    @cached_property
    def forward_operations(self) -> int:
        """Operations of the matrix products of one point's outputs."""
        objective, (images, _) = self.objective, self.prepared(0, 1)
        traced = jax.make_jaxpr(
            lambda vector, images: self.model.apply(objective.unflatten(vector), images)
        )(self.theta, images)
        return count_operations(traced.jaxpr)

    def loop(self) -> TorchLoop:
        """Return the plain loop on the same images."""
        nodes = [self.batched(node, self.points) for node in range(self.nodes)]
        return LARGER[self.network].loop(nodes)


@dataclass(frozen=True, kw_only=True)
class ModuleProblem(LargerProblem):
    """The same problem with the loop's network, for the engine of PyTorch modules.

    Vectors have the order of the network's parameters.
    """

    plain: LargerProblem
    plain_loop: TorchLoop

    @classmethod
    def like(cls, problem: LargerProblem, loop: TorchLoop) -> "ModuleProblem":
        """Return the twin of a problem."""
        own = {each.name: getattr(problem, each.name) for each in fields(problem)}
        return cls(**own, plain=problem, plain_loop=loop)

    @cached_property
    def objective(self) -> Objective:
        """The module on images."""
        images, _ = self.prepared(0, 2)
        return Objective.create(TorchModel(self.plain_loop.network), images)

    @cached_property
    def theta(self) -> Vector:
        """The initial model."""
        return self.translated(self.plain.theta)

    def prepared(self, node: int, points: int) -> tuple[np.ndarray, np.ndarray]:
        """Return images as PyTorch has them: channels first."""
        images, labels = self.raw(node, points)
        return np.ascontiguousarray(np.moveaxis(images, -1, 1)), labels

    def translated(self, vector: Vector) -> Vector:
        """Return a vector of fedkin's model in the order of the module."""
        parameters = self.plain_loop.parameters(self.plain.parameters(vector))
        return jnp.concatenate([jnp.ravel(each.numpy()) for each in parameters.values()])

    def back(self, vectors: np.ndarray) -> np.ndarray:
        """Return vectors of the module in the order of fedkin's model."""
        named = dict(self.plain_loop.network.named_parameters())
        sizes = [each.numel() for each in named.values()]
        rows = []
        for vector in torch.tensor(vectors):
            parts = zip(named.items(), vector.split(sizes), strict=True)
            rows.append(
                self.plain_loop.flat({name: part.view(own.shape) for (name, own), part in parts})
            )
        return np.stack(rows)


class LargerContests:
    """Both contests on one network: each side takes the same steps of all nodes.

    What is compared is how far the steps lead: next to a large model, a wrong gradient would be too small
    to see.

    Args:
        problem: The network and the nodes.
        steps: Of a round; None for the network's own.
    """

    def __init__(self, problem: LargerProblem, steps: int | None = None) -> None:
        self.problem = problem
        usual = LARGER[problem.network].steps
        self.steps = usual if steps is None else steps
        # Rounding grows with the way that a round goes, so more steps are shorter ones.
        self.learning_rate = LEARNING_RATE * usual / self.steps
        self.engine = FedkinEngine(problem, self.steps, self.learning_rate)
        self.loop = problem.loop()
        self.start = self.loop.parameters(problem.parameters(problem.theta))
        self.in_torch = ModuleProblem.like(problem, self.loop)
        self.module_engine = FedkinEngine(self.in_torch, self.steps, self.learning_rate)
        self.draws = svrg_draws(
            self.engine.key, problem.nodes, self.steps, problem.points // problem.batch_size, 0.0
        )

    def __iter__(self) -> Iterator[Contest]:
        """Make the contests one after the other."""
        yield self.gradient()
        yield self.product()

    @cached_property
    def keeps_gradients(self) -> bool:
        """Whether a node keeps its gradients at the reference point: then a step takes one, else two."""
        return bool(gradients_to_keep(self.problem.objective, self.engine.federation.data))

    def gradient(self) -> Contest:
        """Steps of Local-SVRG; the loop keeps gradients where fedkin does."""
        problem, engine, module = self.problem, self.engine, self.module_engine
        point, torch_point = problem.theta * 0.9, self.in_torch.theta * 0.9
        start = np.asarray(point)
        engine.begin_svrg(problem.theta)
        module.begin_svrg(self.in_torch.theta)
        count = (1 if self.keeps_gradients else 2) * problem.nodes * self.steps
        points = count * problem.batch_size
        return Contest(
            "gradient",
            "gradient of a node's mini-batch",
            count,
            points,
            points * 3 * problem.forward_operations,
            lambda: engine.svrg_round(point) - start,
            self.torch_gradients(),
            lambda: self.in_torch.back(module.svrg_round(torch_point)) - start,
        )

    def product(self) -> Contest:
        """Steps of the solve for h, each with one Hessian-vector product of a mini-batch."""
        problem, engine, module = self.problem, self.engine, self.module_engine
        target = engine.validation_gradient(problem.theta)
        start = np.asarray(target)
        torch_target = self.in_torch.translated(target)
        engine.begin_adjoint(problem.theta, target)
        module.begin_adjoint(self.in_torch.theta, torch_target)
        count = problem.nodes * self.steps
        points = count * problem.batch_size
        return Contest(
            "Hessian-vector product",
            "product of a node's mini-batch",
            count,
            points,
            points * 9 * problem.forward_operations,
            lambda: engine.adjoint_round(target) - start,
            self.torch_products(self.loop.parameters(problem.parameters(target))),
            lambda: self.in_torch.back(module.adjoint_round(torch_target)) - start,
        )

    def torch_gradients(self) -> Callable[[], np.ndarray]:
        """Return PyTorch's side of the contest `gradient`."""
        point = {name: 0.9 * tensor for name, tensor in self.start.items()}
        state = TorchSvrg(self.loop, self.start, keep=self.keeps_gradients)
        return lambda: self._moved(state.round(point, self.draws, self.learning_rate), point)

    def torch_products(self, target: Parameters) -> Callable[[], np.ndarray]:
        """Return PyTorch's side of the contest `product`."""
        nothing = {name: 0.0 * tensor for name, tensor in target.items()}
        state = TorchSvrg(self.loop, nothing, self.start, target)
        return lambda: self._moved(state.round(target, self.draws, ADJOINT_LEARNING_RATE), target)

    def _moved(self, models: Sequence[Parameters], start: Parameters) -> np.ndarray:
        return np.stack([self.loop.flat(model) for model in models]) - self.loop.flat(start)
