"""What trackers write, read back with the tools' own readers."""

import sqlite3
import sys
from importlib.util import find_spec

import numpy as np
import pytest

import fedkin
from fedkin.errors import InputError
from fedkin.events import RunFailed, RunFinished, RunStarted, StepDone, Warned
from fedkin.tracking.base import Tracker

# MLflow and TensorBoard warn about their own dependencies.
pytestmark = pytest.mark.filterwarnings("ignore")

needs_mlflow = pytest.mark.skipif(find_spec("mlflow") is None, reason="needs the extra mlflow")
needs_tensorboard = pytest.mark.skipif(
    find_spec("tensorboardX") is None or find_spec("tensorboard") is None,
    reason="needs the extra tensorboard, and TensorBoard to read it",
)
NODES = ("north", "../süd 1", "a|b")


def started(run="", **changes):
    parameters = {"cap": 0.5, "solver": {"damping": 1.0, "start": None}}
    plan = {"method": "bilevel", "nodes": NODES, "parameters": parameters, "time": 1_700_000_000.0}
    return RunStarted(run=run, **(plan | changes))


def step(number, run="", **changes):
    fields = {
        "synchronizations": 10 * number,
        "seconds": 1.5 * number,
        "bytes_up": 100 * number,
        "bytes_down": 200 * number,
        "validation_loss": 1 / number,
        "validation_accuracy": 0.75,
        "weights": (0.5, 0.25, 0.25),
        "absent": ("north",) if number == 2 else (),
        "time": 1_700_000_000.0 + number,
    }
    return StepDone(run=run, step=number, **(fields | changes))


STEP_2 = {
    "synchronizations": 20,
    "seconds": 3.0,
    "bytes_up": 200,
    "bytes_down": 400,
    "validation_loss": 0.5,
    "validation_accuracy": 0.75,
    "missing_nodes": 1,
    "weight/north": 0.5,
    "weight/___süd_1": 0.25,
    "weight/a_b": 0.25,
}


def mlflow_runs(directory, experiment="fedkin"):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{directory}/mlflow.db")
    known = client.get_experiment_by_name(experiment)
    return client, client.search_runs([known.experiment_id], order_by=["attributes.start_time"])


@needs_mlflow
def test_mlflow_gets_parameters_steps_and_the_end(tmp_path):
    with fedkin.MLflowTracker(tmp_path / "store", run_name="own") as tracker:
        for event in (
            started(),
            step(1),
            step(2, test_accuracy=float("nan")),
            Warned(message="south did not answer"),
            Warned(message="south did not answer"),
            RunFinished(stopped="converged"),
        ):
            tracker(event)
    client, (run,) = mlflow_runs(tmp_path / "store")
    assert run.info.run_name == "own"
    assert run.info.status == "FINISHED"
    assert run.info.start_time == 1_700_000_000_000
    assert run.data.params == {
        "method": "bilevel",
        "nodes": "3",
        "cap": "0.5",
        "solver.damping": "1.0",
    }
    assert run.data.metrics == STEP_2
    history = client.get_metric_history(run.info.run_id, "validation_loss")
    assert [(each.step, each.value) for each in history] == [(1, 1.0), (2, 0.5)]
    assert [each.timestamp for each in history] == [1_700_000_001_000, 1_700_000_002_000]
    assert run.data.tags["fedkin.stopped"] == "converged"
    assert run.data.tags["fedkin.warnings"] == "south did not answer"
    assert run.data.tags["fedkin.version"] == fedkin.__version__


@needs_mlflow
def test_mlflow_continues_a_run_that_is_resumed(tmp_path):
    with fedkin.MLflowTracker(tmp_path) as tracker:
        for event in (started("a"), step(1, "a"), started("b"), step(1, "b")):
            tracker(event)
    _, runs = mlflow_runs(tmp_path)
    assert {(run.info.run_name, run.info.status) for run in runs} == {
        ("a", "KILLED"),
        ("b", "KILLED"),
    }
    with fedkin.MLflowTracker(tmp_path) as tracker:
        for event in (
            started("a", resumed_after=1),
            step(2, "a"),
            RunFinished(run="a", stopped="converged"),
            started("b"),
            RunFailed(run="b", reason="diverged"),
        ):
            tracker(event)
    client, runs = mlflow_runs(tmp_path)
    states = sorted((run.info.run_name, run.info.status) for run in runs)
    assert states == [("a", "FINISHED"), ("b", "FAILED"), ("b", "KILLED")]
    (continued,) = [run for run in runs if run.info.run_name == "a"]
    history = client.get_metric_history(continued.info.run_id, "validation_loss")
    assert [each.step for each in history] == [1, 2]


