"""The node's part of the hypergradient: products with its Hessian, and the number −∇L_k(θ)ᵀh."""

from typing import Literal, NamedTuple

import jax.numpy as jnp

from fedkin.data.batches import NodeData
from fedkin.federation.task import STEPS, NodeState, Slot, Task, zeros
from fedkin.methods.local_svrg import node as svrg
from fedkin.models.objective import Objective
from fedkin.nodes import oracles
from fedkin.nodes.draws import draw_batches
from fedkin.numerics.linear_solve import damped_conjugate_gradients
from fedkin.theory.constants import NodeSummary, summarize
from fedkin.types import Array, Key, Message, Vector

MOST_DAMPING = 1e6
"""The largest damping that a request may ask for."""


class Linearization(NamedTuple):
    """The model that the node was last asked to differentiate at."""

    theta: Vector
    gradient: Vector
    """The node's own gradient ∇L_k(θ). It leaves the node only as a part of weighted sums."""
    loss: Array
    """The node's loss L_k(θ)."""


def _begin_linearization(
    objective: Objective, data: NodeData, content: Linearization, message: Message
) -> tuple[Linearization, Array]:
    theta = message["theta"]
    loss, gradient = oracles.full_loss_and_gradient(objective, theta, data)
    return Linearization(theta, gradient, loss), data.points


LINEARIZATION = Slot(
    "linearization",
    empty=lambda objective, data: Linearization(
        zeros(objective), zeros(objective), jnp.zeros((), jnp.result_type(float))
    ),
    begin=_begin_linearization,
    vectors=("theta",),
    shared=True,
)


def _begin_target(
    objective: Objective, data: NodeData, content: Vector, message: Message
) -> tuple[Vector, Array]:
    return message["target"], jnp.zeros_like(data.points)


TARGET = Slot(
    "target",
    empty=lambda objective, data: zeros(objective),
    begin=_begin_target,
    vectors=("target",),
    shared=True,
)


def adjoint_problem(
    objective: Objective, data: NodeData, theta: Vector, target: Vector
) -> svrg.SvrgProblem:
    """State the node's part of `eq:QP_matrixinverse`; `target` is ∇L_0(θ)."""

    def step_gradients(
        point: Vector, state: svrg.SvrgState, index: Array, operands: tuple
    ) -> tuple[Array, Vector]:
        data, theta, _ = operands
        difference = oracles.batch_hessian_product(
            objective, theta, data.batch(index), point - state.reference
        )
        return jnp.zeros((), point.dtype), difference

    def reference_gradients(point: Vector, operands: tuple) -> svrg.ReferenceGradients:
        data, theta, target = operands
        gradient = oracles.full_hessian_product(objective, theta, data, point) - target
        return svrg.ReferenceGradients.zeros(point, 0)._replace(full=gradient)

    operands = (data, theta, target)
    return svrg.SvrgProblem(
        operands, step_gradients, reference_gradients, 0, evaluations_per_point=1
    )


def _begin_adjoint(
    objective: Objective, data: NodeData, content: svrg.SvrgState, message: Message
) -> tuple[svrg.SvrgState, Array]:
    # The start of a solve does not depend on θ and the target: only its shapes are needed here.
    point = message["point"]
    problem = adjoint_problem(objective, data, point, point)
    return svrg.svrg_start(problem, point), data.points


ADJOINT = Slot(
    "adjoint",
    empty=lambda objective, data: svrg.empty_svrg_state(objective, 0),
    begin=_begin_adjoint,
)


def adjoint_svrg_round(
    objective: Objective,
    data: NodeData,
    state: NodeState,
    key: Key,
    message: Message,
    *,
    steps: int,
    reply: Literal["point", "average"],
) -> tuple[NodeState, dict[str, Array]]:
    """Take τ steps of Local-SVRG on the quadratic whose minimizer is h (`eq:QP_matrixinverse`)."""
    theta, target = state["linearization"].theta, state["target"]
    problem = adjoint_problem(objective, data, theta, target)
    result = svrg.run_task_round(problem, state["adjoint"], key, message, steps)
    return {**state, "adjoint": result.state}, svrg.reply_of(result, reply)


def hessian_product(
    objective: Objective, data: NodeData, state: NodeState, key: Key, message: Message
) -> tuple[NodeState, dict[str, Array]]:
    """Reply with the exact product ∇²L_k(θ) v."""
    theta = state["linearization"].theta
    product = oracles.full_hessian_product(objective, theta, data, message["vector"])
    return state, {"product": product, "evaluations": data.points}


