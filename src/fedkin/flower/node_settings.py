"""The settings of a node, chosen by its owner: its name, its data, and what it answers.

The owner gives them to the SuperNode (`--node-config`), one by one or as the path of a TOML file
(`settings="/etc/fedkin/node.toml"`). No message can change them.
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    ValidationError,
    field_validator,
)

from fedkin.data import option_text
from fedkin.data.federated import Target
from fedkin.data.labels import prepare_label
from fedkin.data.scenarios import has_paper_scenario
from fedkin.data.summaries import TableSummary, summarize
from fedkin.data.tables import Table, TableFormat, read_table
from fedkin.errors import InputError
from fedkin.federation.privacy import require_accountant
from fedkin.flower.guard import all_tasks, remote_tasks
from fedkin.flower.owner_limits import OwnerLimits
from fedkin.flower.owner_privacy import BUDGET_FILE, OwnerPrivacy
from fedkin.flower.wire import DESCRIBE, Refusal, RefusedError
from fedkin.messages import in_plain_words, suggestion
from fedkin.methods.registry import method_class, register
from fedkin.methods.settings import LARGEST_SEED
from fedkin.types import LearningTask


def _dashed(name: str) -> str:
    return name.replace("_", "-")


class TableDescription(BaseModel):
    """The format of a table and its label, as in `fedkin fit`; in files, names have dashes."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=_dashed, populate_by_name=True
    )

    label: str | None = None
    task: LearningTask = "classification"
    positive: str | None = None
    categorical: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    missing: dict[str, float] = {}
    columns: tuple[str, ...] | None = None
    header: bool = True
    separator: str = ","
    strict: bool = False
    """Whether to refuse tables with different columns; a node refuses columns that it lacks."""

    @field_validator("categorical", "drop", "columns", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        return option_text.parse_names(value) if isinstance(value, str) else value

    @field_validator("missing", mode="before")
    @classmethod
    def _codes(cls, value: Any) -> Any:
        return option_text.parse_missing_codes(value) if isinstance(value, str) else value

    @field_validator("separator", mode="before")
    @classmethod
    def _separator(cls, value: Any) -> Any:
        return option_text.parse_separator(value) if isinstance(value, str) else value

    def read(self, path: str | Path, owner: str) -> Table:
        """Read a table and prepare its label; rows without a label are left out."""
        assert self.label is not None
        table_format = TableFormat(self.separator, self.header, self.columns, self.drop)
        table = read_table(path, owner, table_format)
        return prepare_label(table, self.label, self.task, self.positive, self.missing)

    def summarize(self, table: Table, parts: Sequence[Table] = ()) -> TableSummary:
        """Return the summary of a table: counts, means, categories, but no row. See `summarize`."""
        assert self.label is not None
        return summarize(table, self.label, self.task, self.categorical, parts)


class NodeSettings(OwnerLimits, OwnerPrivacy, TableDescription):
    """The settings of a node; in files and in `--node-config`, names have dashes."""

    name: str = Field(min_length=1, max_length=100)
    """The name of the node in results and messages."""
    data: str
    """A CSV or Parquet file; or the name of a set of images, such as `digits`, for a trial."""
    minimum_points: PositiveInt = 10
    """The node takes part only if it has at least this many points."""
    minimum_batch: PositiveInt = 5
    """Every mini-batch is made of fixed groups of at least this many points, or has all of the node's
    (`node_draws.py`). An owner takes part only if it holds out at least this many rows."""
    reproducible: bool = False
    """Let the center decide how the rows are divided and what is drawn, so that a federation computes what a
    simulation does. Only for a trial on one machine: such a center can compute single rows."""
    allow: tuple[str, ...] | None = None
    """The requests that the node answers, separated by commas; if not given, those of fedkin's own methods
    and of the methods below. A package that is merely installed widens nothing."""
    reveal: bool = False
    """Whether the center may ask for this node's own vectors, as methods that compare single nodes'
    models do."""
    methods: tuple[str, ...] = ()
    """Methods of other packages that the node takes part in, as `package.module:Class`, beside those of
    fedkin and of packages that declare entry points."""
    models: tuple[str, ...] = ()
    """Models of other packages that the node trains, as `package.module:factory`, likewise."""
    key: Path | None = None
    """The private key that this node is registered with; its keys for masked sums are signed with it."""
    peers: dict[str, str] = {}
    """The fingerprints of other nodes' registered keys, by name (`fedkin federation key`). If there are any,
    this node masks its part of a sum only if all others in it are among them."""
    state: Path | None = None
    """A directory for the node's secret, its audit log, compiled code, and what a resumed run needs."""

    validation_fraction: float | None = Field(None, gt=0, lt=1)
    """The share of the rows that the node holds out to learn its own weights by: it is then an owner too, and
    takes part in everyone's question (docs/everyone.md)."""
    test_fraction: float | None = Field(None, gt=0, lt=1)
    """The share of the rows that only its own scores are for."""

    # For a trial with images, as in a study; the seed also draws the rows that are held out
    member: str | None = None
    """Which node of the study this is, such as `minority-1`; by default, the node's name."""
    setting: int = Field(1, ge=1, le=4)
    target: Target = "minority"
    seed: int = Field(0, ge=0, le=LARGEST_SEED)
    minority_nodes: int = Field(5, ge=0)
    majority_nodes: int = Field(10, ge=0)
    train_size: PositiveInt | None = None

    @field_validator("allow", "methods", "models", mode="before")
    @classmethod
    def _requests(cls, value: Any) -> Any:
        return option_text.parse_names(value) if isinstance(value, str) else value

    @field_validator("peers", mode="before")
    @classmethod
    def _fingerprints(cls, value: Any) -> Any:
        return dict(_pinned(each) for each in value.split(",")) if isinstance(value, str) else value

    @property
    def shows_plain(self) -> bool:
        """Whether the center may see vectors of this node: in a trial it decides about everything anyway."""
        return self.plain_sums or self.reproducible or self.reveal

    def check_peer(self, name: str, fingerprint: str | None) -> None:
        """Refuse another node that is not the one that the owner has pinned."""
        if not self.peers:
            return
        if name not in self.peers:
            raise RefusedError(
                Refusal.FORBIDDEN,
                f"the owner of this node does not know {name[:50]!r} (peers)",
            )
        if fingerprint != self.peers[name]:
            raise RefusedError(
                Refusal.FORBIDDEN,
                f"the key of {name[:50]!r} has the fingerprint {fingerprint or 'of nobody'}, and the owner "
                f"of this node expects {self.peers[name]} (peers)",
            )

    @property
    def allowed(self) -> tuple[str, ...]:
        """The requests that the node answers: those of fedkin's methods and of the methods named."""
        if self.allow is not None:
            return self.allow
        named = {task.name for name in self.methods for task in method_class(name).tasks}
        known = (remote_tasks() if self.validation_fraction is None else all_tasks()).values()
        own = [task.name for task in known if task.is_fedkins_own or task.name in named]
        return (DESCRIBE, *own)

    @property
    def is_table(self) -> bool:
        """Whether the data are a table and not images."""
        return self.label is not None or not has_paper_scenario(self.data)


def _pinned(written: str) -> tuple[str, str]:
    """Read `NAME=SHA256:…`."""
    name, _, fingerprint = written.strip().partition("=")
    if not name or not fingerprint.startswith("SHA256:"):
        raise ValueError(f"'{written[:60]}' is not of the form NAME=SHA256:…")
    return name, fingerprint


def node_settings(node_config: Mapping[str, Any]) -> NodeSettings:
    """Read the settings that the owner gave to the SuperNode, and register the methods that they name."""
    content: dict[str, Any] = dict(node_config)
    source = "the node's configuration"
    if "settings" in content:
        source = str(content.pop("settings"))
        try:
            content = tomllib.loads(Path(source).read_text(encoding="utf-8")) | content
        except OSError as error:
            raise InputError(f"cannot read {source}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{source} is not valid TOML: {error}") from error
    try:
        settings = NodeSettings.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = [".".join(str(part) for part in first["loc"])] if first["loc"] else []
        reason = in_plain_words(first["msg"])
        raise InputError(": ".join([source, *place, reason])) from error
    if settings.is_table and settings.label is None:
        raise InputError(f"{source}: a table needs the name of its label column (label)")
    for name in settings.methods:
        try:
            register(method_class(name))
        except InputError as error:
            raise InputError(f"{source}: methods: {error}") from error
    if settings.state is None and not settings.reproducible:
        raise InputError(
            f"{source}: the node needs a directory for its secret and its audit log (state)"
        )
    _check_fractions(settings, source)
    _check_privacy(settings, source)
    known = (DESCRIBE, *all_tasks())
    for name in settings.allow or ():
        if name not in known:
            raise InputError(
                f"{source}: allow: there is no request {name!r}{suggestion(name, known)}"
            )
    return settings


def _check_fractions(settings: NodeSettings, source: str) -> None:
    """Refuse shares of rows that change nothing, or leave no rows to train on."""
    validation, test = settings.validation_fraction, settings.test_fraction
    if test is not None and validation is None:
        raise InputError(
            f"{source}: test-fraction goes with validation-fraction, for a node that is an owner: give both, "
            "or leave it out"
        )
    if validation is not None and not settings.is_table:
        raise InputError(
            f"{source}: validation-fraction is for tables, and {settings.data!r} is a set of images: leave "
            "it out"
        )
    if (validation or 0.0) + (test or 0.0) >= 1:
        raise InputError(
            f"{source}: validation-fraction and test-fraction leave no rows to train on: their sum must be "
            "below 1"
        )


def _check_privacy(settings: NodeSettings, source: str) -> None:
    """Refuse options that protect nothing."""
    if unused := settings.unused_privacy_options():
        raise InputError(
            f"{source}: {', '.join(unused)}: only epsilon turns the protection of rows on: give it too, or "
            "leave that out"
        )
    if settings.epsilon is None:
        if settings.state is not None and (settings.state / BUDGET_FILE).exists():
            raise InputError(
                f"{source}: epsilon is missing, and by {settings.state / BUDGET_FILE} this node's rows "
                "have been protected so far: give it, or remove the file to answer without noise from now on"
            )
        return
    require_accountant()
    if settings.state is None:
        raise InputError(
            f"{source}: epsilon: the node needs a directory where what is spent outlives a run (state)"
        )
    if settings.validation_fraction is not None:
        raise InputError(
            f"{source}: epsilon protects rows that a model is trained on, and questions about rows held out "
            "have no private answers: leave epsilon or validation-fraction out"
        )
