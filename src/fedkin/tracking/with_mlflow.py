"""Runs in MLflow: parameters, numbers of every step, and how a run ended."""

import os
import re
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedkin.errors import InputError
from fedkin.events import Event, RunFailed, RunFinished, RunStarted, StepDone, Warned
from fedkin.tracking.base import Tracker, distinct_names, flat, step_numbers
from fedkin.version import __version__

DATABASE = "mlflow.db"
ARTIFACTS = "artifacts"
RUN_TAG = "fedkin.run"
MOST_AT_ONCE = 100
"""The most parameters that MLflow takes in one request; of numbers it takes more."""
LONGEST_VALUE = 5000

DEFAULTS = {
    # A run reports to nobody but the store that was asked for.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # MLflow tries a server that is gone for many minutes, and training waits.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
}
"""Settings of MLflow that hold unless the environment has others."""


class MLflowTracker(Tracker):
    """Hands events on to MLflow: `fedkin.fit(…, on_event=fedkin.MLflowTracker("tracking"))`.

    Every run is a run in MLflow. A run that is resumed continues in the same one.

    Args:
        store: A directory, in which an SQLite database is made, or the address of a store or server as MLflow
            has it, such as `http://host:5000`.
        experiment: The name of the experiment.
        run_name: The name of a run that has none itself, as that of `fedkin.fit`.

    >>> import tempfile
    >>> import fedkin
    >>> nodes = {"north": ([[0.0], [1.0], [2.0]], [0, 1, 1]), "south": ([[0.5], [2.5]], [0, 1])}
    >>> with tempfile.TemporaryDirectory() as store, MLflowTracker(store) as tracker:
    ...     result = fedkin.fit(nodes, nodes["north"], minimum_rows=1, steps=2, on_event=tracker)
    ...     print(os.listdir(store))
    ['mlflow.db']
    """

    title = "MLflow"

    def __init__(
        self, store: str | Path, *, experiment: str = "fedkin", run_name: str | None = None
    ) -> None:
        super().__init__()
        self._uri, artifacts = _store_address(store)
        self._run_name = run_name
        self._ids: dict[str, str] = {}
        self._nodes: dict[str, list[str]] = {}
        self._warnings: dict[str, list[str]] = {}
        try:
            with warnings.catch_warnings():
                # What MLflow's own dependencies are about to change concerns nobody here.
                warnings.simplefilter("ignore", DeprecationWarning)
                self._client: Any = _client(self._uri)
                self._experiment = self._find_experiment(experiment, artifacts)
        except InputError:
            raise
        except Exception as error:
            # MLflow has exceptions of its own, of its servers and of its databases.
            reason = " ".join(str(error).split())[:300]
            raise InputError(f"cannot use the MLflow store {self._uri}: {reason}") from error

    def track(self, event: Event) -> None:
        """See `Tracker`."""
        match event:
            case RunStarted():
                self._start(event)
            case StepDone() if event.run in self._ids:
                self._log_step(event)
            case Warned() if event.run in self._ids:
                said = self._warnings.setdefault(event.run, [])
                if event.message not in said:
                    said.append(event.message)
                    text = "\n".join(said)[-LONGEST_VALUE:]
                    self._client.set_tag(self._ids[event.run], "fedkin.warnings", text)
            case RunFinished() if event.run in self._ids:
                self._end(event.run, "FINISHED", event.stopped)
            case RunFailed() if event.run in self._ids:
                self._end(event.run, "FAILED", event.reason)
            case _:
                pass

    def finish(self) -> None:
        """End the runs that were interrupted."""
        for run in list(self._ids):
            self._end(run, "KILLED", "interrupted")

    def _start(self, event: RunStarted) -> None:
        self._nodes[event.run] = distinct_names(event.nodes)
        if event.resumed_after is not None and (found := self._find_run(event.run)) is not None:
            self._ids[event.run] = found
            self._client.update_run(found, status="RUNNING")
            return
        made = self._client.create_run(
            self._experiment,
            start_time=int(event.time * 1000),
            run_name=event.run or self._run_name,
            tags={RUN_TAG: event.run, "fedkin.version": __version__},
        )
        self._ids[event.run] = made.info.run_id
        from mlflow.entities import Param

        known = {"method": event.method, "nodes": str(len(event.nodes)), **flat(event.parameters)}
        params = [
            Param(re.sub(r"[^\w.-]", "_", name)[:250], value[:LONGEST_VALUE])
            for name, value in known.items()
        ]
        for first in range(0, len(params), MOST_AT_ONCE):
            chosen = params[first : first + MOST_AT_ONCE]
            self._client.log_batch(made.info.run_id, params=chosen)

    def _log_step(self, event: StepDone) -> None:
        from mlflow.entities import Metric

        when = int(event.time * 1000)
        numbers = step_numbers(event, self._nodes[event.run])
        metrics = [Metric(name, value, when, event.step) for name, value in numbers.items()]
        for first in range(0, len(metrics), MOST_AT_ONCE):
            chosen = metrics[first : first + MOST_AT_ONCE]
            self._client.log_batch(self._ids[event.run], metrics=chosen)

    def _end(self, run: str, status: str, reason: str) -> None:
        found = self._ids.pop(run)
        self._client.set_tag(found, "fedkin.stopped", reason[:LONGEST_VALUE])
        self._client.set_terminated(found, status)

    def _find_experiment(self, name: str, artifacts: str | None) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is None:
            return self._client.create_experiment(name, artifact_location=artifacts)
        if found.lifecycle_stage != "active":
            raise InputError(
                f"the experiment {name} of the MLflow store {self._uri} was deleted: restore it, or choose "
                "another name"
            )
        return found.experiment_id

    def _find_run(self, run: str) -> str | None:
        """Return the newest run of this name in MLflow."""
        if "'" in run:
            return None  # MLflow's language of queries has no way to write it
        found = self._client.search_runs(
            [self._experiment],
            filter_string=f"tags.`{RUN_TAG}` = '{run}'",
            order_by=["attributes.start_time DESC"],
            max_results=1,
        )
        return found[0].info.run_id if found else None


def _client(uri: str) -> Any:
    for name in ("mlflow", *(("sqlalchemy", "alembic") if uri.startswith("sqlite") else ())):
        if find_spec(name) is None:
            raise InputError(
                f"tracking with MLflow needs {name}, which is not installed: pip install 'fedkin[mlflow]'"
            )
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def _store_address(store: str | Path) -> tuple[str, str | None]:
    """Return the address of a store, and where its files go; None is for the server to decide."""
    if isinstance(store, str) and re.match(r"[a-z][a-z0-9+.-]+:", store):
        return store, None
    directory = Path(store).resolve()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot make the directory {store} for MLflow: {error.strerror}; choose another one"
        ) from error
    return f"sqlite:///{directory / DATABASE}", (directory / ARTIFACTS).as_uri()
