"""The tasks that a center can ask of a node: the vocabulary of `Federation.call`.

A task is a pure function of one node's data and state, a message and a key. It returns the new state
and the reply. Some tasks have a beginning: what a node does once before the first of a series, with
the arrays that only the first message brings. An engine runs a task for all nodes at once
(simulation) or in the process that holds the node's data (Flower). Replies are vectors of model size
and single numbers, nothing else; the number `evaluations` says how many gradients or Hessian-vector
products of single points the node computed.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp

from fedkin.data.batches import NodeData
from fedkin.methods.ditto import node as ditto
from fedkin.methods.local_svrg import node as svrg
from fedkin.methods.pfedme import node as pfedme
from fedkin.models.objective import Objective
from fedkin.nodes import oracles
from fedkin.theory.constants import summarize
from fedkin.types import Array, Key, Message, Vector

NodeState = dict[str, Any]
"""What a node remembers: named slots, each a pytree of arrays."""


class Task(NamedTuple):
    """A function of a node, and the slots of the node's state that it reads and writes."""

    function: Callable[..., tuple[NodeState, dict[str, Array]]]
    slots: tuple[str, ...] = ()
    begin: Callable[[Objective, NodeData, NodeState, Message], tuple[NodeState, Array]] | None = (
        None
    )
    """Run before the function where a series starts; returns the state and the evaluations done."""
    begin_only: tuple[str, ...] = ()
    """The arrays of the first message that are for the beginning alone."""


class Linearization(NamedTuple):
    """The model that the nodes were last asked to differentiate at."""

    theta: Vector
    gradient: Vector
    """The node's own gradient ∇L_k(θ). It never leaves the node."""


def empty_slot(name: str, objective: Objective, kept: int = 0) -> Any:
    """Return the content of a slot before its first use.

    Args:
        name: The name of the slot.
        objective: The model.
        kept: How many gradients of mini-batches Local-SVRG keeps in training. An engine decides it;
            it changes the shape of an array, not the arrangement.
    """
    zeros = jnp.zeros(objective.size, jnp.result_type(float))
    if name in ("inner", "adjoint"):
        gradients = svrg.ReferenceGradients.zeros(zeros, kept if name == "inner" else 0)
        no, nothing = jnp.zeros((), bool), jnp.zeros((), zeros.dtype)
        return svrg.SvrgState(zeros, gradients, no, zeros, nothing)
    if name == "linearization":
        return Linearization(zeros, zeros)
    return zeros


def begin_inner(
    objective: Objective, data: NodeData, state: NodeState, message: Message
) -> tuple[NodeState, Array]:
    """Begin Local-SVRG on the node's loss, at the point of the message."""
    functions = svrg.inner_problem(objective, data, _kept(state))
    return {"inner": svrg.svrg_start(functions, message["point"])}, data.points


def _kept(state: NodeState) -> int:
    """Tell from the room in the node's state how many gradients it keeps."""
    return len(state["inner"].gradients.of_batches)


def begin_adjoint(
    objective: Objective, data: NodeData, state: NodeState, message: Message
) -> tuple[NodeState, Array]:
    """Begin Local-SVRG on the adjoint problem of the message's θ and target ∇L_0(θ)."""
    slots, evaluations = begin_products(objective, data, state, message)
    theta, target = message["theta"], message["target"]
    functions = svrg.adjoint_problem(objective, data, theta, target)
    started = svrg.svrg_start(functions, message["point"])
    return {**slots, "target": target, "adjoint": started}, evaluations + data.points


def begin_products(
    objective: Objective, data: NodeData, state: NodeState, message: Message
) -> tuple[NodeState, Array]:
    """Take a model as the one to differentiate at, and compute the node's own gradient there."""
    theta = message["theta"]
    gradient = oracles.full_loss_and_gradient(objective, theta, data)[1]
    return {"linearization": Linearization(theta, gradient)}, data.points


def svrg_round(
    objective: Objective,
    data: NodeData,
    state: NodeState,
    key: Key,
    message: Message,
    *,
    problem: Literal["inner", "adjoint"],
    steps: int,
    reply: Literal["point", "average"],
) -> tuple[NodeState, dict[str, Array]]:
    """Take τ steps of Local-SVRG on one of the two problems.

    The last round of a solve may ask for the running average in place of the iterate.
    """
    if problem == "adjoint":
        theta, target = state["linearization"].theta, state["target"]
        functions = svrg.adjoint_problem(objective, data, theta, target)
    else:
        functions = svrg.inner_problem(objective, data, _kept(state))
    result = svrg.svrg_round(
        functions,
        state[problem],
        message["point"],
        key,
        steps=steps,
        learning_rate=message["learning_rate"],
        refresh_probability=message["refresh_probability"],
        averaging_rate=message["averaging_rate"],
    )
    answer = {
        "point": result.state.average if reply == "average" else result.point,
        "evaluations": result.evaluations,
    }
    if problem == "inner":
        answer["loss"] = result.loss
    return {**state, problem: result.state}, answer


