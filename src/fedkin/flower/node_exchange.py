"""What a node computes in one exchange, for one owner or for several at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.data.batches import NodeData
from fedkin.federation.owners import PARTS
from fedkin.federation.portions import Portion
from fedkin.federation.privacy import Budget
from fedkin.federation.questions import HeldOut, Question
from fedkin.federation.series import Beginning
from fedkin.federation.simulation import Work
from fedkin.federation.task import Slot, slots_of
from fedkin.flower.guard import CheckedBlock, CheckedRequest, all_tasks
from fedkin.flower.node_draws import Draws
from fedkin.flower.wire import (
    MOST_MODELS,
    NUMBER,
    VECTOR,
    Order,
    Parcel,
    Refusal,
    RefusedError,
    Value,
)
from fedkin.models.objective import Objective

LARGEST_MEMORY = 4_000_000_000
"""The largest number of bytes that a node remembers, for all models of all owners together."""

Replies = Mapping[str, np.ndarray]
"""The replies to a request, with a row per model."""


@dataclass(frozen=True)
class OwnNode:
    """The node's prepared data, and what it computes with them."""

    objective: Objective
    draws: Draws
    spread: float
    """The root mean square of the largest column of its table; 1 for images."""
    data: NodeData
    """Its training rows; an owner has them twice, also as the only node of its own federation."""
    work: Work
    held_out: HeldOut | None
    """The rows that only its own question is about, if it is an owner."""
    budget: Budget | None = None
    """What its owner grants, if its rows are protected; `work` then adds the noise and counts."""
    slot_bytes: dict[str, int] = field(default_factory=dict)
    """What a slot holds for one model, by the slot's name, as far as it was needed."""


class Masking(Protocol):
    """What masks replies, and keeps them for a repetition (`node_sums.NodeSums`)."""

    def kept(self, block: CheckedBlock, request: CheckedRequest) -> Replies | None:
        """Return the replies to a request that is repeated; None if it is not."""
        ...

    def mask(self, block: CheckedBlock, request: CheckedRequest, replies: Replies) -> Replies:
        """Return what leaves the node in place of replies."""
        ...


def compute(
    own: OwnNode,
    blocks: Sequence[CheckedBlock],
    series: dict[str, int],
    masking: Masking | None = None,
) -> Parcel:
    """Do what owners ask for, and return the answer.

    What several owners ask for next, with the same task and options, is computed together.

    Args:
        own: The node.
        blocks: What each owner asks for.
        series: The series of each slot and model; it is changed.
        masking: What masks the replies that are for masked sums.
    """
    _check_memory(own, blocks, series)
    begun: set[str] = set()
    pending = {block.number: list(block.requests) for block in blocks}
    evaluations = dict.fromkeys(pending, 0)
    values: dict[str, Value] = {}
    vectors: dict[str, np.ndarray] = {}
    if masking is not None:
        for block in blocks:
            pending[block.number] = _without_repeated(block, masking, values, vectors)
    while any(pending.values()):
        waiting = [(block, pending[block.number][0]) for block in blocks if pending[block.number]]
        kinds = [_kind(request) for _, request in waiting]
        commonest = max(kinds, key=kinds.count)
        chosen = [pair for pair, kind in zip(waiting, kinds, strict=True) if kind == commonest]
        for (block, request), (replies, count) in zip(
            chosen, _compute_alike(own, chosen, series, begun), strict=True
        ):
            pending[block.number].pop(0)
            evaluations[block.number] += count
            if masking is not None and request.order is not None:
                replies = masking.mask(block, request, replies)
            _write(block.prefix, request, replies, values, vectors)
    values |= {f"{block.prefix}evaluations": evaluations[block.number] for block in blocks}
    return Parcel(values, vectors)


def _without_repeated(
    block: CheckedBlock,
    masking: Masking,
    values: dict[str, Value],
    vectors: dict[str, np.ndarray],
) -> list[CheckedRequest]:
    """Answer requests of a repeated exchange with what was computed for it; return the others.

    What the node remembers has moved on since then, and must not move on twice.
    """
    others = []
    for request in block.requests:
        kept = masking.kept(block, request) if request.order is not None else None
        if kept is None:
            others.append(request)
        else:
            _write(block.prefix, request, masking.mask(block, request, kept), values, vectors)
    return others


def carry_out(orders: Sequence[Order], work: Work, series: dict[str, int]) -> None:
    """Copy or forget what the node remembers for owners.

    Args:
        orders: What to do. An order may come twice, if the first answer was lost: who has something to
            remember already copies nothing.
        work: What remembers it.
        series: The series of each slot and model; it is changed.
    """
    for owner, copy in orders:
        places = [place for place in series if _owner_of(place) == owner]
        models = {_model_of(place) for place in places}
        if copy is None:
            work.forget_models(models)
            for place in places:
                del series[place]
        elif not any(_owner_of(place) == copy for place in series):
            further = (copy - owner) * MOST_MODELS
            work.copy_models({model: model + further for model in models})
            for place in places:
                slot, _, model = place.rpartition("/")
                series[f"{slot}/{int(model) + further}"] = series[place]


def _model_of(place: str) -> int:
    return int(place.rpartition("/")[2])


