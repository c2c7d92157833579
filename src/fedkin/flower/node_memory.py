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
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedkin.errors import InputError
from fedkin.flower.certificates import make_private_directory
from fedkin.methods.tasks import empty_slot
from fedkin.models.objective import Objective

logger = logging.getLogger(__name__)

Slots = dict[str, Any]
"""The content of each slot: a pytree of arrays."""


class NodeMemory:
    """A view of the records of a `Context`."""

    def __init__(self, records: RecordDict) -> None:
        self._records = records

    @property
    def joined(self) -> dict[str, Any] | None:
        """The request with which the node joined the run; None if it has not joined."""
        record = self._records.get("joined")
        return None if record is None else json.loads(str(record["request"]))  # pyright: ignore

    def join(self, request: dict[str, Any]) -> None:
        """Forget everything, and remember this run."""
        self._records.clear()
        self._records["joined"] = ConfigRecord({"request": json.dumps(request)})
        self._records["series"] = ConfigRecord({})

    def series(self, slot: str) -> int | None:
        """Return the number of the series in which a slot was begun; None if it is empty."""
        record = self._records.get("series")
        return None if record is None else record.get(slot)  # pyright: ignore

    def slots(self, objective: Objective) -> Slots:
        """Return the content of all slots."""
        found = {}
        for name, record in self._records.items():
            if name.startswith("slot."):
                slot = name.removeprefix("slot.")
                leaves = [record[str(place)].numpy() for place in range(len(record))]  # pyright: ignore
                found[slot] = _arranged(slot, leaves, objective)
        return found

    def keep(self, slots: Slots, series: dict[str, int]) -> None:
        """Replace these slots; `series` has the series that each belongs to."""
        for slot, content in slots.items():
            leaves = jax.tree.leaves(content)
            self._records[f"slot.{slot}"] = ArrayRecord(
                {str(place): Array(np.asarray(leaf)) for place, leaf in enumerate(leaves)}
            )
        known: dict[str, Any] = dict(self._records["series"])  # pyright: ignore
        self._records["series"] = ConfigRecord({**known, **series})


LASTING = ("inner",)
"""The slots that may last from one outer step to the next."""


PRIVATE_AND_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL


class Snapshots:
    """Lasting slots on the node's disk: after the last message, and at the end of the previous step.

    A run resumes from the end of an outer step. If the node has not been asked since then, that is its
    latest state; otherwise it is the state that was set aside when the next step began.

    Args:
        directory: The node's directory, or None to keep nothing.
        run: The name of the run; every run has its own files.
    """

    def __init__(self, directory: Path | None, run: str) -> None:
        self._directory = directory
        self._name = hashlib.sha256(run.encode()).hexdigest()[:16]

    def save(self, slots: Slots, series: int, step: int) -> None:
        """Write the lasting slots after a message of this step."""
        arrays = {
            f"{slot}/{place}": np.asarray(leaf)
            for slot in LASTING
            if slot in slots
            for place, leaf in enumerate(jax.tree.leaves(slots[slot]))
        }
        if self._directory is None or not arrays:
            return
        latest, aside = self._places(self._directory)
        partial = latest.with_suffix(".partial.npz")
        try:
            make_private_directory(self._directory)
            partial.unlink(missing_ok=True)
            with os.fdopen(os.open(partial, PRIVATE_AND_NEW, 0o600), "wb") as file:
                np.savez(file, step=np.int64(step), series=np.int64(series), **arrays)  # pyright: ignore
            # The file knows the step; a node that was started again does not remember it.
            stored = _stored_step(latest)
            if stored is not None and 0 <= stored < step:
                latest.replace(aside)
            partial.replace(latest)
        except (InputError, OSError) as error:
            # A run that cannot be resumed exactly is better than none.
            logger.warning("cannot keep the node's state in %s: %s", self._directory, error)

    def load(self, step: int, objective: Objective) -> tuple[Slots, dict[str, int]] | None:
        """Return the slots as they were before a step, and the series of each; None if unknown."""
        for path in () if self._directory is None else self._places(self._directory):
            try:
                with np.load(path, allow_pickle=False) as archive:
                    arrays = {name: archive[name] for name in archive.files}
                series = int(arrays.pop("series"))
                if int(arrays.pop("step")) != step - 1:
                    continue
                slots = {
                    slot: _arranged(
                        slot, [arrays[f"{slot}/{place}"] for place in range(len(arrays))], objective
                    )
                    for slot in LASTING
                }
            except FileNotFoundError:
                continue
            except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
                logger.warning("the state in %s cannot be used: %s", path, error)
                continue
            return slots, dict.fromkeys(slots, series)
        return None

    def _places(self, directory: Path) -> tuple[Path, Path]:
        return directory / f"run-{self._name}.npz", directory / f"run-{self._name}-before.npz"


def _stored_step(path: Path) -> int | None:
    """Return the outer step in which a file was written; None if it cannot be read."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return int(archive["step"])
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None


def _arranged(slot: str, leaves: list[np.ndarray], objective: Objective) -> Any:
    """Arrange leaves as in the slot's content, with the axis of nodes that a simulation has."""
    structure = jax.tree.structure(empty_slot(slot, objective))
    return jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in leaves])
