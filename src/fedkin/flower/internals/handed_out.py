"""Messages that a SuperLink has handed out, until the nodes say that they have arrived.

A connection may break while a message is on its way. The node then asks again, does not say that it has the
message, and gets it once more. After a while it does not: the center may have given up, and late words of a
secure sum would tell it more than they should.

This file is imported by programs that do not compute, and imports nothing of fedkin.
"""

import time
from collections.abc import Collection
from dataclasses import dataclass, field

KEPT_SECONDS = 15.0
"""How long a message is kept for a node that may ask for it again."""


@dataclass(frozen=True)
class _Kept:
    body: bytes
    message: str | None
    """The message that the node will say it has; None if it fetches the parts and confirms them by itself."""
    until: float = field(default_factory=lambda: time.monotonic() + KEPT_SECONDS)


class HandedOut:
    """The answers with messages for nodes, by the nodes' numbers, the oldest first."""

    def __init__(self) -> None:
        self._kept: dict[int, list[_Kept]] = {}

    def add(self, node: int, body: bytes, message: str | None) -> None:
        """Keep an answer for a node.

        Args:
            node: The number of the node.
            body: The answer.
            message: The message in it; None if only its announcement is.
        """
        self._kept.setdefault(node, []).append(_Kept(body, message))

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
