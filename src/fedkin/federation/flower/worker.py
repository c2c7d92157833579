"""The process that does a node's work: it stays, so that a message pays neither for starting Python nor JAX.

Flower's SuperNode by itself starts a process for every message and runs in it whatever code the
SuperLink sends along. Started with `--isolation process` it leaves the work to another process: this
one. It runs fedkin's own code only, whatever app a run brings: the app is never installed.
"""

import argparse
import logging
import os
import sys
import time
from pathlib import Path

from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.auth import load_superexec_auth_secret
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from fedkin.federation.flower.node import answer

logger = logging.getLogger("fedkin.node")

INTERVAL = 0.1
"""Seconds between two looks for work."""

ACQUIRE = "/flwr.proto.Runtime/AcquireTask"


class Worker:
    """Fetches one message after the other from its SuperNode, and answers it.

    Args:
        address: The SuperNode's Runtime API, `host:port`; on this machine.
        secret: What the SuperNode knows this process by, or None.
    """

    def __init__(self, address: str, secret: bytes | None) -> None:
        self._address = address
        interceptors: list = [RuntimeVersionHttpInterceptor(component_name="fedkin-node")]
        if secret is not None:
            interceptors.append(
                SuperExecAuthHttpInterceptor(
                    master_secret=secret, protected_methods=frozenset({ACQUIRE})
                )
            )
        self._client = self._connect(interceptors)

    def work(self) -> bool:
        """Answer one message, if there is one; tell whether there was."""
        request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
        response = self._client.AcquireTask(request)
        if not (response.HasField("task") and response.token):
            return False
        client = self._connect(
            [
                RuntimeVersionHttpInterceptor(component_name="fedkin-node"),
                RuntimeTokenHttpInterceptor(response.token),
            ]
        )
        context, status, details = None, SubStatus.FAILED, "the message could not be fetched"
        heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
        heartbeat.start()
        try:
            message, context, _, _ = pull_task_input(client)
            reply = answer(message, context)
            status, details = SubStatus.COMPLETED, ""
            push_message(client, reply, context)
        except Exception:
            logger.exception("a message could not be answered")
        finally:
            push_task_output(client, context, status, details)
            heartbeat.stop()
            client.close()
        return True

    def _connect(self, interceptors: list) -> RuntimeHttpClient:
        return RuntimeHttpClient.from_server_address(
            server_address=self._address,
            insecure=True,
            root_certificates=None,
            interceptors=interceptors,
            retry_invoker=make_simple_http_retry_invoker(),
        )


def main() -> None:
    """Work until the parent process is gone."""
    parser = argparse.ArgumentParser(prog="python -m fedkin.federation.flower.worker")
    parser.add_argument("--runtime-api-address", required=True, metavar="HOST:PORT")
    parser.add_argument("--secret-file", type=Path)
    parser.add_argument("--parent-pid", type=int, help="end when this process is gone")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    secret = None
    if arguments.secret_file is not None:
        secret = load_superexec_auth_secret(secret_file=str(arguments.secret_file))
    worker = Worker(arguments.runtime_api_address, secret)
    while arguments.parent_pid is None or _exists(arguments.parent_pid):
        if not worker.work():
            time.sleep(INTERVAL)
    sys.exit(0)


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


if __name__ == "__main__":
    main()
