"""What jobs on tables have in common: the keys of their files, and how they report."""

import hashlib
import json
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import Field, PositiveInt, ValidationError

from fedkin.errors import FedkinError, InputError
from fedkin.events import Event, OnEvent, RunFailed, append_event, events_beside
from fedkin.federation.secure.refusals import single_vectors_needed
from fedkin.flower.jobs.event_log import log_event
from fedkin.flower.jobs.options import FederationOptions
from fedkin.flower.node_settings import TableDescription
from fedkin.messages import in_plain_words, suggestion
from fedkin.methods.base import Method
from fedkin.methods.registry import make_method
from fedkin.methods.settings import LARGEST_SEED
from fedkin.models.named import model_for, named_model, takes_l2


class JobKeys(TableDescription):
    """The keys of every job on tables; those of `TableDescription` describe them."""

    model: str | None = None
    seed: int = Field(0, ge=0, le=LARGEST_SEED)
    batch_size: PositiveInt = 50

    def digest(self, *more: Any) -> str:
        """Return a name that differs for different jobs (together with `more`)."""
        content = json.dumps([self.model_dump(mode="json"), *more], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:12]


class LearningKeys(JobKeys):
    """The keys of a job's file that say how to learn."""

    method: str = "bilevel"
    steps: PositiveInt | None = None
    synchronizations: PositiveInt | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    """Parameters of the method, as in a study."""
    leave_one_out: bool = True
    """Whether, at the end, each node that has a weight is left out once (docs/lying-nodes.md)."""


Keys = TypeVar("Keys", bound=JobKeys)


class CheckedKeys(NamedTuple):
    """What keys stand for."""

    method: Method
    model: str
    """The model asked for, or the one of the task."""


def read_keys(kind: type[Keys], content: Mapping[str, Any], path: Path) -> Keys:
    """Read the keys of a job's file."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            names = [name.replace("_", "-") for name in kind.model_fields]
            raise InputError(f"{path}: unknown key {place}{suggestion(place, names)}") from error
        raise InputError(f"{path}: {place}: {in_plain_words(first['msg'])}") from error


def check_label_and_nodes(keys: JobKeys, options: FederationOptions, path: Path) -> int:
    """Check what every job on tables has to say; return how many nodes take part."""
    if keys.label is None:
        raise InputError(f"{path}: name the label column (label = …)")
    if options.nodes is None:
        raise InputError(f"{path}: say how many nodes take part ([federation] nodes = …)")
    return options.nodes


def check_keys(keys: LearningKeys, options: FederationOptions, path: Path) -> CheckedKeys:
    """Check what the keys say about learning."""
    nodes = check_label_and_nodes(keys, options, path)
    try:
        method = make_method(keys.method, keys.settings)
        method.check(nodes)
        if method.reveals_models and options.secure_sums(nodes):
            raise single_vectors_needed(method.name)
        model = model_for(keys.task, keys.model)
        if takes_l2(model):  # one of fedkin's own, which refuses at once what is not for tables
            named_model(model, keys.task, classes=2, point_shape=(1,))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return CheckedKeys(method, model)


def with_events(out: Path, learn: Callable[[OnEvent], None]) -> None:
    """Let a job learn, and report its events to a file beside the result, and to the log."""
    events = events_beside(out)

    def report(event: Event) -> None:
        append_event(events, event)
        log_event(event)

    events.parent.mkdir(parents=True, exist_ok=True)
    try:
        learn(report)
    except FedkinError as error:
        report(RunFailed(reason=str(error)))
        raise
    except Exception as error:
        # A fault of fedkin's own: keep the traceback for a report.
        reason = f"{type(error).__name__}: {error}"
        report(RunFailed(reason=reason, traceback=traceback.format_exc()))
        raise
