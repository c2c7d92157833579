"""What everyone's question keeps while it runs: one checkpoint per owner and method, to resume from."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from fedkin.errors import InputError
from fedkin.files import write_atomically
from fedkin.training.map_directory import owner_directories

NODES = "nodes.json"

Described = TypeVar("Described")


@dataclass(frozen=True)
class KeptRuns:
    """A directory of checkpoints, which is deleted when the result is written."""

    directory: Path

    @classmethod
    def of_result(cls, out: Path, digest: str) -> "KeptRuns":
        """Return the directory that belongs to a result and to the job with this digest."""
        return cls(out.with_name(f"{out.name}.{digest}.checkpoints"))

    def check(self, *, resume: bool) -> None:
        """Refuse to resume what has not begun, and to begin what is to be resumed."""
        begun = (self.directory / NODES).exists()
        if resume and not begun:
            raise InputError(
                f"there is nothing to resume at {self.directory}: the job has changed, or was stopped before "
                "it began; start it without --resume"
            )
        if begun and not resume:
            raise InputError(
                f"there are checkpoints, {self.directory}: continue with --resume, or delete them"
            )

    def begin(self, nodes: Mapping[str, Any]) -> None:
        """Keep what the nodes have said about their rows."""
        self.directory.mkdir(parents=True, exist_ok=True)
        write_atomically(self.directory / NODES, json.dumps(nodes).encode())

    def read_nodes(self, kind: type[Described]) -> Described:
        """Return what `begin` was given, in the types that it must have."""
        try:
            return TypeAdapter(kind).validate_json((self.directory / NODES).read_bytes())
        except (OSError, ValueError) as error:
            raise InputError(
                f"{self.directory / NODES} cannot be read: delete {self.directory} to start again"
            ) from error

    def checkpoints(self, method: str, owners: Sequence[str]) -> dict[str, Path]:
        """Return the checkpoint of every owner's run of a method."""
        places = owner_directories(tuple(owners))
        (self.directory / method).mkdir(parents=True, exist_ok=True)
        return {name: self.directory / method / f"{place}.npz" for name, place in places.items()}
