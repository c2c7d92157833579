"""The contract with Flower: every name of its internals that `fedkin.flower.internals` relies on.

A release of Flower may move or change any of them. These tests then fail with a sentence that says which
one, and what it is used for.
"""

import ast
import inspect
import subprocess
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from fedkin.flower import internals
from fedkin.flower.internals import (
    bundles,
    control,
    environment,
    node_bundles,
    runtime,
    serverapp,
    superlink,
    supernode,
)
from fedkin.flower.launch import Node, Server, superlink_command, supernode_command
from fedkin.flower.wire import Refusal

FOLDER = Path(internals.__file__).parent
PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp"}


@dataclass(frozen=True)
class Reliance:
    """One name, what it must be like, and what it is used for."""

    module: str
    name: str
    """May have dots: an attribute of a class."""
    user: str
    """The module of `fedkin.flower.internals` that relies on it."""
    purpose: str
    called: tuple[int, Sequence[str]] | None = None
    """How it is called: the number of positional arguments, and the names of the others."""
    has: Sequence[str] = ()
    """Attributes that it must have."""
    fields: Sequence[str] = ()
    """Fields that a message of protobuf must have."""
    values: Mapping[str, object] = field(default_factory=dict)
    """Attributes with the values that are relied on."""
    equals: object = None
    """The value itself."""
    imported: bool = True
    """Whether fedkin imports it by name, or relies on it without that."""


def proto(module, name, user, purpose, *fields, imported=True):
    return Reliance(f"flwr.proto.{module}", name, user, purpose, fields=fields, imported=imported)


MOVING, SENDING = "fetch the parts of a message", "send a message with its parts"
INTERCEPTORS = "flwr.supercore.interceptors"

