"""Everyone's question over Flower: every node is an owner, and the center holds no data (`docs/everyone.md`).

Each node holds rows of its own table out (`validation-fraction` in its settings), and answers questions about
them with gradients and scores. The center runs the ordinary method for every node, with exchanges that all
share. The result directory is that of `fedkin map`.
"""

import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from pydantic import Field, ValidationError

from fedkin.data.preprocessing import Merged, Preprocessing, Quantity, merge_with_judges
from fedkin.data.summaries import TableSummary, TextSummary
from fedkin.errors import FedkinError, InputError
from fedkin.events import Event, OnEvent, Warned
from fedkin.federation.distant_center import DistantCenter
from fedkin.flower.discovery import ConnectedNode
from fedkin.flower.engine import FlowerFederation
from fedkin.flower.jobs.kept_runs import KeptRuns
from fedkin.flower.jobs.learning import LearningKeys, check_keys, read_keys, with_events
from fedkin.flower.jobs.options import (
    VALIDATION_FRACTION,
    FederationOptions,
    refuse_secure_owners,
)
from fedkin.flower.jobs.table_nodes import all_nodes, as_json, connect, known_nodes, summary_of
from fedkin.flower.joining import RunDescription
from fedkin.flower.messenger import Messenger
from fedkin.methods.base import Method
from fedkin.methods.registry import make_method
from fedkin.models.objective import Objective
from fedkin.training import map_directory
from fedkin.training.distant import DistantProblem, HeldOutRows
from fedkin.training.fit_all import make_collaboration
from fedkin.training.joint import JointRun
from fedkin.training.problem import Problem, TrainedRun, make_model
from fedkin.training.runner import Budget
from fedkin.training.table_result import Scores

Described = dict[str, dict[str, TableSummary]]
"""The summaries of each node's rows: those that it trains on, `validation` and perhaps `test`."""

TRAINED_ON = "summary"


class EveryoneJobKeys(LearningKeys):
    """The keys of the job's file; those of `TableDescription` say what the nodes' tables are about."""

    validation_fraction: float = Field(gt=0, lt=1)
    """What the nodes hold out, as their own settings say; here it says that every node is an owner."""
    test_fraction: float | None = Field(None, gt=0, lt=1)
    compare: tuple[str, ...] = ("local",)
    """Methods that run for all nodes too, for their scores. FedAvg is not among them unless it is asked for:
    it takes a synchronization per round, many times as many as everything else."""


