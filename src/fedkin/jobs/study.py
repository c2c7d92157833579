"""A study (`docs/studies.md`) whose nodes are real."""

import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedkin.data.federated import FederatedData
from fedkin.errors import FedkinError, InputError
from fedkin.experiments.config import RunConfig, StudyConfig
from fedkin.experiments.study import Report, carry_out
from fedkin.federation.flower.engine import (
    Description,
    FlowerFederation,
    RunDescription,
    describe_nodes,
)
from fedkin.federation.flower.post import Post
from fedkin.jobs.options import FederationOptions
from fedkin.models.objective import Objective

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StudyJob:
    """A study, and how to reach its nodes."""

    study: StudyConfig
    federation: FederationOptions

    def carry_out(self, post: Post, out: Path, *, resume: bool) -> None:
        """Do all runs of the study that are not finished yet."""
        outcome = carry_out(
            self.study,
            out,
            resume=resume,
            jobs=1,
            display=LogDisplay(),
            engine=partial(flower_engine, post, wait=self.federation.wait),
        )
        if outcome.failed:
            raise FedkinError(
                f"{len(outcome.failed)} of {len(outcome.failed) + outcome.finished} runs failed; the "
                f"first: {next(iter(outcome.failed.values()))}"
            )


def with_damped_solver(content: dict[str, Any]) -> dict[str, Any]:
    """Let Bi-level solve with conjugate gradients where the study does not say how.

    A synchronization takes seconds here, and they need fewer than the paper's solver.
    """
    settings = content.get("settings", {})
    methods = content.get("method", ["bilevel"])
    methods = methods if isinstance(methods, list) else [methods]
    own = settings.get("bilevel", {}) if isinstance(settings, dict) else None
    if not isinstance(own, dict) or "bilevel" not in methods or "solver" in {*settings, *own}:
        return content
    return {**content, "settings": {**settings, "bilevel": {"solver": "cg", **own}}}


def flower_engine(
    post: Post, config: RunConfig, data: FederatedData, objective: Objective, *, wait: float
) -> FlowerFederation:
    """Let the nodes that are called as the study calls them do a run."""
    nodes = {node.name: node for node in describe_nodes(post, len(data.names), wait)}
    logger.info("nodes: %s", ", ".join(nodes))
    return FlowerFederation(
        post,
        objective,
        _in_order(nodes, data.names),
        RunDescription(
            run=config.directory,
            seed=config.seed,
            batch_size=config.batch_size,
            model=config.model,
            task="classification",
            classes=len(data.classes),
        ),
    )


def _in_order(nodes: dict[str, Description], names: tuple[str, ...]) -> list[Description]:
    missing = [name for name in names if name not in nodes]
    if missing:
        raise InputError(
            f"the study has nodes called {', '.join(names)}, but {', '.join(missing)} is not among "
            f"those that are there ({', '.join(nodes)}): name them so in their settings"
        )
    return [nodes[name] for name in names]


class LogDisplay:
    """Shows how a study goes on, a line at a time, for logs."""

    def begin(self, phase: str, total: int, finished: int) -> None:
        """Show the beginning of a phase."""
        logger.info("%s: %d runs, %d of them finished already", phase, total, finished)

    def report(self, report: Report) -> None:
        """Show a step of a run."""
        accuracy = "" if report.test_accuracy is None else f", test {report.test_accuracy:.4f}"
        logger.info(
            "%s: step %d, %d synchronizations, validation %.4f%s",
            report.run,
            report.step,
            report.synchronizations,
            report.validation_accuracy or float("nan"),
            accuracy,
        )

    def done(self, run: str, error: str | None) -> None:
        """Show the end of a run."""
        if error is None:
            logger.info("%s: finished", run)
        else:
            logger.error("%s: failed: %s", run, error)
