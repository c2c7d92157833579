"""What only a separate process can show: memory, compilation, and starting a second time.

`python -m benchmarks.probe '{"probe": "scaling", "nodes": 15, "points": 200}'` prints one JSON object.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine import PERIOD, FedkinEngine
from benchmarks.problem import BATCH_SIZE, BenchProblem
from fedkin.compilation import keep_compiled_code
from fedkin.errors import FedkinError
from fedkin.types import Vector

MAIN_TASKS: dict[str, Callable[[FedkinEngine, Vector], object]] = {
    "inner": lambda engine, theta: engine.begin_svrg(theta),
    "adjoint": lambda engine, theta: engine.begin_adjoint(theta, theta),
    "ditto": lambda engine, theta: engine.ditto_shared_round(theta),
    "pfedme": lambda engine, theta: engine.pfedme_shared_round(theta),
}
"""The main tasks of the methods: FedAvg needs `inner`, Bi-level `inner` and `adjoint`. What the center
compiles for itself, its gradient and evaluation, is not among them."""

ROOT = Path(__file__).parents[1]
"""The root of the repository, from which `benchmarks` can be imported."""


def probe(settings: dict[str, Any]) -> dict[str, Any]:
    """Run a probe in a separate process and return its answer."""
    command = [sys.executable, "-m", "benchmarks.probe", json.dumps(settings)]
    # Named, because fedkin's commands forbid modules from the current directory.
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    began = time.perf_counter()
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment
    )
    whole = time.perf_counter() - began
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise FedkinError(f"the probe {settings} failed: {last}")
    return json.loads(done.stdout.splitlines()[-1]) | {"process_seconds": whole}


def scaling(nodes: int, points: int, seconds: float = 4.0) -> dict[str, Any]:
    """Time a node's SVRG step in a federation of many nodes, and measure the memory it takes.

    Without refreshes: how many of them a few nodes happen to draw would decide the comparison.
    """
    problem = BenchProblem("Fashion-MNIST", nodes=nodes, points=points)
    engine, theta = FedkinEngine(problem), problem.theta
    engine.begin_svrg(theta)
    times = []
    while not times or sum(times) < seconds:
        began = time.perf_counter()
        engine.svrg_round(theta)
        times.append(time.perf_counter() - began)
    return {
        "nodes": nodes,
        "points": points,
        "node_step_microseconds": float(np.median(times)) / (nodes * PERIOD) * 1e6,
        "data_megabytes": nodes * points * int(np.prod(problem.model.image_shape)) / 1e6,
        "peak_megabytes": peak_bytes() / 1e6,
    }


def peak_bytes() -> int:
    """Return the most memory that this process has held."""
    status = Path("/proc/self/status")
    if status.exists():  # what `getrusage` says here includes the process that started this one
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(fields["VmHWM"].split()[0]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def compilation(
    network: str, cache: str, tasks: Sequence[str] = tuple(MAIN_TASKS)
) -> dict[str, Any]:
    """Time the first call of each main task; with a warm cache nothing is compiled."""
    keep_compiled_code(Path(cache))
    problem = BenchProblem(network, points=2 * BATCH_SIZE)
    theta, engine = problem.theta, FedkinEngine(problem)
    _ = engine.federation  # Loading the data is not timed.
    seconds = {}
    for name in tasks:
        began = time.perf_counter()
        MAIN_TASKS[name](engine, theta)
        seconds[name] = time.perf_counter() - began
    return {"seconds": seconds}


def larger(network: str, nodes: int, side: str, cache: str | None) -> dict[str, Any]:
    """Measure the memory of one side's steps with a network of `larger`, and how long first calls take.

    Args:
        network: Its name.
        nodes: The number of nodes.
        side: `fedkin`, `module` (fedkin's engine for PyTorch modules) or `torch` (the plain loop).
        cache: Where compiled code is kept; None to keep none.
    """
    from benchmarks.larger import LARGER, LargerContests, LargerProblem, ModuleProblem

    if cache is not None:
        keep_compiled_code(Path(cache))
    problem = LargerProblem(network, nodes=nodes)
    seconds: dict[str, float] = {}
    if side == "torch":
        contests = LargerContests(problem)
        contests.torch_gradients()()
        contests.torch_products(contests.start)()
    else:
        own = problem if side == "fedkin" else ModuleProblem.like(problem, problem.loop())
        engine, theta = FedkinEngine(own, period=LARGER[network].steps), own.theta
        _ = engine.federation  # Loading the data is not timed.
        for name in ("inner", "adjoint"):
            began = time.perf_counter()
            MAIN_TASKS[name](engine, theta)
            seconds[name] = time.perf_counter() - began
    return {"first_call_seconds": seconds, "peak_megabytes": peak_bytes() / 1e6}


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    probes = {"scaling": scaling, "compilation": compilation, "larger": larger}
    answer = probes[asked.pop("probe")](**asked)
    sys.stdout.write(json.dumps(answer) + "\n")
