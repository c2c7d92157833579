"""A node's data, prepared for the runs that it takes part in."""

import json
from typing import Any

import numpy as np

from fedkin.data.batches import NodeData, stack_nodes
from fedkin.data.preprocessing import Quantity
from fedkin.errors import InputError
from fedkin.federation.center import Center
from fedkin.federation.privacy import Budget, NotPrivateError
from fedkin.federation.private_work import PrivateWork
from fedkin.federation.questions import HeldOut
from fedkin.federation.simulation import SimulatedFederation, local_work
from fedkin.flower import node_data
from fedkin.flower.joining import JoinRequest
from fedkin.flower.node_draws import Draws
from fedkin.flower.node_exchange import OwnNode
from fedkin.flower.node_settings import NodeSettings
from fedkin.flower.owner_privacy import KeptBudget
from fedkin.flower.wire import Refusal, RefusedError
from fedkin.models.base import Model
from fedkin.models.named import MODELS, named_model, takes_l2
from fedkin.models.objective import Objective
from fedkin.training.problem import prepare_points

LARGEST_MODEL = 100_000_000
"""The largest number of parameters; before the model is known, also the largest length of a vector."""

MOST_RUNS = 4
"""The number of runs whose prepared data a process keeps at a time."""

_PREPARED: dict[str, OwnNode] = {}
"""The node's prepared data, kept for the many requests of a run that one process answers."""


def prepared_node(settings: NodeSettings, joined: dict[str, Any]) -> OwnNode:
    """Prepare this node's data for the model of a run, or return what is prepared already.

    Args:
        settings: What the node's owner has chosen.
        joined: The values of the request with which the node joined the run.
    """
    known = json.dumps([settings.model_dump(mode="json"), joined], sort_keys=True)
    if known not in _PREPARED:
        prepared = _prepare(settings, JoinRequest.read(joined))
        while len(_PREPARED) >= MOST_RUNS:
            del _PREPARED[next(iter(_PREPARED))]
        _PREPARED[known] = prepared
    return _PREPARED[known]


def _prepare(settings: NodeSettings, request: JoinRequest) -> OwnNode:
    parts = node_data.own_parts(settings, request.preprocessing)
    points = parts.training
    check_points(settings, len(points.labels))
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
    draws = Draws.of(settings, request)
    held_out = _hold_out(settings, request, objective, parts, draws)
    # As an owner, the node also trains alone, as the only node of its own federation.
    times = 1 if held_out is None else 2
    data = stack_nodes(
        [prepared.inputs] * times,
        [prepared.labels] * times,
        request.batch_size,
        draws.seed,
        numbers=[draws.number, 0][:times],
        group=draws.group,
    )
    spread = _spread(parts) if settings.is_table else 1.0
    budget = _budget(settings, len(prepared.labels))
    if budget is None:
        work = local_work(objective, data, first_number=draws.number)
    else:
        work = _private_work(objective, data, budget, draws.number)
    return OwnNode(objective, draws, spread, data, work, held_out, budget)


def _budget(settings: NodeSettings, rows: int) -> Budget | None:
    """Return what the owner grants, and what of it is spent; None if rows are not protected."""
    privacy = settings.privacy
    if privacy is None:
        return None
    if privacy.delta >= 1 / rows:
        raise InputError(
            f"delta = {privacy.delta:g} would allow one of {rows} rows to be published: choose it well below "
            f"{1 / rows:.2g}"
        )
    assert settings.state is not None  # the settings have been checked
    return KeptBudget(privacy, settings.state)


def _private_work(
    objective: Objective, data: NodeData, budget: Budget, first_number: int
) -> PrivateWork:
    try:
        return PrivateWork(objective, data, [budget], first_number=first_number)
    except NotPrivateError as error:
        raise RefusedError(Refusal.FORBIDDEN, str(error)) from None


def _spread(parts: node_data.OwnParts) -> float:
    """Return the root mean square of the largest column: it follows from the summaries, which all know."""
    tables = [points.inputs for points in parts if points is not None]
    return max(float(np.sqrt(np.mean(np.square(own), axis=0).max())) for own in tables)


def _hold_out(
    settings: NodeSettings,
    request: JoinRequest,
    objective: Objective,
    parts: node_data.OwnParts,
    draws: Draws,
) -> HeldOut | None:
    """Prepare the rows that this node's own question is about, if it has held any out."""
    validation, test = parts.validation, parts.test
    if validation is None:
        return None
    check_held_out(settings, "validation", len(validation.labels))
    if test is not None:
        check_held_out(settings, "test", len(test.labels))
    division: dict[str, Any] = {
        "batch_size": request.batch_size,
        "seed": draws.seed,
        "group": draws.group,
    }
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


def check_run(settings: NodeSettings, request: JoinRequest) -> None:
    """Refuse a run for reasons that have nothing to do with the node's data.

    A model has to be known here: no message can make a node import anything.
    """
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
    if request.batch_size < settings.minimum_batch:
        raise RefusedError(
            Refusal.FORBIDDEN,
            f"with batch-size {request.batch_size}, mini-batches would have fewer points than the "
            f"{settings.minimum_batch} that the owner of this node requires (minimum-batch): choose a larger "
            "size",
        )


def check_points(settings: NodeSettings, points: int) -> None:
    """Refuse to take part with fewer points than the owner requires."""
    if points < settings.minimum_points:
        raise InputError(
            f"the node has {points} points, fewer than the {settings.minimum_points} that its owner requires "
            "to take part (minimum-points)"
        )


def check_held_out(settings: NodeSettings, part: str, rows: int) -> None:
    """Refuse to take part with fewer held-out rows than the owner requires."""
    if rows < settings.minimum_batch:
        raise InputError(
            f"this node holds out {rows} {part} rows, fewer than the {settings.minimum_batch} that its owner "
            "requires (minimum-batch): a summary or a gradient of so few would reveal them; hold more rows "
            f"out ({part}-fraction)"
        )