TABLE = (
    # The worker's connection to its SuperNode
    Reliance(
        "flwr.common.constant",
        "SubStatus",
        "runtime",
        "report whether a message was answered",
        values={"COMPLETED": "completed", "FAILED": "failed"},
    ),
    Reliance(
        "flwr.common.serde", "context_from_proto", "runtime", "read a node's memory", called=(1, ())
    ),
    Reliance(
        "flwr.common.serde", "message_from_proto", "runtime", "read an envelope", called=(1, ())
    ),
    proto(
        "message_pb2",
        "ConfirmMessageReceivedRequest",
        "runtime",
        "confirm that a message has arrived",
        *("node", "run_id", "message_object_id"),
    ),
    proto("message_pb2", "ObjectTree", "runtime", MOVING, "object_id"),
    proto("node_pb2", "Node", "runtime", "say which node it is", "node_id"),
    proto("runtime_pb2", "AcquireTaskRequest", "runtime", "ask for work", "supported_task_types"),
    proto(
        "runtime_pb2",
        "AcquireTaskResponse",
        "runtime",
        "ask for work",
        *("task", "token"),
    ),
    proto("runtime_pb2", "PullAppMessagesRequest", "bundles", MOVING),
    proto(
        "runtime_pb2",
        "PullAppMessagesResponse",
        "bundles",
        MOVING,
        *("messages_list", "message_object_trees"),
    ),
    proto(
        "runtime_pb2",
        "PushAppMessagesRequest",
        "bundles",
        SENDING,
        *("messages_list", "message_object_trees"),
    ),
    proto(
        "runtime_pb2",
        "PushAppMessagesResponse",
        "bundles",
        SENDING,
        *("message_ids", "objects_to_push", "session_id"),
    ),
    proto(
        "message_pb2",
        "Message",
        "bundles",
        "know whom a message is for, and its run",
        "metadata",
        imported=False,
    ),
    proto(
        "message_pb2",
        "Metadata",
        "bundles",
        "know whom a message is for, and its run",
        *("run_id", "message_id", "dst_node_id"),
        imported=False,
    ),
    proto("fleet_pb2", "PullMessagesRequest", "bundles", MOVING, "node"),
    proto(
        "fleet_pb2",
        "PullMessagesResponse",
        "bundles",
        MOVING,
        *("messages_list", "message_object_trees"),
    ),
    proto(
        "fleet_pb2",
        "PushMessagesRequest",
        "bundles",
        SENDING,
        *("node", "messages_list", "message_object_trees"),
    ),
    proto(
        "fleet_pb2",
        "PushMessagesResponse",
        "bundles",
        SENDING,
        *("objects_to_push", "session_id"),
    ),
    proto("message_pb2", "ConfirmMessageReceivedResponse", "bundling_clients", MOVING),
    proto("message_pb2", "PullObjectRequest", "bundles", MOVING, "node", "run_id", "object_id"),
    proto(
        "message_pb2",
        "PullObjectResponse",
        "bundling_clients",
        MOVING,
        *("object_found", "object_available", "object_content"),
    ),
    proto(
        "message_pb2",
        "PushObjectRequest",
        "bundles",
        SENDING,
        *("node", "run_id", "session_id", "object_id", "object_content"),
    ),
    proto("recorddict_pb2", "BytesList", "bundles", "make several parts one body", "vals"),
    Reliance(
        "flwr.supercore.error", "FlowerError", "bundles", "let Flower say that a run has ended"
    ),
    Reliance(
        "flwr.supercore.object_store",
        "NoObjectInStoreError",
        "node_bundles",
        "know that a message is gone",
    ),
    Reliance(
        "flwr.superlink.servicer.fleet.fleet_handlers",
        "pull_object",
        "bundles",
        MOVING,
        called=(2, ()),
    ),
    Reliance(
        "flwr.superlink.servicer.fleet.fleet_handlers",
        "push_object",
        "bundles",
        SENDING,
        called=(2, ()),
    ),
    Reliance(
        "flwr.superlink.servicer.fleet.fleet_handlers",
        "confirm_message_received",
        "bundles",
        MOVING,
        called=(3, ()),
    ),
    Reliance(
        "flwr.supernode.servicer.runtime",
        "runtime_handlers",
        "node_bundles",
        "hand a message to the worker whole",
        has=("pull_task_input", "pull_messages", "pull_object", "confirm_message_received"),
    ),
    Reliance(
        "flwr.server.superlink.linkstate",
        "LinkState",
        "bundles",
        "take and store the objects of a run's messages",
        has=("get_object", "store_object", "object_store"),
        imported=False,
    ),
    Reliance(
        "flwr.server.superlink.linkstate",
        "LinkState.store_object",
        "bundles",
        SENDING,
        called=(5, ()),
        imported=False,
    ),
    Reliance(
        "flwr.supernode.nodestate",
        "NodeState",
        "node_bundles",
        "know that there is work, and wait for an answer",
        has=("get_tasks", "get_messages_legacy", "store_object", "get_object", "object_store"),
        imported=False,
    ),
    Reliance(
        "flwr.common.constant",
        "Status",
        "node_bundles",
        "know that there is work",
        values={"PENDING": "pending"},
    ),
    Reliance(
        "flwr.supernode.fleet_http_client",
        "FleetHttpClient",
        "bundling_clients",
        "connect a SuperNode to its SuperLink",
        has=(
            *("PushMessages", "PullMessages", "PullObject", "ConfirmMessageReceived"),
            "_unary_unary",
        ),
    ),
    Reliance(
        "flwr.supercore.protobuf.client",
        "ProtobufClient._unary_unary",
        "bundling_clients",
        "ask for whole messages",
        called=(1, ["path", "rpc_method", "request", "response_type"]),
        imported=False,
    ),
    Reliance(
        "flwr.supercore.inflatable.inflatable_object",
        "get_object_id",
        "bundles",
        "know which object a content is",
        called=(1, ()),
    ),
    Reliance(
        "flwr.supercore.inflatable.inflatable_object",
        "UnexpectedObjectContentError",
        "bundles",
        "leave out what Flower does not take for an object",
    ),
    Reliance(
        "flwr.supercore.inflatable.inflatable_object",
        "get_all_nested_objects",
        "serverapp",
        SENDING,
        called=(1, ()),
    ),
    proto("runtime_pb2", "PullTaskInputRequest", "node_bundles", "fetch a node's memory"),
    proto(
        "runtime_pb2",
        "PullTaskInputResponse",
        "runtime",
        "fetch a node's memory",
        *("context", "fab"),
    ),
    Reliance(
        "flwr.supercore.auth",
        "load_superexec_auth_secret",
        "runtime",
        "read the secret of a worker",
        called=(0, ["secret_file"]),
    ),
    Reliance(
        "flwr.supercore.constant",
        "TaskType",
        "runtime",
        "ask for the work of a node",
        values={"CLIENT_APP": "flwr-clientapp"},
    ),
    Reliance(
        "flwr.supercore.heartbeat",
        "HeartbeatSender",
        "runtime",
        "keep a message assigned while it is being answered",
        called=(1, ()),
        has=("start", "stop"),
    ),
    Reliance(
        "flwr.supercore.heartbeat",
        "make_task_heartbeat_fn_http",
        "runtime",
        "keep a message assigned while it is being answered",
        called=(1, ()),
    ),
    Reliance(
        "flwr.supercore.inflatable.inflatable_object",
        "iterate_object_tree",
        "runtime",
        MOVING,
        called=(1, ()),
    ),
    Reliance(
        "flwr.supercore.inflatable.inflatable_protobuf_utils",
        "make_pull_object_fn_protobuf",
        "runtime",
        MOVING,
        called=(3, ()),
    ),
    Reliance(
        "flwr.supercore.inflatable.inflatable_utils",
        "inflate_object_from_contents",
        "runtime",
        MOVING,
        called=(2, ()),
    ),
    Reliance(
        "flwr.supercore.inflatable.inflatable_utils",
        "pull_objects",
        "runtime",
        MOVING,
        called=(2, ["max_time", "initial_backoff", "backoff_cap"]),
    ),
    Reliance(
        INTERCEPTORS,
        "RuntimeTokenHttpInterceptor",
        "runtime",
        "prove that a message was assigned to the worker",
        called=(1, ()),
    ),
    Reliance(
        INTERCEPTORS,
        "RuntimeVersionHttpInterceptor",
        "runtime",
        "say which program connects",
        called=(0, ["component_name"]),
    ),
    Reliance(
        INTERCEPTORS,
        "SuperExecAuthHttpInterceptor",
        "runtime",
        "prove with the secret that the worker is the SuperNode's own",
        called=(0, ["master_secret", "protected_methods"]),
    ),
    Reliance(
        "flwr.supercore.superexec.run_superexec",
        "_SUPEREXEC_AUTH_METHODS",
        "runtime",
        "know which calls need the secret",
        equals=frozenset({runtime.ACQUIRE_TASK}),
        imported=False,
    ),
    Reliance(
        "flwr.supercore.retry",
        "make_simple_http_retry_invoker",
        "runtime",
        "try again while the SuperNode does not answer",
        called=(0, ()),
    ),
    Reliance(
        "flwr.supercore.runtime",
        "RuntimeHttpClient",
        "runtime",
        "connect a worker to its SuperNode",
        has=(
            *("PushMessages", "PullMessages", "PullObject", "ConfirmMessageReceived"),
            *("_unary_unary", "close"),
        ),
    ),
    Reliance(
        "flwr.supercore.runtime",
        "RuntimeHttpClient.from_server_address",
        "runtime",
        "connect a worker to its SuperNode",
        called=(
            0,
            [
                *("server_address", "insecure", "root_certificates", "interceptors"),
                "retry_invoker",
            ],
        ),
        imported=False,
    ),
    Reliance(
        "flwr.supercore.task_identity",
        "TaskIdentity",
        "runtime",
        "make messages in the name of a task",
    ),
    Reliance(
        "flwr.supernode.runtime.run_clientapp",
        "push_message",
        "runtime",
        "send an answer",
        called=(3, ()),
    ),
    Reliance(
        "flwr.supernode.runtime.run_clientapp",
        "push_task_output",
        "runtime",
        "hand a node's memory back",
        called=(4, ()),
    ),
    # The commands to a SuperLink
    Reliance(
        "flwr.supercore.control",
        "ControlHttpClient",
        "control",
        "give commands to a SuperLink",
        has=(
            *("ListNodes", "RegisterNode", "UnregisterNode", "StartRun", "ListRuns"),
            *("StopRun", "close"),
        ),
    ),
    Reliance(
        "flwr.supercore.control",
        "ControlHttpClient.from_server_address",
        "control",
        "give commands to a SuperLink",
        called=(1, ["insecure", "root_certificates", "interceptors"]),
        imported=False,
    ),
    proto("control_pb2", "ListNodesRequest", "control", "list nodes"),
    proto(
        "control_pb2", "ListNodesResponse", "control", "list nodes", "nodes_info", imported=False
    ),
    proto(
        "node_pb2",
        "NodeInfo",
        "control",
        "list nodes",
        *("node_id", "name", "status", "public_key"),
        imported=False,
    ),
    proto("control_pb2", "RegisterNodeRequest", "control", "register a node", "public_key", "name"),
    proto(
        "control_pb2",
        "RegisterNodeResponse",
        "control",
        "register a node",
        "node_id",
        imported=False,
    ),
    proto("control_pb2", "UnregisterNodeRequest", "control", "unregister a node", "node_id"),
    proto("control_pb2", "StartRunRequest", "control", "start a run", "fab", "override_config"),
    proto("control_pb2", "StartRunResponse", "control", "start a run", "run_id", imported=False),
    proto("control_pb2", "ListRunsRequest", "control", "follow a run", "run_id"),
    proto("control_pb2", "ListRunsResponse", "control", "follow a run", "run_dict", imported=False),
    proto(
        "run_pb2",
        "Run",
        "control",
        "follow a run",
        *("run_id", "pending_at", "override_config", "status", "bytes_sent", "bytes_recv"),
        imported=False,
    ),
    proto(
        "run_pb2",
        "RunStatus",
        "control",
        "follow a run",
        *("status", "sub_status", "details"),
        imported=False,
    ),
    proto("control_pb2", "StopRunRequest", "control", "stop a run", "run_id"),
    Reliance("flwr.cli.build", "build_fab_from_disk", "control", "bundle an app", called=(1, ())),
    Reliance("flwr.supercore.fab", "Fab", "control", "bundle an app", called=(3, ())),
    Reliance("flwr.common.serde", "fab_to_proto", "control", "bundle an app", called=(1, ())),
    Reliance(
        "flwr.common.serde", "user_config_to_proto", "control", "configure a run", called=(1, ())
    ),
    Reliance(
        "flwr.common.constant",
        "Status",
        "control",
        "know that a run has ended",
        values={"FINISHED": "finished"},
        imported=False,
    ),
    Reliance(
        "flwr.supercore.constant",
        "NodeStatus",
        "control",
        "know which nodes are online",
        values={"ONLINE": "online", "UNREGISTERED": "unregistered"},
        imported=False,
    ),
    # The programs
    Reliance(
        "flwr.superlink.cli.flower_superlink",
        "_parse_superlink_lifespan_config",
        "superlink",
        "read the options of a SuperLink",
        called=(0, ()),
    ),
    Reliance(
        "flwr.superlink.config_loader",
        "SuperLinkLifespanConfig.__init__",
        "superlink",
        "read the options of a SuperLink",
        called=(
            1,
            [
                *("host", "port", "ssl_ca_certfile", "ssl_certfile", "ssl_keyfile"),
                *("superexec_auth_secret", "isolation", "control_address", "health_server_address"),
                *("insecure", "certificates", "authn_plugin", "event_log_plugin", "database"),
                *("fleet_event_log_plugin", "enable_event_log", "artifact_provider", "simulation"),
                *("enable_supernode_auth", "fleet_api_type", "fleet_api_address"),
                "runtime_dependency_install",
            ],
        ),
        imported=False,
    ),
    Reliance(
        "flwr.superlink.cli.flower_superlink",
        "SuperLinkLifespan",
        "superlink",
        "make a SuperLink's application",
        called=(2, ()),
    ),
    Reliance(
        "flwr.superlink.main",
        "create_app",
        "superlink",
        "make a SuperLink's application",
        called=(2, ()),
    ),
    Reliance(
        "flwr.server.superlink.linkstate",
        "LinkState",
        "superlink",
        "end and report runs",
        has=("get_tasks", "finish_task"),
        imported=False,
    ),
    Reliance(
        "flwr.server.superlink.linkstate",
        "LinkState.finish_task",
        "superlink",
        "report a run whose program has died",
        called=(2, ["sub_status", "details"]),
        imported=False,
    ),
    Reliance(
        "flwr.server.superlink.linkstate",
        "LinkState.get_tasks",
        "superlink",
        "notice that a run was stopped",
        called=(1, ["task_ids", "statuses"]),
        imported=False,
    ),
    Reliance(
        "flwr.supercore.servicer.runtime.runtime_handlers",
        "acquire_task",
        "superlink",
        "take a run that waits",
        called=(2, ()),
    ),
    proto("runtime_pb2", "AcquireTaskRequest", "superlink", "take a run that waits"),
    proto(
        "task_pb2",
        "Task",
        "superlink",
        "take a run that waits",
        *("task_id", "run_id", "type", "status"),
        imported=False,
    ),
    Reliance(
        "flwr.supercore.constant",
        "TaskType",
        "superlink",
        "take runs, and nothing else",
        values={"SERVER_APP": "flwr-serverapp"},
    ),
    Reliance(
        "flwr.common.constant",
        "SubStatus",
        "superlink",
        "notice that a run was stopped",
        values={"STOPPED": "stopped", "FAILED": "failed"},
    ),
    Reliance(
        "flwr.common.constant",
        "Status",
        "superlink",
        "give up the runs of an earlier start",
        values={"PENDING": "pending", "STARTING": "starting", "RUNNING": "running"},
    ),
    Reliance(
        "flwr.supercore.http_logging",
        "get_uvicorn_log_config",
        "superlink",
        "log as Flower does",
        called=(1, ()),
    ),
    Reliance(
        "flwr.supercore.logger", "console_handler", "superlink", "log as Flower does", has=["level"]
    ),
    Reliance(
        "flwr.superlink.runtime",
        "run_serverapp",
        "serverapp",
        "carry out a run",
        called=(
            0,
            [
                *("runtime_api_address", "log_queue", "token", "insecure", "certificates"),
                *("parent_pid", "runtime_dependency_install"),
            ],
        ),
    ),
    Reliance(
        "flwr.superlink.grid.http_grid",
        "HttpGrid._try_push_messages",
        "serverapp",
        SENDING,
        called=(3, ()),
        imported=False,
    ),
    Reliance(
        "flwr.superlink.grid.http_grid",
        "RuntimeTokenHttpInterceptor",
        "serverapp",
        "let a run's requests pass the gate",
        called=(0, ["token"]),
        has=["intercept"],
        imported=False,
    ),
    Reliance(
        "flwr.superlink.routers.fleet.router",
        "router",
        "superlink",
        "let the requests of nodes pass the gate",
        values={"prefix": superlink.NODE_PATHS.rstrip("/")},
        imported=False,
    ),
    Reliance(
        "flwr.superlink.routers.control.router",
        "router",
        "superlink",
        "keep commands of other machines out",
        values={"prefix": "/v1/control"},
        imported=False,
    ),
    Reliance(
        "flwr.supernode.cli.flower_supernode",
        "flower_supernode",
        "supernode",
        "run a SuperNode",
        called=(0, ()),
    ),
    Reliance(
        "flwr.supernode.start_client_internal",
        "http_request_response",
        "supernode",
        "ask for messages more often than every three seconds",
        called=(6, ()),
        imported=False,
    ),
    Reliance(
        "flwr.supernode.main",
        "create_app",
        "supernode",
        "hand messages to the worker whole",
        called=(0, ["state_factory", "superexec_auth_secret"]),
        imported=False,
    ),
    # The variables that steer processes
    Reliance(
        "flwr.common.constant",
        "FLWR_HOME",
        "environment",
        "give every process its own directory",
        equals=environment.HOME_VARIABLE,
        imported=False,
    ),
    Reliance(
        "flwr.common.constant",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION",
        "environment",
        "install nothing that a run asks for",
        equals="FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION",
        imported=False,
    ),
    Reliance(
        "flwr.supercore.constant",
        "FLWR_DISABLE_UPDATE_CHECK",
        "environment",
        "ask no server for updates",
        equals="FLWR_DISABLE_UPDATE_CHECK",
        imported=False,
    ),
    Reliance(
        "flwr.supercore.telemetry",
        "FLWR_TELEMETRY_ENABLED",
        "environment",
        "send no telemetry",
        imported=False,
    ),
    *(
        Reliance(
            "flwr.common.constant",
            name,
            "environment",
            "keep Flower's older interfaces closed",
            equals=name,
            imported=False,
        )
        for name in environment.CLOSED_VARIABLES
    ),
)


