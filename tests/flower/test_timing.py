"""What a synchronization takes, beside a bare Flower app with the same payload, in one run."""

import json
from pathlib import Path
from statistics import median

import pytest

from flower.processes import Processes, wait_until
from flower.trials import NAMES, settings


@pytest.mark.flower
def test_a_synchronization_takes_little_more_than_a_bare_one(tmp_path):
    processes = Processes(tmp_path)
    try:
        processes.start_superlink()
        for name in NAMES:
            processes.start_node(**settings(name))
        for number in range(3):
            processes.start_node(f"bare-{number}", bare=True, data="digits")
        times = tmp_path / "times.json"
        app = Path(__file__).parent / "ping_app"
        with processes.control() as link:
            link.start_run(app, {"out": str(times)})
        wait_until(times.exists, 1200, "the timing")
        taken = {name: median(seconds) for name, seconds in json.loads(times.read_text()).items()}
    finally:
        processes.stop()
    print(taken)  # noqa: T201
    assert taken["fedkin"] <= 1.3 * taken["flower"]
