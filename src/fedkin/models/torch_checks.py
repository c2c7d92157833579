"""Which PyTorch modules can be trained, and what is wrong with the others."""

from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from fedkin.errors import InputError
from fedkin.models.torch_network import (
    as_float,
    as_outputs,
    normalizations,
    observed,
    training_copy,
)
from fedkin.types import Array, LearningTask


def trained_names(module: nn.Module) -> list[str]:
    """Return the names of the parameters that are trained: all that ask for a gradient."""
    return [name for name, parameter in module.named_parameters() if parameter.requires_grad]


def device_of(module: nn.Module) -> torch.device:
    """Return where the parameters are."""
    return next(module.parameters()).device


def check_module(module: nn.Module) -> None:
    """Refuse a module whose parameters or layers fedkin cannot train.

    Raises:
        InputError: With what is wrong and what to do.
    """
    what = type(module).__name__
    parameters = dict(module.named_parameters())
    if any(isinstance(each, UninitializedParameter) for each in parameters.values()):
        raise InputError(
            f"the module {what} has lazy layers whose sizes are not known yet: call it once with a few "
            "points before you pass it on"
        )
    if not trained_names(module):
        frozen = " that ask for a gradient" if parameters else ""
        raise InputError(f"the module {what} has no parameters{frozen}: there is nothing to train")
    tensors = parameters | dict(module.named_buffers())
    places = {str(each.device): name for name, each in tensors.items()}
    if len(places) > 1:
        where = ", ".join(f"{name} on {place}" for place, name in sorted(places.items()))
        raise InputError(
            f"the module {what} is spread over several devices ({where}): move all of it to one, for "
            "example with module.to('cpu')"
        )
    if "meta" in places:
        raise InputError(
            f"the module {what} is on the device meta and has no numbers: create it on a real device"
        )
    for name, parameter in parameters.items():
        if parameter.dtype != torch.float32:
            kind = str(parameter.dtype).removeprefix("torch.")
            raise InputError(
                f"the parameter {name} of the module {what} has the type {kind}, but fedkin computes in "
                "float32: convert the module with module.float()"
            )
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0:
            raise InputError(
                f"the layer {name or what} is dropout, which fedkin does not support: each step compares "
                "gradients at two points, and they must be of the same function; set p=0 or remove the layer"
            )
        if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) and layer.sparse:
            raise InputError(
                f"the layer {name or what} has sparse gradients, which fedkin does not support: create it "
                "with sparse=False"
            )


class FirstCall(NamedTuple):
    """What a call with a few points shows about a module."""

    outputs: Tensor
    whole_numbers: bool
    """Whether the module takes whole numbers as inputs, such as places in a table, and no others."""
    attention: bool
    """Whether the module uses PyTorch's attention."""
    operations: int
    """Multiplications and additions of the matrix products for one point."""


def call_first(module: nn.Module, inputs: Array | np.ndarray, task: LearningTask) -> FirstCall:
    """Call a module as training does, and refuse it if that fails or changes something.

    Raises:
        InputError: With what is wrong and what to do.
    """
    what = type(module).__name__
    try:
        copy = training_copy(module)
    except Exception as error:
        raise InputError(f"the module {what} cannot be copied ({error})") from error
    before = {name: buffer.clone() for name, buffer in copy.named_buffers()}
    array = np.array(inputs)
    if len(array) < 2:  # a layer of batch normalization needs two
        array = np.concatenate([array, array])
    points, whole = _accepted(copy, what, as_points(array).to(device_of(module)))
    random_state = _random_state()
    calls: list[nn.Module] = []
    with (
        _Operations() as operations,
        observed(normalizations(copy), lambda layer, _: calls.append(layer)),
    ):
        _called(copy, points)
    if _random_state() != random_state:
        raise InputError(
            f"the module {what} draws random numbers when it is called, such as dropout does, and that is "
            "not supported: each step compares gradients at two points, and they must be of one function"
        )
    outputs, again = _called(copy, points), _called(copy, points)
    if not isinstance(outputs, Tensor):
        raise InputError(
            f"the module {what} must return one tensor, but returns {type(outputs).__name__}"
        )
    for name, layer in copy.named_modules():
        if sum(each is layer for each in calls) > 1:
            raise InputError(
                f"the module {what} calls its layer {name} of batch normalization more than once, and a "
                "layer has one mean and variance at evaluation: use a separate layer in each place"
            )
    for name, buffer in copy.named_buffers():
        if name not in before or not _same(buffer, before[name]):
            raise InputError(
                f"the buffer {name} of the module {what} changes when the module is called, and fedkin would "
                "lose that: use layers without running state (for InstanceNorm, track_running_stats=False); "
                "of layers with running averages only batch normalization is supported"
            )
    if not _same(outputs, again):
        raise InputError(
            f"two calls of the module {what} with the same points give different outputs: it keeps something "
            "from one call to the next, or draws random numbers, and neither is supported"
        )
    if outputs.ndim == 0 or len(outputs) != len(points):
        raise InputError(
            f"the module {what} must return a row of outputs per point, but returns the shape "
            f"{tuple(outputs.shape)} for {len(points)} points"
        )
    attention = any("scaled_dot_product" in name for name in operations.names)
    count = operations.count // len(points)
    return FirstCall(as_outputs(outputs.detach(), task), whole, attention, count)


class _Operations(TorchDispatchMode):
    """Notes PyTorch's operations inside the block."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.count = 0
        """The multiplications and additions of matrix products."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Note an operation, and do it."""
        given = kwargs or {}
        found = func(*args, **given)
        self.names.add(str(func))
        if func._overloadpacket in flop_registry:
            self.count += flop_registry[func._overloadpacket](*args, **given, out_val=found)
        return found


def as_points(array: np.ndarray, *, whole_numbers: bool = False) -> Tensor:
    """Return points as a module takes them: whole numbers, bytes, or numbers in single precision.

    Raises:
        InputError: If whole numbers are needed and there are others.
    """
    if not whole_numbers:
        return torch.from_numpy(array if array.dtype == np.uint8 else array.astype(np.float32))
    whole = array.astype(np.int64)
    if array.dtype == np.uint8 or (whole != array).any():
        raise InputError(
            "the module takes whole numbers only, and some points have others (bytes are taken for images "
            "and scaled to 0 … 1): give them as int64"
        )
    return torch.from_numpy(whole)


def _accepted(module: nn.Module, what: str, points: Tensor) -> tuple[Tensor, bool]:
    """Return points in the type that the module accepts, and whether that is whole numbers."""
    try:
        _called(module, as_float(points))
    except Exception as error:
        if points.is_floating_point() and torch.equal(points, points.round()):
            with suppress(Exception):
                _called(module, points.long())
                return points.long(), True
        raise InputError(
            f"the module {what} fails on points of shape {tuple(points.shape[1:])} and type "
            f"{str(as_float(points).dtype).removeprefix('torch.')}: {type(error).__name__}: {error}"
        ) from error
    return as_float(points), False


def _called(module: nn.Module, points: Tensor) -> Tensor:
    with torch.enable_grad():  # without, PyTorch may choose other operations
        return module(points)


def _random_state() -> list[bytes]:
    """Return the state of PyTorch's generators."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states += torch.cuda.get_rng_state_all()
    return [state.cpu().numpy().tobytes() for state in states]


def _same(first: Tensor, second: Tensor) -> bool:
    return torch.equal(torch.nan_to_num(first), torch.nan_to_num(second))