def sentence(module, name, user, purpose, fault):
    return (
        f"{module}.{name} has moved or changed ({fault}): fedkin.flower.internals.{user} uses it to "
        f"{purpose}; look at Flower's release notes, then mend that module and this table"
    )


def complaint(reliance, load=import_module):
    """Return what is wrong with a name, as a sentence; None if it is as it should be."""
    fault = _fault(reliance, load)
    if fault is None:
        return None
    return sentence(reliance.module, reliance.name, reliance.user, reliance.purpose, fault)


def _fault(reliance, load):
    try:
        found = load(reliance.module)
    except ImportError as error:
        return str(error)
    for part in reliance.name.split("."):
        if not hasattr(found, part):
            return f"there is no {part}"
        found = getattr(found, part)
    if reliance.called is not None:
        positional, names = reliance.called
        try:
            inspect.signature(found).bind(*[None] * positional, **dict.fromkeys(names))
        except (TypeError, ValueError) as error:
            return f"{error}"
    for name in reliance.has:
        if not hasattr(found, name):
            return f"it has no {name}"
    for name in reliance.fields:
        if name not in found.DESCRIPTOR.fields_by_name:
            return f"it has no field {name}"
    for name, value in reliance.values.items():
        if getattr(found, name, None) != value:
            return f"its {name} is {getattr(found, name, None)!r}, not {value!r}"
    if reliance.equals is not None and found != reliance.equals:
        return f"it is {found!r}, not {reliance.equals!r}"
    return None


