"""Flower's Grid without Flower's processes: nodes answer in this one, over the bytes of real messages."""

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.task_identity import TaskIdentity

from fedkin.flower.node import answer

# Flower's processes know which run they belong to; messages cannot be made without.
TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1


def through_bytes(message):
    """Return the message as it arrives at the other end."""
    proto = ProtoMessage.FromString(message_to_proto(message).SerializeToString())
    return message_from_proto(proto)


class FakeGrid:
    """Nodes by their settings. `tamper(name, reply)` may replace or (None) withhold a reply."""

    def __init__(self, nodes, tamper=None):
        self.settings = {100 + number: settings for number, settings in enumerate(nodes)}
        self.contexts = {}
        self.tamper = tamper or (lambda name, reply: reply)
        self.away = set()
        self.registered = {}  # names that keys are registered by, by those that nodes give themselves
        self.sent = []
        self.received = []
        self._replies = {}
        self._count = 0

    def name(self, node):
        return self.settings[node]["name"]

    def forget(self, name):
        """Let a node lose its memory, as a SuperNode does that is started again."""
        self.contexts = {n: c for n, c in self.contexts.items() if self.name(n) != name}

    def get_node_ids(self):
        return [node for node in self.settings if self.name(node) not in self.away]

    def get_nodes(self):
        """Return the connected nodes; without registered keys, as a SuperLink without TLS does.

        Such nodes have keys that Flower has made itself.
        """
        names = {node: self.registered.get(self.name(node), "") for node in self.get_node_ids()}
        return [
            NodeInfo(node_id=node, name=name, public_key=b"" if name else b"made by Flower")
            for node, name in names.items()
        ]

    def push_messages(self, messages):
        numbers = []
        for message in messages:
            self._count += 1
            number = f"message {self._count}"
            message.metadata.__dict__["_message_id"] = number
            arrived = through_bytes(message)
            self.sent.append(arrived)
            node = message.metadata.dst_node_id
            if self.name(node) not in self.away:
                context = self.contexts.setdefault(
                    node, Context(1, node, self.settings[node], RecordDict(), {})
                )
                reply = self.tamper(self.name(node), answer(arrived, context))
                if reply is not None:
                    reply = through_bytes(reply)
                    self.received.append(reply)
                    self._replies[number] = reply
            numbers.append(number)
        return numbers

    def pull_messages(self, numbers):
        return [self._replies.pop(number) for number in numbers if number in self._replies]


def error_reply(reply, reason):
    """Return an error in place of a reply, as an answer to the same request."""
    error = Message(Error(1, reason), reply_to=reply)
    error.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
    return error
