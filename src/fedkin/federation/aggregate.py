"""From the replies of single nodes to what the center gets, and what the exchange has cost."""

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np

from fedkin.federation.base import Request, RevealedEach, WeightedSum, as_array
from fedkin.federation.series import Beginning, Item
from fedkin.types import Array


def combine(
    request: Request,
    wanted: np.ndarray,
    items: Sequence[Item] | np.ndarray,
    replies: Mapping[str, np.ndarray],
) -> dict[str, Array]:
    """Return what the center may see of the nodes' replies.

    Where weighted nodes did not reply, a sum is what it would be with their weight shared out among
    the others in proportion.

    Args:
        request: What was asked for.
        wanted: Which nodes were to be asked for which models, also those that are gone: (models, nodes).
        items: The models and nodes that `replies` has rows for.
        replies: The replies, a row per item.
    """
    models, nodes = wanted.shape
    places = tuple(np.asarray(items, int).reshape(-1, 2).T)
    rows = {}
    summed = isinstance(request, WeightedSum)
    if isinstance(request, RevealedEach):  # model k is that of node k, and nobody works for another
        models, places = 1, (np.zeros_like(places[1]), places[1])
    for name, array in replies.items():
        if not summed and not np.issubdtype(array.dtype, np.floating):
            array = array.astype(jnp.result_type(float))  # whole numbers have no NaN
        filling = 0 if summed else np.nan
        rows[name] = np.full((models, nodes, *array.shape[1:]), filling, array.dtype)
        rows[name][places] = array
    found = rows
    if isinstance(request, WeightedSum):
        weights = np.atleast_2d(np.asarray(request.weights))
        answered = np.zeros((models, nodes), bool)
        answered[places] = True
        counted, scale = _renormalized(weights, wanted, answered)
        with np.errstate(invalid="ignore"):  # where nobody has answered, there is no sum
            found = {
                name: _sums(counted, array) * _like(scale, array) for name, array in rows.items()
            }
    if request.models is None or isinstance(request, RevealedEach):
        return {name: jnp.asarray(array[0]) for name, array in found.items()}
    return {name: jnp.asarray(array) for name, array in found.items()}


def _renormalized(
    weights: np.ndarray, wanted: np.ndarray, answered: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights of the nodes that answered, and what makes up for the others in each model."""
    complete = np.all(answered >= wanted, axis=1)
    counted = np.where(answered | complete[:, None], weights, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = weights.sum(axis=1) / counted.sum(axis=1)
    return counted, np.where(complete, 1, scale).astype(weights.dtype)


def _sums(weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return Σ_k w_k x_k for each model, where nodes of weight zero do not count even if they answer NaN."""
    counts = (weights != 0).reshape(*weights.shape, *[1] * (rows.ndim - 2))
    flat = np.where(counts, rows, 0).reshape(*weights.shape, -1)
    return np.matmul(weights[:, None, :], flat)[:, 0].reshape(len(weights), *rows.shape[2:])


def _like(scale: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return scale.reshape(-1, *[1] * (rows.ndim - 2))


class Traffic:
    """The bytes of the arrays of one exchange.

    An array that several requests share travels once. A vector with a row per model travels to a node as
    the rows of the models that the node works for.
    """

    def __init__(self, nodes: int) -> None:
        self.bytes_up = 0
        self._nodes = nodes
        self._sent: dict[
            object, tuple[int, np.ndarray]
        ] = {}  # bytes of a row, and who got which row
        self.asked = np.zeros(nodes, bool)
        """Which nodes were asked for anything."""

    @property
    def bytes_down(self) -> int:
        """The bytes sent to all nodes together."""
        return sum(size * int(rows.sum()) for size, rows in self._sent.values())

    @property
    def nodes_asked(self) -> int:
        """How many nodes were asked for anything."""
        return int(self.asked.sum())

    def send(
        self,
        request: Request,
        asked: np.ndarray,
        items: Sequence[Item] | np.ndarray,
        beginnings: Mapping[str, Beginning],
    ) -> None:
        """Count what a request sends."""
        self.asked |= asked.any(axis=0)
        for name in (*request.task.vectors, *request.task.numbers):
            self._add(name, request.message[name], asked)
        for beginning in beginnings.values():
            begins = np.zeros_like(asked)
            begins[tuple(np.asarray(items, int).reshape(-1, 2)[beginning.items].T)] = True
            for name, vector in beginning.vectors.items():
                self._add(name, vector, begins)

    def receive(self, replies: Mapping[str, np.ndarray]) -> None:
        """Count what nodes have sent back."""
        self.bytes_up += sum(reply.nbytes for reply in replies.values())

    def _add(self, name: str, value: Array | float, asked: np.ndarray) -> None:
        array = as_array(value)
        per_model = array.ndim == 2
        rows = asked if per_model else asked.any(axis=0, keepdims=True)
        size = array.nbytes // len(array) if per_model else array.nbytes
        # What is equal need not travel twice.
        identity = (name if array.ndim == 0 else "", array.shape, np.asarray(array).tobytes())
        _, before = self._sent.get(identity, (size, np.zeros_like(rows)))
        self._sent[identity] = size, before | rows