@pytest.mark.parametrize("reliance", TABLE, ids=lambda each: f"{each.module}.{each.name}")
def test_every_name_is_where_it_was_and_what_it_was(reliance):
    found = complaint(reliance)
    assert found is None, f"Flower {version('flwr')}: {found}"


def test_the_table_has_every_name_that_is_imported_and_no_other():
    imported = set()
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flwr":
                imported |= {
                    (node.module, alias.name) for alias in node.names if node.module not in PUBLIC
                }
    listed = {(each.module, each.name) for each in TABLE if each.imported}
    assert listed == imported


# The checker itself


def pretended(**names):
    """A module that is not as it was."""
    module = types.ModuleType("flwr.pretended")
    vars(module).update(names)
    return lambda _: module


def reliance(**more):
    return Reliance("flwr.pretended", "thing", "runtime", "test the checker", **more)


@pytest.mark.parametrize(
    ("names", "more", "fault"),
    [
        ({}, {}, "there is no thing"),
        ({"thing": lambda: None}, {"called": (1, ())}, "too many positional"),
        ({"thing": lambda a: None}, {"called": (1, ["b"])}, "unexpected keyword argument 'b'"),
        ({"thing": lambda a, b: None}, {"called": (1, ())}, "missing a required argument: 'b'"),
        ({"thing": object()}, {"has": ["start"]}, "it has no start"),
        (
            {"thing": runtime.Node},
            {"fields": ["node_id", "color"]},
            "it has no field color",
        ),
        (
            {"thing": types.SimpleNamespace(DONE="over")},
            {"values": {"DONE": "done"}},
            "its DONE is 'over', not 'done'",
        ),
        ({"thing": "new"}, {"equals": "old"}, "it is 'new', not 'old'"),
    ],
)
def test_a_name_that_has_moved_or_changed_is_told_in_a_sentence(names, more, fault):
    found = complaint(reliance(**more), pretended(**names))
    assert found.startswith("flwr.pretended.thing has moved or changed (")
    assert fault in found
    assert "fedkin.flower.internals.runtime uses it to test the checker; look at" in found


