"""A study (`docs/studies.md`) whose nodes are real."""

import logging
import math
from dataclasses import dataclass
from pathlib import Path

from fedkin.data.federated import FederatedData
from fedkin.errors import FedkinError, InputError
from fedkin.events import Event
from fedkin.federation.attended_exchange import FEWEST_NODES
from fedkin.federation.secure.orders import FEWEST_SUMMED
from fedkin.flower.discovery import ConnectedNode, describe_nodes
from fedkin.flower.engine import REJOINING_PATIENCE, FlowerFederation
from fedkin.flower.jobs.event_log import log_event
from fedkin.flower.jobs.options import FederationOptions
from fedkin.flower.joining import RunDescription
from fedkin.flower.messenger import Messenger
from fedkin.models.objective import Objective
from fedkin.studies.config import RunConfig, StudyConfig
from fedkin.studies.study import carry_out
from fedkin.training.problem import Engine

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StudyJob:
    """A study, and how to reach its nodes."""

    study: StudyConfig
    federation: FederationOptions

    def carry_out(self, messenger: Messenger, out: Path, *, resume: bool) -> None:
        """Do all runs of the study that are not finished yet."""
        outcome = carry_out(
            self.study,
            out,
            resume=resume,
            jobs=1,
            display=LogDisplay(),
            engine=FlowerEngines(
                messenger, self.federation.wait, plain_sums=self.federation.plain_sums
            ),
        )
        if outcome.failure is not None:
            raise FedkinError(outcome.failure)


class FlowerEngines:
    """Lets the nodes with the study's names do one run after the other.

    Nodes that are missing when the waiting time is over rejoin when they come; two have to be there. Later
    runs wait only briefly for nodes that were missing before.

    Args:
        messenger: Sends the messages.
        wait: Seconds to wait for nodes.
        plain_sums: Whether the center adds up the nodes' vectors itself, and sees every single one.
    """

    def __init__(self, messenger: Messenger, wait: float, *, plain_sums: bool = False) -> None:
        self._messenger, self._wait, self._plain_sums = messenger, wait, plain_sums

    def __call__(self, config: RunConfig, data: FederatedData) -> Engine:
        """Return the engine of a run. See `RunEngine`."""

        def engine(objective: Objective) -> FlowerFederation:
            secure = not self._plain_sums and len(data.names) >= FEWEST_SUMMED
            enough = min(FEWEST_SUMMED if secure else FEWEST_NODES, len(data.names))
            nodes = describe_nodes(self._messenger, len(data.names), self._wait, enough)
            _check_names(nodes, data.names)
            made = FlowerFederation(
                self._messenger,
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
                    preprocessing=None,
                ),
                # A missing node cannot be asked; the center knows how many points it draws.
                batches=max(math.ceil(len(labels) / config.batch_size) for _, labels in data.nodes),
                secure=secure,
                largest_share=config.chosen_method.largest_share(len(data.names)),
            )
            if not made.present.all():
                self._wait = min(self._wait, REJOINING_PATIENCE)
            return made

        return engine


def _check_names(nodes: list[ConnectedNode], names: tuple[str, ...]) -> None:
    """Distinguish nodes with wrong names from missing nodes."""
    found = [node.name for node in nodes]
    missing = [name for name in names if name not in found]
    if missing and not set(found) <= set(names):
        raise InputError(
            f"the study has nodes called {', '.join(names)}, but {', '.join(missing)} is not among "
            f"those that are connected ({', '.join(found)}): give them these names in their settings"
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
