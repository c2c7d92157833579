"""An engine around another one whose sums are secure: every node really masks, and the center really adds up.

So algorithms can be tested with what secure sums allow, and attacks can be tried on what a center then sees.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np

from fedkin.federation.base import Federation, Reply, Request, WeightedSum
from fedkin.federation.secure.exchange import write_orders
from fedkin.federation.secure.masks import describe, draw_secrets, require_cryptography
from fedkin.federation.secure.node import mask_replies
from fedkin.federation.secure.orders import (
    FEWEST_SUMMED,
    WORDS,
    SumOrder,
    choose_exponents,
    fits,
    is_useful,
    read_sum,
    weighted_norms,
)
from fedkin.federation.secure.refusals import refuse_revealed, too_few_in_sum
from fedkin.federation.wrapper import Shown, WrappedFederation
from fedkin.types import Array, Key


@dataclass(frozen=True)
class SeenSum:
    """What the center of a simulation sees of one weighted sum, by the numbers of the nodes."""

    request: WeightedSum
    orders: Mapping[int, SumOrder]
    """What each node was told."""
    sent: Mapping[int, Mapping[str, np.ndarray]]
    """What each node has sent: masked `words`, with a row for each model that it works for, and norms."""


class SecureSums(WrappedFederation):
    """Lets the nodes of a simulation mask their part of every weighted sum.

    Needs the package `cryptography`, which the extra `flower` installs.

    Args:
        inner: The federation that does the work.
        watch: Called with everything that the center sees of each weighted sum.
    """

    def __init__(
        self, inner: Federation, watch: Callable[[SeenSum], None] = lambda seen: None
    ) -> None:
        require_cryptography()
        super().__init__(inner)
        self._watch = watch
        self._secrets = draw_secrets(len(inner.names))
        self._count = 0
        self._norms: dict[str, dict[str, float]] = {}

    @property
    def secure(self) -> bool:
        """That nodes mask their part of every weighted sum."""
        return True

    def exchange(self, *, key: Key, **requests: Request) -> Reply:
        """Ask the nodes. See `Federation.exchange`."""
        for request in requests.values():
            refuse_revealed(request)
        asked = {
            name: Shown(request, self.ask_all) if isinstance(request, WeightedSum) else request
            for name, request in requests.items()
        }
        reply = self.inner.exchange(key=key, **asked)
        found: dict[str, Mapping[str, Array]] = dict(reply.replies)
        more = 0
        for name, request in requests.items():
            if isinstance(request, WeightedSum):
                found[name], bytes_up = self._sum(request, reply.replies[name])
                more += bytes_up
        return Reply(found, replace(reply.cost, bytes_up=reply.cost.bytes_up + more))

    def _sum(
        self, request: WeightedSum, shown: Mapping[str, Array]
    ) -> tuple[dict[str, Array], int]:
        """Return the sums, and how many bytes more than vectors and numbers the nodes have sent."""
        task, nodes = request.task, len(self.names)
        weights = np.atleast_2d(np.asarray(request.weights, np.float64))
        wanted = request.asked(nodes, ask_all=self.ask_all)
        for row in wanted & (weights != 0):
            if row.sum() < FEWEST_SUMMED:
                raise too_few_in_sum(np.array(self.names)[row], nodes)
        replies = {
            part: np.asarray(array).reshape(*wanted.shape, *np.shape(array)[-1:])
            if part in task.vector_replies
            else np.asarray(array).reshape(wanted.shape)
            for part, array in shown.items()
        }
        seen = self._norms.setdefault(task.name, {})
        while True:
            exponents = choose_exponents(task, seen, nodes, float(np.abs(weights).max()))
            orders = write_orders(weights, wanted, exponents)
            sent = self._answers(request, wanted, orders, replies)
            seen.update(weighted_norms(task, orders, sent))
            if all(
                fits(orders[node], task, own, row) or not is_useful(own, row)
                for node, own in sent.items()
                for row in range(len(own[WORDS]))
            ):
                break
        self._watch(SeenSum(request, orders, sent))
        dtype = jnp.result_type(float)
        rows = [self._read(request, wanted, model, exponents, sent) for model in range(len(wanted))]
        sums = {part: np.stack([row[part] for row in rows]).astype(dtype) for part in rows[0]}
        bytes_up = sum(
            sum(array.nbytes for array in own.values()) - own[WORDS].size * dtype.itemsize
            for own in sent.values()
        )
        given = {
            part: array if request.models is not None else array[0] for part, array in sums.items()
        }
        return {part: jnp.asarray(array) for part, array in given.items()}, bytes_up

    def _answers(
        self,
        request: WeightedSum,
        wanted: np.ndarray,
        orders: Mapping[int, SumOrder],
        replies: Mapping[str, np.ndarray],
    ) -> dict[int, dict[str, np.ndarray]]:
        """Return what each node sends, under a new number of the exchange."""
        self._count += 1
        found = {}
        for node, order in orders.items():
            models = np.flatnonzero(wanted[:, node])
            vectors = {part: np.asarray(request.message[part]) for part in request.task.vectors}
            found[node] = mask_replies(
                request.task,
                order,
                {part: array[models, node] for part, array in replies.items()},
                {part: each[models] if each.ndim == 2 else each for part, each in vectors.items()},
                node,
                self._secrets[node],
                lambda members, rows, models=models: describe(
                    f"{self._count} {members} {models[rows].tolist()}".encode()
                ),
            )
        return found

    def _read(
        self,
        request: WeightedSum,
        wanted: np.ndarray,
        model: int,
        exponents: Mapping[str, int],
        sent: Mapping[int, Mapping[str, np.ndarray]],
    ) -> dict[str, np.ndarray]:
        """Return the sums of one model; NaN where a node says that its numbers are of no use."""
        places = {
            node: int(wanted[:model, node].sum()) for node in np.flatnonzero(wanted[model]).tolist()
        }
        words = [sent[node][WORDS][row] for node, row in places.items()]
        found = read_sum(words, request.task, self.objective.size, exponents)
        if all(is_useful(sent[node], row) for node, row in places.items()):
            return found
        return {part: np.full_like(array, np.nan) for part, array in found.items()}
