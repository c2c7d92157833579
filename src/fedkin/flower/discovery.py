"""Who is connected: nodes describe themselves before a run."""

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from fedkin.errors import InputError
from fedkin.flower.layout import check_name
from fedkin.flower.messenger import Messenger, Response
from fedkin.flower.wire import DESCRIBE, Parcel

logger = logging.getLogger(__name__)

ASK_AGAIN_AFTER = 5.0
"""The largest number of seconds until a node that did not describe itself is asked again."""


@dataclass(frozen=True)
class ConnectedNode:
    """A node that is connected, as it describes itself before a run."""

    name: str
    """The name that its key is registered by; its own where the SuperLink knows nobody's key."""
    node: int
    """Flower's number of the node."""
    summary: str
    """The summary of its table, as JSON; empty if its data are images."""
    shape: tuple[int, ...]
    """The shape of one image; empty for a table."""
    held_out: Mapping[str, str] = field(default_factory=dict)
    """The summaries of the rows that it holds out, as JSON: `validation`, and perhaps `test`."""


def describe_nodes(
    messenger: Messenger, wanted: int, patience: float, enough: int | None = None
) -> list[ConnectedNode]:
    """Wait until this many nodes have connected and described themselves; return them by name.

    A node that refuses is not asked a second time; if there are too few nodes in the end, the error gives
    its reason. A node that does not answer is asked again while there is time. More nodes than these are an
    error: nobody could say which of them take part.

    Args:
        messenger: Sends the messages.
        wanted: The number of nodes to wait for.
        patience: Seconds to wait for them.
        enough: The number of nodes that is enough when the time is over, if none has refused; None
            for all.
    """
    deadline = time.monotonic() + patience
    again: dict[int, float] = {}  # when to ask a node that has been asked before
    known: dict[str, ConnectedNode] = {}
    faults: dict[int, str] = {}
    refused = False
    while len(known) < wanted:
        now = time.monotonic()
        settled = {node.node for node in known.values()}
        connected = messenger.connected()
        due = {
            node
            for node in connected.keys() - settled
            if node not in again or again[node] <= now <= deadline
        }
        if due:
            request = Parcel({"kind": DESCRIBE})
            replies = messenger.exchange(dict.fromkeys(due, request), 0)
            for node, reply in replies.items():
                description = read_description(node, reply, connected[node])
                again[node] = time.monotonic() + min(ASK_AGAIN_AFTER, patience / 5)
                faults.pop(node, None)
                if not isinstance(description, str) and description.name not in known:
                    known[description.name] = description
                    continue
                if not isinstance(description, str):
                    description = f"two nodes are called {description.name!r}"
                faults[node] = description
                logger.warning("%s", description)
                if not reply.silent:
                    again[node] = math.inf
                    refused = True
        elif now > deadline:
            break
        else:
            time.sleep(min(1.0, max(messenger.interval, 0.0)))
    if len(known) < (wanted if enough is None or refused else enough):
        names = ", ".join(sorted(known)) or "none"
        raise InputError(
            f"{len(known)} of {wanted} nodes are ready after {patience:g} s ({names}); "
            + ("start the others" if not faults else "; ".join(faults.values()))
        )
    if len(known) > wanted:
        raise InputError(
            f"{len(known)} nodes are connected ({', '.join(sorted(known))}), but the job is for {wanted}: "
            "make it a job for all of them, or take the others out with fedkin federation unregister"
        )
    return [known[name] for name in sorted(known)]


def read_description(node: int, reply: Response, registered: str) -> ConnectedNode | str:
    """Return the node that a response describes, or why there is none.

    Args:
        node: Flower's number of the node.
        reply: Its response.
        registered: The name that its key is registered by; empty if the SuperLink knows nobody's key.
    """
    values = {} if reply.parcel is None else reply.parcel.values
    name, summary, shape = (values.get(key) for key in ("name", "summary", "shape"))
    if reply.parcel is None:
        return f"a node cannot take part: {reply.fault}"
    if not (isinstance(name, str) and isinstance(summary, str) and isinstance(shape, str)):
        return "a node does not describe itself"
    if registered and name != registered:
        return (
            f"the node that is registered as {registered} calls itself {name[:60]!r} and is refused: its "
            f"owner starts it with --name {registered}"
        )
    try:
        check_name(name)
    except ValueError as error:
        return f"a node is refused: {error}"
    lengths = tuple(int(length) for length in shape.split(",") if length.isdigit())
    held_out = {
        part: text
        for part in ("validation", "test")
        if isinstance(text := values.get(part), str) and text
    }
    return ConnectedNode(name, node, summary, lengths, held_out)
