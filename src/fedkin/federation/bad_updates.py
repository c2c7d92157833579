"""An engine around another one whose nodes are partly dishonest: they multiply their updates by a factor."""

from collections.abc import Collection
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedkin.federation.aggregate import combine
from fedkin.federation.base import (
    Federation,
    Reply,
    Request,
    Revealed,
    RevealedEach,
    WeightedSum,
)
from fedkin.federation.wrapper import Shown, WrappedFederation
from fedkin.types import Array, Key

MODEL, STARTS = "point", ("point", "shared")
"""What tasks call a model that is replied, and the one that training begins with."""


class BadUpdates(WrappedFederation):
    """Changes the vectors that named nodes reply with; their numbers stay true.

    For a model x that a node has made of θ it sends θ + f (x − θ), and f times any other vector, such as a
    gradient.

    Args:
        inner: The federation that does the work.
        nodes: The names of the bad nodes.
        factor: The factor f: −1 turns updates around, 10 exaggerates them.
    """

    def __init__(self, inner: Federation, nodes: Collection[str], factor: float) -> None:
        super().__init__(inner)
        self._bad = np.array([name in nodes for name in inner.names])
        self._factor = factor

    def exchange(self, *, key: Key, **requests: Request) -> Reply:
        """Ask the nodes; sums are made here, after the bad nodes' share in them is changed."""
        asked = {
            name: Shown(request, self.ask_all) if isinstance(request, WeightedSum) else request
            for name, request in requests.items()
        }
        reply = self.inner.exchange(key=key, **asked)
        found = {
            name: self._changed(request, reply.replies[name]) for name, request in requests.items()
        }
        return Reply(found, reply.cost)

    def _changed(self, request: Request, replies: Any) -> dict[str, Array]:
        """Return what the center gets: changed vectors, and sums of them."""
        replies = dict(replies)
        for name in request.task.vector_replies if _has_vectors(request) else ():
            rows = np.array(replies[name])
            start = _start(name, request)
            if isinstance(request, RevealedEach):  # a start for every node, and a row of its own
                rows[self._bad] = self._of(rows, start)[self._bad]
            else:
                start = start[..., None, :]  # one for all nodes, perhaps for each model
                rows[..., self._bad, :] = self._of(rows, start)[..., self._bad, :]
            replies[name] = jnp.asarray(rows)
        if not isinstance(request, WeightedSum):
            return replies
        wanted = request.asked(len(self._bad), ask_all=self.ask_all)
        items = np.argwhere(wanted)
        places = tuple(items.T)
        rows = {
            name: np.asarray(array).reshape(*wanted.shape, *_point_shape(name, request, array))
            for name, array in replies.items()
        }
        return combine(request, wanted, items, {name: own[places] for name, own in rows.items()})

    def _of(self, rows: np.ndarray, start: np.ndarray) -> np.ndarray:
        return (start + self._factor * (rows - start)).astype(rows.dtype)


def _start(name: str, request: Request) -> np.ndarray:
    """Return the model that a node has begun with, or zero where it replies with another vector."""
    starts = [request.message[start] for start in STARTS if start in request.message]
    return np.asarray(starts[0]) if name == MODEL and starts else np.zeros(1)


def _has_vectors(request: Request) -> bool:
    return isinstance(request, WeightedSum | Revealed)


def _point_shape(name: str, request: Request, array: Array) -> tuple[int, ...]:
    """Return the shape of one node's reply: a vector's, or that of a number."""
    return np.shape(array)[-1:] if name in request.task.vector_replies else ()
