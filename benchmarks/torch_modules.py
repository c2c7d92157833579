"""`python -m benchmarks.torch_modules`: PyTorch modules in fedkin's engine against the plain loop.

Both train the same module on the same mini-batches of 20 nodes, in turns, each with its best number of
threads.
"""

# pyright: reportMissingImports=false
# PyTorch is an extra.

import time
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import torch
import typer
from rich.table import Table
from torch import nn

from benchmarks.torch_loop import Parameters, TorchLoop, TorchNode, TorchSvrg
from fedkin.cli.output import results
from fedkin.cli.program import run_program
from fedkin.data.batches import divide
from fedkin.errors import FedkinError
from fedkin.federation.base import Revealed
from fedkin.federation.simulation import SimulatedFederation
from fedkin.methods.bilevel.node import HESSIAN_PRODUCT
from fedkin.methods.local_svrg.node import INNER_SVRG_ROUND
from fedkin.models.objective import Objective
from fedkin.models.torch_module import TorchModel

NODES, BATCH_SIZE, SEED = 20, 50, 0
LEARNING_RATE = 0.02
LARGEST_DIFFERENCE = 1e-3

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def fedavg_network() -> nn.Module:
    """Return the network of the FedAvg paper for images of 28 x 28: 582,026 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1024, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )


def paper_network() -> nn.Module:
    """Return the network of the bi-level paper, with batch normalization: 363 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 1, 4, 4, 1),
        nn.BatchNorm2d(1),
        nn.ReLU(),
        nn.Conv2d(1, 2, 2, 2, 1),
        nn.BatchNorm2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


NETWORKS = {"cnn-fedavg": fedavg_network, "paper": paper_network}


class ModuleLoop(TorchLoop):
    """The plain loop for any module, on images (mini-batches, batch size, channel, row, column)."""

    def __init__(self, network: nn.Module, nodes: list[TorchNode]) -> None:
        self.network = network
        self.nodes = nodes


@dataclass(frozen=True)
class Race:
    """One module on one federation, in both ways."""

    module: nn.Module
    inputs: np.ndarray
    labels: np.ndarray
    steps: int

    def __post_init__(self) -> None:
        self.module.train()

    def engine(self, threads: int) -> SimulatedFederation:
        """Return fedkin's engine."""
        objective = Objective.create(TorchModel(self.module), self.inputs[0, :2])
        nodes = list(zip(self.inputs, self.labels, strict=True))
        return SimulatedFederation(
            objective, nodes, batch_size=BATCH_SIZE, seed=SEED, threads=threads
        )

    def loop(self) -> ModuleLoop:
        """Return the plain loop, with the same mini-batches."""
        nodes = []
        for number, (images, labels) in enumerate(zip(self.inputs, self.labels, strict=True)):
            parts = np.stack(divide(len(labels), BATCH_SIZE, SEED, number))
            nodes.append(
                TorchNode(torch.from_numpy(images[parts]), torch.from_numpy(labels[parts]).long())
            )
        return ModuleLoop(self.module, nodes)

    def parameters(self) -> Parameters:
        """Return the module's parameters."""
        return {name: each.detach() for name, each in self.module.named_parameters()}

    def vector(self) -> np.ndarray:
        """Return them as one vector."""
        return _flat(self.parameters())


def training(race: Race, threads: int) -> tuple[Callable, Callable]:
    """Return a round of Local-SVRG steps of all nodes, by the engine and by the loop."""
    engine, loop, key = race.engine(threads), race.loop(), jax.random.key(1)
    point = jnp.asarray(race.vector())
    message = {
        "point": point,
        "learning_rate": LEARNING_RATE,
        "refresh_probability": 0.0,
        "averaging_rate": 0.0,
    }
    options = {"steps": race.steps, "reply": "point"}
    batches = int(engine.batches)
    draws = np.stack(
        [
            np.asarray(
                jax.random.bits(jax.random.fold_in(key, node), (2, race.steps), jnp.uint32)[0]
                % batches
            )
            for node in range(NODES)
        ]
    )
    solve = TorchSvrg(loop, race.parameters())

    begun: list[bool] = []

    def ours() -> np.ndarray:
        request = Revealed(INNER_SVRG_ROUND, message, begin=not begun, **options)
        begun.append(True)
        return np.asarray(engine.exchange(train=request, key=key).train["point"])

    def theirs() -> np.ndarray:
        found = solve.round(race.parameters(), (draws, np.zeros_like(draws)), LEARNING_RATE)
        return np.stack([_flat(each) for each in found])

    return ours, theirs


