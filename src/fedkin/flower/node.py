"""One node: it checks a request, computes on its own data, and answers.

`answer` never raises: whatever a message contains, the node answers it, if necessary with an error. An
error tells the center what is wrong with the request. What is wrong with the node's own data only goes
to the node's log, because such a message may quote a cell.
"""

import contextlib
import json
import logging
from typing import Any

import numpy as np
from flwr.app import Context, Error, Message

from fedkin.compilation import keep_compiled_code
from fedkin.data.batches import stack_nodes
from fedkin.data.preprocessing import Quantity
from fedkin.errors import FedkinError, InputError
from fedkin.federation.center import Center
from fedkin.federation.questions import HeldOut
from fedkin.federation.simulation import SimulatedFederation, local_work
from fedkin.federation.task import slots_of
from fedkin.flower import node_data, wire
from fedkin.flower.certificates import make_private_directory
from fedkin.flower.guard import check_message, natural_number
from fedkin.flower.joining import JoinRequest
from fedkin.flower.node_exchange import OwnNode, carry_out, compute
from fedkin.flower.node_memory import NodeMemory, SlotMemory, Snapshots
from fedkin.flower.node_settings import NodeSettings, node_settings
from fedkin.flower.wire import (
    DESCRIBE,
    EXCHANGE,
    JOIN,
    ORDERS,
    OWNERS,
    Parcel,
    Refusal,
    RefusedError,
    Value,
    read_orders,
)
from fedkin.methods.registry import known_tasks
from fedkin.models.base import Model
from fedkin.models.named import MODELS, named_model, takes_l2
from fedkin.models.objective import Objective
from fedkin.training.problem import prepare_points

logger = logging.getLogger(__name__)

LARGEST_MODEL = 100_000_000
"""The largest number of parameters; before the model is known, also the largest length of a vector."""


def answer(message: Message, context: Context) -> Message:
    """Answer a message, whatever it contains."""
    try:
        parcel = _handle(message, context)
        return Message(wire.pack("answer", parcel), reply_to=message)
    except RefusedError as error:
        logger.warning("refused a request: %s", error)
        return Message(Error(int(error.refusal), str(error)), reply_to=message)
    except FedkinError as error:
        logger.error("this node's data or settings cannot be used: %s", error)
        reason = "the node's own data or settings cannot be used; see its owner's log"
        return Message(Error(int(Refusal.DATA), reason), reply_to=message)
    except Exception as error:
        logger.exception("a request failed")
        reason = f"the node failed with {type(error).__name__}; see its owner's log"
        return Message(Error(int(Refusal.INTERNAL), reason), reply_to=message)


def _handle(message: Message, context: Context) -> Parcel:
    settings = node_settings(context.node_config)
    if not message.has_content():
        raise RefusedError(Refusal.INVALID, "the message has no content")
    if settings.state is not None:
        with contextlib.suppress(InputError):  # then nothing is kept, which is reported elsewhere
            make_private_directory(settings.state)
        keep_compiled_code(settings.state / "compiled")
    request = wire.unpack("request", message.content, LARGEST_MODEL)
    values = dict(request.values)
    kind = values.pop("kind", None)
    if kind == DESCRIBE:
        return _describe(settings, values)
    if kind == JOIN:
        return _join(settings, values, context)
    if kind == EXCHANGE:
        return _do_exchange(settings, values, request, context)
    raise RefusedError(Refusal.INVALID, f"there is no request of the kind {str(kind)[:50]!r}")


