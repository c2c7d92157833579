"""Learning from tables: every node has its own, and the center validates on another (`docs/tables.md`).

The nodes describe their tables (counts, means, categories). The center derives one transformation from
all descriptions and sends it with the request to join; each node transforms its own rows. The result
directory is that of `fedkin fit`.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedkin.data.summaries import TableSummary
from fedkin.errors import InputError
from fedkin.events import OnEvent, Warned
from fedkin.flower.jobs.agreed_tables import AgreedTables
from fedkin.flower.jobs.learning import LearningKeys, check_keys, read_keys, with_events
from fedkin.flower.jobs.options import FederationOptions
from fedkin.flower.jobs.table_nodes import (
    Summaries,
    all_nodes,
    as_json,
    connect,
    known_nodes,
    summary_of,
)
from fedkin.flower.messenger import Messenger
from fedkin.methods.base import Method
from fedkin.training.checkpoint import read_made_with
from fedkin.training.fit import make_result
from fedkin.training.problem import Problem
from fedkin.training.runner import Budget
from fedkin.training.table_result import score_tables, write_result


class TableJobKeys(LearningKeys):
    """The keys of the job's file; those of `TableDescription` describe the center's own tables."""

    validation: Path
    """The center's own table, by which the weights are chosen."""
    test: Path | None = None


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
        with_events(out, lambda report: self._learn(messenger, out, resume=resume, report=report))

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
        if resume:
            summaries = _summaries_in(checkpoint)
            nodes = known_nodes(messenger, self.federation, summaries)
        else:
            nodes = all_nodes(messenger, self.federation)
            summaries = {node.name: summary_of(node) for node in nodes}
        tables = AgreedTables.agree(self.keys, summaries, self.keys.validation, self.keys.test)
        for line in tables.warnings:
            report(Warned(message=line))
        keys = self.keys
        run = tables.describe_run(keys, self.model, summaries)
        problem = Problem.build(
            lambda objective: connect(
                objective,
                run,
                messenger,
                nodes,
                summaries,
                secure=self.federation.secure_sums(len(summaries)),
                largest_share=self.method.largest_share(len(summaries)),
            ),
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
            made_with={"nodes": as_json(summaries), "tables": tables.digests()},
            on_event=report,
            leave_one_out=keys.leave_one_out,
        )
        learned = make_result(problem, trained)
        result = replace(learned, warnings=(*tables.warnings, *learned.warnings))
        metrics = score_tables(result, tables.validation, tables.test, tables.preprocessing)
        write_result(out, result, tables.preprocessing, metrics, tables.rows)
        checkpoint.unlink(missing_ok=True)


def _summaries_in(checkpoint: Path) -> Summaries:
    """Return the summaries of the nodes with which the run of a checkpoint began."""
    try:
        content = (read_made_with(checkpoint) or {})["nodes"]
        return {name: TableSummary.model_validate(summary) for name, summary in content.items()}
    except (KeyError, TypeError, AttributeError, ValidationError) as error:
        raise InputError(
            f"the checkpoint {checkpoint} is damaged or of another version: delete it to start again"
        ) from error


def check_table_job(content: dict[str, Any], options: FederationOptions, path: Path) -> TableJob:
    """Check the keys of a job on tables; paths are relative to the job's file."""
    keys = read_keys(TableJobKeys, content, path)
    method, model = check_keys(keys, options, path)
    places = {"validation": path.parent / keys.validation}
    if keys.test is not None:
        places["test"] = path.parent / keys.test
    return TableJob(keys.model_copy(update=places), method, model, options)
