"""What all trackers share: they are callbacks for events, and never end a run."""

import math
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from fedkin.events import Event, StepDone

LONGEST_NAME = 100

SCORES = (
    "validation_loss",
    "validation_accuracy",
    "test_accuracy",
    "synchronizations",
    "bytes_up",
    "bytes_down",
    "seconds",
)
"""The numbers of a step that trackers show, by the names of its fields."""


class Tracker(ABC):
    """A callback for events (`on_event`) that hands them on to another tool.

    A tracker that fails, because a server is gone, say, gives one warning and ignores what comes after it:
    the run continues. Close it when the runs have ended, or use it in a `with` statement.

    >>> import fedkin
    >>> class Printer(Tracker):
    ...     title = "Printer"
    ...     def track(self, event):
    ...         print(event.kind)
    ...     def finish(self):
    ...         print("no more")
    >>> nodes = {"north": ([[0.0], [1.0], [2.0]], [0, 1, 1]), "south": ([[0.5], [2.5]], [0, 1])}
    >>> with Printer() as tracker:
    ...     result = fedkin.fit(nodes, nodes["north"], minimum_rows=1, steps=1, on_event=tracker)
    started
    step
    finished
    no more
    """

    title: str
    """The name of the tool."""

    def __init__(self) -> None:
        self.failure: str | None = None
        """Why it has stopped; None while it works."""
        self.on_failure: Callable[[str], None] = _warn

    def __call__(self, event: Event) -> None:
        """Take in an event."""
        self._try(lambda: self.track(event))

    def close(self) -> None:
        """Write what is not written yet."""
        self._try(self.finish)

    @abstractmethod
    def track(self, event: Event) -> None:
        """Hand on an event. Whatever it raises ends the tracking, not the run."""

    @abstractmethod
    def finish(self) -> None:
        """Hand on what was kept back, and end what is still open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _try(self, act: Callable[[], None]) -> None:
        if self.failure is not None:
            return
        try:
            act()
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            self.failure = reason
            self.on_failure(f"{self.title} no longer gets what the run reports: {reason}")


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=5)


def step_numbers(step: StepDone, node_names: Sequence[str]) -> dict[str, float]:
    """Return the numbers of a step by name; weights are called `weight/NODE`.

    Args:
        step: The step.
        node_names: The nodes' names, as `distinct_names` returns them.
    """
    found = {name: getattr(step, name) for name in SCORES}
    found["missing_nodes"] = len(step.absent)
    if step.weights is not None and len(step.weights) == len(node_names):
        for name, weight in zip(node_names, step.weights, strict=True):
            found[f"weight/{name}"] = weight
    return {
        name: float(value)
        for name, value in found.items()
        if value is not None and math.isfinite(value)
    }


def distinct_names(names: Sequence[str]) -> list[str]:
    """Return names that every tool and file system takes, all of them different.

    >>> distinct_names(["Zürich 1", "../a", "__/a", "a"])
    ['Zürich_1', '___a', '___a-2', 'a']
    """
    taken: dict[str, None] = {}
    for name in names:
        plain = re.sub(r"[^\w-]", "_", name)[:LONGEST_NAME] or "_"
        chosen, number = plain, 1
        while chosen in taken:
            number += 1
            chosen = f"{plain}-{number}"
        taken[chosen] = None
    return list(taken)


def flat(parameters: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return parameters in one level, as text; those that are open are left out.

    >>> flat({"cap": 0.5, "solver": {"damping": 1.0, "start": None}})
    {'cap': '0.5', 'solver.damping': '1.0'}
    """
    found: dict[str, str] = {}
    for name, value in parameters.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        elif value is not None:
            found[f"{prefix}{name}"] = str(value)
    return found