def _describe(settings: NodeSettings, values: dict[str, Value]) -> Parcel:
    """Return the node's name, and the summary of its table or the shape of its images.

    The rows that it holds out have summaries of their own.
    """
    if values:
        raise RefusedError(Refusal.INVALID, f"{DESCRIBE} has no {min(values)[:50]!r}")
    if DESCRIBE not in settings.allowed:
        raise RefusedError(Refusal.FORBIDDEN, f"the owner of this node does not allow {DESCRIBE}")
    if settings.is_table:
        tables = node_data.read_own_tables(settings)
        for part, table in tables.items():
            if part != "summary":
                _check_held_out(settings, part, table.rows)
        summaries = {
            part: settings.summarize(table, list(tables.values())).model_dump_json()
            for part, table in tables.items()
        }
        _check_points(settings, tables["summary"].rows)
        return Parcel({"name": settings.name, "shape": "", **summaries})
    points = node_data.own_images(settings)
    _check_points(settings, len(points.labels))
    shape = ",".join(str(length) for length in points.inputs.shape[1:])
    return Parcel({"name": settings.name, "summary": "", "shape": shape})


def _join(settings: NodeSettings, values: dict[str, Value], context: Context) -> Parcel:
    """Take part in a run, with the model and the number that the request gives to this node."""
    request = JoinRequest.read(values)
    _check_model(settings, request)
    joined = request.values()
    own = _own_node(settings, joined)
    NodeMemory(context.state).join(joined)
    return Parcel(
        {
            "name": settings.name,
            "size": own.objective.size,
            "batches": int(own.data.batches[0]),
            "points": int(own.data.points[0]),
        }
    )


def _check_model(settings: NodeSettings, request: JoinRequest) -> None:
    """Refuse a model that is not known here: no message can make a node import anything."""
    name = request.model
    if name not in (*MODELS.names(), *settings.models):
        raise RefusedError(
            Refusal.INVALID, f"there is no model {name[:50]!r} on this node (models)"
        )
    if (request.l2 is not None) != takes_l2(name):
        raise RefusedError(
            Refusal.INVALID,
            "l2 is a setting of fedkin's own models, which need it, and of no others",
        )


def _do_exchange(
    settings: NodeSettings, values: dict[str, Value], parcel: Parcel, context: Context
) -> Parcel:
    """Do what the requests of one exchange ask for, on the node's own data."""
    header = {name: values.pop(name, None) for name in ("attempt", "step")}
    memory = NodeMemory(context.state)
    joined = memory.joined
    if joined is None or joined["attempt"] != header["attempt"]:
        raise RefusedError(Refusal.NOT_JOINED, "this node has not joined this run")
    step = natural_number("step", header["step"])
    orders = read_orders(values.pop(ORDERS)) if ORDERS in values and OWNERS in values else []
    own = _own_node(settings, joined)
    blocks = check_message(
        values,
        parcel,
        own.objective.size,
        settings.allowed,
        reveal=settings.reveal,
        holds_out=own.held_out is not None,
    )
    slots = slots_of(known_tasks().values())
    snapshots = Snapshots(settings.state, joined["run"])
    remembered = memory.slots()
    if not remembered.arrays:
        remembered = snapshots.load(step) or remembered
    try:
        own.work.import_arrays(remembered.arrays, slots)
    except (KeyError, ValueError) as error:
        # It may be of another version, or of data that have changed since then.
        logger.warning("what this node remembers does not fit, and is forgotten: %s", error)
        remembered = SlotMemory()
        own.work.import_arrays({}, slots)
    series = dict(remembered.series)
    carry_out(orders, own.work, series)
    answered = compute(own, blocks, series)
    kept = SlotMemory(own.work.export_arrays(), series)
    # Several owners are at different steps, and nothing of theirs is resumed from the disk.
    if OWNERS not in values:
        snapshots.save(kept.of([slot.name for slot in slots.values() if slot.lasting]), step)
    memory.keep(kept)
    return answered


_PREPARED: dict[str, OwnNode] = {}
"""The node's prepared data, kept for the many requests of a run that one process answers."""

MOST_RUNS = 4
"""The number of runs whose prepared data a process keeps at a time."""


