"""A PyTorch module as a function of its parameters: outputs, losses, gradients, Hessian-vector products.

Batch normalization follows the rest of fedkin: in training each mini-batch has its own statistics, and at
evaluation they are given. Running averages are not used.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from copy import deepcopy
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as torch_functions
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from fedkin.errors import InputError
from fedkin.types import LearningTask

Moments = tuple[Tensor, Tensor]
"""Mean and variance of each channel before one layer of batch normalization."""


in_usual_mode = torch.inference_mode(mode=False)
"""Lets a function differentiate, also where its caller switched that off (`no_grad`, `inference_mode`)."""


def normalizations(module: nn.Module) -> list[BatchNorm]:
    """Return the layers of batch normalization, in the module's own order."""
    return [layer for layer in module.modules() if isinstance(layer, BatchNorm)]


def training_copy(module: nn.Module) -> nn.Module:
    """Return a copy that normalizes each mini-batch by its own statistics and keeps no running ones."""
    copy = deepcopy(module).train()
    for layer in normalizations(copy):
        layer.track_running_stats = False
        layer.running_mean = layer.running_var = layer.num_batches_tracked = None
    return copy


def set_moments(module: nn.Module, moments: Sequence[Moments]) -> None:
    """Let the layers of batch normalization use these statistics at evaluation."""
    for layer, (mean, variance) in zip(normalizations(module), moments, strict=True):
        layer.track_running_stats = True
        layer.running_mean, layer.running_var = mean.clone(), variance.clone()


