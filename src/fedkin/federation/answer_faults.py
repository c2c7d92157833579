"""What is wrong with nodes' answers to one owner: their form, or numbers that cannot be believed."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedkin.federation.attended_exchange import Answer, Assignment, Block
from fedkin.federation.base import WeightedSum, as_array
from fedkin.federation.checks import find_far_moves, find_faults, form_fault
from fedkin.federation.owners import TRAINING
from fedkin.federation.secure.checks import find_norm_faults, masked_form_fault

Replies = Mapping[str, np.ndarray]


def find_answer_faults(
    blocks: Mapping[int, Block], answers: Mapping[int, Answer], size: int
) -> dict[int, tuple[str, bool]]:
    """Say what is wrong with nodes' answers to one owner, and whether it is their form.

    Args:
        blocks: What the owner has asked, by the nodes' numbers.
        answers: What became of that.
        size: The number d of parameters.
    """
    faults: dict[int, tuple[str, bool]] = {}
    for name in dict.fromkeys(name for own in blocks.values() for name in own.assignments):
        nodes = [node for node in blocks if name in blocks[node].assignments]
        assignments = [blocks[node].assignments[name] for node in nodes]
        replies = [(answers[node].replies or {}).get(name) for node in nodes]
        for node, own, assignment in zip(nodes, replies, assignments, strict=True):
            fault = _form_fault(assignment, own, size)
            if fault is not None:
                faults[node] = fault, True
        # What a node says about its own rows concerns its own question only.
        if blocks[nodes[0]].part == TRAINING:
            found = _range_faults(assignments, replies, size)
            for node, fault in zip(nodes, found, strict=True):
                if fault is not None:
                    faults.setdefault(node, (fault, False))
    return faults


def _form_fault(assignment: Assignment, replies: Replies | None, size: int) -> str | None:
    task, rows = assignment.request.task, len(assignment.models)
    if replies is None:
        return f"it did not answer {task.name}"
    if assignment.order is not None:
        return masked_form_fault(task, replies, rows, size)
    return form_fault(task, replies, rows, size)


def _range_faults(
    assignments: Sequence[Assignment], replies: Sequence[Replies | None], size: int
) -> list[str | None]:
    """Say of each node's replies whether their numbers can be believed."""
    request = assignments[0].request
    sent = {key: np.asarray(as_array(value)) for key, value in request.message.items()}
    formed = [
        own if _form_fault(assignment, own, size) is None else None
        for assignment, own in zip(assignments, replies, strict=True)
    ]
    compares_moves = not isinstance(request, WeightedSum) or request.compares_moves
    if assignments[0].order is not None:
        return find_norm_faults(request.task, formed, sent, compares_moves=compares_moves)
    models = [assignment.models for assignment in assignments]
    found = find_faults(request.task, replies, [len(own) for own in models], sent, size)
    if not compares_moves:
        return [
            fault if own is not None else None for fault, own in zip(found, formed, strict=True)
        ]
    good = [own if fault is None else None for own, fault in zip(formed, found, strict=True)]
    far = find_far_moves(request.task, good, models, sent)
    return [
        (fault or too_far) if own is not None else None
        for fault, too_far, own in zip(found, far, formed, strict=True)
    ]
