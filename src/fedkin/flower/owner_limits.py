"""What a node's owner allows at most, and the count of what was asked so far."""

import json
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from fedkin.errors import InputError
from fedkin.federation.owners import TRAINING
from fedkin.federation.secure.orders import FEWEST_SUMMED
from fedkin.flower.certificates import make_private_directory
from fedkin.flower.guard import CheckedBlock, CheckedRequest
from fedkin.flower.wire import Refusal, RefusedError

DAY = 86_400.0
"""Seconds."""

USAGE_FILE = "usage.json"
"""In the node's `state` directory."""

DIRECTIONS = ("vector", "target")
"""What tasks call the vectors that are no models: they are multiplied with gradients or Hessians."""

AT_A_TIME = 100
"""Requests are written down this many at a time, before they are answered: a restart forgets none."""

MOST_RUNS_COUNTED = 1_000
"""The requests of the oldest runs are forgotten when there are more."""


class OwnerLimits(BaseModel):
    """Limits of what a center may ask; in files, names have dashes."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=lambda name: name.replace("_", "-"),
        populate_by_name=True,
    )

    requests_per_run: PositiveInt = 100_000
    """Requests in one run; a request for several models counts once for each."""
    joins_per_day: PositiveInt = 2_000
    """Requests to join a run within 24 hours."""
    models_at_once: PositiveInt = 1_000
    """Models that one message is about."""
    steps_per_request: PositiveInt = 10_000_000
    """Local steps times iterations that one message asks for, for all models and owners together."""
    largest_norm: float = Field(100.0, gt=0, allow_inf_nan=False)
    """The norm of a model, times the root mean square of the node's largest column if that is above one: with
    large models, rows can be told apart. Directions may be longer: answers are proportional to them."""
    seconds_per_request: float = Field(600.0, gt=0, allow_inf_nan=False)
    """How long an answer may take; a worker that takes longer is ended, and started again."""
    largest_spread: float = Field(10.0, ge=1, allow_inf_nan=False)
    """The root mean square of a column as the center scales it (`data/agreement.py`)."""
    fewest_nodes: int = Field(FEWEST_SUMMED, ge=FEWEST_SUMMED)
    """The number of nodes that a masked sum has at least."""
    largest_share: float | None = Field(None, gt=0, le=1)
    """The largest share of this node in a masked sum; by default the cap of the run, as the center says. It
    is raised where so few nodes are in the sum that they could not have the whole weight."""
    repeats_per_run: int = Field(20, ge=0)
    """How many messages, in one run, this node answers that have a question which it has answered before with
    fewer nodes in the sum or another weight, as happens when a node fails."""
    plain_sums: bool = False
    """Whether the center may add up this node's vectors itself, so that it sees every single one."""
    runs_kept: PositiveInt = 20
    """The number of runs whose lasting memory stays on the node's disk."""
    audit_megabytes: float = Field(20.0, gt=0, allow_inf_nan=False)
    """The size of the audit log."""

    def check(self, blocks: Sequence[CheckedBlock], spread: float = 1.0) -> int:
        """Refuse what is above the limits; return how many requests a message counts for.

        Args:
            blocks: What each owner asks for.
            spread: The root mean square of the node's largest column, as the center scales it.
        """
        requests = [request for block in blocks for request in block.requests]
        self.check_plain(blocks)
        models = {
            (block.number, model)
            for block in blocks
            for request in block.requests
            for model in request.models
        }
        if len(models) > self.models_at_once:
            raise RefusedError(
                Refusal.LIMIT,
                f"one message is about {len(models):,} models: the owner of this node allows "
                f"{self.models_at_once:,} (models-at-once)",
            )
        steps = sum(steps_of(request) for request in requests)
        if steps > self.steps_per_request:
            raise RefusedError(
                Refusal.LIMIT,
                f"one message asks for {steps:,} steps: the owner of this node allows "
                f"{self.steps_per_request:,} (steps-per-request)",
            )
        for request in requests:
            self._check_norms(request, self.largest_norm / max(1.0, spread))
        return sum(len(request.models) for request in requests)

    def check_plain(self, blocks: Sequence[CheckedBlock]) -> None:
        """Refuse to show this node's vectors to a center that would add them up itself.

        What the owner has allowed by other settings passes: `reveal`, and questions about its own rows.
        """
        for block in blocks:
            for request in block.requests:
                if block.part == TRAINING and request.shows_vectors and not self.shows_plain:
                    raise RefusedError(
                        Refusal.FORBIDDEN,
                        f"the owner of this node allows masked sums only, and {request.task.name} would show "
                        "its own vectors: leave --plain-sums out, take part with three nodes or more, or let "
                        "the owner allow it (plain-sums)",
                    )

    @property
    def shows_plain(self) -> bool:
        """Whether the center may see vectors of this node."""
        return self.plain_sums

    def _check_norms(self, request: CheckedRequest, largest: float) -> None:
        for name, array in request.message.items():
            if array.ndim == 0 or name in DIRECTIONS:
                continue
            with np.errstate(over="ignore"):
                squares = np.einsum("...i,...i->...", array, array)
            if not np.all(squares <= largest**2):
                raise RefusedError(
                    Refusal.LIMIT,
                    f"the model {name[:50]!r} has a norm above what the owner of this node allows, "
                    f"{self.largest_norm:g} where no column has a root mean square above 1 (largest-norm)",
                )


