"""What the center believes of a reply: its names, shapes, types, and numbers that are to scale."""

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np

VECTOR_REPLIES: dict[str, tuple[str, ...]] = {
    "inner_svrg_round": ("point",),
    "adjoint_svrg_round": ("point",),
    "ditto_shared_round": ("point",),
    "pfedme_round": ("point",),
    "hessian_product": ("product",),
    "slope": (),
    "loss": (),
    "smoothness": (),
}
"""The replies of a task that are vectors of model size."""

NUMBER_REPLIES: dict[str, tuple[str, ...]] = {
    "inner_svrg_round": ("loss",),
    "adjoint_svrg_round": (),
    "ditto_shared_round": ("loss",),
    "pfedme_round": ("loss", "iterations"),
    "hessian_product": ("slope",),
    "slope": ("slope",),
    "loss": ("loss",),
    "smoothness": ("smoothness",),
}
"""The replies of a task that are single numbers."""

NORM_CEILING = 1e4
"""A reply may be so many times larger than what was sent, than the reply in the middle, and than 1.
Nodes differ, but a node whose numbers are four orders of magnitude off is broken, or lies."""


FEWEST_TO_BLAME_THE_METHOD = 2
"""So many nodes have to agree that numbers are not finite before it is the method's fault."""


def find_faults(
    task: str,
    answers: Sequence[Mapping[str, np.ndarray] | None],
    sent: Mapping[str, np.ndarray],
    size: int,
) -> list[str | None]:
    """Say of each reply what is wrong with it, or None; a missing reply has no fault of its own here.

    If all nodes answered, two or more, and *no* answer's numbers are finite, that is not the nodes' fault
    but the method's (a learning rate that is too large, say): those replies pass, and the algorithm sees
    that it has diverged.

    Args:
        task: The task that was asked for.
        answers: Each node's replies, or None.
        sent: The arrays of the message.
        size: The number d of parameters.
    """
    faults = [None if own is None else _form_fault(task, own, size) for own in answers]
    formed = [
        number for number, own in enumerate(answers) if own is not None and faults[number] is None
    ]
    finite = [number for number in formed if _is_finite(answers[number] or {})]
    if not finite and len(formed) == len(answers) >= FEWEST_TO_BLAME_THE_METHOD:
        return faults
    for number in set(formed) - set(finite):
        faults[number] = "its answer holds numbers that are not finite"
    largest_sent = max((_norm(array) for array in sent.values()), default=0.0)
    for name in (answers[finite[0]] or {}) if finite else ():
        norms = {number: _norm((answers[number] or {})[name]) for number in finite}
        # A single reply is no measure of itself.
        middle = sorted(norms.values())[(len(norms) - 1) // 2] if len(norms) > 1 else 0.0
        ceiling = NORM_CEILING * max(middle, largest_sent, 1.0)
        for number, norm in norms.items():
            if not norm <= ceiling and faults[number] is None:
                faults[number] = f"its {name} has the norm {norm:.3g}, out of all scale"
    return faults


def _form_fault(task: str, replies: Mapping[str, np.ndarray], size: int) -> str | None:
    shapes = dict.fromkeys(VECTOR_REPLIES[task], (size,)) | dict.fromkeys(NUMBER_REPLIES[task], ())
    if set(replies) != set(shapes):
        return f"it answered with {sorted(replies)} instead of {sorted(shapes)}"
    for name, shape in shapes.items():
        array = replies[name]
        if array.shape != shape:
            return f"its {name} has the shape {array.shape} instead of {shape}"
        if array.dtype != jnp.result_type(float):
            return f"its {name} has the type {array.dtype} instead of {jnp.result_type(float)}"
    return None


def _norm(array: np.ndarray) -> float:
    with np.errstate(over="ignore"):
        return float(np.linalg.norm(array.astype(np.float64)))


def _is_finite(replies: Mapping[str, np.ndarray]) -> bool:
    return all(bool(np.isfinite(array).all()) for array in replies.values())
