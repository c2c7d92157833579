"""Many owners, one federation: they share exchanges, and each gets what it would have got alone.

Every owner runs the ordinary method in a thread of its own, on a view of the federation. An exchange takes
place when all owners that still run wait for one. It serves all of them: one synchronization.

    meeting = Meeting()
    views = [meeting.view(federation) for _ in owners]
    outcomes = meeting.run([partial(train, view) for view in views])
    meeting.cost(federation)
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

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


class SharedEngine(Protocol):
    """A federation that can serve several owners in one exchange."""

    @property
    def objective(self) -> Objective:
        """See `Federation`."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """See `Federation`."""
        ...

    @property
    def present(self) -> np.ndarray:
        """See `Federation`."""
        ...

    def add_owner(self, nodes: Sequence[int] | None = None) -> Owner:
        """Make room for another owner, who may ask some nodes, or all."""
        ...

    def batches_of(self, nodes: np.ndarray) -> int:
        """Return the largest number of mini-batches that some nodes have."""
        ...

    def exchange_all(self, asks: Sequence[Ask]) -> SharedReply:
        """Let the nodes do what several owners ask for."""
        ...

    def export_owner(self, owner: Owner) -> dict[str, np.ndarray]:
        """Return what nodes remember for an owner, as if it were the only one."""
        ...

    def import_owner(
        self, owner: Owner, arrays: Mapping[str, np.ndarray], slots: Mapping[str, Slot]
    ) -> None:
        """Continue with what `export_owner` returned."""
        ...


class Meeting:
    """Where owners wait for each other, and where the last to come carries out the exchange for all."""

    def __init__(self) -> None:
        self.quiet = threading.RLock()
        """Held by whoever uses an engine."""
        self._turns = threading.Semaphore(cores())
        """Held by owners while they compute: more threads than cores would only disturb each other."""
        self._changed = threading.Condition(self.quiet)
        self._running = 0
        self._waiting: list[tuple[SharedEngine, Ask]] = []
        self._replies: dict[Owner, Reply | FedkinError] = {}
        self._failure: BaseException | None = None
        self._costs: dict[int, Cost] = {}

    def view(self, engine: SharedEngine, nodes: Sequence[int] | None = None) -> "OwnersView":
        """Return a federation as one more owner sees it.

        Args:
            engine: The federation.
            nodes: The nodes that the owner may ask, by their places in the federation and in its own
                order; None for all.
        """
        return OwnersView(engine, engine.add_owner(nodes), self)

    def cost(self, engine: SharedEngine) -> Cost:
        """Return what all shared exchanges with a federation have cost together.

        An exchange for many owners is one synchronization.
        """
        return self._costs.get(id(engine), Cost())

    def run(self, jobs: Sequence[Callable[[], T]]) -> list[T | FedkinError]:
        """Let the owners work at the same time, each with its own views.

        A job that ends, or fails with an error for users, leaves the others undisturbed. Any other
        exception ends all of them.

        Returns:
            What each job returned, or the error that ended it.
        """
        outcomes: dict[int, T | FedkinError] = {}
        double_precision = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]

        def work(place: int) -> None:
            try:
                with jax.enable_x64(double_precision), self._turns:  # a setting of the thread
                    outcomes[place] = jobs[place]()
            except FedkinError as error:
                outcomes[place] = error
            except _AbandonedError:
                pass
            except BaseException as error:
                self._abandon(error)
            finally:
                self._leave()

        threads = [
            threading.Thread(target=work, args=(place,), name=f"owner {place}", daemon=True)
            for place in range(len(jobs))
        ]
        self._running = len(jobs)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException as error:  # the user interrupts
            self._abandon(error)
            for thread in threads:
                thread.join()
            raise
        if self._failure is not None:
            raise self._failure
        return [outcomes[place] for place in range(len(jobs))]

    def exchange(self, engine: SharedEngine, ask: Ask) -> Reply:
        """Wait until all owners ask for something, and return what this one gets."""
        self._turns.release()
        try:
            with self._changed:
                self._waiting.append((engine, ask))
                self._hold_if_complete()
                while ask.owner not in self._replies and self._failure is None:
                    self._changed.wait()
                if self._failure is not None:
                    raise _AbandonedError
                reply = self._replies.pop(ask.owner)
        finally:
            self._turns.acquire()
        if isinstance(reply, FedkinError):
            raise reply
        return reply

    def _leave(self) -> None:
        with self._changed:
            self._running -= 1
            self._hold_if_complete()

    def _abandon(self, failure: BaseException) -> None:
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()

    def _hold_if_complete(self) -> None:
        if not self._waiting or len(self._waiting) < self._running or self._failure is not None:
            return
        waiting, self._waiting = self._waiting, []
        engines = {id(engine): engine for engine, _ in waiting}
        try:
            for place, engine in engines.items():
                own = [ask for asked, ask in waiting if asked is engine]
                # In the order of owners, whoever came first: the same is computed in every run.
                asks = sorted(own, key=lambda ask: ask.owner.number)
                replies, cost = engine.exchange_all(asks)
                self._costs[place] = self._costs.get(place, Cost()) + cost
                self._replies |= {
                    ask.owner: reply for ask, reply in zip(asks, replies, strict=True)
                }
        except BaseException as error:
            self._abandon(error)
        self._changed.notify_all()


class OwnersView:
    """The federation as one of several owners sees it: an engine like any other."""

    def __init__(self, engine: SharedEngine, owner: Owner, meeting: Meeting) -> None:
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
        return self._meeting.exchange(self._engine, Ask(self._owner, key, requests))

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
