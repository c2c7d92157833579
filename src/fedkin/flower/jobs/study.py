"""A study (`docs/studies.md`) whose nodes are real."""

import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkin.data.federated import FederatedData
from fedkin.errors import FedkinError, InputError
from fedkin.events import Event
from fedkin.federation.attendance import FEWEST_NODES
from fedkin.flower.engine import (
    SEEKING_PATIENCE,
    Description,
    FlowerFederation,
    RunDescription,
    describe_nodes,
)
from fedkin.flower.jobs.event_log import log_event
from fedkin.flower.jobs.options import FederationOptions
from fedkin.flower.post import Post
from fedkin.models.objective import Objective
from fedkin.studies.config import RunConfig, StudyConfig
from fedkin.studies.study import carry_out

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
            engine=_Engine(post, self.federation.wait),
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
    """Let the nodes that are called as the study calls them do a run.

    Those that are not there when the waiting is over are taken in when they come; two have to be there.
    """
    enough = min(FEWEST_NODES, len(data.names))
    nodes = describe_nodes(post, len(data.names), wait, enough)
    _check_names(nodes, data.names)
    return FlowerFederation(
        post,
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
        # A node that is not there cannot be asked; the center knows how many points it draws.
        batches=max(math.ceil(len(labels) / config.batch_size) for _, labels in data.nodes),
    )


class _Engine:
    """Lets the nodes do one run after the other; later ones do not wait long for who is gone."""

    def __init__(self, post: Post, wait: float) -> None:
        self._post, self._wait = post, wait

    def __call__(
        self, config: RunConfig, data: FederatedData, objective: Objective
    ) -> FlowerFederation:
        made = flower_engine(self._post, config, data, objective, wait=self._wait)
        if not made.present.all():
            self._wait = min(self._wait, SEEKING_PATIENCE)
        return made


def _check_names(nodes: list[Description], names: tuple[str, ...]) -> None:
    """Tell misnamed nodes from missing ones."""
    there = [node.name for node in nodes]
    missing = [name for name in names if name not in there]
    if missing and not set(there) <= set(names):
        raise InputError(
            f"the study has nodes called {', '.join(names)}, but {', '.join(missing)} is not among "
            f"those that are there ({', '.join(there)}): name them so in their settings"
        )


class LogDisplay:
    """Writes the progress of a study to a log."""

    def begin(self, phase: str, total: int, finished: int) -> None:
        """Log that a phase begins."""
        logger.info("%s: %d runs, %d of them finished already", phase, total, finished)

    def event(self, event: Event) -> None:
        """Log what a run reports."""
        log_event(event)

    def done(self, run: str, error: str | None) -> None:
        """Log the end of a run."""
        if error is not None:
            logger.error("%s: failed: %s", run, error)
