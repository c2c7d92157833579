"""docs/extend.md: every example on the page is complete and works everywhere it says."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedkin
from fedkin.flower.jobs.study import FlowerEngines
from fedkin.flower.messenger import Messenger
from fedkin.methods.bilevel.hypergradient import SOLVERS
from fedkin.methods.registry import METHODS
from fedkin.models.named import MODELS
from fedkin.report import figures
from fedkin.studies.cell import do_run
from fedkin.studies.config import RunConfig
from fedkin.studies.store import RunDirectory
from flower.fake_grid import FakeGrid

PAGE = Path(__file__).parents[1] / "docs" / "extend.md"


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    """The page's files in a directory that can be imported from; afterwards nothing of them is known."""
    directory = tmp_path_factory.mktemp("examples")
    blocks = re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE.read_text(), flags=re.S)
    names = [name for name, _ in blocks]
    for name, content in blocks:
        (directory / f"{name}.py").write_text(content)
    kept = [(each, dict(each._things)) for each in (METHODS, SOLVERS, MODELS, figures.FIGURES)]
    sys.path.insert(0, str(directory))
    yield directory
    sys.path.remove(str(directory))
    for registry, things in kept:
        registry._things = things
    for name in names:
        sys.modules.pop(name, None)


def node(draw, sign, rows=60):
    inputs = draw.normal(size=(rows, 2))
    return inputs, (sign * inputs[:, 0] > 0).astype(int)


@pytest.fixture
def data():
    draw = np.random.default_rng(0)
    nodes = {"north": node(draw, 1), "south": node(draw, 1), "west": node(draw, -1)}
    return nodes, node(draw, 1, 40)


def test_the_page_has_two_files_for_a_method(examples):
    assert {"fomo_node.py", "fomo.py"} <= {path.name for path in examples.glob("*.py")}


def test_fomo_leaves_a_node_that_makes_the_model_worse(examples, data):
    nodes, validation = data
    result = fedkin.fit(
        nodes, validation, method=importlib.import_module("fomo").FedFomo(), steps=4
    )
    assert result.method == "fomo"
    assert result.weights["west"] == 0
    assert (result.predict(validation[0]) == validation[1]).mean() > 0.9
    by_name = fedkin.fit(nodes, validation, method="fomo", steps=4)
    pd.testing.assert_frame_equal(
        result.history.drop(columns="seconds"), by_name.history.drop(columns="seconds")
    )


def test_a_method_that_needs_sums_only_weighs_by_the_root_of_the_rows(examples, data):
    nodes, validation = data
    nodes["south"] = node(np.random.default_rng(1), 1, rows=240)
    root_size = importlib.import_module("root_size").RootSize
    result = fedkin.fit(nodes, validation, method=root_size(), steps=4)
    assert result.weights == pytest.approx({"north": 0.25, "south": 0.5, "west": 0.25})
    assert result.history.synchronizations.iloc[-1] == 8


def test_a_task_that_does_not_count_its_evaluations_is_refused_with_a_reason(examples, data):
    from fedkin.federation.base import PerNode
    from fedkin.federation.task import Task

    def silent(objective, data, state, key, message):
        return state, {"rows": data.points.astype(float)}

    forgetful = Task("silent", silent, number_replies=("rows",))
    module = importlib.import_module("root_size")

    class Forgetful(module.RootSize):
        tasks = (forgetful,)

        def step(self, state, key, federation, center):
            federation.exchange(key=key, ask=PerNode(forgetful))

    with pytest.raises(
        fedkin.InputError, match="the task silent does not reply with 'evaluations'"
    ):
        fedkin.fit(*data, method=Forgetful(), steps=1)


STUDY = """
dataset = "digits"
setting = 2
method = ["bilevel", "fomo:FedFomo"]
model = "cosine_model:make"
minority_nodes = 2
majority_nodes = 2
steps = 2

[settings.bilevel]
solver = "richardson:Richardson"
solver_iterations = 3
adjoint_learning_rate = 0.2
period = 5
rounds = 2
"""


def test_method_solver_and_model_run_in_a_study_and_its_report(examples, tmp_path):
    (tmp_path / "study.toml").write_text(STUDY)
    environment = {"PYTHONPATH": f"{examples}:{Path(fedkin.__file__).parents[1]}"}

    def command(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "fedkin", *arguments],
            cwd=tmp_path,
            env=environment | {"PATH": "", "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    command("run", "study.toml", "--out", "out")
    command("report", "out")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "FedFomo" in page
    table = fedkin.results(tmp_path / "out")
    assert set(table.method) == {"bilevel", "fomo:FedFomo"}
    assert table.test_accuracy.notna().all()
    richardson = table[table.method == "bilevel"]
    # Two rounds of training, three products, one more for the slopes, each outer step.
    assert richardson.synchronizations.tolist() == [6, 12]


@pytest.mark.parametrize("method", ["fomo:FedFomo", "bilevel"])
def test_the_same_over_flower_in_memory(examples, tmp_path, method):
    solver = {"solver": "richardson:Richardson", "period": 5, "rounds": 2}
    config = RunConfig(
        dataset="digits",
        setting=2,
        method=method,
        model="cosine_model:make",
        minority_nodes=2,
        majority_nodes=2,
        steps=2,
        settings=solver if method == "bilevel" else {},
    )
    names = ("minority-1", "minority-2", "majority-1", "majority-2")
    grid = FakeGrid(
        [
            {
                "name": name,
                "data": "digits",
                "setting": 2,
                "minority-nodes": 2,
                "majority-nodes": 2,
                "methods": "fomo:FedFomo",
                "models": "cosine_model:make",
                "reveal": True,
                "reproducible": True,
            }
            for name in names
        ]
    )
    do_run(config, tmp_path / "simulated")
    do_run(
        config,
        tmp_path / "flower",
        engine=FlowerEngines(Messenger(grid, interval=0.0), 5.0, plain_sums=True),
    )
    histories = [
        pd.read_parquet(RunDirectory(tmp_path / way, config).path / "history.parquet").drop(
            columns="seconds"
        )
        for way in ("simulated", "flower")
    ]
    pd.testing.assert_frame_equal(*histories, rtol=1e-5)


def test_richardson_comes_near_conjugate_gradients(examples, data):
    nodes, validation = data
    richardson = importlib.import_module("richardson").Richardson
    long = fedkin.Bilevel(solver=richardson(step=1.0, iterations=200))
    exact = fedkin.Bilevel(solver=fedkin.ConjugateGradients(iterations=50))
    found, expected = (
        fedkin.fit(nodes, validation, method=method, l2=0.1, steps=2) for method in (long, exact)
    )
    assert found.weights == pytest.approx(expected.weights, abs=5e-3)


def test_the_engine_remembers_what_was_asked(examples):
    done = subprocess.run(
        [sys.executable, "use_recorder.py"],
        cwd=examples,
        env={
            "PYTHONPATH": str(Path(fedkin.__file__).parents[1]),
            "PATH": "",
            "HOME": str(examples),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "[['smoothness'], ['inner_svrg_round']]\n", done.stderr


def test_the_figure_is_written_with_the_others(examples, tmp_path):
    from fedkin.report.reading import read_record
    from stores import invent_study, study

    importlib.import_module("seconds_figure")
    invent_study(tmp_path / "out", study(seed=[0]))
    record = read_record(tmp_path / "out")
    written = {path.name for path in figures.save_figures(record, tmp_path, ["png"])}
    assert "accuracy-seconds.png" in written
