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

SHARED_COST = "together/cost"
"""What all shared exchanges have cost, among the state of an owner."""


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

    def present_for(self, owner: Owner) -> np.ndarray:
        """Return which nodes of an owner take part (bools)."""
        ...

    def admit(self, owner: Owner) -> None:
        """Let an owner, which begins a step, count on nodes that have come back."""
        ...

    def end_step(self) -> tuple[str, ...]:
        """Return, in sentences, what went wrong with nodes since it was last asked, by any owner."""
        ...

    def add_owner(self, nodes: Sequence[int] | None = None) -> Owner:
        """Make room for another owner, who may ask some nodes, or all."""
        ...

    def remove_owner(self, owner: Owner) -> None:
        """Forget what nodes remember for an owner that has come to its end."""
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
        self._costs_before: dict[int, Cost] = {}
        """What exchanges had cost when owners were last stopped."""
        self._engines: dict[int, dict[Owner, SharedEngine]] = {}
        """The engines of the owners that each thread speaks for."""

    def view(self, engine: SharedEngine, nodes: Sequence[int] | None = None) -> "OwnersView":
        """Return a federation as one more owner sees it.

        Args:
            engine: The federation.
            nodes: The nodes that the owner may ask, by their places in the federation and in its own
                order; None for all.
        """
        return self.view_of(engine, engine.add_owner(nodes))

    def view_of(self, engine: SharedEngine, owner: Owner) -> "OwnersView":
        """Return a federation as an owner sees it that the engine knows already."""
        return OwnersView(engine, owner, self)

    def cost(self, engine: SharedEngine) -> Cost:
        """Return what all shared exchanges with a federation have cost together.

        An exchange for many owners is one synchronization. Where owners were continued, this includes what
        was spent before.
        """
        before = self._costs_before.get(id(engine), Cost())
        return before + self._costs.get(id(engine), Cost())

    def continue_from(self, engine: SharedEngine, cost: Cost) -> None:
        """Take over what exchanges had cost when an owner was stopped: of several, the one stopped last.

        What has been asked since then to prepare the owners was asked before, too.
        """
        before = self._costs_before.get(id(engine))
        if before is None:
            self._costs.pop(id(engine), None)
        if before is None or cost.synchronizations > before.synchronizations:
            self._costs_before[id(engine)] = cost

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
            # A setting of the thread: who leaves may carry out the exchange of the others, so there, too.
            with jax.enable_x64(double_precision):
                try:
                    with self._turns:
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
        started: list[threading.Thread] = []
        try:
            for thread in threads:
                thread.start()
                started.append(thread)
            for thread in threads:
                thread.join()
        except BaseException as error:  # the user interrupts, or there can be no more threads
            self._abandon(error)
            for thread in started:
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
                self.connect(engine, ask.owner)
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

    def connect(self, engine: SharedEngine, owner: Owner) -> None:
        """Remember that this thread speaks for an owner: when it ends, nodes forget what they did for it."""
        self._engines.setdefault(threading.get_ident(), {})[owner] = engine

    def _leave(self) -> None:
        with self._changed:
            self._running -= 1
            try:
                for owner, engine in self._engines.pop(threading.get_ident(), {}).items():
                    engine.remove_owner(owner)
            except BaseException as error:
                self._abandon(error)
            self._hold_if_complete()

    def _abandon(self, failure: BaseException) -> None:
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()

    def _hold_if_complete(self) -> None:
        # Again where no owner has got an answer: each waits for the node that it is.
        while self._waiting and len(self._waiting) >= self._running and self._failure is None:
            waiting, self._waiting = self._waiting, []
            try:
                for engine in {id(engine): engine for engine, _ in waiting}.values():
                    self._hold(engine, [ask for asked, ask in waiting if asked is engine])
            except BaseException as error:
                self._abandon(error)
            self._changed.notify_all()

    def _hold(self, engine: SharedEngine, asks: Sequence[Ask]) -> None:
        # In the order of owners, whoever came first: the same is computed in every run.
        ordered = sorted(asks, key=lambda ask: ask.owner.number)
        replies, cost = engine.exchange_all(ordered)
        self._costs[id(engine)] = self._costs.get(id(engine), Cost()) + cost
        for ask, reply in zip(ordered, replies, strict=True):
            if reply is None:
                self._waiting.append((engine, ask))  # with the next exchange
            else:
                self._replies[ask.owner] = reply


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
        return self._engine.present_for(self._owner)

    def exchange(self, *, key: Key, **requests: Request) -> Reply:
        """Wait until all owners ask for something, and take part in that exchange."""
        return self._meeting.exchange(self._engine, Ask(self._owner, key, requests))

    def begin_step(self, step: int) -> None:
        """See `Federation`."""
        with self._meeting.quiet:
            self._engine.admit(self._owner)

    def end_step(self) -> tuple[str, ...]:
        """Return what went wrong with nodes; of several owners, the first to ask gets it."""
        with self._meeting.quiet:
            return self._engine.end_step()

    def export_state(self) -> dict[str, np.ndarray]:
        """Return what nodes remember for this owner, as if it were the only one, and what all have cost."""
        with self._meeting.quiet:
            cost = self._meeting.cost(self._engine)
            return self._engine.export_owner(self._owner) | {SHARED_COST: _cost_as_array(cost)}

    def import_state(self, arrays: Mapping[str, np.ndarray], slots: Mapping[str, Slot]) -> None:
        """Continue with what `export_state` returned."""
        with self._meeting.quiet:
            own = {name: array for name, array in arrays.items() if name != SHARED_COST}
            if SHARED_COST in arrays:
                cost = _cost_from_array(arrays[SHARED_COST])
                self._meeting.continue_from(self._engine, cost)
            self._meeting.connect(self._engine, self._owner)
            self._engine.import_owner(self._owner, own, slots)


def _cost_as_array(cost: Cost) -> np.ndarray:
    counts = (cost.synchronizations, cost.bytes_up, cost.bytes_down, cost.nodes_asked)
    return np.array([*counts, *cost.node_points], np.int64)


def _cost_from_array(array: np.ndarray) -> Cost:
    synchronizations, up, down, asked, *points = array.tolist()
    return Cost(synchronizations, up, down, tuple(points), asked)


class _AbandonedError(BaseException):
    """Ends the thread of an owner because another one has failed."""