def ditto_shared_round(
    objective: Objective,
    data: NodeData,
    state: NodeState,
    key: Key,
    message: Message,
    *,
    steps: int,
) -> tuple[NodeState, dict[str, Array]]:
    """Take Ditto's r steps on the shared model."""
    result = ditto.shared_round(
        objective, data, message["shared"], key, steps=steps, learning_rate=message["learning_rate"]
    )
    return state, result._asdict()


def begin_personal(
    objective: Objective, data: NodeData, state: NodeState, message: Message
) -> tuple[NodeState, Array]:
    """Begin the personal model at the shared one."""
    return {"personal": message["shared"]}, jnp.zeros_like(data.points)


def ditto_personal_round(
    objective: Objective,
    data: NodeData,
    state: NodeState,
    key: Key,
    message: Message,
    *,
    steps: int,
) -> tuple[NodeState, dict[str, Array]]:
    """Take Ditto's s steps on the node's personal model, and answer with it.

    The answer tells all of the personal model: a task for the node that asks itself.
    """
    result = ditto.personal_round(
        objective,
        data,
        state["personal"],
        message["shared"],
        key,
        steps=steps,
        learning_rate=message["learning_rate"],
        proximal=message["proximal"],
    )
    return {**state, "personal": result.point}, result._asdict()


def pfedme_round(
    objective: Objective,
    data: NodeData,
    state: NodeState,
    key: Key,
    message: Message,
    *,
    steps: int,
    iterations: int,
    reply: Literal["shared", "personal"],
) -> tuple[NodeState, dict[str, Array]]:
    """Take pFedMe's R local rounds; answer with the node's version of the shared model, or its own."""
    result = pfedme.local_rounds(
        objective,
        data,
        message["shared"],
        key,
        rounds=steps,
        learning_rate=message["learning_rate"],
        proximal=message["proximal"],
        tolerance=message["tolerance"],
        iterations=iterations,
    )
    answer = {
        "point": result.personal if reply == "personal" else result.shared,
        "loss": result.loss,
        "iterations": result.iterations,
        "evaluations": result.evaluations,
    }
    return state, answer


def hessian_product(
    objective: Objective, data: NodeData, state: NodeState, key: Key, message: Message
) -> tuple[NodeState, dict[str, Array]]:
    """Answer with the exact product ∇²L_k(θ) v and the number −∇L_k(θ)ᵀv."""
    linearization: Linearization = state["linearization"]
    vector = message["vector"]
    answer = {
        "product": oracles.full_hessian_product(objective, linearization.theta, data, vector),
        "slope": -(linearization.gradient @ vector),
        "evaluations": data.points,
    }
    return state, answer


def slope(
    objective: Objective, data: NodeData, state: NodeState, key: Key, message: Message
) -> tuple[NodeState, dict[str, Array]]:
    """Answer with one number, −∇L_k(θ)ᵀh (`eq:approxgrade`)."""
    linearization: Linearization = state["linearization"]
    answer = {
        "slope": -(linearization.gradient @ message["vector"]),
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


def constants(
    objective: Objective, data: NodeData, state: NodeState, key: Key, message: Message
) -> tuple[NodeState, dict[str, Array]]:
    """Answer with the five numbers that the theory needs of a node (linear models only)."""
    summary = summarize(objective, data.batch, data.batches)
    return state, summary._asdict() | {"evaluations": data.points}


TASKS: Mapping[str, Task] = {
    "inner_svrg_round": Task(partial(svrg_round, problem="inner"), ("inner",), begin_inner),
    "adjoint_svrg_round": Task(
        partial(svrg_round, problem="adjoint"),
        ("adjoint", "linearization", "target"),
        begin_adjoint,
        ("theta", "target"),
    ),
    "ditto_shared_round": Task(ditto_shared_round),
    "ditto_personal_round": Task(ditto_personal_round, ("personal",), begin_personal),
    "pfedme_round": Task(pfedme_round),
    "hessian_product": Task(hessian_product, ("linearization",), begin_products, ("theta",)),
    "slope": Task(slope, ("linearization",)),
    "loss": Task(loss),
    "smoothness": Task(smoothness),
    "constants": Task(constants),
}
"""Every task by its name."""
