"""The engine against the simulation, with messages that go through bytes but not through processes."""

import pytest

from fedkin.experiments.cell import run_cell
from fedkin.federation.flower.post import Post
from flower.fake_grid import FakeGrid
from flower.trials import CASES, NAMES, assert_same, config, engine, outcome, settings

# A network takes long to compile: the other methods with it are left to `make flower`.
EVERY_METHOD = [
    *(pytest.param(case, "logistic", 1e-5) for case in CASES),
    *(
        pytest.param(case, "cnn", 1e-3, marks=[] if case == "bilevel-cg" else pytest.mark.flower)
        for case in CASES
    ),
]


@pytest.mark.parametrize(("case", "model", "tolerance"), EVERY_METHOD)
def test_every_method_gives_what_the_simulation_gives(case, model, tolerance, tmp_path):
    run = config(case, model)
    grid = FakeGrid([settings(name) for name in NAMES])
    run_cell(run, tmp_path / "flower", engine=engine(Post(grid)))
    run_cell(run, tmp_path / "simulated")
    flower, simulated = (outcome(tmp_path / place, run) for place in ("flower", "simulated"))
    assert_same(flower, simulated, tolerance)
