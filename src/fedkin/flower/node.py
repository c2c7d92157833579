"""One node: it checks a request, computes on its own data, and answers.

`answer` never raises: whatever a message contains, the node answers it, if necessary with an error. An
error tells the center what is wrong with the request. Where the reason may depend on the node's data, all
errors are the same, and the reason only goes to the node's log: different ones would answer questions about
the data. Every request leaves a line in the node's audit log.
"""

import contextlib
import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from flwr.app import Context, Error, Message

from fedkin.compilation import keep_compiled_code
from fedkin.errors import FedkinError, InputError
from fedkin.federation.owners import TRAINING, VALIDATION
from fedkin.federation.privacy import BudgetSpentError, NotPrivateError
from fedkin.federation.task import slots_of
from fedkin.flower import node_data, wire
from fedkin.flower.audit import ANSWERED, AuditLog, Entry
from fedkin.flower.certificates import make_private_directory
from fedkin.flower.guard import CheckedBlock, check_message, natural_number
from fedkin.flower.joining import JoinRequest
from fedkin.flower.node_exchange import OwnNode, carry_out, compute
from fedkin.flower.node_memory import NodeMemory, SlotMemory, Snapshots, prune_snapshots
from fedkin.flower.node_preparation import (
    LARGEST_MODEL,
    check_held_out,
    check_points,
    check_run,
    prepared_node,
)
from fedkin.flower.node_settings import NodeSettings, node_settings
from fedkin.flower.node_sums import Agreement, AnsweredQuestions, NodeSums
from fedkin.flower.owner_limits import Usage
from fedkin.flower.time_limit import limited_time
from fedkin.flower.wire import (
    ANSWER_WITHIN,
    CARD,
    DESCRIBE,
    EXCHANGE,
    EXCHANGE_NUMBER,
    JOIN,
    ORDERS,
    OWNERS,
    PEER,
    Parcel,
    Refusal,
    RefusedError,
    Value,
    read_orders,
)
from fedkin.methods.registry import known_tasks

logger = logging.getLogger(__name__)

MOST_ANSWERED = 64
"""The number of runs, of all nodes of a process, whose answered questions are kept at hand."""

SEE_LOG = "this node cannot do that with its own data and its owner's settings; see its owner's log"
"""What the center learns about every refusal whose reason may depend on the node's data."""


def answer(message: Message, context: Context) -> Message:
    """Answer a message, whatever it contains."""
    entry, log = Entry(flower_run=context.run_id), None
    begin = time.monotonic()
    try:
        settings = node_settings(context.node_config)
        entry.node, log = settings.name, _audit_log(settings)
        with limited_time(entry, log, settings.seconds_per_request):
            parcel = _handle(settings, message, context, entry)
        reply = Message(wire.pack("answer", parcel), reply_to=message)
        entry.outcome = ANSWERED
    except RefusedError as error:
        logger.warning("refused a request: %s", error)
        reply = Message(Error(int(error.refusal), str(error)), reply_to=message)
        entry.cause = str(error)
    except FedkinError as error:
        logger.error("this node's data or settings do not allow a request: %s", error)
        reply = _see_log(message, entry)
    except Exception:
        logger.exception("a request failed")
        reply = _see_log(message, entry)
    if log is not None:
        if entry.outcome != ANSWERED:
            entry.rows = 0  # nothing leaves the node
        entry.seconds = time.monotonic() - begin
        try:
            log.write(entry)
        except InputError as error:
            logger.error("a request is not answered, since it cannot be written down: %s", error)
            reply = _see_log(message, entry)
    return reply


def _see_log(message: Message, entry: Entry) -> Message:
    entry.cause = "the reason is in the node's log"
    return Message(Error(int(Refusal.DATA), SEE_LOG), reply_to=message)


def _audit_log(settings: NodeSettings) -> AuditLog | None:
    if settings.state is None:
        return None
    return AuditLog(settings.state, int(settings.audit_megabytes * 1e6))


_USAGE: dict[Path, Usage] = {}
"""What nodes of this process have been asked so far, by their directories."""


def _usage(settings: NodeSettings) -> Usage | None:
    if settings.state is None:
        return None
    if settings.state not in _USAGE:
        _USAGE[settings.state] = Usage(settings.state)
    return _USAGE[settings.state]


