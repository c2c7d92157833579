"""The center of an owner whose validation rows stay at its node.

What other centers compute, this one asks for. Every question is an exchange with that one node, shared with
whatever other owners ask for at the time. So that few are needed, answers about a model are remembered, and a
line search is one question.
"""

import copy
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.errors import DivergedError, InputError
from fedkin.federation.base import Federation, PerNode, WeightedSum
from fedkin.federation.center import Center, Comparison, Score, empty_statistics
from fedkin.federation.questions import (
    FINAL,
    FINAL_SCORES,
    VALIDATION_COMPARISON,
    VALIDATION_GRADIENT,
    VALIDATION_HESSIAN_PRODUCT,
    VALIDATION_LINE,
    VALIDATION_LOSS,
    VALIDATION_SCORES,
    VALIDATION_SOLVE,
    Question,
    end_of_line,
)
from fedkin.models.base import Statistics
from fedkin.models.objective import Objective
from fedkin.numerics.line_search import LineSearch
from fedkin.numerics.linear_solve import DampedSolution
from fedkin.types import Array, Points, Vector

REMEMBERED = 4
"""How many judged models are remembered."""

ROUNDING = 8
"""Models that differ by no more than this many units of rounding are the same."""

PRODUCTS_AT_ONCE = 500
"""How many products with the Hessian one exchange asks for."""


class Judgment(NamedTuple):
    """What is known of a model on the owner's rows."""

    theta: np.ndarray
    validation: Score
    test: Score
    loss: float
    """The loss with the regularizer; NaN if only scores were asked for."""
    gradient: Vector | None


