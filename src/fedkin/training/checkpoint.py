"""Checkpoints: a run as it stands after an outer step, in one file that is there whole or not at all."""

import importlib.metadata
import io
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field

from fedkin.errors import InputError
from fedkin.federation.base import Cost, Federation
from fedkin.federation.center import Center
from fedkin.federation.task import Slot
from fedkin.files import write_atomically
from fedkin.messages import shorten
from fedkin.training.history import from_json, to_json
from fedkin.training.runner import RunState
from fedkin.training.saved_files import Record, Text, read_arrays, read_record
from fedkin.version import __version__

MOST_DIFFERENCES = 3
"""How many differences a message names."""


class SavedRun(Record):
    """What a checkpoint says of its run, beside the arrays and what it was made with."""

    cost: Cost
    rounds: int
    seconds: float
    history: tuple[dict[str, Any], ...]
    kept: Annotated[int, Field(ge=0)] | None
    """Which row of the history is the best one."""
    stopped: Text | None


def versions(*others: str) -> dict[str, str]:
    """Return the versions that a result may depend on, also those of some other libraries."""
    libraries = ("jax", "jaxlib", "numpy", "optax", *others)
    return {"fedkin": __version__, "python": platform.python_version()} | {
        name: importlib.metadata.version(name) for name in libraries
    }


def save_checkpoint(
    path: Path,
    state: RunState,
    federation: Federation,
    center: Center,
    made_with: Mapping[str, Any],
) -> None:
    """Write everything that the run needs to continue as if it had never stopped.

    Args:
        path: The file.
        state: The run.
        federation: The nodes, whose state is written too.
        center: The center, likewise.
        made_with: The parameters and versions that the run depends on; it continues only with the same.
    """
    description = {
        "made_with": made_with,
        "cost": asdict(state.cost),
        "rounds": state.rounds,
        "seconds": state.seconds,
        "history": [to_json(evaluation) for evaluation in state.history],
        "kept": None if state.kept is None else state.kept.step - 1,
        "stopped": state.stopped,
    }
    arrays: dict[str, Any] = {
        "description": np.frombuffer(json.dumps(description).encode(), np.uint8)
    }
    for number, leaf in enumerate(jax.tree.leaves(state.algorithm_state)):
        arrays[f"algorithm/{number}"] = np.asarray(leaf)
    for owner, holder in (("federation", federation), ("alone", center.alone)):
        arrays |= {f"{owner}/{name}": array for name, array in holder.export_state().items()}
    for name in ("kept_theta", "last_theta"):
        if getattr(state, name) is not None:
            arrays[name] = np.asarray(getattr(state, name))
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    write_atomically(path, buffer.getvalue())


def load_checkpoint(
    path: Path,
    state: RunState,
    federation: Federation,
    center: Center,
    made_with: Mapping[str, Any],
    slots: Mapping[str, Slot],
) -> None:
    """Bring a fresh run to where the checkpoint was taken.

    Args:
        path: The file.
        state: The run as `begin` made it; it gives the shapes and is changed in place.
        federation: The nodes; their state is replaced.
        center: The center; its state is replaced.
        made_with: The parameters and versions of this run: another's checkpoint is refused.
        slots: The slots of the method's tasks by name.
    """
    try:
        arrays = read_arrays(path.read_bytes())
        written = arrays.pop("description").tobytes()
        differing = _differing(json.loads(written)["made_with"], made_with)
        if not differing:
            saved = read_record(written, SavedRun)
            _restore_run(state, saved, arrays, federation, center, slots)
    except Exception as error:  # of a parser, or of an engine that was given nonsense
        raise InputError(
            f"the checkpoint {path} is damaged or of another version ({_reason(error)}): delete it to start "
            "this run over"
        ) from error
    if differing:
        raise InputError(
            f"the checkpoint {path} was made with other {', '.join(differing)}: continue with "
            "those, or delete the checkpoint to start this run over"
        )


def read_made_with(path: Path) -> Mapping[str, Any] | None:
    """Return what a checkpoint was made with; None if it does not say: `load_checkpoint` reports why."""
    try:
        return json.loads(read_arrays(path.read_bytes())["description"].tobytes())["made_with"]
    except Exception:  # whatever is wrong with the file
        return None


def _reason(error: Exception) -> str:
    return shorten(" ".join(str(error).split()) or type(error).__name__, 200)


def _differing(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Name what differs, with both values, of mappings of mappings; versions first, and not too much."""
    wanted = json.loads(json.dumps(wanted))
    differing = [
        f"{group} ({name} {old.get(name)}, now {wanted[group].get(name)})"
        for group in sorted(wanted, key=lambda group: group != "versions")
        for old in [found.get(group, {})]
        for name in sorted({*old, *wanted[group]})
        if old.get(name) != wanted[group].get(name)
    ]
    more = len(differing) - MOST_DIFFERENCES
    return differing if more <= 0 else [*differing[:MOST_DIFFERENCES], f"and {more} more"]


def _restore_run(
    state: RunState,
    saved: SavedRun,
    arrays: dict[str, np.ndarray],
    federation: Federation,
    center: Center,
    slots: Mapping[str, Slot],
) -> None:
    state.algorithm_state = _restore(state.algorithm_state, _leaves(arrays, "algorithm/"))
    for owner, holder in (("federation", federation), ("alone", center.alone)):
        prefix = f"{owner}/"
        own = {
            name.removeprefix(prefix): array
            for name, array in arrays.items()
            if name.startswith(prefix)
        }
        holder.import_state(own, slots)
    state.cost = saved.cost
    state.rounds = saved.rounds
    state.seconds = saved.seconds
    state.history = [from_json(row) for row in saved.history]
    state.stopped = saved.stopped
    if saved.kept is not None:
        state.kept = state.history[saved.kept]
        state.kept_theta = _vector(arrays["kept_theta"], federation)
        state.last_theta = _vector(arrays["last_theta"], federation)


def _vector(array: np.ndarray, federation: Federation) -> jax.Array:
    if array.shape != (federation.objective.size,) or array.dtype.kind != "f":
        raise ValueError(f"parameters of shape {array.shape} and type {array.dtype}")
    return jnp.asarray(array)


def _leaves(arrays: Mapping[str, np.ndarray], prefix: str) -> list[np.ndarray]:
    count = sum(name.startswith(prefix) for name in arrays)
    return [arrays[f"{prefix}{number}"] for number in range(count)]


def _restore(template: Any, leaves: list[np.ndarray]) -> Any:
    """Arrange leaves as the template is: plain numbers and NumPy's arrays are such again."""
    places, structure = jax.tree.flatten(template)
    if len(places) != len(leaves):
        raise ValueError(f"{len(leaves)} arrays where {len(places)} are expected")
    return jax.tree.unflatten(
        structure, [_as_in(place, leaf) for place, leaf in zip(places, leaves, strict=True)]
    )


def _as_in(place: Any, leaf: np.ndarray) -> Any:
    number = isinstance(place, (bool, int, float))
    # What is empty at the beginning, such as the Hessian of Newton steps, grows.
    fits = leaf.shape == np.shape(place) or (np.size(place) == 0 and leaf.ndim == np.ndim(place))
    if not fits or not (number or leaf.dtype.kind == place.dtype.kind):
        raise ValueError(f"an array of shape {leaf.shape} and type {leaf.dtype}")
    if number:
        return type(place)(leaf.item())
    # The center may compute in float64, which JAX would round.
    return leaf if isinstance(place, np.ndarray) else jnp.asarray(leaf)