_ANSWERED: dict[str, AnsweredQuestions] = {}
"""What nodes of this process have answered in the newest runs, for masked sums."""


def _answered(settings: NodeSettings, agreement: Agreement) -> AnsweredQuestions:
    """Return what the node has answered in a run; without a directory, since it has joined."""
    if settings.state is None:
        place = agreement.card.public.hex()
    else:
        place = json.dumps([str(settings.state), agreement.run_name])
    if place not in _ANSWERED:
        while len(_ANSWERED) >= MOST_ANSWERED:
            del _ANSWERED[next(iter(_ANSWERED))]
        _ANSWERED[place] = AnsweredQuestions(settings.state, agreement.run_name)
    return _ANSWERED[place]


def _handle(settings: NodeSettings, message: Message, context: Context, entry: Entry) -> Parcel:
    if not message.has_content():
        raise RefusedError(Refusal.INVALID, "the message has no content")
    if settings.state is not None:
        with contextlib.suppress(InputError):  # then nothing is kept, which is reported elsewhere
            make_private_directory(settings.state)
        keep_compiled_code(settings.state / "compiled")
    request = wire.unpack("request", message.content, LARGEST_MODEL)
    values = dict(request.values)
    kind = values.pop("kind", None)
    if kind in (DESCRIBE, JOIN, EXCHANGE):
        entry.request = str(kind)
    if kind == DESCRIBE:
        return _describe(settings, values, entry)
    if kind == JOIN:
        return _join(settings, values, context, entry)
    if kind == EXCHANGE:
        return _do_exchange(settings, values, request, context, entry)
    raise RefusedError(Refusal.INVALID, f"there is no request of the kind {str(kind)[:50]!r}")


def _describe(settings: NodeSettings, values: dict[str, Value], entry: Entry) -> Parcel:
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
                check_held_out(settings, part, table.rows)
        summaries = {
            part: settings.summarize(table, list(tables.values())).model_dump_json()
            for part, table in tables.items()
        }
        check_points(settings, tables["summary"].rows)
        entry.rows = sum(table.rows for table in tables.values())
        return Parcel({"name": settings.name, "shape": "", **summaries})
    points = node_data.own_images(settings)
    check_points(settings, len(points.labels))
    shape = ",".join(str(length) for length in points.inputs.shape[1:])
    return Parcel({"name": settings.name, "summary": "", "shape": shape})


def _join(
    settings: NodeSettings, values: dict[str, Value], context: Context, entry: Entry
) -> Parcel:
    """Take part in a run, with the model and the number that the request gives to this node."""
    request = JoinRequest.read(values)
    entry.run = request.run
    check_run(settings, request)
    if usage := _usage(settings):
        usage.count_join(settings)
    joined = request.values()
    own = prepared_node(settings, joined)
    NodeMemory(context.state).join(joined, protected=own.budget is not None)
    agreement = Agreement.begin(settings, joined)
    agreement.keep(context.state)
    prune_snapshots(settings.state, settings.runs_kept)
    entry.rows = _training_rows(own) + _held_out_rows(own)
    return Parcel(
        {
            "name": settings.name,
            "size": own.objective.size,
            "batches": int(own.data.batches[0]),
            "points": int(own.data.points[0]),
            CARD: agreement.card.write(),
        }
    )


