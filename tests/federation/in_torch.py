"""A simulation of PyTorch modules that takes and gives vectors in the order of fedkin's own models."""

from copy import copy

import numpy as np

from fedkin.federation.base import Reply
from fedkin.federation.wrapper import WrappedFederation
from fedkin.models.objective import Objective
from fedkin.studies.cell import simulate
from torch_twins import twin_of


class InOrder(WrappedFederation):
    """Reorders the vectors of requests and replies."""

    def __init__(self, inner, order):
        super().__init__(inner)
        self._order, self._back = order, np.argsort(order)

    def exchange(self, *, key, **requests):
        reply = super().exchange(
            key=key, **{name: self._reordered(request) for name, request in requests.items()}
        )
        return Reply(
            {
                name: {
                    part: array[..., self._back]
                    if part in requests[name].task.vector_replies
                    else array
                    for part, array in replies.items()
                }
                for name, replies in reply.replies.items()
            },
            reply.cost,
        )

    def _reordered(self, request):
        names = {*request.task.vectors, *request.task.begin_vectors}
        other = copy(request)
        other.message = {
            name: value[..., self._order] if name in names else value
            for name, value in request.message.items()
        }
        return other


def with_torch(run, data):
    """Let the twin of a run's model be trained by PyTorch."""

    def engine(objective):
        model, order = twin_of(objective)
        inputs = data.nodes[0].inputs[:2]
        return InOrder(simulate(run, data)(Objective.create(model, inputs)), order)

    return engine
