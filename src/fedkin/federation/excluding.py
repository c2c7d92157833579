"""A federation without the nodes that the owner has reason not to trust, and what nodes claim."""

from collections.abc import Mapping

import numpy as np

from fedkin.federation.base import Federation, PerNode, Reply, Request
from fedkin.federation.task import Slot
from fedkin.federation.wrapper import WrappedFederation
from fedkin.types import Key

EXCLUDED = "excluded"
"""The name of the array in the engine's state that says which nodes are excluded."""

SLOPE = "slope"
"""The name of the reply that is a node's slope."""


def nodes_may_lie(federation: Federation) -> bool:
    """Tell whether a run is one in which nodes are judged, and so may be other than they say."""
    return isinstance(federation, ExcludingFederation)


class ExcludingFederation(WrappedFederation):
    """Passes everything on, but asks excluded nodes for no numbers and counts them as absent.

    Args:
        inner: The federation that does the work.
    """

    def __init__(self, inner: Federation) -> None:
        super().__init__(inner)
        self.excluded = np.zeros(len(inner.names), bool)
        self.slopes = np.full(len(inner.names), np.nan)
        """The last slope that each node has reported."""
        self._reasons: list[str] = []
        self._notes: list[str] = []

    @property
    def secure(self) -> bool:
        """Whether nodes mask their part of every weighted sum."""
        return bool(getattr(self.inner, "secure", False))

    @property
    def present(self) -> np.ndarray:
        """See `Federation`."""
        return self.inner.present & ~self.excluded

    def exclude(self, node: int, why: str) -> None:
        """Continue without a node for good; the reasons for all that are excluded are reported again."""
        self.excluded[node] = True
        self.slopes[:] = np.nan
        self._reasons.append(why)
        self._notes = list(self._reasons)

    def end_step(self) -> tuple[str, ...]:
        """See `Federation`."""
        notes, self._notes = tuple(self._notes), []
        return notes + self.inner.end_step()

    def exchange(self, *, key: Key, **requests: Request) -> Reply:
        """See `Federation`."""
        if self.excluded.any():
            requests = {name: self._among(each) for name, each in requests.items()}
        reply = self.inner.exchange(key=key, **requests)
        for name, request in requests.items():
            if isinstance(request, PerNode) and SLOPE in request.task.number_replies:
                found = np.asarray(reply.replies[name][SLOPE], np.float64)
                if found.ndim == 1:
                    self.slopes = np.where(np.isfinite(found), found, self.slopes)
        return reply

    def export_state(self) -> dict[str, np.ndarray]:
        """See `Federation`."""
        return {EXCLUDED: self.excluded.copy(), **self.inner.export_state()}

    def import_state(self, arrays: Mapping[str, np.ndarray], slots: Mapping[str, Slot]) -> None:
        """See `Federation`."""
        self.excluded = np.asarray(arrays[EXCLUDED], bool)
        rest = {name: array for name, array in arrays.items() if name != EXCLUDED}
        self.inner.import_state(rest, slots)

    def _among(self, request: Request) -> Request:
        """Return a request for numbers of those only that are not excluded."""
        if not isinstance(request, PerNode):
            return request  # the weights of those who are not present are zero
        asked = ~self.excluded if request.nodes is None else ~self.excluded & request.nodes
        return PerNode(
            request.task, request.message, nodes=asked, begin=request.begin, **request.options
        )
