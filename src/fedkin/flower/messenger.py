"""Messages to nodes and back over Flower's Grid, which answers as soon as there is a reply."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import Message
from flwr.serverapp import Grid

from fedkin.flower import wire
from fedkin.flower.wire import Parcel, Refusal, RefusedError
from fedkin.messages import printable

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Response:
    """What came back from a node: a parcel, or the reason why there is none."""

    parcel: Parcel | None
    fault: str | None = None
    refusal: int | None = None
    """The code of the error that the node answered with."""
    silent: bool = False
    """Whether the node itself has not answered; it may, if it is asked again."""


@dataclass(frozen=True)
class Messenger:
    """Sends requests and collects the answers.

    Args:
        grid: Flower's connection to the nodes.
        patience: Seconds to wait for an answer; a node that takes longer is treated as missing.
        interval: The fewest seconds between two requests for replies when the first has found none. The
            SuperLink lets such a request wait for a reply; Flower's own interval is three.
    """

    grid: Grid
    patience: float = 120.0
    interval: float = 0.1

    def connected(self) -> dict[int, str]:
        """Return the connected nodes: the name that each one's key is registered by, by Flower's number.

        The name is empty where the SuperLink knows nobody's key (--insecure).
        """
        return {node.node_id: node.name for node in self.grid.get_nodes()}

    def keys(self) -> dict[int, bytes]:
        """Return the keys that connected nodes are registered with; empty without registered keys.

        Without them, Flower makes keys of its own, which have no name.
        """
        return {
            node.node_id: bytes(node.public_key) if node.name else b""
            for node in self.grid.get_nodes()
        }

    def exchange(
        self, requests: Mapping[int, Parcel], largest: int, patience: float | None = None
    ) -> dict[int, Response]:
        """Send each node its request, and wait until all have answered or the time is over.

        Args:
            requests: What to send, by Flower's number of the node.
            largest: The largest number of entries that a vector in an answer may have.
            patience: Seconds to wait; by default, those of this messenger.
        """
        patience = self.patience if patience is None else patience
        replies = {
            node: Response(None, "it did not answer in time", silent=True) for node in requests
        }
        # A message must not wait for a node that reconnects when nobody needs its answer any more.
        messages = [
            Message(wire.pack("request", parcel), node, wire.MESSAGE_TYPE, ttl=patience + 60)
            for node, parcel in requests.items()
        ]
        waiting: dict[str, int] = {}
        for node, number in zip(requests, self.grid.push_messages(messages), strict=True):
            if number:
                waiting[number] = node
            else:
                replies[node] = Response(None, "it is not connected", silent=True)
        deadline = time.monotonic() + patience
        while waiting:
            begin, found = time.monotonic(), False
            for message in self.grid.pull_messages(list(waiting)):
                found = True
                node = waiting.pop(message.metadata.reply_to_message_id, None)
                if node is not None:
                    replies[node] = _read(message, largest)
            if not waiting or time.monotonic() > deadline:
                break
            if not found:
                time.sleep(max(0.0, self.interval - (time.monotonic() - begin)))
        return replies


def _read(message: Message, largest: int) -> Response:
    if message.has_error():
        code, reason = message.error.code, message.error.reason or "no reason given"
        # Flower answers for a node that is gone, with codes that are smaller than all of fedkin's.
        silent = code < min(Refusal)
        fault = f"it answered with an error ({_one_line(reason[:300])})"
        return Response(None, fault, code, silent)
    try:
        return Response(wire.unpack("answer", message.content, largest))
    except RefusedError as error:
        return Response(None, f"its answer cannot be read ({_one_line(str(error))})")


def _one_line(text: str) -> str:
    """Return what a node says as one line of a log, in which nothing steers a terminal."""
    return " ".join(printable(text).split())