def _own_node(settings: NodeSettings, joined: dict[str, Any]) -> OwnNode:
    """Prepare this node's data for the model and the number that it has in a run."""
    known = json.dumps([settings.model_dump(mode="json"), joined], sort_keys=True)
    if known not in _PREPARED:
        request = JoinRequest.read(joined)
        parts = node_data.own_parts(settings, request.preprocessing)
        points = parts.training
        _check_points(settings, len(points.labels))
        _check_batches(settings, len(points.labels), request.batch_size)
        model = _make_model(request, points.inputs.shape[1:])
        prepared = prepare_points(model, points)
        objective = Objective.create(model, prepared.inputs[:2])
        if objective.size > LARGEST_MODEL:
            raise RefusedError(
                Refusal.INVALID, f"a model of {objective.size} parameters: at most {LARGEST_MODEL}"
            )
        if not objective.in_jax and request.model not in settings.models:
            raise RefusedError(
                Refusal.FORBIDDEN,
                f"the owner of this node does not allow the PyTorch module {request.model[:50]!r} (models)",
            )
        while len(_PREPARED) >= MOST_RUNS:
            del _PREPARED[next(iter(_PREPARED))]
        number = request.number
        held_out = _held_out(settings, request, objective, parts)
        # As an owner, the node also trains alone, as the only node of its own federation.
        times = 1 if held_out is None else 2
        data = stack_nodes(
            [prepared.inputs] * times,
            [prepared.labels] * times,
            request.batch_size,
            request.seed,
            numbers=[number, 0][:times],
        )
        work = local_work(objective, data, first_number=number)
        _PREPARED[known] = OwnNode(objective, number, data, work, held_out)
    return _PREPARED[known]


def _held_out(
    settings: NodeSettings, request: JoinRequest, objective: Objective, parts: node_data.OwnParts
) -> HeldOut | None:
    """Prepare the rows that this node's own question is about, if it has held any out."""
    validation, test = parts.validation, parts.test
    if validation is None:
        return None
    _check_held_out(settings, "validation", len(validation.labels))
    if test is not None:
        _check_held_out(settings, "test", len(test.labels))
    division: dict[str, Any] = {"batch_size": request.batch_size, "seed": request.seed}
    own = prepare_points(objective.model, parts.training)
    center = Center(objective, *prepare_points(objective.model, validation), **division).with_alone(
        SimulatedFederation(objective, [own], **division)
    )
    label = None if request.preprocessing is None else request.preprocessing.label
    restore = label.restore if isinstance(label, Quantity) else np.asarray
    return HeldOut(center, None if test is None else prepare_points(objective.model, test), restore)


def _make_model(request: JoinRequest, point_shape: tuple[int, ...]) -> Model:
    try:
        return named_model(request.model, request.task, request.classes, point_shape, request.l2)
    except InputError as error:
        raise RefusedError(Refusal.INVALID, f"the model does not suit this node: {error}") from None


def _check_held_out(settings: NodeSettings, part: str, rows: int) -> None:
    if rows < settings.minimum_batch:
        raise RefusedError(
            Refusal.FORBIDDEN,
            f"this node holds out fewer {part} rows than the {settings.minimum_batch} that its owner "
            "requires (minimum-batch): a summary or a gradient of so few would reveal them; hold more rows "
            f"out ({part}-fraction)",
        )


def _check_points(settings: NodeSettings, points: int) -> None:
    if points < settings.minimum_points:
        raise RefusedError(
            Refusal.FORBIDDEN, "this node has fewer points than its owner requires to take part"
        )


def _check_batches(settings: NodeSettings, points: int, batch_size: int) -> None:
    """Refuse mini-batches so small that an answer would reveal single points."""
    smallest = points // -(-points // batch_size)
    if smallest < min(settings.minimum_batch, points):
        raise RefusedError(
            Refusal.FORBIDDEN,
            f"with batch-size {batch_size}, mini-batches of this node would have fewer points than the "
            f"{settings.minimum_batch} that its owner requires (minimum-batch): choose a larger size",
        )