def _do_exchange(
    settings: NodeSettings,
    values: dict[str, Value],
    parcel: Parcel,
    context: Context,
    entry: Entry,
) -> Parcel:
    """Do what the requests of one exchange ask for, on the node's own data."""
    begin = time.monotonic()
    header = {name: values.pop(name, None) for name in ("attempt", "step")}
    for_sums = {
        name: values.pop(name)
        for name in list(values)
        if name in (EXCHANGE_NUMBER, ANSWER_WITHIN) or name.startswith(PEER)
    }
    memory = NodeMemory(context.state)
    joined = memory.joined
    if joined is None or joined["attempt"] != header["attempt"]:
        raise RefusedError(Refusal.NOT_JOINED, "this node has not joined this run")
    if memory.protected != (settings.privacy is not None):
        # It may remember gradients without noise, from before its owner has turned protection on.
        raise RefusedError(
            Refusal.NOT_JOINED, "this node's owner has changed how rows are protected"
        )
    entry.run = joined["run"]
    step = natural_number("step", header["step"])
    orders = read_orders(values.pop(ORDERS)) if ORDERS in values and OWNERS in values else []
    own = prepared_node(settings, joined)
    blocks = check_message(
        values,
        parcel,
        own.objective.size,
        settings.allowed,
        reveal=settings.reveal,
        holds_out=own.held_out is not None,
    )
    entry.tasks = _describe_tasks(blocks)
    count = settings.check(blocks, own.spread)
    if usage := _usage(settings):
        usage.count_requests(
            hashlib.sha256(joined["run"].encode()).hexdigest()[:16], count, settings
        )
    sums, agreement, before = None, None, None
    if any(request.order is not None for block in blocks for request in block.requests):
        agreement = Agreement.read(context.state, joined)
        agreement.take_cards(for_sums, settings)
        number = natural_number(EXCHANGE_NUMBER, for_sums.get(EXCHANGE_NUMBER))
        sums = NodeSums(settings, agreement, number, JoinRequest.read(joined).largest_share)
        before = _answered(settings, agreement)
        entry.nodes = sums.check(blocks, before)
        before.take(blocks, settings.repeats_per_run)
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
    answered = _compute(own, blocks, series, entry, sums)
    kept = SlotMemory(own.work.export_arrays(), series)
    # Several owners are at different steps, and nothing of theirs is resumed from the disk.
    if OWNERS not in values:
        snapshots.save(kept.of([slot.name for slot in slots.values() if slot.lasting]), step)
    memory.keep(kept)
    _count_rows(own, blocks, answered, entry)
    if sums is not None and agreement is not None and before is not None:
        sums.finish(before)
        agreement.keep(context.state)
        _check_time(for_sums.get(ANSWER_WITHIN), time.monotonic() - begin)
    return answered


def _check_time(within: Value | None, taken: float) -> None:
    """Send no words that the center does not wait for any more.

    With those of a repeated sum, it would have two sums that differ by this node.
    """
    if type(within) not in (int, float) or not taken <= float(str(within)):
        raise RefusedError(
            Refusal.LIMIT,
            f"this answer has taken {taken:.3g} s, and the center waits for {str(within)[:20]} s: it is not "
            "sent (answer-within)",
        )


def _compute(
    own: OwnNode,
    blocks: Sequence[CheckedBlock],
    series: dict[str, int],
    entry: Entry,
    sums: NodeSums | None,
) -> Parcel:
    """Compute the answer; where rows are protected, write down what that has spent."""
    try:
        return compute(own, blocks, series, sums)
    except BudgetSpentError as error:
        raise RefusedError(Refusal.LIMIT, str(error)) from None
    except NotPrivateError as error:
        raise RefusedError(Refusal.FORBIDDEN, str(error)) from None
    finally:
        entry.epsilon = 0.0 if own.budget is None else own.budget.epsilon


def _describe_tasks(blocks: Sequence[CheckedBlock]) -> list[str]:
    """Return which tasks are asked for, of which part of the node, and for how many models."""
    models: Counter[str] = Counter()
    for block in blocks:
        part = "" if block.part == TRAINING else f"{block.part} "
        for request in block.requests:
            models[part + request.task.name] += len(request.models)
    return [name if count == 1 else f"{name} x{count}" for name, count in models.items()]


def _count_rows(
    own: OwnNode, blocks: Sequence[CheckedBlock], answered: Parcel, entry: Entry
) -> None:
    """Write down how many rows an answer was computed from, at most."""
    for block in blocks:
        entry.evaluations += int(str(answered.values[f"{block.prefix}evaluations"]))
    trained = any(block.part != VALIDATION for block in blocks)
    judged = any(block.part == VALIDATION for block in blocks)
    # A task that says of no row that it was evaluated may still have looked at all, as `smoothness` does.
    touched = min(entry.evaluations or _training_rows(own), _training_rows(own)) if trained else 0
    entry.rows = touched + (_held_out_rows(own) if judged else 0)


def _training_rows(own: OwnNode) -> int:
    return int(own.data.points[0])


def _held_out_rows(own: OwnNode) -> int:
    if own.held_out is None:
        return 0
    return own.held_out.center.points + (
        0 if own.held_out.test is None else len(own.held_out.test.labels)
    )
