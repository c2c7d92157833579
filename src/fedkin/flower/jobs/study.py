"""A study (`docs/studies.md`) on real nodes."""

import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkin.data.federated import FederatedData
from fedkin.errors import FedkinError, InputError
from fedkin.federation.attendance import FEWEST_NODES
from fedkin.flower.engine import (
    REJOINING_PATIENCE,
    FlowerFederation,
    NodeDescription,
    RunDescription,
    describe_nodes,
)
from fedkin.flower.jobs.options import FederationOptions
from fedkin.flower.messenger import Messenger
from fedkin.models.objective import Objective
from fedkin.studies.config import RunConfig, StudyConfig
from fedkin.studies.study import Report, carry_out

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StudyJob:
    """A study, and how to reach its nodes."""

    study: StudyConfig
    federation: FederationOptions

    def carry_out(self, messenger: Messenger, out: Path, *, resume: bool) -> None:
        """Do all runs of the study that are not finished."""
        outcome = carry_out(
            self.study,
            out,
            resume=resume,
            jobs=1,
            display=LogDisplay(),
            engine=_Engine(messenger, self.federation.wait),
        )
        if outcome.failed:
            raise FedkinError(
                f"{len(outcome.failed)} of {len(outcome.failed) + outcome.finished} runs failed; the "
                f"first: {next(iter(outcome.failed.values()))}"
            )


def with_damped_solver(content: dict[str, Any]) -> dict[str, Any]:
    """Choose conjugate gradients for the bilevel method if the study names no solver.

    They need fewer synchronizations than the paper's solver, and each takes seconds here.
    """
    settings = content.get("settings", {})
    methods = content.get("method", ["bilevel"])
    methods = methods if isinstance(methods, list) else [methods]
    own = settings.get("bilevel", {}) if isinstance(settings, dict) else None
    if not isinstance(own, dict) or "bilevel" not in methods or "solver" in {*settings, *own}:
        return content
    return {**content, "settings": {**settings, "bilevel": {"solver": "cg", **own}}}


def flower_engine(
    messenger: Messenger,
    config: RunConfig,
    data: FederatedData,
    objective: Objective,
    *,
    wait: float,
) -> FlowerFederation:
    """Return the federation of a run: the nodes that have the names of the study's nodes.

    At least two must be connected when `wait` seconds are over; the others join when they connect.
    """
    enough = min(FEWEST_NODES, len(data.names))
    nodes = describe_nodes(messenger, len(data.names), wait, enough)
    _check_names(nodes, data.names)
    logger.info("nodes: %s", ", ".join(node.name for node in nodes))
    return FlowerFederation(
        messenger,
        objective,
        data.names,
        nodes,
        RunDescription(
            run=config.directory,
            seed=config.seed,
            batch_size=config.batch_size,
            model=config.model,
            task="classification",
            classes=len(data.classes),
        ),
        # A missing node cannot be asked, but the center knows how many points it draws.
        batches=max(math.ceil(len(labels) / config.batch_size) for _, labels in data.nodes),
    )


class _Engine:
    """Makes the federations of a study's runs; later runs do not wait long for missing nodes."""

    def __init__(self, messenger: Messenger, wait: float) -> None:
        self._messenger, self._wait = messenger, wait

    def __call__(
        self, config: RunConfig, data: FederatedData, objective: Objective
    ) -> FlowerFederation:
        made = flower_engine(self._messenger, config, data, objective, wait=self._wait)
        if not made.present.all():
            self._wait = min(self._wait, REJOINING_PATIENCE)
        return made


def _check_names(nodes: list[NodeDescription], names: tuple[str, ...]) -> None:
    """Refuse nodes whose names the study does not have, if any of its own are missing."""
    there = [node.name for node in nodes]
    missing = [name for name in names if name not in there]
    if missing and not set(there) <= set(names):
        raise InputError(
            f"the study has nodes called {', '.join(names)}, but {', '.join(missing)} is not among "
            f"the connected nodes ({', '.join(there)}): change the names in the nodes' settings"
        )


class LogDisplay:
    """Writes the progress of a study to the log, line by line."""

    def begin(self, phase: str, total: int, finished: int) -> None:
        """Log the beginning of a phase."""
        logger.info("%s: %d runs, %d of them finished already", phase, total, finished)

    def report(self, report: Report) -> None:
        """Log a step of a run."""
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
        """Log the end of a run."""
        if error is None:
            logger.info("%s: finished", run)
        else:
            logger.error("%s: failed: %s", run, error)
