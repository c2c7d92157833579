"""One node: it takes a request, checks it, computes on its own data, and answers.

`answer` never raises: whatever a message holds, the node answers it, with an error if need be. What an
error tells the center is what was wrong with the request; what is wrong with the node's own data is told
to the node's log only, since such a message may quote a cell.
"""

import contextlib
import json
import logging
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Context, Error, Message
from pydantic import ValidationError

from fedkin.compilation import keep_compiled_code
from fedkin.data.preprocessing import Preprocessing
from fedkin.errors import FedkinError, InputError
from fedkin.federation.simulation import SimulatedFederation
from fedkin.flower import node_data, wire
from fedkin.flower.certificates import make_private_directory
from fedkin.flower.guard import check_task
from fedkin.flower.node_memory import NodeMemory, Snapshots
from fedkin.flower.node_settings import DESCRIBE, NodeSettings, node_settings
from fedkin.flower.wire import Parcel, Refusal, RefusedError, Value
from fedkin.methods.tasks import TASKS
from fedkin.models.named import MODEL_TASKS, named_model
from fedkin.models.objective import Objective

logger = logging.getLogger(__name__)

LARGEST_MODEL = 100_000_000
"""Parameters: larger models are refused, and larger vectors before the model is known."""

JOIN_VALUES: Mapping[str, type] = {
    "run": str,
    "attempt": str,
    "number": int,
    "seed": int,
    "batch-size": int,
    "model": str,
    "task": str,
    "classes": int,
    "l2": float,
    "preprocessing": str,
}
"""What a request to join a run holds, besides its kind."""


def answer(message: Message, context: Context) -> Message:
    """Answer a message, whatever it holds."""
    try:
        parcel = _answer(message, context)
        return Message(wire.pack("answer", parcel), reply_to=message)
    except RefusedError as error:
        logger.warning("refused a request: %s", error)
        return Message(Error(int(error.refusal), str(error)), reply_to=message)
    except FedkinError as error:
        logger.error("this node's data or settings cannot be used: %s", error)
        reason = "the node's own data or settings cannot be used; its owner's log says why"
        return Message(Error(int(Refusal.DATA), reason), reply_to=message)
    except Exception as error:
        logger.exception("a request has failed")
        reason = f"the node failed with {type(error).__name__}; its owner's log says where"
        return Message(Error(int(Refusal.INTERNAL), reason), reply_to=message)


def _answer(message: Message, context: Context) -> Parcel:
    settings = node_settings(context.node_config)
    if not message.has_content():
        raise RefusedError(Refusal.INVALID, "the message has no content")
    if settings.state is not None:
        with contextlib.suppress(InputError):  # without it nothing is kept, which is said elsewhere
            make_private_directory(settings.state)
        keep_compiled_code(settings.state / "compiled")
    request = wire.unpack("request", message.content, LARGEST_MODEL)
    values = dict(request.values)
    kind = values.pop("kind", None)
    if kind == DESCRIBE:
        return _describe(settings, values)
    if kind == "join":
        return _join(settings, values, context)
    if kind == "task":
        return _do_task(settings, values, request, context)
    raise RefusedError(Refusal.INVALID, f"there is no request of the kind {str(kind)[:50]!r}")


def _describe(settings: NodeSettings, values: dict[str, Value]) -> Parcel:
    """Say who the node is, and for a table what its columns are like."""
    if values:
        raise RefusedError(Refusal.INVALID, f"{DESCRIBE} has no {min(values)[:50]!r}")
    if DESCRIBE not in settings.allow:
        raise RefusedError(Refusal.FORBIDDEN, f"the owner of this node does not allow {DESCRIBE}")
    if settings.is_table:
        summary = settings.summarize(node_data.read_own_table(settings))
        _check_enough(settings, summary.rows)
        return Parcel({"name": settings.name, "summary": summary.model_dump_json(), "shape": ""})
    points = node_data.own_images(settings)
    _check_enough(settings, len(points.labels))
    shape = ",".join(str(length) for length in points.inputs.shape[1:])
    return Parcel({"name": settings.name, "summary": "", "shape": shape})


def _join(settings: NodeSettings, values: dict[str, Value], context: Context) -> Parcel:
    """Take part in a run: learn which model it is about and which number this node has in it."""
    wanted = _checked_join(values)
    own = _own_federation(settings, wanted)
    NodeMemory(context.state).join(wanted)
    return Parcel(
        {
            "name": settings.name,
            "size": own.objective.size,
            "batches": own.batches,
            "points": int(own.data.points[0]),
        }
    )


def _checked_join(values: Mapping[str, Value]) -> dict[str, Any]:
    if set(values) != set(JOIN_VALUES):
        raise RefusedError(Refusal.INVALID, f"a request to join needs {sorted(JOIN_VALUES)}")
    for name, kind in JOIN_VALUES.items():
        if type(values[name]) is not kind:
            raise RefusedError(Refusal.INVALID, f"{name} must be of type {kind.__name__}")
    ranges = {
        "number": (0, 1_000_000),
        "seed": (0, 2**62),
        "batch-size": (1, 1_000_000),
        "classes": (1, 100_000),
        "l2": (-1.0, 1e6),
    }
    for name, (least, largest) in ranges.items():
        if not least <= values[name] <= largest:  # pyright: ignore[reportOperatorIssue]
            raise RefusedError(Refusal.INVALID, f"{name} must be from {least} to {largest}")
    if values["model"] not in MODEL_TASKS or values["task"] not in ("classification", "regression"):
        raise RefusedError(Refusal.INVALID, "there is no such model or task")
    return dict(values)


