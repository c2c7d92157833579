"""The tasks that a centre can ask of a node: the vocabulary of `Federation.call`.

A task is a pure function of one node's data and state, a message and a key. It returns the new state
and the reply. An engine runs it for all nodes at once (simulation) or in the process that holds the
node's data (Flower). Replies are vectors of model size and single numbers, nothing else; the number
`evaluations` says how many gradients or Hessian-vector products of single points the node computed.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp

from fedkin.data.batches import NodeData
from fedkin.models.objective import Objective
from fedkin.nodes import oracles, svrg
from fedkin.types import Array, Key, Message, Vector

NodeState = Mapping[str, Any]
"""What a node remembers: named slots, each a pytree of arrays."""


class Task(NamedTuple):
    """A function of a node, and the slots of the node's state that it reads and writes."""

    function: Callable[..., tuple[NodeState, dict[str, Array]]]
    slots: tuple[str, ...] = ()


class Linearisation(NamedTuple):
    """The model that the nodes were last asked to differentiate at."""

    theta: Vector
    gradient: Vector
    """The node's own gradient ∇L_k(θ). It never leaves the node."""


def empty_slot(name: str, objective: Objective) -> Any:
    """Return the content of a slot before its first use."""
    zeros = jnp.zeros(objective.size, jnp.result_type(float))
    if name in ("inner", "adjoint"):
        return svrg.SvrgState(zeros, zeros, zeros, jnp.zeros((), zeros.dtype))
    if name == "linearisation":
        return Linearisation(zeros, zeros)
    return zeros


def svrg_round(
    objective: Objective,
    data: NodeData,
    state: NodeState,
    key: Key,
    message: Message,
    *,
    problem: Literal["inner", "adjoint"],
    steps: int,
    start: bool,
    reply: Literal["point", "average"],
) -> tuple[NodeState, dict[str, Array]]:
    """Take τ steps of Local-SVRG on one of the two problems.

    The first round of a solve has `start`; for the adjoint problem its message also brings the model
    θ and the target ∇L_0(θ). The last round may ask for the running average in place of the iterate.
    """
    slots = dict(state)
    evaluations = jnp.zeros((), int)
    if problem == "adjoint":
        if start:
            slots["linearisation"] = linearise(objective, data, message["theta"])
            slots["target"] = message["target"]
            evaluations += data.points
        theta = slots["linearisation"].theta
        functions = svrg.adjoint_problem(objective, data, theta, slots["target"])
    else:
        functions = svrg.inner_problem(objective, data)
    if start:
        slots[problem] = svrg.svrg_start(functions, message["point"])
        evaluations += data.points
    result = svrg.svrg_round(
        functions,
        slots[problem],
        message["point"],
        key,
        steps=steps,
        learning_rate=message["learning_rate"],
        refresh_probability=message["refresh_probability"],
        averaging_rate=message["averaging_rate"],
    )
    slots[problem] = result.state
    answer = {
        "point": result.state.average if reply == "average" else result.point,
        "evaluations": evaluations + result.evaluations,
    }
    if problem == "inner":
        answer["loss"] = result.loss
    return slots, answer


def hessian_product(
    objective: Objective,
    data: NodeData,
    state: NodeState,
    key: Key,
    message: Message,
    *,
    start: bool,
) -> tuple[NodeState, dict[str, Array]]:
    """Answer with the exact product ∇²L_k(θ) v and the number −∇L_k(θ)ᵀv.

    With `start` the message brings θ as well; later products are at the same θ.
    """
    evaluations = data.points
    if start:
        state = {"linearisation": linearise(objective, data, message["theta"])}
        evaluations = evaluations + data.points
    linearisation: Linearisation = state["linearisation"]
    vector = message["vector"]
    answer = {
        "product": oracles.full_hessian_product(objective, linearisation.theta, data, vector),
        "slope": -(linearisation.gradient @ vector),
        "evaluations": evaluations,
    }
    return state, answer


def slope(
    objective: Objective, data: NodeData, state: NodeState, key: Key, message: Message
) -> tuple[NodeState, dict[str, Array]]:
    """Answer with one number, −∇L_k(θ)ᵀh (`eq:approxgrade`)."""
    linearisation: Linearisation = state["linearisation"]
    answer = {
        "slope": -(linearisation.gradient @ message["vector"]),
        "evaluations": jnp.zeros_like(data.points),
    }
    return state, answer


def loss(
    objective: Objective, data: NodeData, state: NodeState, key: Key, message: Message
) -> tuple[NodeState, dict[str, Array]]:
    """Answer with the node's loss at θ."""
    answer = {
        "loss": oracles.full_loss(objective, message["theta"], data),
        "evaluations": data.points,
    }
    return state, answer


def smoothness(
    objective: Objective, data: NodeData, state: NodeState, key: Key, message: Message
) -> tuple[NodeState, dict[str, Array]]:
    """Answer with a bound on the curvature of the node's mini-batches (linear models only)."""
    answer = {
        "smoothness": oracles.smoothness(objective, data),
        "evaluations": jnp.zeros_like(data.points),
    }
    return state, answer


def linearise(objective: Objective, data: NodeData, theta: Vector) -> Linearisation:
    """Take a model as the one to differentiate at, with the node's own gradient there."""
    return Linearisation(theta, oracles.full_loss_and_gradient(objective, theta, data)[1])


TASKS: Mapping[str, Task] = {
    "inner_svrg_round": Task(partial(svrg_round, problem="inner"), ("inner",)),
    "adjoint_svrg_round": Task(
        partial(svrg_round, problem="adjoint"), ("adjoint", "linearisation", "target")
    ),
    "hessian_product": Task(hessian_product, ("linearisation",)),
    "slope": Task(slope, ("linearisation",)),
    "loss": Task(loss),
    "smoothness": Task(smoothness),
}
"""Every task by its name."""
