"""Learning from tables: each node has its own, the center the one that judges (`docs/tables.md`).

The nodes describe their tables (counts, means, categories), the center makes one transformation of all
descriptions and sends it with the request to join; each node transforms its own rows. What `fedkin fit`
writes is written here too.
"""

import hashlib
import json
import logging
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from pydantic import Field, PositiveInt, ValidationError

from fedkin.cli.fit import ModelName, TaskName, model_for, save, score
from fedkin.data.preprocessing import (
    Preprocessing,
    Quantity,
    merge_summaries,
    transform,
    transform_label,
)
from fedkin.data.summaries import TableSummary
from fedkin.data.table_federation import TableFederation
from fedkin.data.tables import Table
from fedkin.errors import InputError
from fedkin.federation.attendance import FEWEST_NODES
from fedkin.federation.center import Center
from fedkin.flower.engine import (
    Description,
    FlowerFederation,
    RunDescription,
    describe_nodes,
)
from fedkin.flower.jobs.options import FederationOptions
from fedkin.flower.node_settings import TableDescription
from fedkin.flower.post import Post
from fedkin.models.base import LinearModel
from fedkin.models.named import named_model
from fedkin.models.objective import Objective
from fedkin.studies.config import suggestion
from fedkin.studies.store import versions
from fedkin.training import method_settings as methods
from fedkin.training.checkpoint import (
    chosen_learning_rate,
    load_checkpoint,
    read_made_with,
    save_checkpoint,
)
from fedkin.training.fit import make_result
from fedkin.training.method_settings import MethodName, MethodSettings
from fedkin.training.runner import Budget, RunState, begin, run
from fedkin.types import Points

logger = logging.getLogger(__name__)