@dataclass(frozen=True)
class EveryoneJob:
    """What all nodes are to learn, and how to reach them."""

    keys: EveryoneJobKeys
    method: Method
    others: tuple[Method, ...]
    """The methods that it is compared with."""
    model: str
    """The model asked for, or the one of the task."""
    federation: FederationOptions

    def carry_out(self, messenger: Messenger, out: Path, *, resume: bool) -> None:
        """Learn, and write the result directory; report events to a file beside it."""
        with_events(out, lambda report: self._learn(messenger, out, resume=resume, report=report))

    def _learn(self, messenger: Messenger, out: Path, *, resume: bool, report: OnEvent) -> None:
        if (out / map_directory.COLLABORATION).exists():
            raise InputError(f"{out} has a finished result: choose another directory")
        kept = KeptRuns.of_result(out, self.keys.digest())
        kept.check(resume=resume)
        nodes, described = self._nodes(messenger, kept, resume=resume)
        preprocessing, differences = self._agree(described)
        label = preprocessing.label
        classes = None if isinstance(label, Quantity) else np.array(label.classes)
        federation = self._connect(messenger, nodes, described, preprocessing)
        problem = DistantProblem.of_nodes(
            federation,
            {name: _held_out(parts) for name, parts in described.items()},
            seed=self.keys.seed,
            classes=classes,
            point_shape=(len(preprocessing.feature_names),),
        )
        warnings = _single_classes(described)
        metrics: dict[str, dict[str, Scores]] = {}
        keys = self.keys

        speaking = threading.Lock()  # owners report from their own threads

        def collect(event: Event) -> None:
            with speaking:
                if isinstance(event, Warned) and event.message not in warnings:
                    warnings.append(event.message)
                report(event)

        for line in differences:
            collect(Warned(message=line))

        def score(name: str, problem: Problem, run: TrainedRun) -> None:
            assert isinstance(problem.center, DistantCenter)
            assert run.state.kept_theta is not None
            try:
                metrics[name] = problem.center.final_scores(run.state.kept_theta)
            except FedkinError as error:  # its model is there all the same
                collect(Warned(run=name, message=f"the model of {name} has no scores: {error}"))

        runs: dict[str, JointRun] = {}
        for method in (self.method, *self.others):
            if runs:
                federation.start_over()
            runs[method.name] = problem.train(
                method,
                budget=Budget(keys.steps, keys.synchronizations),
                checkpoints=kept.checkpoints(method.name, federation.names),
                made_with={"nodes": as_json({n: p[TRAINED_ON] for n, p in described.items()})},
                on_event=collect,
                after_run=score if method is self.method else None,
                run_name=lambda name, method=method: f"{method.name}: {name}",
                leave_one_out=federation.names if keys.leave_one_out else (),
            )
            for note in federation.end_step():  # what went wrong after the last step
                collect(Warned(run=method.name, message=note))
        everyone = make_collaboration(problem, self.method.name, runs, warnings)
        rows = {name: parts[TRAINED_ON].rows for name, parts in described.items()}
        map_directory.write_map(out, everyone, rows, metrics, preprocessing)
        shutil.rmtree(kept.directory, ignore_errors=True)

    def _nodes(
        self, messenger: Messenger, kept: KeptRuns, *, resume: bool
    ) -> tuple[list[ConnectedNode], Described]:
        """Find the nodes, and what they say about their rows: now, or when the job began."""
        if resume:
            described = kept.read_nodes(dict[str, dict[str, TableSummary]])
            trained_on = {name: parts[TRAINED_ON] for name, parts in described.items()}
            return known_nodes(messenger, self.federation, trained_on), described
        nodes = all_nodes(messenger, self.federation)
        described = {node.name: _describe(node) for node in nodes}
        kept.begin({name: as_json(parts) for name, parts in described.items()})
        return nodes, described

    def _agree(self, described: Described) -> Merged:
        """Derive one transformation from the rows that nodes train on; what they hold out has to fit it."""
        assert self.keys.label is not None
        judges = {
            f"the {part} rows of node '{name}'": summary
            for name, parts in described.items()
            for part, summary in parts.items()
            if part != TRAINED_ON
        }
        trained_on = {name: parts[TRAINED_ON] for name, parts in described.items()}
        return merge_with_judges(
            trained_on, judges, self.keys.label, self.keys.missing, strict=self.keys.strict
        )

    def _connect(
        self,
        messenger: Messenger,
        nodes: list[ConnectedNode],
        described: Described,
        preprocessing: Preprocessing,
    ) -> FlowerFederation:
        keys, label = self.keys, preprocessing.label
        features = len(preprocessing.feature_names)
        classes = None if isinstance(label, Quantity) else np.array(label.classes)
        run = RunDescription(
            run=keys.digest({name: as_json(parts) for name, parts in described.items()}),
            seed=keys.seed,
            batch_size=keys.batch_size,
            model=self.model,
            task=keys.task,
            classes=1 if classes is None else len(classes),
            preprocessing=preprocessing,
        )
        model = make_model(self.model, keys.task, classes, (features,))
        example = model.prepare(jnp.zeros((2, features), jnp.result_type(float)))
        objective = Objective.create(model, example)
        trained_on = {name: parts[TRAINED_ON] for name, parts in described.items()}
        return connect(objective, run, messenger, nodes, trained_on, self.federation.wait)


def _describe(node: ConnectedNode) -> dict[str, TableSummary]:
    """Return the summaries of a node's rows, by part."""
    trained_on = summary_of(node)
    if "validation" not in node.held_out:
        raise InputError(
            f"{node.name} holds no rows out, so it cannot be an owner: set {VALIDATION_FRACTION} in its "
            "settings"
        )
    try:
        held_out = {
            part: TableSummary.model_validate_json(text) for part, text in node.held_out.items()
        }
    except ValidationError:
        raise InputError(f"{node.name} does not describe the rows that it holds out") from None
    return {TRAINED_ON: trained_on, **held_out}


def _held_out(parts: Mapping[str, TableSummary]) -> HeldOutRows:
    return HeldOutRows(parts["validation"].rows, parts["test"].rows if "test" in parts else 0)


def _single_classes(described: Described) -> list[str]:
    """Say which nodes have one class only."""
    notes = []
    for name, parts in described.items():
        labels = [summary.label for summary in parts.values()]
        found = {
            text for label in labels if isinstance(label, TextSummary) for text in label.categories
        }
        if len(found) == 1:
            notes.append(
                f"node '{name}' has a single class, {found.pop()}: there a constant answer is always right, "
                "and its weights say little"
            )
    return notes


def check_everyone_job(
    content: dict[str, Any], options: FederationOptions, path: Path
) -> EveryoneJob:
    """Check the keys of everyone's question."""
    for name in ("validation", "test"):
        if name in content:
            raise InputError(
                f"{path}: {name} is the table of a single owner, and {VALIDATION_FRACTION} makes every node "
                "one: leave one of them out"
            )
    keys = read_keys(EveryoneJobKeys, content, path)
    if keys.settings.get("prior") is not None:
        raise InputError(
            f"{path}: a prior on the weights needs the owner's rows, which stay at its node: leave prior out"
        )
    method, model = check_keys(keys, options, path)
    assert options.nodes is not None
    refuse_secure_owners(options, options.nodes, path)
    if options.nodes < 2:
        raise InputError(f"{path}: one node has nobody to learn with: give two or more")
    others = dict.fromkeys(name for name in keys.compare if name != method.name)
    try:
        return EveryoneJob(keys, method, tuple(map(make_method, others)), model, options)
    except InputError as error:
        raise InputError(f"{path}: compare: {error}") from error
