"""The process that does a node's work. It stays, so no message waits for Python or JAX to start.

By itself, Flower's SuperNode starts a process for every message and runs whatever code the SuperLink
sends along. With `--isolation process` it leaves the work to another process: this one. It runs fedkin's
own code only. The app of a run is never installed.
"""

import argparse
import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import psutil
from flwr.app import Error, Message, RecordDict

from fedkin.compilation import keep_compiled_code_like_parent
from fedkin.flower.internals.runtime import Delivery, SuperNodeConnection, WorkItem
from fedkin.flower.node import answer
from fedkin.flower.node_preparation import MOST_RUNS
from fedkin.flower.time_limit import end_if_overdue
from fedkin.flower.wire import Refusal

logger = logging.getLogger("fedkin.node")

PAUSE = 0.05
"""Seconds between two requests for work. The SuperNode lets a request wait until there is some."""
OVERDUE_INTERVAL = 0.5
"""How often a worker looks whether an answer takes longer than the owner allows."""


class Worker:
    """Fetches messages from its SuperNode and answers them, one at a time."""

    def __init__(self, connection: SuperNodeConnection) -> None:
        self._connection = connection
        self._computing = threading.Lock()
        self._memories: dict[int, RecordDict] = {}  # by run, the newest of each

    def poll(self) -> None:
        """Ask for a message, and start to answer it if there is one.

        Every message has its own thread. Flower waits for a message whose run has ended in the meantime
        and never arrives completely; the next messages need not wait for it.
        """
        item = self._connection.next_work_item()
        if item is not None:
            threading.Thread(target=self.handle, args=(item,), daemon=True).start()

    def handle(self, item: WorkItem) -> None:
        """Fetch a message and answer it."""
        try:
            with self._connection.deliver(item) as delivery:
                self._respond(delivery)
        except Exception:
            # A SuperNode that learns of a failure waits for an answer forever, and takes no other work.
            # One that receives no more heartbeats gives the message up and answers it by itself.
            logger.exception("a message was not answered, not even with an error")

    def _respond(self, delivery: Delivery) -> None:
        """Answer a message: with an error, if it cannot be read or answered."""
        failure = None
        try:
            message = delivery.fetch()
            with self._exclusive(delivery):
                delivery.send(answer(message, delivery.context))
        except Exception as error:
            logger.exception("a message could not be answered")
            failure = "the message could not be read or answered"
            reason = f"{failure} ({type(error).__name__}); see the log of the node's owner"
            with self._exclusive(delivery):
                refusal = Error(int(Refusal.INTERNAL), reason)
                delivery.send(Message(refusal, reply_to=delivery.envelope))
        delivery.finish(failure)

    @contextlib.contextmanager
    def _exclusive(self, delivery: Delivery) -> Iterator[None]:
        """Work alone, with the newest memory of the run.

        The SuperNode hands out the next message as soon as it has an answer, and receives the node's
        memory only after that: the memory kept here may be newer.
        """
        context = delivery.context
        with self._computing:
            delivery.take_identity()
            context.state = self._memories.pop(context.run_id, context.state)
            try:
                yield
            finally:
                self._memories[context.run_id] = context.state
                while len(self._memories) > MOST_RUNS:
                    del self._memories[next(iter(self._memories))]


def main() -> None:
    """Work until the parent process is gone."""
    parser = argparse.ArgumentParser(prog="python -m fedkin.flower.worker")
    parser.add_argument("--runtime-api-address", required=True, metavar="HOST:PORT")
    parser.add_argument("--secret-file", type=Path)
    parser.add_argument("--parent-pid", type=int, help="end when this process is gone")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    keep_compiled_code_like_parent()
    if arguments.parent_pid is not None:
        threading.Thread(target=_end_with, args=(arguments.parent_pid,), daemon=True).start()
    threading.Thread(target=_keep_time, daemon=True).start()
    worker = Worker(SuperNodeConnection(arguments.runtime_api_address, arguments.secret_file))
    while True:
        worker.poll()
        time.sleep(PAUSE)


def _keep_time() -> NoReturn:
    """End this process when an answer takes too long: `poll` waits meanwhile."""
    while True:
        end_if_overdue()
        time.sleep(OVERDUE_INTERVAL)


def _end_with(process: int) -> NoReturn:
    """End this process when another is gone: without a SuperNode, `poll` would retry forever."""
    while _exists(process):
        time.sleep(0.5)
    os._exit(0)


def _exists(process: int) -> bool:
    """Return whether a process exists; one that has ended may stay listed until its parent notices."""
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


if __name__ == "__main__":
    main()
