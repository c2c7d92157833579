"""What only a process of its own can show: memory, compilation, and starting again.

`python -m fedkin.bench.probe '{"probe": "scaling", "nodes": 15, "points": 200}'` prints one JSON object.
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedkin.bench.problem import BATCH_SIZE, BenchProblem
from fedkin.compilation import keep_compiled_code
from fedkin.errors import FedkinError
from fedkin.federation.simulation import SimulatedFederation

PERIOD = 20
METHODS = {
    "inner": ("inner_svrg_round", {"steps": PERIOD, "reply": "point"}),
    "adjoint": ("adjoint_svrg_round", {"steps": PERIOD, "reply": "point"}),
    "ditto": ("ditto_shared_round", {"steps": PERIOD}),
    "pfedme": ("pfedme_round", {"steps": PERIOD, "iterations": 20, "reply": "shared"}),
}
"""The main tasks of the methods: FedAvg needs `inner`, Bi-level `inner` and `adjoint`. What the center
compiles for itself, its gradient and evaluation, is not among them."""


def probe(settings: dict[str, Any]) -> dict[str, Any]:
    """Run a probe in a process of its own and return its answer."""
    command = [sys.executable, "-m", "fedkin.bench.probe", json.dumps(settings)]
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    whole = time.perf_counter() - begin
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise FedkinError(f"the probe {settings} failed: {last}")
    return json.loads(done.stdout.splitlines()[-1]) | {"process_seconds": whole}


def scaling(nodes: int, points: int, seconds: float = 4.0) -> dict[str, Any]:
    """Time a node's SVRG step in a federation of many nodes, and measure the memory it takes.

    Without refreshes: how many of them a few nodes happen to draw would decide the comparison.
    """
    problem = BenchProblem("Fashion-MNIST", nodes=nodes, points=points)
    federation = problem.federation
    _call(problem, federation, "inner", start=True)
    times = []
    while not times or sum(times) < seconds:
        begin = time.perf_counter()
        _call(problem, federation, "inner", start=False)
        times.append(time.perf_counter() - begin)
    return {
        "nodes": nodes,
        "points": points,
        "node_step_microseconds": float(np.median(times)) / (nodes * PERIOD) * 1e6,
        "data_megabytes": nodes * points * int(np.prod(problem.model.image_shape)) / 1e6,
        "peak_megabytes": _peak_bytes() / 1e6,
    }


def _peak_bytes() -> int:
    """Return the most memory that this process has held."""
    status = Path("/proc/self/status")
    if status.exists():  # what `getrusage` says here includes the process that started this one
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(fields["VmHWM"].split()[0]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def compilation(network: str, cache: str, tasks: Sequence[str] = tuple(METHODS)) -> dict[str, Any]:
    """Time the first call of each main task; with a warm cache nothing is compiled."""
    keep_compiled_code(Path(cache))
    problem = BenchProblem(network, points=2 * BATCH_SIZE)
    federation = problem.federation
    seconds = {}
    for name in tasks:
        began = time.perf_counter()
        _call(problem, federation, name, start=name in ("inner", "adjoint"))
        seconds[name] = time.perf_counter() - began
    return {"seconds": seconds}


def _call(
    problem: BenchProblem, federation: SimulatedFederation, method: str, *, start: bool
) -> None:
    task, options = METHODS[method]
    theta = problem.theta
    svrg = {"point": theta, "refresh_probability": 0.0, "averaging_rate": 0.0}
    pull = {"shared": theta, "proximal": 10.0, "tolerance": 0.005}
    messages = {
        "inner": svrg,
        "adjoint": svrg | ({"theta": theta, "target": theta} if start else {}),
        "ditto": {"shared": theta},
        "pfedme": pull,
    }
    message = messages[method] | {"learning_rate": 0.01}
    federation.call(task, message, key=jax.random.key(0), start=start, **options)


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    answer = {"scaling": scaling, "compilation": compilation}[asked.pop("probe")](**asked)
    sys.stdout.write(json.dumps(answer) + "\n")