def test_a_module_that_is_gone_is_told_in_a_sentence():
    gone = Reliance("flwr.nowhere", "thing", "control", "test the checker")
    assert "No module named 'flwr.nowhere'" in complaint(gone)


# What a table cannot say


def calls(module, *names):
    """Whether a function of a module uses these names, one of which is replaced there."""
    functions = map(inspect.unwrap, filter(callable, vars(import_module(module)).values()))
    return any(
        set(names) <= set(function.__code__.co_names)
        for function in functions
        if inspect.isfunction(function) and function.__module__ == module
    )


def test_a_run_sends_the_token_of_the_gate(monkeypatch):
    """Flower makes the interceptor by its name in the module, where it can be replaced."""
    module = "flwr.superlink.grid.http_grid"
    grid = import_module(module)
    message = sentence(
        module,
        "RuntimeTokenHttpInterceptor",
        "serverapp",
        "let a run's requests pass the gate",
        "Flower does not make it here",
    )
    source = inspect.getsource(grid.HttpGrid._connect)
    assert "RuntimeTokenHttpInterceptor(token=" in source, message
    monkeypatch.setattr(grid, "RuntimeTokenHttpInterceptor", grid.RuntimeTokenHttpInterceptor)
    serverapp.carry_token("the token")
    request = types.SimpleNamespace(headers={})
    context = types.SimpleNamespace(request=request)
    grid.RuntimeTokenHttpInterceptor(token="of the task").intercept(context, lambda _: None)
    assert request.headers[superlink.TOKEN_HEADER] == "the token", message
    assert "of the task" in request.headers.values(), message


