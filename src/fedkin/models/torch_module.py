"""PyTorch modules as models (extra `torch`)."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from fedkin.errors import InputError
from fedkin.models.base import Statistics, point_loss
from fedkin.models.objective import Batch, Objective
from fedkin.models.torch_checks import (
    as_points,
    call_first,
    check_module,
    device_of,
    trained_names,
)
from fedkin.models.torch_network import Moments, Network, in_usual_mode, seeded, set_moments
from fedkin.types import Array, Key, LearningTask, Params, Vector

STATISTICS_NAMES = ("running_mean", "running_var")
"""How the names of what a layer of batch normalization normalizes with end."""


@dataclass(frozen=True, eq=False)
class TorchModel:
    """A PyTorch module whose parameters fedkin trains.

    The module itself is never changed. Training starts from its parameters; a module that comes from a
    factory is made again for every seed.

    Args:
        module: The module.
        task: What its outputs are.
        l2: Adds ½·l2·‖θ‖² to the loss.
        factory: Makes such modules, with parameters drawn from PyTorch's generator; None if there is only
            this one.

    >>> model = TorchModel(nn.Linear(2, 3))
    >>> Objective.create(model, np.zeros((4, 2), np.float32)).size
    9
    """

    module: nn.Module
    task: LearningTask = "classification"
    l2: float = 0.0
    factory: Callable[[], nn.Module] | None = None

    @classmethod
    def from_factory(
        cls, factory: Callable[[], nn.Module], task: LearningTask, l2: float = 0.0
    ) -> "TorchModel":
        """Return the model of a factory's modules."""
        with seeded(0):
            return cls(factory(), task, l2, factory)

    @in_usual_mode
    def objective_for(self, inputs: Array | np.ndarray) -> "TorchObjective":
        """Bind the module to the shape of its inputs, and refuse one that cannot be trained."""
        if jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
            raise InputError(
                "PyTorch modules are trained in single precision: switch jax_enable_x64 off"
            )
        check_module(self.module)
        names = trained_names(self.module)
        parameters = dict(self.module.named_parameters())
        shapes = tuple(tuple(parameters[name].shape) for name in names)
        first = call_first(self.module, inputs, self.task)
        return TorchObjective(
            self,
            tuple(names),
            shapes,
            tuple(inputs.shape[1:]),
            str(inputs.dtype),
            tuple(first.outputs.shape[1:]),
            first.whole_numbers,
            first.attention,
            first.operations,
        )

    def prepare(self, inputs: Array) -> Array:
        """Return the inputs unchanged."""
        return inputs

    def loss(self, outputs: Array, labels: Array) -> Array:
        """Return the loss of the task."""
        return point_loss(self.task, outputs, labels)

    def init(self, key: Key, inputs: Array) -> Params:
        """Refuse: JAX cannot call the module."""
        refuse_in_jax()

    def apply(
        self,
        params: Params,
        inputs: Array,
        *,
        mask: Array | None = None,
        statistics: Statistics | None = None,
    ) -> Array:
        """Refuse: JAX cannot call the module."""
        refuse_in_jax()

    def statistics(self, params: Params, inputs: Array) -> Statistics:
        """Refuse: JAX cannot call the module."""
        refuse_in_jax()

    def penalty(self, params: Params) -> Array:
        """Refuse: JAX cannot call the module."""
        refuse_in_jax()


