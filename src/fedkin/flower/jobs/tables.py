"""Learning from tables: every node has its own, and the center validates on another (`docs/tables.md`).

The nodes describe their tables (counts, means, categories). The center derives one transformation from
all descriptions and sends it with the request to join; each node transforms its own rows. The result
directory is that of `fedkin fit`.
"""

import hashlib
import json
import math
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, PositiveInt, ValidationError

from fedkin.data.preprocessing import (
    Preprocessing,
    Quantity,
    merge_summaries,
    transform,
    transform_label,
)
from fedkin.data.summaries import TableSummary
from fedkin.data.table_federation import Points
from fedkin.data.tables import Table
from fedkin.errors import FedkinError, InputError
from fedkin.events import Event, OnEvent, RunFailed, append_event, events_beside
from fedkin.federation.attended_exchange import FEWEST_NODES
from fedkin.flower.discovery import ConnectedNode, describe_nodes
from fedkin.flower.engine import FlowerFederation
from fedkin.flower.jobs.event_log import log_event
from fedkin.flower.jobs.options import FederationOptions
from fedkin.flower.joining import RunDescription
from fedkin.flower.messenger import Messenger
from fedkin.flower.node_settings import TableDescription
from fedkin.messages import suggestion
from fedkin.methods.base import Method
from fedkin.methods.registry import make_method
from fedkin.models.named import model_for, named_model, takes_l2
from fedkin.models.objective import Objective
from fedkin.training.checkpoint import read_made_with
from fedkin.training.fit import make_result
from fedkin.training.problem import Engine, Problem
from fedkin.training.runner import Budget
from fedkin.training.table_result import score_tables, write_result


