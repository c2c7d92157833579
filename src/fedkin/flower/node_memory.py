"""What a node remembers between messages: the run it has joined, and the slots of its state.

Flower keeps it in the `Context` of the run, in the SuperNode's memory. It is lost when the SuperNode
ends, and to Flower a resumed study is a new run. If the owner has given the node a directory, state that
lasts from one outer step to the next (FedAvg's reference points) is also kept there.
"""

import hashlib
import json
import logging
import os
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedkin.errors import InputError
from fedkin.flower.certificates import make_private_directory

logger = logging.getLogger(__name__)

PRIVATE_AND_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL


@dataclass(frozen=True)
class SlotMemory:
    """The slots of a node, and the series in which they were begun."""

    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    """What `LocalWork.export_arrays` returned."""
    series: Mapping[str, int] = field(default_factory=dict)
    """The number of the series of each slot and model, by `SLOT/MODEL`."""

    def of(self, slots: Collection[str]) -> "SlotMemory":
        """Return the part that is about some slots."""
        return SlotMemory(
            {name: array for name, array in self.arrays.items() if name.split("/")[1] in slots},
            {name: number for name, number in self.series.items() if name.split("/")[0] in slots},
        )


class NodeMemory:
    """A view of the records of a `Context`."""

    def __init__(self, records: RecordDict) -> None:
        self._records = records

    @property
    def joined(self) -> dict[str, Any] | None:
        """The request with which the node joined the run; None if it has not joined."""
        record = self._records.get("joined")
        return None if record is None else json.loads(str(record["request"]))  # pyright: ignore

    @property
    def protected(self) -> bool:
        """Whether the node's rows were protected when it joined, and so in all that it remembers."""
        record: Any = self._records.get("joined", {})
        return bool(record.get("protected", False))

    def join(self, request: dict[str, Any], *, protected: bool = False) -> None:
        """Forget everything, and remember this run."""
        self._records.clear()
        self._records["joined"] = ConfigRecord(
            {"request": json.dumps(request), "protected": protected}
        )
        self.keep(SlotMemory())

    def slots(self) -> SlotMemory:
        """Return what is remembered of all slots."""
        arrays: Any = self._records.get("slots", {})
        series: Any = self._records.get("series", {})
        return SlotMemory({name: array.numpy() for name, array in arrays.items()}, dict(series))

    def keep(self, slots: SlotMemory) -> None:
        """Replace what is remembered of all slots."""
        self._records["slots"] = ArrayRecord(
            {name: Array(np.asarray(array)) for name, array in slots.arrays.items()}
        )
        self._records["series"] = ConfigRecord(dict(slots.series))


class Snapshots:
    """Lasting slots on the node's disk: after the last message, and before the step of that message.

    A run resumes from the end of an outer step. If the node has not been asked since then, that is its
    latest state; otherwise it is the state that was set aside when the next step began.

    Args:
        directory: The node's directory, or None to keep nothing.
        run: The name of the run; every run has its own files.
    """

    def __init__(self, directory: Path | None, run: str) -> None:
        self._directory = directory
        self._name = hashlib.sha256(run.encode()).hexdigest()[:16]

    def save(self, slots: SlotMemory, step: int) -> None:
        """Write lasting slots after a message of this step."""
        if self._directory is None or not slots.arrays:
            return
        latest, aside = self._places(self._directory)
        partial = latest.with_suffix(".partial.npz")
        arrays: dict[str, Any] = {f"array/{name}": array for name, array in slots.arrays.items()}
        arrays |= {f"series/{name}": np.int64(number) for name, number in slots.series.items()}
        try:
            make_private_directory(self._directory)
            partial.unlink(missing_ok=True)
            with os.fdopen(os.open(partial, PRIVATE_AND_NEW, 0o600), "wb") as file:
                np.savez(file, step=np.int64(step), **arrays)
            # The file knows the step; a node that was started again does not remember it.
            stored = _stored_step(latest)
            if stored is not None and 0 <= stored < step:
                latest.replace(aside)
            partial.replace(latest)
        except (InputError, OSError) as error:
            # A run that cannot be resumed exactly is better than none.
            logger.warning("cannot keep the node's state in %s: %s", self._directory, error)

    def load(self, step: int) -> SlotMemory | None:
        """Return the lasting slots as they were before a step; None if they are not known.

        They may be of an earlier step than the last: a node whose weight is zero is not asked.
        """
        for path in () if self._directory is None else self._places(self._directory):
            try:
                with np.load(path, allow_pickle=False) as archive:
                    arrays = {name: archive[name] for name in archive.files}
                if int(arrays.pop("step")) >= step:
                    continue
            except FileNotFoundError:
                continue
            except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
                logger.warning("the state in %s cannot be used: %s", path, error)
                continue
            return SlotMemory(
                _without_prefix(arrays, "array/"),
                {name: int(number) for name, number in _without_prefix(arrays, "series/").items()},
            )
        return None

    def _places(self, directory: Path) -> tuple[Path, Path]:
        return directory / f"run-{self._name}.npz", directory / f"run-{self._name}-before.npz"


def prune_snapshots(directory: Path | None, runs: int) -> None:
    """Remove the lasting slots of all but the newest runs from a node's directory."""
    if directory is None:
        return
    newest: dict[str, float] = {}
    try:
        for path in (*directory.glob("run-*.npz"), *directory.glob("run-*.sums")):
            name = path.stem.split("-")[1].split(".")[0]
            newest[name] = max(newest.get(name, 0.0), path.stat().st_mtime)
        for name in sorted(newest, key=newest.__getitem__)[: max(0, len(newest) - runs)]:
            for path in (*directory.glob(f"run-{name}*.npz"), directory / f"run-{name}.sums"):
                path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("cannot remove old state in %s: %s", directory, error)


def _without_prefix(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


def _stored_step(path: Path) -> int | None:
    """Return the outer step in which a file was written; None if it cannot be read."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return int(archive["step"])
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None