def test_the_gate_asks_for_the_header_that_commands_and_runs_send():
    assert superlink.TOKEN_HEADER == serverapp.TOKEN_HEADER == control.TOKEN_HEADER


def test_the_health_of_a_superlink_is_where_the_gate_lets_everybody_ask():
    router = import_module("flwr.supercore.routers.health.router").router
    assert superlink.HEALTH_PATH in {route.path for route in router.routes}


def test_the_connection_of_a_supernode_can_be_replaced():
    module = "flwr.supernode.start_client_internal"
    purpose = "ask for messages more often than every three seconds"
    message = sentence(
        module, "http_request_response", "supernode", purpose, "Flower does not call it"
    )
    assert calls(module, "http_request_response"), message


def used(module, name, purpose, *sources):
    """Check that Flower finds what is replaced by its name, where it is replaced."""
    found = import_module(module)
    for function, text in sources:
        source = inspect.getsource(function(found))
        message = sentence(module, name, "supernode", purpose, f"Flower does not say {text!r}")
        assert text in source, message


def test_the_clients_of_whole_messages_can_take_the_place_of_flowers():
    used(
        "flwr.supernode.fleet_http_connection",
        "FleetHttpClient",
        SENDING,
        (lambda module: module.http_request_response, "FleetHttpClient.from_server_address("),
    )
    used(
        "flwr.superlink.grid.http_grid",
        "RuntimeHttpClient",
        SENDING,
        (lambda module: module.HttpGrid._connect, "RuntimeHttpClient.from_server_address("),
        (lambda module: module.HttpGrid.push_messages, "self._try_push_messages(run_id, messages)"),
        (lambda module: module.HttpGrid._try_push_messages, "self._runtime_client.PushMessages("),
    )
    used(
        "flwr.supernode.cli.flower_supernode",
        "create_app",
        "hand messages to the worker whole",
        (lambda module: module._start_supernode_http_api, "from flwr.supernode.main import"),
    )
    used(
        "flwr.supernode.start_client_internal",
        "get_messages_legacy",
        "wait for an answer",
        (lambda module: module._push_messages, "state.get_messages_legacy(is_reply=True)"),
    )