def _owner_of(place: str) -> int:
    return _model_of(place) // MOST_MODELS


def _kind(request: CheckedRequest) -> tuple:
    return request.task, tuple(sorted(request.options.items()))


def _compute_alike(
    own: OwnNode,
    chosen: Sequence[tuple[CheckedBlock, CheckedRequest]],
    series: dict[str, int],
    begun: set[str],
) -> list[tuple[Replies, int]]:
    """Compute requests of the same task and options; return the replies to each, and the evaluations."""
    task, options = chosen[0][1].task, chosen[0][1].options
    if isinstance(task, Question):
        answers = [_answer(own, block, request) for block, request in chosen]
        # Where a question trains, it says how much it computed.
        return [(found, int(np.sum(found.get("points", 0)))) for found in answers]
    portions = []
    for block, request in chosen:
        models = [block.number * MOST_MODELS + model for model in request.models]
        key, numbers = own.draws.for_request(block, request)
        portions.append(
            Portion(
                np.array([(model, PARTS.index(block.part)) for model in models], np.int32),
                np.arange(len(models)),
                numbers,
                {name: jnp.asarray(array) for name, array in request.message.items()},
                key,
                _beginnings(request, block.number, series, begun),
            )
        )
    found = own.work.compute_together(task, options, portions)
    return [(replies, int(counts.sum())) for replies, counts in found]


def _answer(own: OwnNode, block: CheckedBlock, request: CheckedRequest) -> Replies:
    """Answer a question that concerns the node as an owner, for each model."""
    assert own.held_out is not None  # the guard has seen to it
    rows = []
    for place, key in enumerate(own.draws.for_question(block, request)):
        message = {
            name: jnp.asarray(array[place] if array.ndim == 2 else array)
            for name, array in request.message.items()
        }
        rows.append(request.task.function(own.held_out, message, key, **request.options))
    dtype = jnp.result_type(float)
    return {name: np.stack([np.asarray(row[name], dtype) for row in rows]) for name in rows[0]}


def _write(
    prefix: str,
    request: CheckedRequest,
    replies: Replies,
    values: dict[str, Value],
    vectors: dict[str, np.ndarray],
) -> None:
    for name, array in replies.items():
        if array.ndim == 2:
            place = f"{prefix}{request.name}.{VECTOR}{name}"
            vectors[place] = array if request.has_models else array[0]
        else:
            numbers = [float(number) for number in array]
            place = f"{prefix}{request.name}.{NUMBER}{name}"
            values[place] = numbers if request.has_models else numbers[0]


def _check_memory(own: OwnNode, blocks: Sequence[CheckedBlock], series: Mapping[str, int]) -> None:
    slots = slots_of(all_tasks().values())
    places = set(series)
    replies = 0
    for block in blocks:
        for each in block.requests:
            replies += (
                len(each.models) * own.objective.size * np.dtype(jnp.result_type(float)).itemsize
            )
            for slot in each.task.slots:
                slots[slot.name] = slot
                places |= {
                    f"{slot.name}/{block.number * MOST_MODELS + model}" for model in each.models
                }
    names = [place.rpartition("/")[0] for place in places]
    sizes = {name: _bytes_of(slots[name], own) for name in set(names) if name in slots}
    if replies + sum(sizes.get(name, 0) for name in names) > LARGEST_MEMORY:
        raise RefusedError(
            Refusal.INVALID,
            f"a node remembers at most {LARGEST_MEMORY:,} bytes for all owners together, and these need "
            "more: choose a smaller model, or fewer nodes",
        )


def _bytes_of(slot: Slot, own: OwnNode) -> int:
    """Return what a slot holds for one model."""
    if slot.name not in own.slot_bytes:
        shapes = jax.eval_shape(lambda: slot.empty(own.objective, own.data))
        leaves = jax.tree.leaves(shapes)
        own.slot_bytes[slot.name] = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    return own.slot_bytes[slot.name]


def _beginnings(
    request: CheckedRequest, owner: int, series: dict[str, int], begun: set[str]
) -> dict[str, Beginning]:
    """Say which slots begin, and refuse a request whose series this node has missed.

    Args:
        request: The request.
        owner: The number of the owner.
        series: The series of each slot and model; it is changed.
        begun: What earlier requests of the same exchange have begun; it is changed.
    """

    def place(slot: str, model: int) -> str:
        return f"{slot}/{owner * MOST_MODELS + model}"

    found: dict[str, Beginning] = {}
    for slot in request.task.slots:
        beginning = request.begins.get(slot.name, ())
        items = np.array(
            [
                model in beginning and place(slot.name, model) not in begun
                for model in request.models
            ],
            bool,
        )
        number = request.series[slot.name]
        for model in beginning:
            begun.add(place(slot.name, model))
            series[place(slot.name, model)] = number
        if any(series.get(place(slot.name, model)) != number for model in request.models):
            raise RefusedError(
                Refusal.NOT_BEGUN, f"this node missed the beginning of {request.task.name}"
            )
        if items.any():
            vectors = {name: jnp.asarray(request.message[name]) for name in slot.vectors}
            found[slot.name] = Beginning(items, vectors)
    return found
