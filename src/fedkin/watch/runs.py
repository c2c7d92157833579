"""What is known about each run, from its events alone."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from fedkin.events import Event, RunFailed, RunFinished, RunStarted, StepDone, Warned

State = Literal["waiting", "running", "finished", "failed"]

MOST_WARNINGS = 200
"""The most distinct warnings of a run that are remembered."""


@dataclass
class GivenWarning:
    """A warning, and how often and when it was given."""

    message: str
    times: int = 0
    last: float = 0.0


@dataclass
class LiveRun:
    """A run as its events describe it."""

    name: str
    is_trial: bool = False
    """Whether it is a short run that helps to choose parameters."""
    state: State = "waiting"
    started: RunStarted | None = None
    steps: list[StepDone] = field(default_factory=list)
    last_news: float = 0.0
    """When its last event happened, in seconds since 1970."""
    reason: str = ""
    """Why it ended."""
    warnings: dict[str, GivenWarning] = field(default_factory=dict)
    total_seconds: float | None = None
    """How long it took; None while it is not finished."""

    def take(self, events: Iterable[Event]) -> None:
        """Take in events, the oldest first."""
        for event in events:
            self.last_news = max(self.last_news, event.time)
            match event:
                case RunStarted():
                    self.state, self.started, self.reason = "running", event, ""
                    self._forget_after(event.resumed_after or 0)
                case StepDone():
                    self.state = "running"
                    # A run starts over without a node that harms, and its steps count from one again.
                    self._forget_after(event.step - 1)
                    self.steps.append(event)
                case Warned():
                    self._warn(event)
                case RunFinished():
                    self.state, self.reason = "finished", event.stopped
                    self.total_seconds = self.steps[-1].seconds if self.steps else 0.0
                case RunFailed():
                    self.state, self.reason = "failed", event.reason
                case _:
                    pass

    @property
    def last(self) -> StepDone | None:
        """The last step."""
        return self.steps[-1] if self.steps else None

    @property
    def method(self) -> str:
        """The name of its method; empty before it has begun."""
        return "" if self.started is None else self.started.method

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of its nodes."""
        return () if self.started is None else self.started.nodes

    @property
    def share_done(self) -> float | None:
        """How much of its budget it has used, from 0 to 1; None without a limit or a step."""
        last, started = self.last, self.started
        if last is None or started is None:
            return None
        used = [
            done / most
            for done, most in (
                (last.step, started.most_steps),
                (last.synchronizations, started.most_synchronizations),
            )
            if most
        ]
        return min(max(used), 1.0) if used else None

    @property
    def seconds_left(self) -> float | None:
        """How long it takes at most, at its pace so far; None if that is unknown."""
        share, last = self.share_done, self.last
        if self.state != "running" or not share or last is None:
            return None
        return last.seconds * (1 - share) / share

    def _forget_after(self, step: int) -> None:
        while self.steps and self.steps[-1].step > step:
            self.steps.pop()

    def _warn(self, event: Warned) -> None:
        if event.message not in self.warnings and len(self.warnings) >= MOST_WARNINGS:
            self.warnings.pop(next(iter(self.warnings)))
        warning = self.warnings.setdefault(event.message, GivenWarning(event.message))
        warning.times += 1
        warning.last = event.time