class TableJobKeys(TableDescription):
    """The keys of the job's file; those of `TableDescription` are about the center's own tables."""

    validation: Path
    """The center's own table, the one that judges."""
    test: Path | None = None
    model: ModelName | None = None
    method: MethodName = "bilevel"
    seed: int = Field(0, ge=0)
    batch_size: PositiveInt = 50
    steps: PositiveInt = 50
    synchronizations: PositiveInt | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    """Parameters of the method, as in a study."""

    def digest(self, *more: Any) -> str:
        """Return a name that tells the job, or the job with something more, from others."""
        content = json.dumps([self.model_dump(mode="json"), *more], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class TableJob:
    """What to learn from the nodes' tables, and how to reach the nodes."""

    keys: TableJobKeys
    settings: MethodSettings
    federation: FederationOptions

    def carry_out(self, post: Post, out: Path, *, resume: bool) -> None:
        """Learn, and write the result directory."""
        if (out / "weights.json").exists():
            raise InputError(f"{out} holds a finished result: choose another directory")
        checkpoint = out.with_name(f"{out.name}.{self.keys.digest()}.checkpoint.npz")
        if resume and not checkpoint.exists():
            raise InputError(
                f"there is nothing to resume at {checkpoint}: the job is another, or was stopped before "
                "its first step; begin it without --resume"
            )
        if checkpoint.exists() and not resume:
            raise InputError(
                f"there is a checkpoint, {checkpoint}: go on with --resume, or delete it"
            )
        nodes, summaries = self._resumed(post, checkpoint) if resume else self._new(post)
        logger.info("nodes: %s", ", ".join(node.name for node in nodes))
        tables = _Tables.agree(self.keys, summaries)
        scene = _Scene.set_up(self, post, nodes, summaries, tables)
        state = scene.train(
            self, checkpoint, {"nodes": _contents(summaries), "tables": tables.digests()}
        )
        _write(self, scene, state, tables, out)
        checkpoint.unlink(missing_ok=True)

    def _new(self, post: Post) -> "tuple[list[Description], Summaries]":
        """Let all nodes say what their tables are like."""
        assert self.federation.nodes is not None
        nodes = describe_nodes(post, self.federation.nodes, self.federation.wait)
        return nodes, {node.name: _summary(node) for node in nodes}

    def _resumed(self, post: Post, checkpoint: Path) -> "tuple[list[Description], Summaries]":
        """Find the nodes that the run was begun with, or at least two of them."""
        try:
            content = (read_made_with(checkpoint) or {})["nodes"]
            summaries = {
                name: TableSummary.model_validate(summary) for name, summary in content.items()
            }
        except (KeyError, TypeError, AttributeError, ValidationError) as error:
            raise InputError(
                f"the checkpoint {checkpoint} is damaged or of another version: delete it to begin anew"
            ) from error
        enough = min(FEWEST_NODES, len(summaries))
        nodes = describe_nodes(post, len(summaries), self.federation.wait, enough)
        for node in nodes:
            if node.name not in summaries:
                raise InputError(
                    f"{node.name} is not among the nodes that the job was begun with "
                    f"({', '.join(summaries)}): stop it, or begin anew with another --out"
                )
            if _summary(node) != summaries[node.name]:
                raise InputError(
                    f"the table of {node.name} is not the one that the job was begun with: begin anew "
                    "with another --out"
                )
        return nodes, summaries


Summaries = dict[str, TableSummary]
"""What the nodes have said of their tables, by their names in order."""


def _contents(summaries: Summaries) -> dict[str, Any]:
    return {name: summary.model_dump(mode="json") for name, summary in summaries.items()}


@dataclass(frozen=True)
class _Tables:
    """The center's own tables as the nodes have agreed, and how many rows each node has."""

    preprocessing: Preprocessing
    validation: Points
    test: Points | None
    rows: dict[str, int]

    @classmethod
    def agree(cls, keys: TableJobKeys, summaries: Summaries) -> "_Tables":
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
        """Tell the center's own tables from others."""
        own = {"validation": self.validation, "test": self.test}
        return {
            name: hashlib.sha256(b"".join(array.tobytes() for array in points)).hexdigest()[:12]
            for name, points in own.items()
            if points is not None
        }

    @property
    def classes(self) -> np.ndarray | None:
        """The numbers of the classes; None in regression."""
        label = self.preprocessing.label
        return None if isinstance(label, Quantity) else np.arange(len(label.classes))


def _summary(node: Description) -> TableSummary:
    try:
        return TableSummary.model_validate_json(node.summary)
    except ValidationError:
        raise InputError(
            f"{node.name} holds no table: give it one (data = …), or leave it out"
        ) from None


@dataclass(frozen=True)
class _Scene:
    """Everything that the training plays with."""

    objective: Objective
    federation: FlowerFederation
    center: Center

    @classmethod
    def set_up(
        cls,
        job: TableJob,
        post: Post,
        nodes: list[Description],
        summaries: Summaries,
        tables: _Tables,
    ) -> "_Scene":
        keys = job.keys
        name = model_for(TaskName(keys.task), keys.model)
        classes = 1 if tables.classes is None else len(tables.classes)
        features, labels = tables.validation
        model = named_model(name, keys.task, classes, features.shape[1:])
        prepared = np.asarray(model.prepare(jnp.asarray(features)))
        objective = Objective.create(model, jnp.asarray(prepared[:2]))
        names = list(tables.rows)
        federation = FlowerFederation(
            post,
            objective,
            names,
            nodes,
            RunDescription(
                run=keys.digest(_contents(summaries)),
                seed=keys.seed,
                batch_size=keys.batch_size,
                model=name,
                task=keys.task,
                classes=classes,
                preprocessing=tables.preprocessing,
            ),
            # Also of nodes that are not there when the run is resumed.
            batches=max(math.ceil(rows / keys.batch_size) for rows in tables.rows.values()),
            summaries={name: each.model_dump_json() for name, each in summaries.items()},
        )
        center = Center(objective, prepared, labels, batch_size=keys.batch_size, seed=keys.seed)
        return cls(objective, federation, center)

    def train(self, job: TableJob, checkpoint: Path, data: dict[str, Any]) -> RunState:
        """Run the method, or go on from its checkpoint, if that was made with the same data."""
        keys, settings = job.keys, job.settings
        if settings.learning_rate is None:
            settings = replace(settings, learning_rate=chosen_learning_rate(checkpoint))
        algorithm, cost = methods.build(
            keys.method,
            settings,
            self.federation,
            self.center,
            methods.building_key(keys.seed),
        )
        theta = self.objective.init(methods.initial_model_key(keys.seed))
        state = begin(algorithm, self.federation, theta, cost)
        parameters = methods.parameters(algorithm)
        made_with = {"parameters": parameters, "versions": versions(), **data}
        if checkpoint.exists():
            load_checkpoint(checkpoint, state, self.federation, self.center, made_with)
            logger.info("resumed after step %d", len(state.history))
        checkpoint.parent.mkdir(parents=True, exist_ok=True)

        def record(state: RunState) -> None:
            save_checkpoint(checkpoint, state, self.federation, self.center, made_with)
            last = state.history[-1]
            logger.info(
                "step %d: %d synchronizations, validation loss %.4f",
                last.step,
                last.cost.synchronizations,
                last.validation.loss,
            )

        converges = job.settings.preset == "automatic" and isinstance(
            self.objective.model, LinearModel
        )
        personal = keys.method in methods.DEFAULT_PROXIMAL
        run(
            algorithm,
            self.federation,
            self.center,
            state,
            methods.training_key(keys.seed),
            budget=Budget(keys.steps, keys.synchronizations),
            keep="last" if converges and not personal else "best",
            after_step=record,
        )
        return state


def _write(job: TableJob, scene: _Scene, state: RunState, tables: _Tables, out: Path) -> None:
    result = make_result(
        job.keys.method,
        state,
        scene.federation.names,
        tables.classes,
        scene.objective,
        scene.center,
        tables.validation.inputs.shape[1:],
    )
    metrics = {"validation": score(result, tables.validation, tables.preprocessing)}
    if tables.test is not None:
        metrics["test"] = score(result, tables.test, tables.preprocessing)
    for warning in result.warnings:
        logger.warning("%s", warning)
    # Of the nodes' tables nothing but the transformation is known here.
    federation = TableFederation({}, tables.validation, tables.test, tables.preprocessing)
    save(out, result, federation, metrics, tables.rows)
    logger.info("written to %s; %s", out, result.stopped)


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
        settings = MethodSettings(**keys.settings)
        methods.check(keys.method, settings, options.nodes)
    except (TypeError, InputError) as error:
        raise InputError(f"{path}: settings: {error}") from error
    model_for(TaskName(keys.task), keys.model)
    places = {"validation": path.parent / keys.validation}
    if keys.test is not None:
        places["test"] = path.parent / keys.test
    return TableJob(keys.model_copy(update=places), settings, options)
