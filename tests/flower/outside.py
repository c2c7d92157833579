"""A method and a model of another package: to fedkin they are `flower.outside:Median` and so on."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax.numpy as jnp

from fedkin.federation.base import Revealed
from fedkin.federation.task import RATE, Task
from fedkin.methods.base import Info, Method
from fedkin.methods.settings import positive
from fedkin.methods.weights import equal_weights
from fedkin.models.mlp import MLP
from fedkin.nodes import oracles
from fedkin.types import Vector


def descent(objective, data, state, key, message):
    """Reply with the model after one step on the node's loss."""
    loss, gradient = oracles.full_loss_and_gradient(objective, message["shared"], data)
    point = message["shared"] - message["learning_rate"] * gradient
    return state, {"point": point, "loss": loss, "evaluations": data.points}


DESCENT = Task(
    "outside_descent",
    descent,
    vectors=("shared",),
    numbers={"learning_rate": RATE},
    vector_replies=("point",),
    number_replies=("loss",),
)


class MedianState(NamedTuple):
    shared: Vector


@dataclass(frozen=True, kw_only=True)
class Median(Method):
    """Take the median of single nodes' models."""

    name: ClassVar[str] = "outside_median"
    title: ClassVar[str] = "Median"
    color: ClassVar[str] = "#336699"
    tasks = (DESCENT,)

    learning_rate: float = positive(0.5)

    def init(self, theta, nodes):
        return MedianState(theta)

    def step(self, state, key, federation, center):
        message = {"shared": state.shared, "learning_rate": self.learning_rate}
        reply = federation.exchange(each=Revealed(DESCENT, message), key=key)
        shared = jnp.nanmedian(reply.each["point"], axis=0)
        weights = equal_weights(federation.present)
        return MedianState(shared), Info(shared, weights, reply.cost)


def narrow(classes, point_shape):
    """One of fedkin's models, but not as its name makes it."""
    return MLP(outputs=classes, hidden=4)


class Linear:
    """A model of one's own: an object with `init` and `apply`."""

    def __init__(self, classes, point_shape):
        self.classes = classes

    def init(self, key, inputs):
        return jnp.zeros((inputs[0].size, self.classes))

    def apply(self, params, inputs):
        return inputs.reshape(len(inputs), -1) @ params