def class_product(
    objective: Objective, data: NodeData, state: NodeState, key: Key, message: Message
) -> tuple[NodeState, dict[str, Array]]:
    """Reply with the product of v and the blocks of ∇²L_k(θ) that belong to one class each."""
    theta = state["linearization"].theta
    product = oracles.full_class_product(objective, theta, data, message["vector"])
    return state, {"product": product, "evaluations": data.points}


def gradient(
    objective: Objective, data: NodeData, state: NodeState, key: Key, message: Message
) -> tuple[NodeState, dict[str, Array]]:
    """Reply with the gradient ∇L_k(θ) and the loss L_k(θ)."""
    at = state["linearization"]
    evaluations = jnp.zeros_like(data.points)  # the beginning has counted them
    return state, {"gradient": at.gradient, "loss": at.loss, "evaluations": evaluations}


def decrement(
    objective: Objective,
    data: NodeData,
    state: NodeState,
    key: Key,
    message: Message,
    *,
    iterations: int,
    batches: int,
) -> tuple[NodeState, dict[str, Array]]:
    """Reply with one number, ∇L_k(θ)ᵀ (∇²L_k(θ) + λI)⁻¹ ∇L_k(θ): how far the node is from its own minimum.

    Conjugate gradients solve the system on a few of the node's mini-batches.
    """
    at = state["linearization"]
    indices = draw_batches(key, batches, data.batches)
    solution = damped_conjugate_gradients(
        lambda vector: oracles.drawn_hessian_product(objective, at.theta, data, indices, vector),
        at.gradient,
        message["damping"],
        iterations,
    )
    evaluations = iterations * jnp.sum(data.batch_points(indices))
    return state, {"decrement": at.gradient @ solution.solution, "evaluations": evaluations}


def slope(
    objective: Objective, data: NodeData, state: NodeState, key: Key, message: Message
) -> tuple[NodeState, dict[str, Array]]:
    """Reply with one number, −∇L_k(θ)ᵀv (`eq:approxgrade`)."""
    number = -(state["linearization"].gradient @ message["vector"])
    return state, {"slope": number, "evaluations": jnp.zeros_like(data.points)}


def constants(
    objective: Objective, data: NodeData, state: NodeState, key: Key, message: Message
) -> tuple[NodeState, dict[str, Array]]:
    """Reply with the five numbers that the theory needs of a node (linear models only)."""
    summary = summarize(objective, data.batch, data.batches)
    return state, summary._asdict() | {"evaluations": data.points}


ADJOINT_SVRG_ROUND = Task(
    "adjoint_svrg_round",
    adjoint_svrg_round,
    slots=(ADJOINT, LINEARIZATION, TARGET),
    vectors=("point",),
    numbers=svrg.SVRG_NUMBERS,
    options=svrg.SVRG_OPTIONS,
    vector_replies=("point",),
    reveals="Products of the Hessian over all rows, or over mini-batches, with the center's vectors.",
)
HESSIAN_PRODUCT = Task(
    "hessian_product",
    hessian_product,
    slots=(LINEARIZATION,),
    only_reads=True,
    vectors=("vector",),
    vector_replies=("product",),
    reveals="Weighted sums of products of columns over all rows; at the model zero, their covariances.",
)
CLASS_PRODUCT = Task(
    "class_product",
    class_product,
    slots=(LINEARIZATION,),
    only_reads=True,
    vectors=("vector",),
    vector_replies=("product",),
    reveals="The same as `hessian_product`, for each class by itself.",
)
GRADIENT = Task(
    "gradient",
    gradient,
    slots=(LINEARIZATION,),
    only_reads=True,
    vector_replies=("gradient",),
    number_replies=("loss",),
    reveals="The sum of the gradients of all rows; at the model zero, the mean of each column by class.",
)
DECREMENT = Task(
    "decrement",
    decrement,
    slots=(LINEARIZATION,),
    only_reads=True,
    numbers={"damping": (0.0, MOST_DAMPING)},
    options={"iterations": STEPS, "batches": STEPS},
    number_replies=("decrement",),
    reveals="One number about gradient and curvature at a model.",
)
SLOPE = Task(
    "slope",
    slope,
    slots=(LINEARIZATION,),
    only_reads=True,
    vectors=("vector",),
    number_replies=("slope",),
    reveals="One component of the gradient over all rows: asked often enough, the gradient.",
)
CONSTANTS = Task("constants", constants, number_replies=NodeSummary._fields, remote=False)
