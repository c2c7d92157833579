"""The larger networks in PyTorch, with its own layers, and the translation of their parameters."""

# pyright: reportMissingImports=false
# PyTorch is an extra.

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.torch_loop import Parameters, TorchLoop

Layers = list[tuple[str, Any, str]]
"""For each layer of PyTorch its name, fedkin's parameters of it, and how they are arranged."""


@dataclass(frozen=True)
class Twin:
    """A network in PyTorch whose parameters can be translated."""

    network: nn.Module
    layers: Callable[[Any], Layers]
    """Pairs fedkin's parameters with the layers."""


class NetworkLoop(TorchLoop):
    """The loop over nodes with another network than the paper's.

    Args:
        twin: The network.
        nodes: Each node's images (mini-batches, batch size, row, column, channel) and labels.
    """

    def __init__(self, twin: Twin, nodes: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
        self.twin = twin
        self.network = twin.network
        self.nodes = self.divided(nodes)

    def parameters(self, params: Any) -> Parameters:
        """Translate fedkin's parameters."""
        self._example = params
        names = [name for name, _ in self.network.named_parameters()]
        found = {}
        for layer, own, kind in self.twin.layers(params):
            weight, bias = ("scale", "offset") if kind == "normalization" else ("kernel", "bias")
            if f"{layer}.weight" in names and weight in own:
                found[f"{layer}.weight"] = _to_torch(own[weight], kind, self._shape(layer))
            if bias in own:
                found[f"{layer}.bias"] = own[bias]
        return {name: torch.tensor(np.ascontiguousarray(found[name])) for name in names}

    def flat(self, parameters: Parameters) -> np.ndarray:
        """Translate back, to fedkin's flat vector."""
        arrays = {name: tensor.detach().numpy() for name, tensor in parameters.items()}
        translated = jax.tree.map(np.array, self._example)
        for layer, own, kind in self.twin.layers(translated):
            weight, bias = ("scale", "offset") if kind == "normalization" else ("kernel", "bias")
            own[weight] = _from_torch(arrays[f"{layer}.weight"], kind, own[weight].shape)
            if bias in own:
                own[bias] = arrays[f"{layer}.bias"]
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(translated)])

    def _shape(self, layer: str) -> tuple[int, ...]:
        return tuple(self.network.get_parameter(f"{layer}.weight").shape)


def _to_torch(array: np.ndarray, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    if kind == "convolution":
        outputs, channels, *window = shape
        return array.reshape(*window, channels, outputs).transpose(3, 2, 0, 1)
    if kind == "features":  # the first layer after images: their order differs
        outputs, inputs = shape
        side = int((inputs // 64) ** 0.5)
        return array.reshape(side, side, 64, outputs).transpose(3, 2, 0, 1).reshape(shape)
    return array.T if kind == "linear" else array


def _from_torch(array: np.ndarray, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    if kind == "convolution":
        return array.transpose(2, 3, 1, 0).reshape(shape)
    if kind == "features":
        side = int((shape[0] // 64) ** 0.5)
        return array.reshape(-1, 64, side, side).transpose(2, 3, 1, 0).reshape(shape)
    return array.T if kind == "linear" else array


def fedavg_twin(*, in_flax: bool) -> Twin:
    """Return the network of federated averaging; its parameters come from fedkin's model or from Flax."""
    network = nn.Sequential()
    for number, (inputs, outputs) in enumerate(((1, 32), (32, 64))):
        network.add_module(f"conv{number}", nn.Conv2d(inputs, outputs, 5))
        network.add_module(f"relu{number}", nn.ReLU())
        network.add_module(f"pool{number}", nn.MaxPool2d(2))
    network.add_module("flatten", nn.Flatten())
    network.add_module("hidden", nn.Linear(1024, 512))
    network.add_module("relu", nn.ReLU())
    network.add_module("last", nn.Linear(512, 10))
    names = ("Conv_0", "Conv_1", "Dense_0", "Dense_1")
    kinds = ("convolution", "convolution", "features", "linear")

    def layers(params: Any) -> Layers:
        own = [params["params"][name] for name in names] if in_flax else params
        return list(zip(("conv0", "conv1", "hidden", "last"), own, kinds, strict=True))

    return Twin(network, layers)


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.GroupNorm(8, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.GroupNorm(8, outputs)
        self.around = nn.Conv2d(inputs, outputs, 1, stride) if inputs != outputs else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        inner = torch.relu(self.first_norm(self.first(images)))
        inner = self.second_norm(self.second(inner))
        return torch.relu(inner + self.around(images))


class _ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 32, 3, 2, 1, bias=False)
        self.first_norm = nn.GroupNorm(8, 32)
        blocks = ((32, 32, 1), (32, 32, 1), (32, 64, 2), (64, 64, 1))
        self.blocks = nn.Sequential(*(_Block(*sizes) for sizes in blocks))
        self.last = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        images = torch.relu(self.first_norm(self.first(images)))
        return self.last(self.blocks(images).mean((2, 3)))


def resnet_twin() -> Twin:
    """Return the residual network."""

    def layers(params: Any) -> Layers:
        found = [
            ("first", params["first"], "convolution"),
            ("first_norm", params["first"], "normalization"),
            ("last", params["last"], "linear"),
        ]
        for number, block in enumerate(params["blocks"]):
            for name in ("first", "second"):
                place = f"blocks.{number}.{name}"
                found.append((place, block[name], "convolution"))
                found.append((f"{place}_norm", block[name], "normalization"))
            if "around" in block:
                found.append((f"blocks.{number}.around", block["around"], "convolution"))
        return found

    return Twin(_ResNet(), layers)
