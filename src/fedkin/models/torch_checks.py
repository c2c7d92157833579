"""Which PyTorch modules can be trained, and what is wrong with the others."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from fedkin.errors import InputError
from fedkin.models.torch_network import as_float, as_outputs, training_copy
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


def first_outputs(module: nn.Module, inputs: Array | np.ndarray, task: LearningTask) -> Tensor:
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
    points = as_float(torch.from_numpy(np.array(inputs)).to(device_of(module)))
    if len(points) < 2:  # a layer of batch normalization needs two
        points = torch.cat([points, points])
    try:
        with torch.no_grad():
            outputs, again = copy(points), copy(points)
    except Exception as error:
        raise InputError(
            f"the module {what} fails on points of shape {tuple(points.shape[1:])} and type "
            f"{str(points.dtype).removeprefix('torch.')}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(outputs, Tensor):
        raise InputError(
            f"the module {what} must return one tensor, but returns {type(outputs).__name__}"
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
            f"two calls of the module {what} with the same points give different outputs: it draws random "
            "numbers, such as dropout does, and that is not supported"
        )
    if outputs.ndim == 0 or len(outputs) != len(points):
        raise InputError(
            f"the module {what} must return a row of outputs per point, but returns the shape "
            f"{tuple(outputs.shape)} for {len(points)} points"
        )
    return as_outputs(outputs, task)


def _same(first: Tensor, second: Tensor) -> bool:
    return torch.equal(torch.nan_to_num(first), torch.nan_to_num(second))
