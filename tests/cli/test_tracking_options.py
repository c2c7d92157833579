"""`--mlflow` and `--tensorboard` of `fedkin run` and `fedkin fit`."""

import numpy as np
import pandas as pd
import pytest

pytestmark = pytest.mark.filterwarnings("ignore")

pytest.importorskip("mlflow", reason="needs the extra mlflow")
pytest.importorskip("tensorboardX", reason="needs the extra tensorboard")
accumulators = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator", reason="needs TensorBoard"
)

STUDY = (
    'dataset = "digits"\nsetting = 2\nmethod = ["fedavg", "local"]\nmodel = "logistic"\nsteps = 2\n'
    "test_size = 50\ntrain_size = 30\n[settings]\nrounds = 2\n"
)
BOTH = ["--mlflow", "store", "--tensorboard", "logs"]


def runs_in_mlflow(directory, experiment):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{directory}/store/mlflow.db")
    known = client.get_experiment_by_name(experiment)
    return client.search_runs([known.experiment_id])


def scalars(directory):
    accumulator = accumulators.EventAccumulator(directory)
    accumulator.Reload()
    return {name: accumulator.Scalars(name) for name in accumulator.Tags()["scalars"]}


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_study_is_an_experiment_with_a_run_each(command, tmp_path, jobs):
    (tmp_path / "study.toml").write_text(STUDY)
    answer = command("run", "study.toml", "--out", "digits", "--jobs", jobs, *BOTH)
    assert answer.status == 0, answer.err
    runs = {run.data.params["method"]: run for run in runs_in_mlflow(tmp_path, "digits")}
    assert set(runs) == {"fedavg", "local"}
    names = {path.name for path in (tmp_path / "digits" / "runs").iterdir()}
    assert {run.info.run_name for run in runs.values()} == names
    assert {path.name for path in (tmp_path / "logs").iterdir()} == names
    run = runs["fedavg"]
    assert run.info.status == "FINISHED"
    asked = {"dataset": "digits", "setting": "2", "seed": "0", "model": "logistic"}
    assert asked.items() <= run.data.params.items()
    history = pd.read_parquet(tmp_path / "digits" / "runs" / run.info.run_name / "history.parquet")
    for name in ("validation_loss", "test_accuracy", "synchronizations"):
        assert run.data.metrics[name] == history[name].iloc[-1]
        shown = scalars(f"logs/{run.info.run_name}")[name]
        assert [each.value for each in shown] == pytest.approx(history[name].tolist(), rel=1e-6)
    weights = [each for each in history if each.startswith("weight ")]
    assert len([name for name in run.data.metrics if name.startswith("weight/")]) == len(weights)


def test_a_run_that_fails_fails_in_mlflow_too(command, tmp_path):
    bad = STUDY.replace('["fedavg", "local"]', '"fedavg"') + "learning_rate = 1e30\n"
    (tmp_path / "study.toml").write_text(bad)
    answer = command("run", "study.toml", "--out", "digits", "--mlflow", "store")
    assert answer.status == 2
    (run,) = runs_in_mlflow(tmp_path, "digits")
    assert run.info.status == "FAILED"
    assert run.data.tags["fedkin.stopped"] in answer.err


def test_a_fit_is_a_run_of_its_own_name(command, tmp_path):
    random = np.random.default_rng(0)
    for name in ("a", "b", "own"):
        x = random.normal(size=40)
        table = pd.DataFrame({"x": x, "y": x + random.normal(size=40)})
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    files = ["--node", "a.csv", "--node", "b.csv", "--validation", "own.csv", "--label", "y"]
    answer = command("fit", *files, "--task", "regression", "--out", "result", *BOTH)
    assert answer.status == 0, answer.err
    (run,) = runs_in_mlflow(tmp_path, "fedkin")
    assert (run.info.run_name, run.info.status) == ("result", "FINISHED")
    assert run.data.params["method"] == "bilevel"
    last = pd.read_csv(tmp_path / "result" / "history.csv").iloc[-1]
    assert run.data.metrics["validation_loss"] == pytest.approx(last.validation_loss, rel=1e-12)
    assert run.data.metrics["weight/a"] == pytest.approx(last["weight a"], rel=1e-12)
    assert scalars("logs")["weight/a"][-1].value == pytest.approx(last["weight a"], rel=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--mlflow", "file"], "cannot make the directory file for MLflow"),
        (["--mlflow", "nonsense://x"], "cannot use the MLflow store nonsense://x"),
        (["--tensorboard", "file"], "cannot make the directory file for TensorBoard"),
        (["--tensorbord", "logs"], "--tensorboard"),
        (["--mlflow"], "--mlflow"),
    ],
)
def test_mistakes(refused, tmp_path, options, message):
    (tmp_path / "file").write_text("")
    (tmp_path / "study.toml").write_text(STUDY)
    assert message in refused("run", "study.toml", "--out", "out", *options)
    assert not (tmp_path / "out").exists()