def steps_of(request: CheckedRequest) -> int:
    """Return how many steps a request takes for all of its models: whole numbers of a task count steps."""
    counts = [value for value in request.options.values() if type(value) is int and value > 0]
    return len(request.models) * math.prod(counts)


class Usage:
    """How often a node has been asked: the joins of the last day, and the requests of each run.

    Args:
        directory: The node's `state` directory, where the counts outlive a restart.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        content: dict = {}
        try:
            content = json.loads((directory / USAGE_FILE).read_text(encoding="utf-8"))
            self._joins = [float(each) for each in content["joins"]]
            self._written = {str(run): int(count) for run, count in content["runs"].items()}
        except FileNotFoundError:
            self._joins, self._written = [], {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{directory / USAGE_FILE} cannot be read, and has the counts of what was asked: remove it, "
                "and they begin at zero"
            ) from error
        self._requests = dict(self._written)

    def count_join(self, limits: OwnerLimits) -> None:
        """Count a request to join, or refuse it."""
        now = time.time()
        self._joins = [each for each in self._joins if now - DAY < each <= now]
        if len(self._joins) >= limits.joins_per_day:
            raise RefusedError(
                Refusal.LIMIT,
                f"the owner of this node allows {limits.joins_per_day:,} requests to join within 24 hours "
                "(joins-per-day)",
            )
        self._joins.append(now)
        self._write()

    def count_requests(self, run: str, count: int, limits: OwnerLimits) -> None:
        """Count the requests of a message, or refuse it."""
        total = self._requests.get(run, 0) + count
        if total > limits.requests_per_run:
            raise RefusedError(
                Refusal.LIMIT,
                f"the owner of this node allows {limits.requests_per_run:,} requests in one run "
                "(requests-per-run)",
            )
        self._requests[run] = total
        if total > self._written.get(run, 0):
            self._written.pop(run, None)  # the newest is the last
            self._written[run] = total + AT_A_TIME
            for oldest in list(self._written)[:-MOST_RUNS_COUNTED]:
                del self._written[oldest], self._requests[oldest]
            self._write()

    def _write(self) -> None:
        path = self._directory / USAGE_FILE
        partial = path.with_name(f".{USAGE_FILE}.new")
        content = json.dumps({"joins": self._joins, "runs": self._written})
        try:
            make_private_directory(self._directory)
            opened = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(opened, "w", encoding="utf-8") as file:
                file.write(content)
            partial.replace(path)
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror}") from error