def products(race: Race, threads: int) -> tuple[Callable, Callable]:
    """Return the Hessian-vector products of all nodes, over all their data."""
    engine, loop = race.engine(threads), race.loop()
    vector = np.random.default_rng(2).normal(size=len(race.vector())).astype(np.float32)
    parts = torch.tensor(vector).split([each.numel() for each in race.parameters().values()])
    shaped = [
        part.view(each.shape) for part, each in zip(parts, race.parameters().values(), strict=True)
    ]

    begun: list[bool] = []

    def ours() -> np.ndarray:
        message = {"vector": jnp.asarray(vector)}
        if not begun:
            message["theta"] = jnp.asarray(race.vector())
        request = Revealed(HESSIAN_PRODUCT, message, begin=not begun)
        begun.append(True)
        return np.asarray(engine.exchange(each=request, key=jax.random.key(0)).each["product"])

    def theirs() -> np.ndarray:
        found = [loop.full_hessian_product(node, race.parameters(), shaped) for node in loop.nodes]
        return np.stack([np.concatenate([p.detach().numpy().ravel() for p in f]) for f in found])

    return ours, theirs


@app.command()
def main(
    network: str = "cnn-fedavg",
    points: int = 200,
    steps: int = 4,
    repeats: int = 3,
    cores: int = 2,
) -> None:
    """Time a module in fedkin's engine and in the plain loop."""
    torch.manual_seed(0)
    draw = np.random.default_rng(0)
    race = Race(
        NETWORKS[network](),
        draw.integers(0, 255, (NODES, points, 1, 28, 28)).astype(np.uint8),
        draw.integers(0, 10, (NODES, points)).astype(np.int32),
        steps,
    )
    table = Table(
        "work", "engine, 1 thread", f"engine, {cores}", "loop, 1", f"loop, {cores}", "ratio"
    )
    batches = points // BATCH_SIZE
    for name, contest, units in (
        ("training step of all nodes", training, steps),
        ("Hessian product of all nodes' mini-batches", products, batches),
    ):
        ways: dict[tuple[str, int], Callable] = {}
        for threads in (1, cores):
            ways["engine", threads], ways["loop", threads] = contest(race, threads)
        first = {way: _with_threads(run, way[1]) for way, run in ways.items()}
        for found in first.values():
            difference = np.linalg.norm(found - first["loop", 1]) / np.linalg.norm(first["loop", 1])
            if not difference <= LARGEST_DIFFERENCE:
                raise FedkinError(f"{name}: engine and loop differ by {difference:.1e}")
        times: dict[tuple[str, int], list[float]] = {way: [] for way in ways}
        for _ in range(repeats):
            for way, run in ways.items():
                begin = time.perf_counter()
                _with_threads(run, way[1])
                times[way].append((time.perf_counter() - begin) / units)
        best = {way: float(np.median(found)) for way, found in times.items()}
        ratio = min(best["loop", 1], best["loop", cores]) / min(
            best["engine", 1], best["engine", cores]
        )
        shown = [f"{1e3 * best[way, t]:.1f} ms" for way in ("engine", "loop") for t in (1, cores)]
        table.add_row(name, *shown, f"{ratio:.2f}")
    results.print(table)


def _with_threads(run: Callable[[], np.ndarray], threads: int) -> np.ndarray:
    torch.set_num_threads(threads)
    return run()


def _flat(parameters: Parameters) -> np.ndarray:
    return np.concatenate([each.detach().numpy().ravel() for each in parameters.values()])


if __name__ == "__main__":
    run_program(app)
