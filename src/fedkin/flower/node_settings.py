"""What the owner of a node has decided: which data, under which name, and what may be asked of them.

The owner gives the settings to the SuperNode (`--node-config`), either one by one or as the path of a
TOML file (`settings="/etc/fedkin/node.toml"`). No message can change them.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, field_validator

from fedkin.data import option_text
from fedkin.data.federated import Target
from fedkin.data.labels import binary_label, keep_labeled
from fedkin.data.scenarios import has_paper_scenario
from fedkin.data.summaries import TableSummary, summarize
from fedkin.data.tables import Table, TableFormat, read_table
from fedkin.errors import InputError
from fedkin.flower.guard import FORMS
from fedkin.types import LearningTask

DESCRIBE = "describe"
"""The request that asks for a node's name and the summary of its table (`docs/tables.md`)."""


def _dashed(name: str) -> str:
    return name.replace("_", "-")


class TableDescription(BaseModel):
    """How a table is written and what its label is, as in `fedkin fit`; in files with dashes."""

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
        """Read a table, its label prepared; rows without a label are left out."""
        assert self.label is not None
        table_format = TableFormat(self.separator, self.header, self.columns, self.drop)
        table = read_table(path, owner, table_format).with_missing_codes(self.missing)
        table = keep_labeled(table, self.label)
        return table if self.positive is None else binary_label(table, self.label, self.positive)

    def summarize(self, table: Table) -> TableSummary:
        """Return what is said of a table: counts, means, categories, never a row."""
        assert self.label is not None
        return summarize(table, self.label, self.task, self.categorical)


class NodeSettings(TableDescription):
    """The settings of a node; in files and in `--node-config` written with dashes."""

    name: str = Field(min_length=1, max_length=100)
    """What the node is called in results and messages."""
    data: str
    """A CSV or Parquet file; or `digits` and so on: images of a trial federation."""
    minimum_points: PositiveInt = 10
    """The node takes part only if it has at least so many points."""
    minimum_batch: PositiveInt = 5
    """It takes part only where a mini-batch has at least so many points, or all that it has: what it
    answers to a study of smaller ones is about single points."""
    allow: tuple[str, ...] = (DESCRIBE, *FORMS)
    """The requests that the node answers, separated by commas."""
    state: Path | None = None
    """A directory of the node's own, for compiled code and for what a resumed run needs."""

    # Of a trial federation of images; as in a study
    member: str | None = None
    """Which node of the federation this is, such as `minority-1`; by default the node's name."""
    setting: int = Field(1, ge=1, le=4)
    target: Target = "minority"
    seed: int = Field(0, ge=0)
    minority_nodes: int = Field(5, ge=0)
    majority_nodes: int = Field(10, ge=0)
    train_size: PositiveInt | None = None

    @field_validator("allow", mode="before")
    @classmethod
    def _requests(cls, value: Any) -> Any:
        return option_text.parse_names(value) if isinstance(value, str) else value

    @field_validator("allow")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if name not in (DESCRIBE, *FORMS):
                raise ValueError(f"there is no request {name!r}; known are {', '.join(FORMS)}")
        return value

    @property
    def is_table(self) -> bool:
        """Whether the data are a table and not images: whatever its file's ending, it has a label."""
        return self.label is not None or not has_paper_scenario(self.data)


def node_settings(node_config: Mapping[str, Any]) -> NodeSettings:
    """Read the settings that the owner gave to the SuperNode."""
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
        place = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{source}: {place}: {first['msg']}") from error
    if settings.is_table and settings.label is None:
        raise InputError(f"{source}: a table needs the name of its label column (label)")
    return settings
