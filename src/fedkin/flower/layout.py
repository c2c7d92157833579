"""The directory of a federation on this machine: `federation.toml`, certificates, keys, and logs."""

import json
import os
import re
import secrets
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fedkin.data.scenarios import has_paper_scenario
from fedkin.errors import InputError
from fedkin.flower.certificates import make_private_directory
from fedkin.messages import in_plain_words, shorten

Option = str | int | float | bool
SUPERLINK = "superlink"
"""The name of the server in logs and status."""
FILE = "federation.toml"

HEADER = """\
# A federation of fedkin. Edit it freely while the federation is down. Paths are relative to this file.
# Without `port`, every start uses a free one.
"""


class Strict(BaseModel):
    """Unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ServerEntry(Strict):
    """Where the SuperLink listens."""

    listen: str = "127.0.0.1"
    """The address it listens at; 0.0.0.0 for all addresses of this machine."""
    port: int | None = Field(default=None, ge=1, le=65535)

    @field_validator("listen")
    @classmethod
    def _is_address(cls, listen: str) -> str:
        return check_listen(listen)


def check_listen(address: str) -> str:
    """Return an address to listen at, if the machine itself can then reach it as 127.0.0.1."""
    if address not in ("127.0.0.1", "0.0.0.0"):
        raise ValueError(
            f"the SuperLink listens at 127.0.0.1 (this machine only) or 0.0.0.0 (all its addresses), not "
            f"at {address}, because its own processes and commands use 127.0.0.1; choose interfaces "
            "in the firewall"
        )
    return address


class NodeEntry(BaseModel):
    """A node that `up` starts on this machine; all other keys are settings of the node."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str
    data: str
    """The file with the node's table; or the name of a set of images, such as `digits`, for a trial."""
    port: int | None = Field(default=None, ge=1, le=65535)
    """The port that its own processes use, reachable from this machine only."""
    reproducible: bool = False
    """Whether the center decides what the node draws, as in a simulation: for trials on one machine."""

    @field_validator("name")
    @classmethod
    def _is_name(cls, name: str) -> str:
        return check_name(name)

    @property
    def further(self) -> dict[str, Option]:
        """The settings that are only this node's."""
        return dict(self.model_extra or {})


class FederationFile(Strict):
    """The content of `federation.toml`."""

    format: Literal[2] = 2
    id: str = Field(pattern=r"^[0-9a-f]{16}$")
    """Marks the processes of this federation, so that `down` finds every one of them."""
    superlink: ServerEntry = ServerEntry()
    data: dict[str, Option] = {}
    """How data are read: settings of all nodes and of the center."""
    center: dict[str, str] = {}
    """The center's own tables: `validation` and `test`; or `own`, for the question whether to join."""
    node: tuple[NodeEntry, ...] = ()

    @field_validator("node")
    @classmethod
    def _are_distinct(cls, nodes: tuple[NodeEntry, ...]) -> tuple[NodeEntry, ...]:
        names = [node.name for node in nodes]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two nodes are called '{name}'")
        return nodes