class Network:
    """Copies of a module whose parameters are parts of one vector; for one thread at a time.

    Args:
        module: The module, as the user made it.
        names: The parameters that are trained, in the order of the vector.
        task: What the outputs are.
        l2: Adds ½·l2·‖θ‖² to the loss.
        attention: Whether the module uses PyTorch's attention.
    """

    def __init__(
        self,
        module: nn.Module,
        names: Sequence[str],
        task: LearningTask,
        l2: float,
        *,
        attention: bool = False,
    ) -> None:
        self._module = module
        self._names = names
        self._task: LearningTask = task
        self._l2 = l2
        self._mode = _attention_by_parts if attention else nullcontext

    # Threads that train never evaluate, and a large module fills the memory with every copy.
    @cached_property
    def _training(self) -> "_OnVector":
        return _OnVector(training_copy(self._module), self._names)

    @cached_property
    def _evaluation(self) -> "_OnVector":
        return _OnVector(deepcopy(self._module).eval(), self._names)

    def loss_and_gradient(
        self, theta: Tensor, inputs: Tensor, labels: Tensor, weight: float
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of some points and its gradient.

        Args:
            theta: The parameters.
            inputs: The points.
            labels: Their labels.
            weight: What each point's loss is multiplied with.
        """
        with self._users_errors(inputs):
            loss = self._loss(theta, inputs, labels, weight)
            parameters = self._training.parameters
            gradient = _flat(torch.autograd.grad(loss, parameters, materialize_grads=True))
        loss = loss.detach()
        if self._l2:
            loss = loss + 0.5 * self._l2 * torch.dot(theta, theta)
            gradient = gradient.add_(theta, alpha=self._l2)
        return loss, gradient

    def hessian_product(
        self, theta: Tensor, inputs: Tensor, labels: Tensor, weight: float, vector: Tensor
    ) -> Tensor:
        """Return the Hessian of that loss times a vector, by differentiating twice."""
        with self._users_errors(inputs):
            loss = self._loss(theta, inputs, labels, weight)
            parameters = self._training.parameters
            gradient = torch.autograd.grad(
                loss, parameters, create_graph=True, materialize_grads=True
            )
            curved = [
                (own, part)
                for own, part in zip(gradient, self._training.parts(vector), strict=True)
                if own.requires_grad
            ]
            if curved:
                parts, directions = zip(*curved, strict=True)
                product = torch.autograd.grad(parts, parameters, directions, materialize_grads=True)
            else:
                product = [torch.zeros_like(parameter) for parameter in parameters]
        flat = _flat(product)
        return flat.add_(vector, alpha=self._l2) if self._l2 else flat

    def outputs(self, theta: Tensor, inputs: Tensor, moments: Sequence[Moments]) -> Tensor:
        """Return the outputs for evaluation, normalized with fixed statistics."""
        set_moments(self._evaluation.module, moments)
        with torch.no_grad(), self._users_errors(inputs), self._mode():
            return as_outputs(self._evaluation(theta, inputs), self._task)

    def statistics(self, theta: Tensor, inputs: Tensor) -> list[Moments]:
        """Return what each layer of batch normalization meets in these inputs.

        A layer that the module does not call has mean 0 and variance 1.
        """
        if not normalizations(self._module):
            return []
        layers = normalizations(self._training.module)
        found: dict[nn.Module, Moments] = {}

        def note(layer: nn.Module, given: Tensor) -> None:
            axes = [axis for axis in range(given.ndim) if axis != 1]
            variance, mean = torch.var_mean(given, dim=axes, correction=0)
            found[layer] = mean, variance

        with torch.no_grad(), self._users_errors(inputs), self._mode(), observed(layers, note):
            self._training(theta, inputs)
        zeros = {layer: theta.new_zeros(layer.num_features) for layer in layers}
        return [found.get(layer, (zeros[layer], zeros[layer] + 1)) for layer in layers]

    def _loss(self, theta: Tensor, inputs: Tensor, labels: Tensor, weight: float) -> Tensor:
        with self._mode():
            outputs = as_outputs(self._training(theta, inputs), self._task)
        if self._task == "classification":
            return weight * torch_functions.cross_entropy(outputs, labels, reduction="sum")
        return 0.5 * weight * torch.sum(torch.square(outputs - labels))

    @contextmanager
    def _users_errors(self, inputs: Tensor) -> Iterator[None]:
        """Tell a user that the module failed, and for what."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            what = type(self._module).__name__
            said = str(error).strip().split("\n")[0]
            if "is not implemented" in said and "derivative for" in said:
                raise InputError(
                    f"the module {what} has a layer that PyTorch cannot differentiate twice ({said}), and "
                    "Hessian-vector products need that: replace the layer, or choose a method that takes "
                    "gradients only, such as fedavg or ditto"
                ) from error
            raise InputError(
                f"the module {what} raised {type(error).__name__} for {len(inputs)} "
                f"{'point' if len(inputs) == 1 else 'points'} of shape {tuple(inputs.shape[1:])}: {said}"
            ) from error


class _AttentionByParts:
    """Lets PyTorch compute attention by operations that can be differentiated twice; its fused ones cannot.

    PyTorch has one switch for all threads: the first that enters sets it, and the last that leaves resets it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._switch = ExitStack()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if self._inside == 0:
                self._switch.enter_context(sdpa_kernel(SDPBackend.MATH))
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if self._inside == 0:
                    self._switch.close()


_attention_by_parts = _AttentionByParts()


@contextmanager
def observed(
    layers: Sequence[nn.Module], note: Callable[[nn.Module, Tensor], None]
) -> Iterator[None]:
    """Let a function see what each of these layers is given inside the block."""

    def before(layer: nn.Module, arguments: tuple, options: dict[str, Any]) -> None:
        note(layer, arguments[0] if arguments else options["input"])

    hooks = [layer.register_forward_pre_hook(before, with_kwargs=True) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _OnVector:
    """A module whose parameters are views of one vector.

    That is faster than to hand the module its parameters in every call (`torch.func.functional_call`).
    """

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        self.module = module
        named = dict(module.named_parameters())
        self.parameters = [named[name] for name in names]
        self._sizes = [parameter.numel() for parameter in self.parameters]
        self._vector = _flat([parameter.detach() for parameter in self.parameters])
        for parameter, part in zip(self.parameters, self.parts(self._vector), strict=True):
            parameter.data = part
        self._last: tuple[Tensor, int] | None = None

    def __call__(self, theta: Tensor, inputs: Tensor) -> Tensor:
        # A pass over a node's data calls it many times with the same vector.
        if self._last is None or self._last[0] is not theta or self._last[1] != theta._version:
            self._vector.copy_(theta)
            self._last = theta, theta._version
        return self.module(as_float(inputs))

    def parts(self, vector: Tensor) -> list[Tensor]:
        """Divide a vector into the shapes of the parameters."""
        return [
            part.view(parameter.shape)
            for part, parameter in zip(vector.split(self._sizes), self.parameters, strict=True)
        ]


def as_float(inputs: Tensor) -> Tensor:
    """Scale images stored as bytes to numbers from 0 to 1; leave other inputs unchanged."""
    return inputs.float() / 255 if inputs.dtype == torch.uint8 else inputs


def as_outputs(outputs: Tensor, task: LearningTask) -> Tensor:
    """Return one number per point in regression, also where the module returns a column of them."""
    column = task == "regression" and outputs.ndim == 2 and outputs.shape[1] == 1
    return outputs[:, 0] if column else outputs


def _flat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from a seed inside the block, and leave PyTorch's generators as they were."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
