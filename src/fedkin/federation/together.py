"""Many owners, one federation: they share exchanges, and each gets what it would have got alone.

Every owner runs the ordinary method in a thread of its own, on a view of the federation. An exchange takes
place when all owners that still run wait for one. It serves all of them: one synchronization.

    found = share_exchanges(federation, [job_of_ann, job_of_bob])
    found.outcomes[0], found.cost.synchronizations
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import jax
import numpy as np

from fedkin.errors import FedkinError
from fedkin.federation.base import Cost, Reply, Request
from fedkin.federation.owners import Ask, Owner, SharedReply
from fedkin.federation.task import Slot
from fedkin.federation.work import cores
from fedkin.models.objective import Objective
from fedkin.types import Key

T = TypeVar("T")

Job = Callable[["OwnersView"], T]
"""What an owner does with its view of the federation, such as training a method to its end."""


class SharedEngine(Protocol):
    """A federation that can serve several owners in one exchange."""

    @property
    def objective(self) -> Objective: ...

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def present(self) -> np.ndarray: ...

    def add_owner(self, nodes: Sequence[int] | None = None) -> Owner: ...

    def remove_owner(self, owner: Owner) -> None: ...

    def batches_of(self, nodes: np.ndarray) -> int: ...

    def exchange_all(self, asks: Sequence[Ask]) -> SharedReply: ...

    def export_owner(self, owner: Owner) -> dict[str, np.ndarray]: ...

    def import_owner(
        self, owner: Owner, arrays: Mapping[str, np.ndarray], slots: Mapping[str, Slot]
    ) -> None: ...


@dataclass(frozen=True)
class Shared(Generic[T]):
    """What all owners have got, and what it has cost."""

    outcomes: list[T | FedkinError]
    """What each job returned, or the error that ended it."""
    cost: Cost
    """What all exchanges together have cost. An exchange for many owners is one synchronization."""


def share_exchanges(
    engine: SharedEngine,
    jobs: Sequence[Job[T]],
    *,
    nodes: Sequence[Sequence[int] | None] | None = None,
) -> Shared[T]:
    """Let several owners work with one federation at the same time.

    A job that ends, or fails with an error for users, leaves the others undisturbed. Any other exception ends
    all of them.

    Args:
        engine: The federation.
        jobs: What each owner does. A job gets the owner's view of the federation.
        nodes: For each owner the nodes that it may ask, by their places in the federation and in its own
            order; None for all.
    """
    meeting = _Meeting(engine, len(jobs))
    owners = [engine.add_owner(None if nodes is None else nodes[place]) for place in range(len(jobs))]
    outcomes: dict[int, T | FedkinError] = {}
    double_precision = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]

    def work(place: int) -> None:
        view = OwnersView(engine, owners[place], meeting)
        with jax.enable_x64(double_precision):  # a setting of the thread
            try:
                with meeting.turns:
                    outcomes[place] = jobs[place](view)
            except FedkinError as error:
                outcomes[place] = error
            except _AbandonedError:
                pass
            except BaseException as error:
                meeting.abandon(error)
            finally:
                engine.remove_owner(owners[place])
                meeting.leave()

    threads = [
        threading.Thread(target=work, args=(place,), name=f"owner {place}", daemon=True)
        for place in range(len(jobs))
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException as error:  # the user interrupts
        meeting.abandon(error)
        for thread in threads:
            thread.join()
        raise
    if meeting.failure is not None:
        raise meeting.failure
    return Shared([outcomes[place] for place in range(len(jobs))], meeting.cost)


class OwnersView:
    """The federation as one of several owners sees it: an engine like any other."""

    def __init__(self, engine: SharedEngine, owner: Owner, meeting: "_Meeting") -> None:
        self._engine = engine
        self._owner = owner
        self._meeting = meeting
        self.names = tuple(engine.names[place] for place in owner.nodes)
        self.batches = engine.batches_of(owner.nodes)

    @property
    def ask_all(self) -> bool:
        """See `Federation`."""
        return self._owner.ask_all

    @ask_all.setter
    def ask_all(self, value: bool) -> None:
        self._owner.ask_all = value

    @property
    def objective(self) -> Objective:
        """See `Federation`."""
        return self._engine.objective

    @property
    def present(self) -> np.ndarray:
        """See `Federation`."""
        return self._engine.present[self._owner.nodes]

    def exchange(self, *, key: Key, **requests: Request) -> Reply:
        """Wait until all owners ask for something, and take part in that exchange."""
        return self._meeting.exchange(Ask(self._owner, key, requests))

    def begin_step(self, step: int) -> None:
        """See `Federation`."""

    def end_step(self) -> tuple[str, ...]:
        """See `Federation`."""
        return ()

    def export_state(self) -> dict[str, np.ndarray]:
        """Return what nodes remember for this owner, as if it were the only one."""
        with self._meeting.quiet:
            return self._engine.export_owner(self._owner)

    def import_state(self, arrays: Mapping[str, np.ndarray], slots: Mapping[str, Slot]) -> None:
        """Continue with what `export_state` returned."""
        with self._meeting.quiet:
            self._engine.import_owner(self._owner, arrays, slots)


class _AbandonedError(BaseException):
    """Ends the thread of an owner because another one has failed."""


class _Meeting:
    """Where owners wait for each other, and where the last to come carries out the exchange for all."""

    def __init__(self, engine: SharedEngine, owners: int) -> None:
        self.cost = Cost()
        self.failure: BaseException | None = None
        self.quiet = threading.RLock()
        """Held by whoever uses the engine."""
        self.turns = threading.Semaphore(cores())
        """Held by owners while they compute: more threads than cores would only disturb each other."""
        self._engine = engine
        self._running = owners
        self._changed = threading.Condition(self.quiet)
        self._waiting: list[Ask] = []
        self._replies: dict[Owner, Reply | FedkinError] = {}

    def exchange(self, ask: Ask) -> Reply:
        self.turns.release()
        try:
            with self._changed:
                self._waiting.append(ask)
                self._hold_if_complete()
                while ask.owner not in self._replies and self.failure is None:
                    self._changed.wait()
                if self.failure is not None:
                    raise _AbandonedError
                reply = self._replies.pop(ask.owner)
        finally:
            self.turns.acquire()
        if isinstance(reply, FedkinError):
            raise reply
        return reply

    def leave(self) -> None:
        with self._changed:
            self._running -= 1
            self._hold_if_complete()

    def abandon(self, failure: BaseException) -> None:
        with self._changed:
            self.failure = self.failure or failure
            self._changed.notify_all()

    def _hold_if_complete(self) -> None:
        if not self._waiting or len(self._waiting) < self._running or self.failure is not None:
            return
        # In the order of owners, whoever came first, so that the same is computed in every run.
        asks = sorted(self._waiting, key=lambda ask: ask.owner.number)
        self._waiting = []
        try:
            replies, cost = self._engine.exchange_all(asks)
        except BaseException as error:
            self.abandon(error)
            return
        self.cost += cost
        self._replies |= {ask.owner: reply for ask, reply in zip(asks, replies, strict=True)}
        self._changed.notify_all()