def test_whole_messages_are_asked_for_at_paths_that_flower_has_and_at_no_other():
    known = import_module("flwr.supercore.protobuf.translation").PROTOBUF_REQUEST_TYPES
    for path in (*bundles.FLOWERS_OWN.values(), node_bundles.ACQUIRE):
        assert ("POST", path) in known, path
    for path in (*bundles.FLOWERS_OWN, node_bundles.TAKE):
        assert ("POST", path) not in known, path
    for path, own in bundles.FLOWERS_OWN.items():  # the gate tells by the path who may ask
        assert path.rpartition("/")[0] == own.rpartition("/")[0]


def test_a_supernode_asks_again_and_not_too_often():
    """The SuperLink lets a request wait; one that does not is not asked all the time."""
    now, slept, answers = (
        [0.0],
        [],
        iter([(5.0, None), (0.0, None), (0.05, None), (5.0, "message")]),
    )

    def receive():
        taken, found = next(answers)
        now[0] += taken
        return found

    assert supernode.until_received(receive, slept.append, lambda: now[0])() == "message"
    shortest = supernode.SHORTEST_SECONDS
    assert slept == pytest.approx([0.0, shortest, shortest - 0.05])


def test_a_task_has_an_identity_that_can_be_set(monkeypatch):
    identity = runtime.TaskIdentity
    for name in ("task_id", "run_id", "node_id"):
        monkeypatch.setattr(identity, f"_{name}", getattr(identity, f"_{name}"))
        setattr(identity, name, 12)
        assert getattr(identity, name) == 12, sentence(
            "flwr.supercore.task_identity",
            f"TaskIdentity.{name}",
            "runtime",
            "make messages in the name of a task",
            "it cannot be set",
        )


