"""A job of a real federation: a study, or learning from tables, as a file at the centre says."""

import logging
import tomllib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError

from fedkin.data.federated import FederatedData
from fedkin.errors import FedkinError, InputError
from fedkin.experiments.config import RunConfig, StudyConfig, check_study
from fedkin.experiments.study import Report, carry_out
from fedkin.federation.flower.engine import (
    Description,
    FlowerFederation,
    RunDescription,
    describe_nodes,
)
from fedkin.federation.flower.post import Post
from fedkin.models.objective import Objective

logger = logging.getLogger(__name__)


class FederationOptions(BaseModel):
    """The table `[federation]` of a job."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    nodes: PositiveInt | None = None
    """How many nodes to wait for; a study knows it by itself."""
    wait: PositiveFloat = 300.0
    """Seconds to wait for them."""
    patience: PositiveFloat = 120.0
    """Seconds to wait for an answer."""
    interval: PositiveFloat = Field(0.05, le=60)
    """Seconds between two looks at what has arrived."""


@dataclass(frozen=True)
class StudyJob:
    """A study whose nodes are real."""

    study: StudyConfig
    federation: FederationOptions


def load_job(path: Path) -> StudyJob:
    """Read a job from a TOML file; an unknown key is an error that suggests the right one."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the job {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid TOML: {error}") from error
    options = federation_options(content.pop("federation", {}), str(path))
    return StudyJob(check_study(with_damped_solver(content), str(path)), options)


def federation_options(content: Any, source: str) -> FederationOptions:
    """Check the table `[federation]`."""
    try:
        return FederationOptions.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(["federation", *(str(part) for part in first["loc"])])
        raise InputError(f"{source}: {place}: {first['msg']}") from error


def with_damped_solver(content: dict[str, Any]) -> dict[str, Any]:
    """Let Bi-level solve with conjugate gradients where the job does not say how.

    A synchronization takes seconds here, and they need fewer than the paper's solver.
    """
    settings = content.get("settings", {})
    methods = content.get("method", ["bilevel"])
    methods = methods if isinstance(methods, list) else [methods]
    own = settings.get("bilevel", {}) if isinstance(settings, dict) else None
    if not isinstance(own, dict) or "bilevel" not in methods or "solver" in {*settings, *own}:
        return content
    return {**content, "settings": {**settings, "bilevel": {"solver": "cg", **own}}}


def carry_out_job(job: StudyJob, post: Post, out: Path, *, resume: bool) -> None:
    """Do what the job says, on the nodes behind the post."""
    outcome = carry_out(
        job.study,
        out,
        resume=resume,
        jobs=1,
        display=LogDisplay(),
        engine=partial(flower_engine, post, wait=job.federation.wait),
    )
    if outcome.failed:
        raise FedkinError(
            f"{len(outcome.failed)} of {len(outcome.failed) + outcome.finished} runs failed; the "
            f"first: {next(iter(outcome.failed.values()))}"
        )


def flower_engine(
    post: Post, config: RunConfig, data: FederatedData, objective: Objective, *, wait: float
) -> FlowerFederation:
    """Let the nodes that are called as the study calls them do a run."""
    nodes = {node.name: node for node in describe_nodes(post, len(data.names), wait)}
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
