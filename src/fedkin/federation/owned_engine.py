"""What engines have in common that serve one owner or several."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from fedkin.federation.base import Reply, Request
from fedkin.federation.owners import Ask, Owner, SharedReply, Trail, likeness_of, reply_or_error
from fedkin.federation.task import Slot
from fedkin.types import Key


class OwnedEngine(ABC):
    """An engine with its owners: the first is the only one, unless others are added."""

    def __init__(self, only: Owner) -> None:
        self._only = only
        self._imported: dict[bytes, Owner] = {}  # by their likeness

    @property
    def ask_all(self) -> bool:
        """Whether nodes of weight zero are asked too."""
        return self._only.ask_all

    @ask_all.setter
    def ask_all(self, value: bool) -> None:
        self._only.ask_all = value

    def exchange(self, *, key: Key, **requests: Request) -> Reply:
        """Let the nodes do what they are asked for. See `Federation.exchange`."""
        (reply,), _ = self.exchange_all([Ask(self._only, key, requests)])
        return reply_or_error(reply)

    @abstractmethod
    def exchange_all(self, asks: Sequence[Ask]) -> SharedReply:
        """Let the nodes do what several owners ask for, in one exchange."""

    def remove_owner(self, owner: Owner) -> None:
        """Forget what nodes remember for an owner that has come to its end."""
        if not owner.ended:
            owner.ended = True
            self._release(owner)

    def import_owner(
        self, owner: Owner, arrays: Mapping[str, np.ndarray], slots: Mapping[str, Slot]
    ) -> None:
        """Continue with what `export_owner` returned, for an owner that does not need its own state any more.

        Owners that continue from equal states have asked alike, and share what nodes remember.
        """
        self._release(owner)
        likeness = likeness_of(owner.nodes, owner.part, arrays)
        alike = self._imported.get(likeness)
        # One that has asked for something since then has another likeness.
        if alike is not None and alike.likeness == likeness:
            owner.trail = alike.trail
            owner.trail.members += 1
        else:
            owner.trail = self._continued(arrays, slots)
            self._imported[likeness] = owner
        owner.likeness = None if owner is self._only else likeness

    @abstractmethod
    def _continued(self, arrays: Mapping[str, np.ndarray], slots: Mapping[str, Slot]) -> Trail:
        """Return a trail that continues with what `export_owner` returned."""

    @abstractmethod
    def _forget(self, trail: Trail) -> None:
        """Let nodes forget what they remember for a trail that no owner has any more."""

    def _release(self, owner: Owner) -> None:
        owner.trail.members -= 1
        owner.likeness = None
        if owner.trail.members == 0:
            self._forget(owner.trail)
