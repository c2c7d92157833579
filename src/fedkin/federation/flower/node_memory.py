"""What a node remembers between messages: the run it has joined, and the slots of its state.

Flower keeps it in the `Context` of the run, in the SuperNode's memory. It is gone when the SuperNode
ends, and the run of a resumed study is a new one. Where the owner has given the node a directory, the
state at the beginning of the last outer step is kept there as well, for the one method whose nodes
carry something from step to step (FedAvg's reference points).
"""

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedkin.models.objective import Objective
from fedkin.nodes.tasks import empty_slot

logger = logging.getLogger(__name__)

Slots = dict[str, Any]
"""For each slot its content, a pytree of arrays."""


class NodeMemory:
    """A view of the records of a `Context`."""

    def __init__(self, records: RecordDict) -> None:
        self._records = records

    @property
    def joined(self) -> dict[str, Any] | None:
        """The request that the node joined the run with, or None."""
        record = self._records.get("joined")
        return None if record is None else json.loads(str(record["request"]))  # pyright: ignore

    def join(self, request: dict[str, Any]) -> None:
        """Forget everything, and remember this run."""
        self._records.clear()
        self._records["joined"] = ConfigRecord({"request": json.dumps(request)})
        self._records["series"] = ConfigRecord({})

    def series(self, slot: str) -> int | None:
        """The number of the series that a slot was begun in; None if it is empty."""
        record = self._records.get("series")
        return None if record is None else record.get(slot)  # pyright: ignore

    @property
    def step(self) -> int | None:
        """The outer step that the node was last asked in."""
        record = self._records.get("series")
        return None if record is None else record.get("step")  # pyright: ignore

    def slots(self, objective: Objective) -> Slots:
        """Return the content of all slots."""
        found = {}
        for name, record in self._records.items():
            if name.startswith("slot."):
                slot = name.removeprefix("slot.")
                leaves = [record[str(place)].numpy() for place in range(len(record))]  # pyright: ignore
                found[slot] = _arranged(slot, leaves, objective)
        return found

    def keep(self, slots: Slots, series: dict[str, int], step: int) -> None:
        """Replace these slots; `series` says which series they belong to."""
        for slot, content in slots.items():
            leaves = jax.tree.leaves(content)
            self._records[f"slot.{slot}"] = ArrayRecord(
                {str(place): Array(np.asarray(leaf)) for place, leaf in enumerate(leaves)}
            )
        known: dict[str, Any] = dict(self._records["series"])  # pyright: ignore
        self._records["series"] = ConfigRecord({**known, **series, "step": step})


class Snapshots:
    """The state at the beginning of an outer step, in a directory of the node's own.

    Args:
        directory: The owner's directory for it, or None: then nothing is kept.
        run: The run's own name; another run has another file.
    """

    def __init__(self, directory: Path | None, run: str) -> None:
        name = hashlib.sha256(run.encode()).hexdigest()[:16]
        self._path = None if directory is None else directory / f"run-{name}.npz"

    def save(self, memory: NodeMemory, slots: Slots, step: int) -> None:
        """Write the state before a step; only the last one is kept."""
        if self._path is None or not slots:
            return
        arrays = {
            f"{slot}/{memory.series(slot)}/{place}": np.asarray(leaf)
            for slot, content in slots.items()
            for place, leaf in enumerate(jax.tree.leaves(content))
        }
        partial = self._path.with_suffix(".partial.npz")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            np.savez(partial, step=np.int64(step), **arrays)  # pyright: ignore
            partial.replace(self._path)
        except OSError as error:
            # A run that cannot be resumed to the bit is better than none.
            logger.warning("cannot keep the node's state in %s: %s", self._path, error)

    def load(self, step: int, objective: Objective) -> tuple[Slots, dict[str, int]] | None:
        """Return the state before a step, with the series of each slot; None if it is not there."""
        if self._path is None or not self._path.exists():
            return None
        try:
            with np.load(self._path, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            if int(arrays.pop("step")) != step:
                return None
            series = {name.split("/")[0]: int(name.split("/")[1]) for name in arrays}
            return {
                slot: _arranged(
                    slot,
                    [
                        arrays[f"{slot}/{number}/{place}"]
                        for place in range(sum(name.startswith(f"{slot}/") for name in arrays))
                    ],
                    objective,
                )
                for slot, number in series.items()
            }, series
        except (OSError, ValueError, KeyError) as error:
            logger.warning("the state in %s cannot be used: %s", self._path, error)
            return None


def _arranged(slot: str, leaves: list[np.ndarray], objective: Objective) -> Any:
    """Arrange leaves as the slot's content is, with the axis of nodes that a simulation has."""
    structure = jax.tree.structure(empty_slot(slot, objective))
    return jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in leaves])
