"""The work of nodes that protect their rows: every gradient is clipped row by row, and noise is added to it.

All that leaves such a node is computed from these noisy gradients and from what the center has sent, which
costs no further privacy: models after any number of steps, and the numbers −gᵀh. Requests that need something
else of the rows are refused.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.data.batches import NodeData
from fedkin.errors import InputError
from fedkin.federation.portions import Portion
from fedkin.federation.privacy import LOSS_NOISE, Budget, NotPrivateError, system_normal
from fedkin.federation.task import NodeState, Task
from fedkin.federation.work import LocalWork
from fedkin.models.objective import Objective
from fedkin.nodes.clipped import LARGEST_ROW_LOSS, clipped_loss_and_gradient, penalty_gradient
from fedkin.types import Array, Key, Message

Found = tuple[dict[str, np.ndarray], np.ndarray]
"""The replies to a message with a row per item, and the evaluations of each item."""

MOST_STEPS_AT_ONCE = 1_000
"""Local steps of one request: a private step passes through all rows."""


def _clipped_gradient(
    objective: Objective, data: NodeData, state: NodeState, key: Key, message: Message
) -> tuple[NodeState, dict[str, Array]]:
    """Compute the clipped gradient, without noise: it never leaves the node like this."""
    loss, gradient = clipped_loss_and_gradient(
        objective, message["point"], data, message["row_norm"]
    )
    penalty = penalty_gradient(objective, message["point"])
    replies = {"gradient": gradient, "penalty": penalty, "loss": loss}
    return state, {**replies, "evaluations": data.points}


CLIPPED_GRADIENT = Task(
    "clipped_gradient",
    _clipped_gradient,
    vectors=("point",),
    numbers={"row_norm": (0.0, float("inf"))},
    vector_replies=("gradient", "penalty"),
    number_replies=("loss",),
    remote=False,
)


class PrivateWork(LocalWork):
    """Runs tasks on the data of nodes that protect their rows.

    Args:
        objective: The model that the nodes train.
        data: The points of all these nodes.
        budgets: What each node has granted.
        threads: How many threads run the shares; None for one per core.
        first_number: The number of the first node.
        normal: Draws standard normal numbers of a shape.
    """

    def __init__(
        self,
        objective: Objective,
        data: NodeData,
        budgets: Sequence[Budget],
        *,
        threads: int | None = None,
        first_number: int = 0,
        normal: Callable[[tuple[int, ...]], np.ndarray] = system_normal,
    ) -> None:
        if not objective.in_jax or _normalizes(objective):
            raise NotPrivateError(
                "a node that protects its rows (epsilon) trains models written in JAX that do not normalize "
                "over mini-batches: choose another model, such as logistic"
            )
        super().__init__(objective, data, threads=threads, first_number=first_number)
        self._budgets = list(budgets)
        self._normal = normal
        self._points = np.atleast_1d(np.asarray(data.points, np.float64))
        self._answers = {
            "inner_svrg_round": self._train,
            "descent_round": self._train,
            "gradient": self._gradient,
            "slope": self._slope,
            "node_size": self._size,
        }

    def compute_together(
        self, task: Task, options: Mapping[str, Any], portions: Sequence[Portion]
    ) -> list[Found]:
        """Run a task for the items of several messages. See `LocalWork.compute_together`."""
        if task.name not in self._answers or not task.is_fedkins_own:
            why = ": give the method a learning rate" if task.name == "smoothness" else ""
            raise NotPrivateError(
                f"this node protects its rows (epsilon), and has no private answer to {task.name}{why}; it "
                f"answers {', '.join(self._answers)}"
            )
        return [self._answers[task.name](task, options, portion) for portion in portions]

    def _train(self, task: Task, options: Mapping[str, Any], portion: Portion) -> Found:
        """Take the steps of a round, each with a noisy gradient of all rows."""
        if options.get("reply", "point") != "point":
            raise NotPrivateError(
                "a node that protects its rows (epsilon) replies with its last model, not with an average: "
                "leave averaging out"
            )
        steps = int(options["steps"])
        if steps > MOST_STEPS_AT_ONCE:
            raise NotPrivateError(
                f"{steps} local steps in one request: a node that protects its rows takes at most "
                f"{MOST_STEPS_AT_ONCE}"
            )
        start = point = _rows_of(portion, "point")
        rate = _number_of(portion, "learning_rate")
        pull = _number_of(portion, "proximal") if "proximal" in task.numbers else 0.0
        self._spend(portion.items, steps)
        losses, evaluations = [], np.zeros(len(portion.items), int)
        for _ in range(steps):
            loss, gradient, count = self._noisy_gradients(portion, point)
            point = point - rate * (gradient + pull * (point - start))
            losses.append(loss)
            evaluations = evaluations + count
        return {"point": _as_sent(point), "loss": _as_sent(np.mean(losses, axis=0))}, evaluations

    def _gradient(self, task: Task, options: Mapping[str, Any], portion: Portion) -> Found:
        content, evaluations = self._linearize(task, portion)
        return {"gradient": content.gradient, "loss": content.loss}, evaluations

    def _slope(self, task: Task, options: Mapping[str, Any], portion: Portion) -> Found:
        """Reply with −gᵀv of the noisy gradient g, which costs nothing beyond g itself."""
        content, evaluations = self._linearize(task, portion)
        vectors = _rows_of(portion, "vector")
        return {"slope": _as_sent(-np.sum(content.gradient * vectors, axis=1))}, evaluations

    def _size(self, task: Task, options: Mapping[str, Any], portion: Portion) -> Found:
        """Reply with the number of rows, which is no secret: the summary and `join` have it."""
        places = portion.items[:, 1]
        return {"points": _as_sent(self._points[places])}, np.zeros(len(places), int)

    def _linearize(self, task: Task, portion: Portion) -> tuple[Any, np.ndarray]:
        """Return model, noisy gradient and loss of each item; they are computed once in a series."""
        (slot,) = task.slots
        memory, items = self._slot(slot), portion.items
        begins = portion.beginnings.get(slot.name)
        content = jax.tree.map(np.array, memory.of(items))
        if begins is not None and begins.items.any():
            theta = np.asarray(begins.vectors["theta"])
            rows = theta[portion.rows] if theta.ndim > 1 else np.tile(theta, (len(items), 1))
            content.theta[begins.items] = rows[begins.items]
            content.loss[begins.items] = np.nan  # not known yet
        evaluations = np.zeros(len(items), int)
        unknown = np.isnan(content.loss)
        if unknown.any():
            some = _some(portion, unknown)
            self._spend(some.items, 1)
            loss, gradient, count = self._noisy_gradients(some, content.theta[unknown])
            content.loss[unknown], content.gradient[unknown] = loss, gradient
            evaluations[unknown] = count
        memory.replace([items], [content])
        return content, evaluations

    def _spend(self, items: np.ndarray, steps: int) -> None:
        nodes, counts = np.unique(items[:, 1], return_counts=True)
        for node, count in zip(nodes.tolist(), counts.tolist(), strict=True):
            self._budgets[node].spend(steps * count)

    def _noisy_gradients(
        self, portion: Portion, points: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the noisy loss and gradient of each item at a model of its own, and the evaluations."""
        nodes = portion.items[:, 1]
        granted = [self._budgets[node].privacy for node in nodes.tolist()]
        clips = np.array([each.clip for each in granted])
        noise = np.array([each.noise for each in granted])
        message = {"point": jnp.asarray(_as_sent(points)), "row_norm": jnp.asarray(clips)}
        asked = portion._replace(rows=np.arange(len(nodes)), message=message, beginnings={})
        ((replies, evaluations),) = super().compute_together(CLIPPED_GRADIENT, {}, [asked])
        scale = noise / self._points[nodes]
        gradient = np.asarray(replies["gradient"], np.float64)
        gradient = gradient + (2 * clips * scale)[:, None] * self._normal(gradient.shape)
        gradient = gradient + replies["penalty"]
        loss = np.asarray(replies["loss"], np.float64)
        loss = loss + LOSS_NOISE * LARGEST_ROW_LOSS * scale * self._normal(loss.shape)
        # No row's loss is outside this range: a mean beyond it would only alarm the center.
        return np.clip(loss, 0.0, LARGEST_ROW_LOSS), gradient, evaluations


def _normalizes(objective: Objective) -> bool:
    shapes = jax.eval_shape(
        objective.statistics,
        jax.ShapeDtypeStruct((objective.size,), jnp.result_type(float)),
        jax.ShapeDtypeStruct((2, *objective.point_shape), objective.point_dtype),
    )
    return bool(jax.tree.leaves(shapes))


def _rows_of(portion: Portion, name: str) -> np.ndarray:
    """Return a vector of the message for each item."""
    array = np.asarray(portion.message[name], np.float64)
    return array[portion.rows] if array.ndim > 1 else np.tile(array, (len(portion.items), 1))


def _number_of(portion: Portion, name: str) -> float:
    number = np.asarray(portion.message[name])
    if number.ndim:
        raise InputError(f"{name} must be one number")
    return float(number)


def _some(portion: Portion, chosen: np.ndarray) -> Portion:
    return portion._replace(items=portion.items[chosen], numbers=portion.numbers[chosen])


def _as_sent(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, jnp.result_type(float))
