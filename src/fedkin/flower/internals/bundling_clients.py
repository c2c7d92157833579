"""Flower's clients of a SuperLink, which send and fetch whole messages (`bundles.py`).

This file is imported by programs that do not compute, and imports nothing of fedkin but `bundles`.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import httpx
from flwr.proto.fleet_pb2 import (
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
)
from flwr.proto.recorddict_pb2 import BytesList
from flwr.proto.runtime_pb2 import (
    PullAppMessagesRequest,
    PullAppMessagesResponse,
    PushAppMessagesRequest,
    PushAppMessagesResponse,
)
from flwr.supercore.inflatable.inflatable_object import get_object_id
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.fleet_http_client import FleetHttpClient

from fedkin.flower.internals.bundles import COLLECT, DELIVER, DISPATCH, FETCH, object_ids

OTHER_VERSION = (
    "the SuperLink cannot send whole messages: it runs another version of fedkin, or Flower without fedkin. "
    "Install the version of fedkin here that its owner has, and start the node again"
)


class _Arrived:
    """Objects that have come with their messages, until they are asked for."""

    def __init__(self) -> None:
        self._contents: dict[str, bytes] = {}
        self._confirmed: set[str] = set()
        self.newest: list[str] = []
        """The messages that have arrived whole with the last answer."""

    def add(self, trees: Sequence[ObjectTree], contents: Iterable[bytes]) -> None:
        """Keep objects; a message whose objects are all there has been confirmed."""
        self._contents = {get_object_id(content): content for content in contents}
        self._confirmed = {
            tree.object_id for tree in trees if set(object_ids([tree])) <= set(self._contents)
        }
        self.newest = list(self._confirmed)

    def pull(self, request: PullObjectRequest) -> PullObjectResponse | None:
        """Return an object as Flower would; None if it has not come."""
        content = self._contents.get(request.object_id)
        if content is None:
            return None
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def confirm(self, message: str) -> bool:
        """Return whether a message has been confirmed; forget it."""
        if message not in self._confirmed:
            return False
        self._confirmed.discard(message)
        if not self._confirmed:
            self._contents = {}
        return True


class BundlingClient(RuntimeHttpClient):
    """Flower's client of a run's program, with whole messages.

    Attributes:
        outgoing: The objects of the messages that `PushMessages` is called for next.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.outgoing: list[bytes] = []
        self._arrived = _Arrived()

    def PushMessages(self, request: PushAppMessagesRequest) -> PushAppMessagesResponse:  # noqa: N802
        """Send messages with their objects."""
        objects, self.outgoing = self.outgoing, []
        return self._unary_unary(
            path=DISPATCH,
            rpc_method="/flwr.proto.Runtime/PushMessages",
            request=BytesList(vals=[request.SerializeToString(), *objects]),
            response_type=PushAppMessagesResponse,
        )

    def PullMessages(self, request: PullAppMessagesRequest) -> PullAppMessagesResponse:  # noqa: N802
        """Wait for messages; return those that are there."""
        found = self._unary_unary(
            path=COLLECT,
            rpc_method="/flwr.proto.Runtime/PullMessages",
            request=request,
            response_type=BytesList,
        )
        response = PullAppMessagesResponse.FromString(found.vals[0])
        self._arrived.add(response.message_object_trees, found.vals[1:])
        return response

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:  # noqa: N802
        """Return an object that has come with its message; else ask for it."""
        return self._arrived.pull(request) or super().PullObject(request)

    def ConfirmMessageReceived(  # noqa: N802
        self, request: ConfirmMessageReceivedRequest
    ) -> ConfirmMessageReceivedResponse:
        """Confirm a message, if that has not been done with its objects."""
        if self._arrived.confirm(request.message_object_id):
            return ConfirmMessageReceivedResponse()
        return super().ConfirmMessageReceived(request)


def bundling_fleet_client(
    contents: Callable[[ObjectTree], list[bytes]], received: Callable[[], None]
) -> type[FleetHttpClient]:
    """Return Flower's client of a SuperNode, with whole messages.

    Args:
        contents: Returns those objects of an answer that are there.
        received: Called when a message has arrived with all its objects.
    """

    class BundlingFleetClient(FleetHttpClient):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._arrived = _Arrived()

        def PullMessages(self, request: PullMessagesRequest) -> PullMessagesResponse:  # noqa: N802
            # So the SuperLink knows that these have arrived, and hands out others again (`handed_out.py`).
            arrived = PullMessagesRequest(node=request.node, message_ids=self._arrived.newest)
            try:
                found = self._unary_unary(
                    path=FETCH,
                    rpc_method="/flwr.proto.Fleet/PullMessages",
                    request=arrived,
                    response_type=BytesList,
                )
            except httpx.HTTPStatusError as error:
                if error.response.status_code == httpx.codes.NOT_FOUND:
                    sys.exit(f"error: {OTHER_VERSION}")
                raise
            response = PullMessagesResponse.FromString(found.vals[0])
            self._arrived.add(response.message_object_trees, found.vals[1:])
            return response

        def PushMessages(self, request: PushMessagesRequest) -> PushMessagesResponse:  # noqa: N802
            objects = contents(request.message_object_trees[0])
            return self._unary_unary(
                path=DELIVER,
                rpc_method="/flwr.proto.Fleet/PushMessages",
                request=BytesList(vals=[request.SerializeToString(), *objects]),
                response_type=PushMessagesResponse,
            )

        def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:  # noqa: N802
            return self._arrived.pull(request) or super().PullObject(request)

        def ConfirmMessageReceived(  # noqa: N802
            self, request: ConfirmMessageReceivedRequest
        ) -> ConfirmMessageReceivedResponse:
            confirmed = self._arrived.confirm(request.message_object_id)
            response = (
                ConfirmMessageReceivedResponse()
                if confirmed
                else super().ConfirmMessageReceived(request)
            )
            received()
            return response

    return BundlingFleetClient
