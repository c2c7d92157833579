"""A proxy before a node that sees when the node is asked for masked words, and when these have arrived."""

import threading
from collections.abc import Callable
from typing import Literal

from flower.recorder import Recorder

ASKED, WORDS = b"exchange-number", b".vector.words="
"""What stands in a request for masked words, and in an answer with some."""

Moment = Literal["it is asked", "its words are on the way", "its words have arrived"]


class Tripwire(Recorder):
    """Lets something happen at an exact moment of a node's part in a masked sum.

    Args:
        target_port: The port of the SuperLink.
    """

    def __init__(self, target_port: int) -> None:
        super().__init__(target_port)
        self._lock = threading.Lock()
        self._set: tuple[Moment, Callable[[bytes], bool], Callable[[], None]] | None = None
        self._chosen = False
        """Whether the request that the node has is the one that is waited for."""
        self._answering: object = None
        """The connection on which words go up."""

    def when(
        self, moment: Moment, which: Callable[[bytes], bool], happens: Callable[[], None]
    ) -> None:
        """Let something happen once; what is passing at that moment passes no more.

        Args:
            moment: The moment.
            which: Told what comes down with each request for words; returns whether this is the one.
            happens: What happens.
        """
        self._set = moment, which, happens

    def passing(self, way: str, connection: object, data: bytes) -> bool:
        """Return whether bytes may pass."""
        with self._lock:
            if way == "down" and ASKED in data and self._set is not None:
                self._chosen = self._set[1](data)
                return not self._happens("it is asked")
            if way == "up" and WORDS in data:
                self._answering = connection
                return not self._happens("its words are on the way")
            if way == "down" and connection is self._answering:
                self._answering = None
                return not self._happens("its words have arrived")
        return True

    def _happens(self, moment: Moment) -> bool:
        if self._set is None or not self._chosen or self._set[0] != moment:
            return False
        happens, self._set = self._set[2], None
        happens()
        return True