def test_a_message_can_be_given_its_id():
    from flwr.app import Message, Metadata, RecordDict

    metadata = Metadata(1, "", 1, 2, "", "", 0.0, 60.0, "train")
    message = runtime._with_id(Message(RecordDict(), metadata=metadata), "its id")
    assert message.metadata.message_id == "its id", sentence(
        "flwr.app.Metadata",
        "_message_id",
        "runtime",
        "give a message its id",
        "setting it in __dict__ has no effect",
    )


def test_flowers_own_error_codes_are_no_refusals():
    """`messenger` tells by the code whether the node itself has answered."""
    codes = import_module("flwr.common.constant").ErrorCode
    numbers = [value for value in vars(codes).values() if isinstance(value, int)]
    assert numbers
    assert max(numbers) < min(Refusal)


@pytest.mark.parametrize("secure", [True, False])
def test_flowers_programs_have_the_options_that_they_are_started_with(secure):
    path = Path("x") if secure else None
    commands = {
        ("superlink", "flwr.superlink.cli.flower_superlink", "_parse_args_run_superlink"): (
            superlink_command(Server("127.0.0.1", 1, Path("x"), Path("x"), path, path, path))
        ),
        ("supernode", "flwr.supernode.cli.flower_supernode", "_parse_args_run_supernode"): (
            supernode_command(Node("127.0.0.1:1", 2, Path("x"), path, path))
        ),
    }
    for (user, module, name), command in commands.items():
        parser = getattr(import_module(module), name)()
        known = {option for action in parser._actions for option in action.option_strings}
        given = {part for part in command if part.startswith("--")} - {"--token-file"}  # our own
        missing = ", ".join(sorted(given - known))
        purpose = "start Flower's program"
        assert not missing, sentence(module, name, user, purpose, f"there is no {missing}")


@pytest.mark.parametrize("program", ["superlink", "serverapp", "supernode"])
def test_the_programs_load_without_fedkin(program):
    """They do not compute: importing fedkin, and JAX with it, would cost every start seconds."""
    code = (
        "import runpy, sys; runpy.run_path(sys.argv[1]); "
        "print([name for name in ('fedkin', 'jax', 'flwr') if name in sys.modules])"
    )
    command = [sys.executable, "-P", "-c", code, str(FOLDER / f"{program}.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
