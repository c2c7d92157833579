"""docs/pytorch.md: a factory of modules in a study, in a simulation and over Flower."""

import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fedkin.errors import FedkinError
from fedkin.flower.jobs.study import FlowerEngines
from fedkin.flower.messenger import Messenger
from fedkin.models.named import named_model
from fedkin.models.objective import Objective
from fedkin.studies.cell import do_run
from fedkin.studies.config import RunConfig
from fedkin.studies.store import RunDirectory
from fedkin.training.keys import initial_model_key
from flower.fake_grid import FakeGrid

torch.set_num_threads(1)  # two workers run the tests on two cores

PAGE = Path(__file__).parents[1] / "docs" / "pytorch.md"
NAME = "digit_net:make"


@pytest.fixture
def example(tmp_path, monkeypatch):
    """The page's factory in a directory that can be imported from."""
    ((name, content),) = re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE.read_text(), re.S)
    (tmp_path / f"{name}.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop(name, None)


def run(seed=0):
    return RunConfig(
        dataset="digits",
        setting=2,
        method="bilevel",
        model=NAME,
        minority_nodes=1,
        majority_nodes=2,
        steps=3,
        seed=seed,
        settings={"period": 3},
    )


def grid(**more):
    names = ("minority-1", "majority-1", "majority-2")
    common = {"data": "digits", "setting": 2, "minority-nodes": 1, "majority-nodes": 2}
    common["reproducible"] = True
    return FakeGrid([{"name": name, **common, **more} for name in names])


def history(parent, config):
    path = RunDirectory(parent, config).path / "history.parquet"
    return pd.read_parquet(path).drop(columns="seconds")


def test_runs_repeat_and_flower_gives_the_same(example):
    for way in ("first", "second"):
        do_run(run(), example / way)
    expected = history(example / "first", run())
    pd.testing.assert_frame_equal(history(example / "second", run()), expected)
    engine = FlowerEngines(Messenger(grid(models=NAME), interval=0.0), 5.0, plain_sums=True)
    do_run(run(), example / "flower", engine=engine)
    pd.testing.assert_frame_equal(history(example / "flower", run()), expected, rtol=1e-5)
    assert expected.validation_loss.is_monotonic_decreasing


def test_a_node_trains_no_module_that_its_owner_has_not_named(example):
    engine = FlowerEngines(Messenger(grid(), interval=0.0), 0.1, plain_sums=True)
    with pytest.raises(FedkinError, match=f"there is no model '{NAME}' on this node"):
        do_run(run(), example / "flower", engine=engine)


def test_the_seed_decides_where_training_starts(example):
    images = np.zeros((2, 8, 8, 1), np.uint8)
    starts = [
        Objective.create(named_model(NAME, "classification", 10, (8, 8, 1)), images).start(
            initial_model_key(seed)
        )
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(starts[0], starts[1])
    assert np.abs(np.asarray(starts[0] - starts[2])).max() > 0.01
