"""An engine around another one: the place to record, limit or protect what nodes are asked."""

from collections.abc import Mapping

import numpy as np

from fedkin.federation.base import Federation, Reply, Request, Revealed, WeightedSum
from fedkin.federation.task import Slot
from fedkin.models.objective import Objective
from fedkin.types import Key


class WrappedFederation:
    """Passes everything on to another federation. Derive from it and replace `exchange`.

    Args:
        inner: The federation that does the work.
    """

    def __init__(self, inner: Federation) -> None:
        self.inner = inner

    @property
    def ask_all(self) -> bool:
        """See `Federation`."""
        return self.inner.ask_all

    @ask_all.setter
    def ask_all(self, value: bool) -> None:
        self.inner.ask_all = value

    @property
    def objective(self) -> Objective:
        """See `Federation`."""
        return self.inner.objective

    @property
    def names(self) -> tuple[str, ...]:
        """See `Federation`."""
        return self.inner.names

    @property
    def batches(self) -> int:
        """See `Federation`."""
        return self.inner.batches

    @property
    def present(self) -> np.ndarray:
        """See `Federation`."""
        return self.inner.present

    def begin_step(self, step: int) -> None:
        """See `Federation`."""
        self.inner.begin_step(step)

    def end_step(self) -> tuple[str, ...]:
        """See `Federation`."""
        return self.inner.end_step()

    def exchange(self, *, key: Key, **requests: Request) -> Reply:
        """See `Federation`."""
        return self.inner.exchange(key=key, **requests)

    def export_state(self) -> dict[str, np.ndarray]:
        """See `Federation`."""
        return self.inner.export_state()

    def import_state(self, arrays: Mapping[str, np.ndarray], slots: Mapping[str, Slot]) -> None:
        """See `Federation`."""
        self.inner.import_state(arrays, slots)


class Shown(Revealed):
    """Shows each node's part of a weighted sum: the same nodes are asked for the same."""

    def __init__(self, request: WeightedSum, ask_all: bool) -> None:
        super().__init__(request.task, request.message, begin=request.begin, **request.options)
        self.models = request.models
        self._request, self._ask_all = request, ask_all

    def _choose(self, nodes: int, *, ask_all: bool) -> np.ndarray:
        return self._request.asked(nodes, ask_all=self._ask_all)