class DistantCenter(Center):
    """The owner of validation rows that are elsewhere.

    Args:
        objective: The model that is trained.
        points: The number of validation rows.
        test_points: The number of test rows; 0 if there are none.
    """

    def __init__(self, objective: Objective, points: int, test_points: int = 0) -> None:
        self.objective = objective
        self.own_node = None
        self._points = points
        self._test_points = test_points
        self._node: Federation | None = None
        self._judged: deque[Judgment] = deque(maxlen=REMEMBERED)
        self._wants_gradients = False

    def connected(self, alone: Federation, node: Federation) -> "DistantCenter":
        """Return the center of the same owner, with its node as part of a run.

        Args:
            alone: The node's training rows, as a federation of one node.
            node: The node's held-out rows, likewise.
        """
        other = copy.copy(self)
        other.alone, other._node = alone, node
        other._judged = deque(maxlen=REMEMBERED)
        return other

    @property
    def points(self) -> int:
        """How many validation rows there are."""
        return self._points

    @property
    def rows(self) -> None:
        """Nothing: the rows stay at their node."""

    @property
    def test(self) -> Points | None:
        """A stand-in for the test rows, which stay at their node: only their number is known here."""
        count = self._test_points
        return Points(np.zeros((count, 0)), np.zeros(count, int)) if count else None

    @property
    def loss_unit(self) -> float:
        """Not known here; only a prior on the weights needs it."""
        raise InputError("a prior needs the owner's rows, which stay at its node: leave prior out")

    def loss_and_gradient(self, theta: Vector) -> tuple[float, Vector]:
        """Return L_0(θ) and ∇L_0(θ)."""
        self._wants_gradients = True
        judgment = self._judge(theta, with_gradient=True)
        assert judgment.gradient is not None
        return judgment.loss, judgment.gradient

    def losses(self, models: Sequence[Vector]) -> list[float]:
        """Return L_0 of each of several models: one exchange."""
        finite = [bool(jnp.isfinite(theta).all()) for theta in models]
        sent = [theta for theta, good in zip(models, finite, strict=True) if good]
        found = iter(
            np.ravel(self._ask(VALIDATION_LOSS, theta=jnp.stack(sent))["loss"]) if sent else ()
        )
        return [float(next(found)) if good else float("nan") for good in finite]

    def compare(
        self, reference: Vector, models: Sequence[Vector]
    ) -> tuple[float, list[Comparison]]:
        """Return the mean loss of a model, and how well others do in comparison with it: one exchange."""
        references = jnp.tile(reference, (len(models), 1))
        reply = self._ask(VALIDATION_COMPARISON, theta=jnp.stack(models), reference=references)
        found = {name: np.ravel(np.asarray(array, np.float64)) for name, array in reply.items()}
        losses = np.where(np.isfinite(found["loss"]), found["loss"], np.inf)
        compared = [
            Comparison(float(loss), float(error))
            for loss, error in zip(losses, found["error"], strict=True)
        ]
        return float(found["reference_loss"][0]), compared

    def search_line(
        self,
        theta: np.ndarray,
        direction: np.ndarray,
        offset: float,
        longest: float,
        bend: float = 0.0,
    ) -> LineSearch:
        """See `Center.search_line`. What is known where the search ends comes with it."""
        assert not bend  # a prior bends lines, and it needs the owner's rows
        sent, along = (jnp.asarray(each, jnp.result_type(float)) for each in (theta, direction))
        if not bool(jnp.isfinite(sent).all() & jnp.isfinite(along).all()):
            raise DivergedError("training diverged: a step of the model is not finite")
        reply = self._ask(
            VALIDATION_LINE, theta=sent, direction=along, offset=offset, longest=longest
        )
        share = float(reply["share"])
        reached = end_of_line(np.asarray(sent, np.float64), np.asarray(along, np.float64), share)
        self._remember(reached, reply)
        return LineSearch(share, float(reply["slope"]), float(reply["curvature"]))

    def solve(
        self, theta: Vector, target: Vector, *, damping: float, iterations: int
    ) -> DampedSolution:
        """Solve (∇²L_0(θ) + λI) h = target by conjugate gradients."""
        sent = {"theta": theta, "target": target, "damping": damping}
        reply = self._ask(VALIDATION_SOLVE, **sent, iterations=iterations)
        return DampedSolution(
            reply["solution"], reply["curvature"], reply["convex"] > 0.5, reply["residual"]
        )

    def hessian(self, theta: Vector) -> Array:
        """Return ∇²L_0(θ), for models of few parameters."""
        basis = np.eye(self.objective.size, dtype=jnp.result_type(float))
        parts = []
        for begin in range(0, len(basis), PRODUCTS_AT_ONCE):
            rows = jnp.asarray(basis[begin : begin + PRODUCTS_AT_ONCE])
            models = jnp.tile(theta, (len(rows), 1))
            parts.append(
                self._ask(VALIDATION_HESSIAN_PRODUCT, theta=models, vector=rows)["product"]
            )
        return jnp.concatenate(parts)

    def statistics(self, theta: Vector) -> Statistics:
        """Return the normalization statistics of a model that has none."""
        found = empty_statistics(self.objective) if self.objective.in_jax else None
        if found is None:
            raise InputError(
                "this model normalizes with statistics of the owner's rows, which stay at its node: "
                "choose another model"
            )
        return found

    def validate(self, theta: Vector) -> Score:
        """Score a model on the validation rows."""
        return self._judge(theta, with_gradient=self._wants_gradients).validation

    def score(self, theta: Vector, inputs: np.ndarray, labels: np.ndarray) -> Score:
        """Score a model on the test rows, which `test` stands for."""
        return self._judge(theta, with_gradient=self._wants_gradients).test

    def final_scores(self, theta: Vector) -> dict[str, dict[str, float | int | None]]:
        """Return all scores of a model, by part and name, as `fedkin fit` writes them."""
        reply = self._ask(FINAL_SCORES, theta=theta)
        return {
            part: _defined({name: float(reply[f"{part}_{name}"][0]) for name in FINAL})
            for part in ("validation", *(("test",) if self._test_points else ()))
        }

    def _judge(self, theta: Vector, *, with_gradient: bool) -> Judgment:
        array = np.asarray(theta)
        for known in reversed(self._judged):
            if _same(known.theta, array) and not (with_gradient and known.gradient is None):
                return known
        if not np.isfinite(array).all():
            nothing = self._score(float("nan"), float("nan"))
            gradient = jnp.full(self.objective.size, jnp.nan)
            return Judgment(array, nothing, nothing, float("nan"), gradient)
        question = VALIDATION_GRADIENT if with_gradient else VALIDATION_SCORES
        return self._remember(theta, self._ask(question, theta=theta))

    def _remember(self, theta: Vector, reply: dict[str, Any]) -> Judgment:
        numbers = {
            name: float(np.ravel(value)[0]) for name, value in reply.items() if name != "gradient"
        }
        judgment = Judgment(
            np.asarray(theta),
            self._score(numbers["validation_loss"], numbers["validation_accuracy"]),
            self._score(numbers["test_loss"], numbers["test_accuracy"]),
            numbers.get("loss", float("nan")),
            reply.get("gradient"),
        )
        self._judged.append(judgment)
        return judgment

    def _score(self, loss: float, accuracy: float) -> Score:
        classifies = self.objective.model.task == "classification"
        return Score(loss, accuracy if classifies else None)

    def _ask(self, question: Question, *, iterations: int | None = None, **message: Any) -> Any:
        """Ask the owner's node one question, about one model or several."""
        assert self._node is not None  # questions belong to a run
        options: dict[str, Any] = {} if iterations is None else {"iterations": iterations}
        rows = np.ndim(message["theta"]) > 1
        if question.vector_replies:
            weights = jnp.ones((len(message["theta"]), 1)) if rows else jnp.ones(1)
            request = WeightedSum(question, message, weights=weights, **options)
        else:
            request = PerNode(question, message, **options)
        found = dict(self._node.exchange(question=request, key=jax.random.key(0)).question)
        for name in question.vector_replies:
            if not bool(jnp.isfinite(found[name]).all()):
                raise DivergedError(
                    f"training diverged: the {name} on the owner's own rows is not finite; try a smaller "
                    "learning_rate, or scale the columns"
                )
        return found


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    """Tell whether two models are the same, up to the rounding of where they were computed."""
    if np.array_equal(one, other):
        return True
    largest = float(np.abs(one).max(initial=0.0))
    spread = float(np.abs(one - other).max(initial=0.0))
    return spread <= ROUNDING * float(np.finfo(one.dtype).eps) * largest


def _defined(scores: dict[str, float]) -> dict[str, float | int | None]:
    """Leave out the scores of the other kind of model; one that these rows do not have is None."""
    regression = not np.isnan(scores["rmse"])
    names = ("rows", "rmse", "r2") if regression else ("rows", "accuracy", "log_loss", "auc")
    found: dict[str, float | int | None] = {
        name: None if np.isnan(scores[name]) else scores[name] for name in names
    }
    return found | {"rows": int(scores["rows"])}