@dataclass(frozen=True)
class TorchObjective(Objective):
    """The loss of a PyTorch module as a function of one flat vector.

    `structure` has the names of the parameters. Vectors outside an engine are JAX arrays, as for every
    other model.
    """

    in_jax: ClassVar[bool] = False

    model: TorchModel  # pyright: ignore[reportIncompatibleVariableOverride]
    structure: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    point_shape: tuple[int, ...]
    point_dtype: str
    point_outputs: tuple[int, ...] = ()
    """The shape of the outputs for one point."""
    whole_numbers: bool = False
    """Whether the module takes whole numbers as inputs, and no others."""
    attention: bool = False
    """Whether the module uses PyTorch's attention."""
    operations: int = 0
    """Multiplications and additions of the module's matrix products for one point."""
    _idle: list[Network] = field(default_factory=list, init=False, compare=False, repr=False)
    """Networks that nobody uses at the moment."""

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy needs: the parameters of a copied network would not follow its vector."""
        return self.__dict__ | {"_idle": []}

    @property
    def device(self) -> torch.device:
        """Where the module's parameters are."""
        return device_of(self.model.module)

    def network(self) -> Network:
        """Return a new network, for one thread."""
        model = self.model
        return Network(model.module, self.structure, model.task, model.l2, attention=self.attention)

    def _loss_operations(self, points: int) -> int:
        return points * self.operations

    def start(self, key: Key) -> Vector:
        """Return the module's own parameters, or those of a new one where a factory makes it."""
        if self.model.factory is not None:
            return self.init(key)
        return self._vector_of(self.model.module)

    def init(self, key: Key) -> Vector:
        """Draw parameters: a new module of the factory, or all layers that can draw theirs again."""
        seed = int(np.asarray(jax.random.bits(key, (), jnp.uint32)))
        with seeded(seed):
            if self.model.factory is not None:
                return self._vector_of(self.model.factory())
            drawn = deepcopy(self.model.module)
            for layer in drawn.modules():
                draw_again = getattr(layer, "reset_parameters", None)
                if callable(draw_again):
                    draw_again()
            return self._vector_of(drawn)

    def unflatten(self, vector: Vector) -> dict[str, Array]:
        """Return the parameters by their names."""
        begins = np.cumsum([0, *map(math.prod, self.shapes)])
        return {
            name: vector[begin : begin + math.prod(shape)].reshape(shape)
            for name, shape, begin in zip(self.structure, self.shapes, begins[:-1], strict=True)
        }

    def batch_loss(self, vector: Vector, batch: Batch) -> NoReturn:
        """Refuse: JAX cannot call the module."""
        refuse_in_jax()

    @in_usual_mode
    def outputs(self, vector: Vector, inputs: Array, statistics: Statistics) -> np.ndarray:  # pyright: ignore
        """Return the outputs for evaluation, normalized with fixed statistics."""
        with self._idle_network() as network:
            outputs = network.outputs(
                self.tensor(vector), self.points(inputs), self._moments(statistics)
            )
        return outputs.cpu().numpy()

    def output_shape(self) -> tuple[int, ...]:
        """Return the shape of the outputs for one point."""
        return self.point_outputs

    @in_usual_mode
    def statistics(self, vector: Vector, inputs: Array) -> Statistics:
        """Return the normalization statistics of these inputs."""
        with self._idle_network() as network:
            found = network.statistics(self.tensor(vector), self.points(inputs))
        return tuple((mean.cpu().numpy(), variance.cpu().numpy()) for mean, variance in found)

    def arrange_statistics(self, leaves: Sequence[np.ndarray]) -> Statistics:
        """Return statistics as this class arranges them: a mean and a variance per layer."""
        return tuple(zip(leaves[::2], leaves[1::2], strict=True))

    def trained_module(self, vector: np.ndarray, statistics: Statistics) -> nn.Module:
        """Return a copy of the module with these parameters, and these statistics for evaluation."""
        module = deepcopy(self.model.module)
        state = dict(module.named_parameters())
        with torch.no_grad():
            for name, array in self.unflatten(jnp.asarray(vector)).items():
                state[name].copy_(torch.from_numpy(np.array(array)))
        set_moments(module, self._moments(statistics))
        return module.eval()

    def tensor(self, array: Array | np.ndarray) -> torch.Tensor:
        """Copy an array to the module's device."""
        return torch.from_numpy(np.array(array)).to(self.device)

    def points(self, inputs: Array | np.ndarray) -> torch.Tensor:
        """Copy points to the module's device, as numbers of the type that it takes."""
        return as_points(np.array(inputs, order="C"), whole_numbers=self.whole_numbers).to(
            self.device
        )

    def _moments(self, statistics: Statistics) -> list[Moments]:
        return [(self.tensor(mean), self.tensor(variance)) for mean, variance in statistics]

    @contextmanager
    def _idle_network(self) -> Iterator[Network]:
        """Lend a network to the calling thread: several may predict at the same time."""
        try:
            network = self._idle.pop()
        except IndexError:
            network = self.network()
        yield network
        self._idle.append(network)

    def _vector_of(self, module: nn.Module) -> Vector:
        parameters = dict(module.named_parameters())
        parts = [parameters[name].detach().cpu().reshape(-1) for name in self.structure]
        return jnp.asarray(torch.cat(parts).numpy())


def state_arrays(module: nn.Module) -> dict[str, np.ndarray]:
    """Return a module's state dict as arrays.

    What is not a tensor there (`get_extra_state`) is part of how the module is made, and is left out. NumPy
    has no bfloat16: such tensors become single precision, without loss.
    """
    tensors = _tensors(module)
    return {
        name: (each.float() if each.dtype == torch.bfloat16 else each).cpu().numpy()
        for name, each in tensors.items()
    }


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    return {n: each for n, each in module.state_dict().items() if isinstance(each, torch.Tensor)}


def with_state(module: nn.Module, state: Mapping[str, np.ndarray]) -> nn.Module:
    """Return a copy of a module with the state dict of a file.

    Raises:
        InputError: If the module's own has other names or shapes.
    """
    copy = deepcopy(module)
    own = _tensors(copy)
    # Layers of batch normalization get statistics by training, also where they have none before.
    odd = {
        name for name in set(own) ^ set(state) if name in own or not name.endswith(STATISTICS_NAMES)
    }
    if odd:
        raise InputError(
            f"the module {type(module).__name__} is not like the saved one: only one of them has "
            f"{', '.join(sorted(odd)[:5])}"
        )
    for name, array in state.items():
        if name in own and tuple(own[name].shape) != array.shape:
            raise InputError(
                f"the module {type(module).__name__} is not like the saved one: {name} has the shape "
                f"{tuple(own[name].shape)}, and {array.shape} in the file"
            )
    read = {name: torch.from_numpy(state[name]) for name in own}
    copy.load_state_dict(copy.state_dict() | read)
    return copy


def refuse_in_jax() -> NoReturn:
    """Refuse what only works for models that are written in JAX."""
    raise InputError(
        "this needs a model that is written in JAX, and the model is a PyTorch module: what a node computes "
        "must ask fedkin.nodes.oracles for losses, gradients and Hessian-vector products (docs/extend.md)"
    )