def check_name(name: str) -> str:
    """Return the name of a node, if files and processes can have it."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}", name) or name == SUPERLINK:
        raise ValueError(
            f"'{shorten(name, 60)}' cannot be the name of a node: use up to 40 letters, digits, '-', '_' and "
            "'.'"
        )
    return name


class Layout:
    """Where everything is in the directory of a federation."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        self.file = self.directory / FILE
        self.authority = self.directory / "certificates" / "ca.pem"
        self.authority_key = self.directory / "certificates" / "ca.key"
        self.server_certificate = self.directory / "certificates" / "server.pem"
        self.server_key = self.directory / "certificates" / "server.key"
        self.database = self.directory / "superlink.db"
        self.token = self.directory / "superlink.token"
        self.logs = self.directory / "logs"
        self.center = self.directory / "center"
        self.running = self.directory / "running.json"
        self.lock = self.directory / ".lock"

    def node(self, name: str) -> Path:
        """Return the directory of a node."""
        return self.directory / "nodes" / name

    def node_key(self, name: str) -> Path:
        """Return the path of a node's private key."""
        return self.node(name) / "node.key"

    def log(self, name: str) -> Path:
        """Return the path of the log of a node or of the SuperLink."""
        return self.logs / f"{name}.log"

    def flower_home(self, name: str) -> Path:
        """Return the directory where Flower unpacks what a process of this name runs."""
        return self.directory / "flower" / name

    def path(self, written: str) -> Path:
        """Return a path of `federation.toml`, which is relative to that file."""
        return Path(os.path.normpath(self.directory / Path(written).expanduser()))

    def data(self, written: str) -> str:
        """Return the name of a known set of images as it is, and the path of a table."""
        return written if has_paper_scenario(written) else str(self.path(written))

    def read(self) -> FederationFile:
        """Read `federation.toml`."""
        if not self.directory.is_dir():
            raise InputError(
                f"there is no directory {self.directory}: create a federation with fedkin federation init"
            )
        try:
            content = tomllib.loads(self.file.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise InputError(
                f"{self.directory} has no {FILE}: it is not a federation; create one with "
                "fedkin federation init"
            ) from error
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read {self.file}: {error}") from error
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"{self.file} is not valid TOML: {error}") from error
        if content.get("format", 1) == 1:
            content = _from_format_1(content)
        try:
            return FederationFile(**content)
        except ValidationError as error:
            problems = "; ".join(_problem(each) for each in error.errors())
            raise InputError(f"{self.file}: {problems}") from error

    def write(self, content: FederationFile) -> None:
        """Write `federation.toml`."""
        make_private_directory(self.directory)
        scratch = self.file.with_name(f".{FILE}.new")
        try:
            scratch.write_text(to_toml(content), encoding="utf-8")
            scratch.replace(self.file)
        except OSError as error:
            raise InputError(f"cannot write {self.file}: {error.strerror}") from error

    def read_running(self) -> "Running | None":
        """Return what the last start chose; None if there was none."""
        try:
            return Running.model_validate_json(self.running.read_bytes())
        except (OSError, ValidationError):
            return None

    def write_running(self, running: "Running") -> None:
        """Write down what this start chose."""
        scratch = self.running.with_name(".running.new")
        try:
            scratch.write_text(running.model_dump_json(), encoding="utf-8")
            scratch.replace(self.running)
        except OSError as error:
            raise InputError(f"cannot write {self.running}: {error.strerror}") from error


class Running(Strict):
    """What a start chose, for the commands that connect to it."""

    ports: dict[str, int]
    """By the name of a node, or `superlink`."""
    insecure: bool = False
    """Whether the user asked for neither TLS nor authentication of nodes."""


def new_identity() -> str:
    """Return a random id, different from that of every other federation."""
    return secrets.token_hex(8)


def to_toml(content: FederationFile) -> str:
    """Write a federation as TOML that people can read and edit."""
    server = content.superlink
    lines = [HEADER, f"format = {content.format}", f"id = {_value(content.id)}", "", "[superlink]"]
    lines += [f"listen = {_value(server.listen)}"]
    lines += _table({} if server.port is None else {"port": server.port})
    if content.data:
        lines += ["", "[data]  # of all nodes and of the center", *_table(content.data)]
    if content.center:
        lines += ["", "[center]", *_table(content.center)]
    for node in content.node:
        lines += ["", "[[node]]", f"name = {_value(node.name)}", f"data = {_value(node.data)}"]
        lines += _table({} if node.port is None else {"port": node.port})
        lines += _table({"reproducible": True} if node.reproducible else {})
        lines += _table(node.further)
    return "\n".join(lines) + "\n"


def write_configuration(path: Path, entries: Mapping[str, Option]) -> None:
    """Write a configuration as a flat TOML file, which Flower reads."""
    make_private_directory(path.parent)
    try:
        path.write_text("\n".join(_table(entries)) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


def _table(entries: Mapping[str, Any]) -> list[str]:
    return [f"{name} = {_value(value)}" for name, value in entries.items()]


def _value(value: Any) -> str:
    """Write a value as in JSON, whose strings, numbers and lists are TOML too."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(_value(each) for each in value)}]"
    return json.dumps(value)


def _from_format_1(content: dict[str, Any]) -> dict[str, Any]:
    """Read a file of format 1, where the table `[center]` was called `[centre]`."""
    renamed = {"center" if name == "centre" else name: value for name, value in content.items()}
    return renamed | {"format": 2}


def _problem(error: Any) -> str:
    place = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"unknown key {place}"
    return f"{place}: {in_plain_words(error['msg'])}"