class TableJobKeys(TableDescription):
    """The keys of the job's file; those of `TableDescription` describe the center's own tables."""

    validation: Path
    """The center's own table, by which the weights are chosen."""
    test: Path | None = None
    model: str | None = None
    method: str = "bilevel"
    seed: int = Field(0, ge=0)
    batch_size: PositiveInt = 50
    steps: PositiveInt | None = None
    synchronizations: PositiveInt | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    """Parameters of the method, as in a study."""

    def digest(self, *more: Any) -> str:
        """Return a name that differs for different jobs (together with `more`)."""
        content = json.dumps([self.model_dump(mode="json"), *more], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class TableJob:
    """What to learn from the nodes' tables, and how to reach the nodes."""

    keys: TableJobKeys
    method: Method
    model: str
    """The model asked for, or the one of the task."""
    federation: FederationOptions

    def carry_out(self, messenger: Messenger, out: Path, *, resume: bool) -> None:
        """Learn, and write the result directory; report events to a file beside it."""
        events = events_beside(out)

        def report(event: Event) -> None:
            append_event(events, event)
            log_event(event)

        events.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._learn(messenger, out, resume=resume, report=report)
        except FedkinError as error:
            report(RunFailed(reason=str(error)))
            raise
        except Exception as error:
            # A fault of fedkin's own: keep the traceback for a report.
            reason = f"{type(error).__name__}: {error}"
            report(RunFailed(reason=reason, traceback=traceback.format_exc()))
            raise

    def _learn(self, messenger: Messenger, out: Path, *, resume: bool, report: OnEvent) -> None:
        """Learn, and write the result directory."""
        if (out / "weights.json").exists():
            raise InputError(f"{out} has a finished result: choose another directory")
        checkpoint = out.with_name(f"{out.name}.{self.keys.digest()}.checkpoint.npz")
        if resume and not checkpoint.exists():
            raise InputError(
                f"there is nothing to resume at {checkpoint}: the job has changed, or was stopped before "
                "its first step; start it without --resume"
            )
        if checkpoint.exists() and not resume:
            raise InputError(
                f"there is a checkpoint, {checkpoint}: continue with --resume, or delete it"
            )
        nodes, summaries = (
            self._known_nodes(messenger, checkpoint) if resume else self._all_nodes(messenger)
        )
        tables = _AgreedTables.agree(self.keys, summaries)
        keys = self.keys
        run = RunDescription(
            run=keys.digest(_as_json(summaries)),
            seed=keys.seed,
            batch_size=keys.batch_size,
            model=self.model,
            task=keys.task,
            classes=1 if tables.classes is None else len(tables.classes),
            preprocessing=tables.preprocessing,
        )
        problem = Problem.build(
            _engine(run, messenger, nodes, summaries),
            tables.validation,
            model=run.model,
            task=run.task,
            classes=tables.classes,
            batch_size=run.batch_size,
            seed=run.seed,
        )
        trained = problem.train(
            self.method,
            budget=Budget(keys.steps, keys.synchronizations),
            checkpoint=checkpoint,
            made_with={"nodes": _as_json(summaries), "tables": tables.digests()},
            on_event=report,
        )
        result = make_result(problem, trained)
        metrics = score_tables(result, tables.validation, tables.test, tables.preprocessing)
        write_result(out, result, tables.preprocessing, metrics, tables.rows)
        checkpoint.unlink(missing_ok=True)

    def _all_nodes(self, messenger: Messenger) -> "tuple[list[ConnectedNode], Summaries]":
        """Let all nodes describe their tables."""
        assert self.federation.nodes is not None
        nodes = describe_nodes(messenger, self.federation.nodes, self.federation.wait)
        return nodes, {node.name: _summary(node) for node in nodes}

    def _known_nodes(
        self, messenger: Messenger, checkpoint: Path
    ) -> "tuple[list[ConnectedNode], Summaries]":
        """Find the nodes with which the run began, or at least two of them."""
        try:
            content = (read_made_with(checkpoint) or {})["nodes"]
            summaries = {
                name: TableSummary.model_validate(summary) for name, summary in content.items()
            }
        except (KeyError, TypeError, AttributeError, ValidationError) as error:
            raise InputError(
                f"the checkpoint {checkpoint} is damaged or of another version: delete it to start again"
            ) from error
        enough = min(FEWEST_NODES, len(summaries))
        nodes = describe_nodes(messenger, len(summaries), self.federation.wait, enough)
        for node in nodes:
            if node.name not in summaries:
                raise InputError(
                    f"{node.name} is not among the nodes with which the job began "
                    f"({', '.join(summaries)}): stop it, or start again with another --out"
                )
            if _summary(node) != summaries[node.name]:
                raise InputError(
                    f"the table of {node.name} has changed since the job began: start again with another "
                    "--out"
                )
        return nodes, summaries


Summaries = dict[str, TableSummary]
"""The summaries of the nodes' tables, by name and in order."""


def _as_json(summaries: Summaries) -> dict[str, Any]:
    return {name: summary.model_dump(mode="json") for name, summary in summaries.items()}


@dataclass(frozen=True)
class _AgreedTables:
    """The center's own tables, transformed as agreed, and the number of rows of each node."""

    preprocessing: Preprocessing
    validation: Points
    test: Points | None
    rows: dict[str, int]

    @classmethod
    def agree(cls, keys: TableJobKeys, summaries: Summaries) -> "_AgreedTables":
        validation = keys.read(keys.validation, "the validation table")
        test = None if keys.test is None else keys.read(keys.test, "the test table")
        assert keys.label is not None
        preprocessing = merge_summaries(
            summaries,
            keys.summarize(validation),
            None if test is None else keys.summarize(test),
            keys.label,
            keys.missing,
        )

        def points(table: Table) -> Points:
            return Points(transform(table, preprocessing), transform_label(table, preprocessing))

        return cls(
            preprocessing,
            points(validation),
            None if test is None else points(test),
            {name: summary.rows for name, summary in summaries.items()},
        )

    def digests(self) -> dict[str, str]:
        """Return a digest of each of the center's own tables."""
        own = {"validation": self.validation, "test": self.test}
        return {
            name: hashlib.sha256(b"".join(array.tobytes() for array in points)).hexdigest()[:12]
            for name, points in own.items()
            if points is not None
        }

    @property
    def classes(self) -> np.ndarray | None:
        """The numbers of the classes; None for regression."""
        label = self.preprocessing.label
        return None if isinstance(label, Quantity) else np.arange(len(label.classes))


def _summary(node: ConnectedNode) -> TableSummary:
    try:
        return TableSummary.model_validate_json(node.summary)
    except ValidationError:
        raise InputError(
            f"{node.name} has no table: give it one (data = …), or leave it out"
        ) from None


def _engine(
    run: RunDescription, messenger: Messenger, nodes: list[ConnectedNode], summaries: Summaries
) -> Engine:
    """Return the engine that lets the nodes train on their own tables."""

    def engine(objective: Objective) -> FlowerFederation:
        return FlowerFederation(
            messenger,
            objective,
            list(summaries),
            nodes,
            run,
            # Includes nodes that are missing when the run is resumed.
            batches=max(math.ceil(each.rows / run.batch_size) for each in summaries.values()),
            summaries={name: each.model_dump_json() for name, each in summaries.items()},
        )

    return engine


def check_table_job(content: dict[str, Any], options: FederationOptions, path: Path) -> TableJob:
    """Check the keys of a job on tables; paths are relative to the job's file."""
    try:
        keys = TableJobKeys.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            names = [name.replace("_", "-") for name in TableJobKeys.model_fields]
            raise InputError(f"{path}: unknown key {place}{suggestion(place, names)}") from error
        raise InputError(f"{path}: {place}: {first['msg']}") from error
    if keys.label is None:
        raise InputError(f"{path}: name the label column (label = …)")
    if options.nodes is None:
        raise InputError(f"{path}: say how many nodes take part ([federation] nodes = …)")
    try:
        method = make_method(keys.method, keys.settings)
        method.check(options.nodes)
        model = model_for(keys.task, keys.model)
        if takes_l2(model):  # one of fedkin's own, which refuses at once what is not for tables
            named_model(model, keys.task, classes=2, point_shape=(1,))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    places = {"validation": path.parent / keys.validation}
    if keys.test is not None:
        places["test"] = path.parent / keys.test
    return TableJob(keys.model_copy(update=places), method, model, options)
