"""Messages that were handed out, until those they are for say that they have arrived.

A connection may break while a message is on its way, from a SuperLink to a node or from a SuperNode to its
worker. Who waits for it then asks again, does not say that it has the message, and gets it once more. After
a while a node does not: the center may have given up, and late words of a secure sum would tell it more than
they should.

This file is imported by programs that do not compute, and imports nothing of fedkin.
"""

import time
from collections.abc import Collection
from dataclasses import dataclass

KEPT_SECONDS = 15.0
"""How long a message is kept for a node that may ask for it again."""


@dataclass(frozen=True)
class _Kept:
    body: bytes
    message: str | None
    """The message that the node will say it has; None if it fetches the parts and confirms them by itself."""
    until: float


class HandedOut:
    """The answers with messages for nodes (or workers), by their numbers, the oldest first.

    Args:
        seconds: How long a message is kept for one that may ask for it again; by default `KEPT_SECONDS`.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = seconds
        self._kept: dict[int, list[_Kept]] = {}

    def add(self, node: int, body: bytes, message: str | None) -> None:
        """Keep an answer for a node.

        Args:
            node: The number of the node.
            body: The answer.
            message: The message in it; None if only its announcement is.
        """
        seconds = KEPT_SECONDS if self._seconds is None else self._seconds
        until = time.monotonic() + seconds
        self._kept.setdefault(node, []).append(_Kept(body, message, until))

    def lacks(self, node: int, message: str) -> bool:
        """Tell whether there is an answer for a node that says it has this message."""
        return any(each.message != message for each in self._kept.get(node, ()))

    def arrived(self, node: int, messages: Collection[str]) -> None:
        """Forget what a node has, and what is too old for any node."""
        now = time.monotonic()
        for number, kept in list(self._kept.items()):
            own = [
                each
                for each in kept
                if each.until > now and not (number == node and each.message in messages)
            ]
            if own:
                self._kept[number] = own
            else:
                del self._kept[number]

    def next(self, node: int) -> bytes | None:
        """Return the oldest answer that a node does not have; None if there is none."""
        kept = self._kept.get(node)
        if not kept:
            return None
        if kept[0].message is None:
            return kept.pop(0).body
        return kept[0].body