@needs_mlflow
def test_mlflow_writes_nowhere_else_and_reports_to_nobody(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with fedkin.MLflowTracker("store") as tracker:
        tracker(started())
        tracker(step(1))
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    from mlflow.telemetry.utils import is_telemetry_disabled

    assert is_telemetry_disabled()


@needs_mlflow
def test_stores_of_mlflow_that_cannot_be_used(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot make the directory"):
        fedkin.MLflowTracker(tmp_path / "file")
    with pytest.raises(InputError, match="cannot use the MLflow store nonsense://x"):
        fedkin.MLflowTracker("nonsense://x")
    with pytest.raises(InputError, match=r"cannot use the MLflow store http://127.0.0.1:1\b"):
        fedkin.MLflowTracker("http://127.0.0.1:1")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "mlflow.db").write_bytes(b"no database" * 1000)
    with pytest.raises(InputError, match="cannot use the MLflow store sqlite"):
        fedkin.MLflowTracker(tmp_path / "damaged")
    fedkin.MLflowTracker(tmp_path / "store").close()
    client, _ = mlflow_runs(tmp_path / "store")
    client.delete_experiment(client.get_experiment_by_name("fedkin").experiment_id)
    with pytest.raises(InputError, match=r"the experiment fedkin .* was deleted"):
        fedkin.MLflowTracker(tmp_path / "store")


def tensorboard_run(directory):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(directory), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    scalars = {
        name: [(each.step, each.value) for each in accumulator.Scalars(name)]
        for name in accumulator.Tags()["scalars"]
    }
    texts = {
        name.removesuffix("/text_summary"): [
            value.decode()
            for each in accumulator.Tensors(name)
            for value in each.tensor_proto.string_val
        ]
        for name in accumulator.Tags()["tensors"]
    }
    return scalars, texts


@needs_tensorboard
def test_tensorboard_gets_parameters_steps_and_the_end(tmp_path):
    with fedkin.TensorBoardTracker(tmp_path / "logs") as tracker:
        for event in (
            started(),
            step(1),
            step(2, test_accuracy=float("nan")),
            Warned(message="south did not answer"),
            RunFinished(stopped="converged"),
        ):
            tracker(event)
    scalars, texts = tensorboard_run(tmp_path / "logs")
    assert {name: values[-1] for name, values in scalars.items()} == {
        name: (2, value) for name, value in STEP_2.items()
    }
    assert scalars["validation_loss"] == [(1, 1.0), (2, 0.5)]
    assert texts["warnings"] == ["south did not answer"]
    assert texts["stopped"] == ["converged"]
    (parameters,) = texts["parameters"]
    assert "| solver.damping | 1.0 |" in parameters


@needs_tensorboard
def test_tensorboard_forgets_what_is_done_again(tmp_path):
    for resumed, steps in ((None, (1, 2, 3)), (1, (2,)), (None, (1,))):
        with fedkin.TensorBoardTracker(tmp_path) as tracker:
            tracker(started("a", resumed_after=resumed))
            for number in steps:
                tracker(step(number, "a", validation_loss=float(number)))
        seen = {None: list(steps), 1: [1, 2]}[resumed]
        assert [each for each, _ in tensorboard_run(tmp_path / "a")[0]["seconds"]] == seen


@needs_tensorboard
def test_names_of_runs_stay_within_the_directory(tmp_path):
    with fedkin.TensorBoardTracker(tmp_path / "logs") as tracker:
        for name in ("bilevel: a", "../../b", "..", "/c", "bilevel/ a"):
            tracker(started(name))
            tracker(step(1, name))
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]
    names = {path.name for path in (tmp_path / "logs").iterdir()}
    assert names == {"bilevel__a", "______b", "__", "_c", "bilevel__a-2"}


class Broken(Tracker):
    title = "Broken"

    def __init__(self):
        super().__init__()
        self.seen = 0

    def track(self, event):
        self.seen += 1
        if self.seen == 2:
            raise RuntimeError("the server is gone")

    def finish(self):
        raise AssertionError("nothing is left to finish")


@pytest.fixture
def nodes():
    random = np.random.default_rng(0)
    x = random.normal(size=(3, 40, 2))
    return {name: (x[k], (x[k, :, 0] > 0).astype(int)) for k, name in enumerate("abc")}


@pytest.mark.filterwarnings("error")
def test_a_tracker_that_fails_warns_once_and_the_run_continues(nodes):
    tracker = Broken()
    with pytest.warns(UserWarning, match="Broken no longer gets what the run reports: the server"):
        fedkin.fit(nodes, nodes["a"], method="fedavg", steps=4, on_event=tracker)
    assert tracker.seen == 2
    assert tracker.failure == "the server is gone"
    tracker.close()


@needs_mlflow
def test_a_database_that_breaks_does_not_end_a_fit(nodes, tmp_path):
    tracker = fedkin.MLflowTracker(tmp_path)
    said = []
    tracker.on_failure = said.append

    def break_it(event):
        tracker(event)
        if isinstance(event, StepDone) and event.step == 1:
            with sqlite3.connect(tmp_path / "mlflow.db") as database:
                database.execute("drop table metrics")
            database.close()

    result = fedkin.fit(nodes, nodes["a"], method="fedavg", steps=3, on_event=break_it)
    tracker.close()
    assert len(result.history) == 3
    assert len(said) == 1
    assert "metrics" in said[0]


@pytest.mark.parametrize(
    ("make", "module", "extra"),
    [
        (fedkin.MLflowTracker, "mlflow", "mlflow"),
        (fedkin.MLflowTracker, "sqlalchemy", "mlflow"),
        (fedkin.TensorBoardTracker, "tensorboardX", "tensorboard"),
    ],
)
def test_an_extra_that_is_missing_is_named(tmp_path, monkeypatch, make, module, extra):
    def find(name):
        return None if name == module else find_spec(name)

    monkeypatch.setattr(sys.modules[make.__module__], "find_spec", find)
    if module == "sqlalchemy" and find_spec("mlflow") is None:
        pytest.skip("needs the extra mlflow")
    with pytest.raises(InputError, match=rf"needs {module}.*pip install 'fedkin\[{extra}\]'"):
        make(tmp_path)
