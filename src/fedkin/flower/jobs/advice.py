"""The question of `fedkin advise` over Flower: should the owner, whose rows are at the center, join?

The nodes do what they do for any owner: gradients, Hessians, slopes. The folds of the owner's rows are owners
like any other and share their exchanges (`docs/verdict.md`). The result directory is that of `fedkin advise`.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from pydantic import Field, PositiveInt

from fedkin.advice.candidates import Kept
from fedkin.advice.directory import describe_summary, describe_table, write_advice
from fedkin.advice.question import Question, count_rows, linear_model
from fedkin.data.arrays import FEWEST_ROWS, check_enough_rows
from fedkin.data.preprocessing import Quantity
from fedkin.data.summaries import TableSummary
from fedkin.errors import InputError
from fedkin.events import OnEvent, Warned
from fedkin.flower.discovery import ConnectedNode
from fedkin.flower.jobs.agreed_tables import AgreedTables
from fedkin.flower.jobs.kept_runs import KeptRuns
from fedkin.flower.jobs.learning import JobKeys, check_label_and_nodes, read_keys, with_events
from fedkin.flower.jobs.options import OWN, FederationOptions, refuse_secure_owners
from fedkin.flower.jobs.table_nodes import (
    Summaries,
    all_nodes,
    as_json,
    connect,
    known_nodes,
    summary_of,
)
from fedkin.flower.messenger import Messenger
from fedkin.models.objective import Objective
from fedkin.numerics.simplex import check_cap
from fedkin.report.advice_page import write_advice_page
from fedkin.training import result_directory
from fedkin.training.joint import JointProblem, OwnerData
from fedkin.training.problem import make_model


class AdviceJobKeys(JobKeys):
    """The keys of the job's file; those of `TableDescription` describe the owner's tables."""

    own: Path
    """The owner's rows, all of them."""
    test: Path | None = None
    cap: float = 1.0
    l2: float | None = Field(None, ge=0)
    folds: int = Field(5, ge=2)
    repeats: PositiveInt = 2
    minimum_rows: PositiveInt = FEWEST_ROWS
    leave_one_out: bool = True
    """Whether, at the end, each node that has a learned weight is left out once (docs/lying-nodes.md)."""


@dataclass(frozen=True)
class AdviceJob:
    """Whether to join, and how to reach the nodes."""

    keys: AdviceJobKeys
    model: str
    federation: FederationOptions

    def carry_out(self, messenger: Messenger, out: Path, *, resume: bool) -> None:
        """Find out, and write the result directory; report events to a file beside it."""
        with_events(out, lambda report: self._advise(messenger, out, resume=resume, report=report))

    def _advise(self, messenger: Messenger, out: Path, *, resume: bool, report: OnEvent) -> None:
        if (out / result_directory.ADVICE).exists():
            raise InputError(f"{out} has a finished result: choose another directory")
        keys = self.keys
        kept = KeptRuns.of_result(out, keys.digest())
        kept.check(resume=resume)
        nodes, summaries = self._nodes(messenger, kept, resume=resume)
        tables = AgreedTables.agree(keys, summaries, keys.own, keys.test, owner_trains=True)
        for line in tables.warnings:
            report(Warned(message=line))
        question = Question(
            tables.validation,
            count_rows(tables.rows),
            keys.task,
            tables.classes,
            test=tables.test,
            cap=keys.cap,
            folds=keys.folds,
            repeats=keys.repeats,
            seed=keys.seed,
        )
        agreed = question.unit.of_nodes(tables.preprocessing)
        run = tables.describe_run(keys, self.model, summaries, agreed)
        point_shape = tables.validation.inputs.shape[1:]

        def build(owners: Mapping[str, OwnerData]) -> JointProblem:
            model = make_model(self.model, keys.task, tables.classes, point_shape, keys.l2)
            example = model.prepare(jnp.zeros((2, *point_shape), jnp.result_type(float)))
            objective = Objective.create(model, example)
            return JointProblem.around(
                connect(objective, run, messenger, nodes, summaries),
                owners,
                classes=tables.classes,
                point_shape=point_shape,
                batch_size=keys.batch_size,
                seed=keys.seed,
            )

        advice = question.answer(
            build,
            on_event=report,
            kept=Kept(
                lambda owners: kept.checkpoints("advise", owners),
                {"nodes": as_json(summaries), "tables": tables.digests()},
            ),
            leave_one_out=keys.leave_one_out,
        )
        label = tables.preprocessing.label
        if isinstance(label, Quantity):
            advice = advice.in_unit(label.standard_deviation)
        advice = advice.with_warnings(tables.warnings)
        described = {
            name: describe_summary(summary, tables.preprocessing)
            for name, summary in summaries.items()
        }
        owner = describe_table(tables.owner, tables.preprocessing)
        write_advice(out, advice, tables.preprocessing, described, owner)
        write_advice_page(out)
        shutil.rmtree(kept.directory, ignore_errors=True)

    def _nodes(
        self, messenger: Messenger, kept: KeptRuns, *, resume: bool
    ) -> tuple[list[ConnectedNode], Summaries]:
        """Find the nodes, and what they say about their tables: now, or when the job began."""
        if resume:
            summaries = kept.read_nodes(dict[str, TableSummary])
            return known_nodes(messenger, self.federation, summaries), summaries
        nodes = all_nodes(messenger, self.federation)
        summaries = {node.name: summary_of(node) for node in nodes}
        for name, summary in summaries.items():
            check_enough_rows(summary.rows, f"node '{name}'", self.keys.minimum_rows)
        kept.begin(as_json(summaries))
        return nodes, summaries


def check_advice_job(content: dict[str, Any], options: FederationOptions, path: Path) -> AdviceJob:
    """Check the keys of the question whether to join; paths are relative to the job's file."""
    if "validation" in content:
        raise InputError(
            f"{path}: {OWN} has all rows of the owner, and validation would be some of them: leave one out"
        )
    for name in ("method", "steps", "synchronizations", "settings"):
        if name in content:
            raise InputError(
                f"{path}: {name} is for learning with given nodes; the question whether to join ({OWN}) "
                f"compares its own four candidates: leave {name} out"
            )
    keys = read_keys(AdviceJobKeys, content, path)
    nodes = check_label_and_nodes(keys, options, path)
    refuse_secure_owners(options, nodes, path)
    try:
        model = linear_model(keys.model, keys.task)
        check_cap(keys.cap, nodes)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    if nodes < 2:
        raise InputError(f"{path}: one node alone is no federation: give two or more")
    places = {OWN: path.parent / keys.own}
    if keys.test is not None:
        places["test"] = path.parent / keys.test
    return AdviceJob(keys.model_copy(update=places), model, options)