def _do_task(
    settings: NodeSettings, values: dict[str, Value], request: Parcel, context: Context
) -> Parcel:
    """Do one task of `nodes.tasks` on the node's own data."""
    header = {name: values.pop(name, None) for name in ("attempt", "series", "step", "key")}
    memory = NodeMemory(context.state)
    joined = memory.joined
    if joined is None or joined["attempt"] != header["attempt"]:
        raise RefusedError(Refusal.NOT_JOINED, "this node has not joined this run")
    series, step = (_whole(name, header[name]) for name in ("series", "step"))
    own = _own_federation(settings, joined)
    asked = check_task(values, request, own.objective.size, settings.allow)
    names = TASKS[asked.task].slots
    slots = memory.slots(own.objective)
    stamps = {name: memory.series(name) for name in slots}
    snapshots = Snapshots(settings.state, joined["run"])
    if not slots and not asked.begin and (kept := snapshots.load(step, own.objective)):
        slots, stamps = kept
    if not asked.begin and any(stamps.get(name) != series for name in names):
        raise RefusedError(Refusal.NOT_BEGUN, f"this node has missed the beginning of {asked.task}")
    own.import_state({name: slots[name] for name in names if name in slots and not asked.begin})
    replies, cost = own.call(
        asked.task,
        asked.message,  # pyright: ignore[reportArgumentType]
        key=_key(header["key"]),
        start=asked.begin,
        **asked.options,
    )
    kept_slots = own.export_state()
    snapshots.save(kept_slots, series, step)
    memory.keep(kept_slots, dict.fromkeys(kept_slots, series))
    arrays = {name: np.asarray(array)[0] for name, array in replies.items()}
    return Parcel(
        {
            "evaluations": cost.points,
            **{f"number.{name}": float(a) for name, a in arrays.items() if a.ndim == 0},
        },
        {name: array for name, array in arrays.items() if array.ndim > 0},
    )


_OWN: dict[str, SimulatedFederation] = {}
"""The node's prepared data, for the many requests of a run that one process answers."""

MOST_RUNS = 4
"""Runs whose prepared data a process holds at a time."""


def _own_federation(settings: NodeSettings, joined: dict[str, Any]) -> SimulatedFederation:
    """Return this node as a federation of one, with the number that it has among all nodes."""
    known = json.dumps([settings.model_dump(mode="json"), joined], sort_keys=True)
    if known not in _OWN:
        points = node_data.own_points(settings, _preprocessing(joined["preprocessing"]))
        _check_enough(settings, len(points.labels))
        _check_batches(settings, len(points.labels), joined["batch-size"])
        model = named_model(
            joined["model"],
            joined["task"],
            joined["classes"],
            points.inputs.shape[1:],
            None if joined["l2"] < 0 else joined["l2"],
        )
        prepared = np.asarray(model.prepare(jnp.asarray(points.inputs)))
        objective = Objective.create(model, prepared[:2])
        if objective.size > LARGEST_MODEL:
            raise RefusedError(
                Refusal.INVALID, f"a model of {objective.size} parameters: at most {LARGEST_MODEL}"
            )
        while len(_OWN) >= MOST_RUNS:
            del _OWN[next(iter(_OWN))]
        _OWN[known] = SimulatedFederation(
            objective,
            [(prepared, points.labels)],
            names=[settings.name],
            batch_size=joined["batch-size"],
            seed=joined["seed"],
            first_number=joined["number"],
        )
    return _OWN[known]


def _preprocessing(text: str) -> Preprocessing | None:
    if not text:
        return None
    try:
        return Preprocessing.model_validate_json(text)
    except ValidationError:
        raise RefusedError(Refusal.INVALID, "preprocessing cannot be read") from None


def _check_enough(settings: NodeSettings, points: int) -> None:
    if points < settings.minimum_points:
        raise RefusedError(
            Refusal.FORBIDDEN, "this node has fewer points than its owner wants for taking part"
        )


def _check_batches(settings: NodeSettings, points: int, batch_size: int) -> None:
    """Refuse mini-batches so small that an answer tells of single points."""
    smallest = points // -(-points // batch_size)
    if smallest < min(settings.minimum_batch, points):
        raise RefusedError(
            Refusal.FORBIDDEN,
            f"with batch-size {batch_size} this node would have mini-batches of fewer points than the "
            f"{settings.minimum_batch} that its owner wants at least (minimum-batch): choose a larger one",
        )


def _whole(name: str, value: Value | None) -> int:
    if type(value) is not int or value < 0:
        raise RefusedError(
            Refusal.INVALID, f"{name} must be a whole number, not {str(value)[:50]!r}"
        )
    return value


def _key(written: Value | None) -> jax.Array:
    """Read a random key, written as hexadecimal digits."""
    try:
        data = np.frombuffer(bytes.fromhex(str(written)), ">u4").astype(np.uint32)
        return jax.random.wrap_key_data(jnp.asarray(data))
    except (TypeError, ValueError):
        raise RefusedError(Refusal.INVALID, "key is not a random key") from None


def write_key(key: jax.Array) -> str:
    """Write a random key as hexadecimal digits."""
    return np.asarray(jax.random.key_data(key)).astype(">u4").tobytes().hex()
