"""Random federations of tables, and the exact minimum of the validation loss over the weights.

A federation has 3 to 6 nodes of 30 to 300 rows and 3 to 11 features. Each node is like the owner, shifted
(other inputs, and a somewhat different rule), relabeled (the opposite rule), or has noise for labels.
Everything here is NumPy and SciPy in float64: it shares no code with fedkin.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.optimize import minimize

KINDS = ("like", "shifted", "relabeled", "noise")
L2 = 1e-3
NEWTON_STEPS = 100

Rows = tuple[np.ndarray, np.ndarray]
ModelName = Literal["logistic", "ridge"]


@dataclass(frozen=True)
class RandomFederation:
    """The rows of the nodes and of the owner, and the problem that they state."""

    model: ModelName
    nodes: tuple[Rows, ...]
    own: Rows
    kinds: tuple[str, ...]
    classes: int = 2

    @property
    def cap(self) -> float:
        """The default cap of fedkin."""
        return max(1 / 3, min(1.0, 2 / len(self.nodes)))

    def solve_inner(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return θ(w) and the weighted Hessian there, by Newton's method with halved steps."""
        point = np.zeros(self._size)
        for _ in range(NEWTON_STEPS):
            loss, gradient, hessian = self._weighted(weights, point)
            step = -np.linalg.solve(hessian, gradient)
            promised = -float(gradient @ step)
            if promised < 1e-18:
                break
            share = 1.0
            while self._weighted(weights, point + share * step)[0] > loss - 0.1 * share * promised:
                share /= 2
                if share < 1e-9:
                    break
            point = point + share * step
        return point, self._weighted(weights, point)[2]

    def outer(self, weights: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the validation loss F(w) and its gradient, the inner problem solved exactly."""
        point, hessian = self.solve_inner(weights)
        loss, target, _ = self._loss(self.own, point)
        adjoint = np.linalg.solve(hessian, target)
        return loss, -np.array([self._loss(rows, point)[1] @ adjoint for rows in self.nodes])

    def minimum(self, starts: int = 4, seed: int = 0) -> float:
        """Return the lowest validation loss that SciPy finds over the capped simplex, from several starts."""
        rng = np.random.default_rng(seed)
        count = len(self.nodes)
        found = []
        for start in range(starts):
            first = np.full(count, 1 / count)
            if start > 0:
                corner = rng.permutation(count)[: int(np.ceil(1 / self.cap))]
                first = 0.2 * first
                first[corner] += 0.8 / len(corner)
            found.append(self.outer(self.descend(first))[0])
        return min(found)

    def descend(self, first: np.ndarray, precision: float = 1e-13) -> np.ndarray:
        """Return the weights of the minimum that SciPy finds from some weights."""
        count = len(first)
        result = minimize(
            lambda weights: self.outer(np.clip(weights, 0, None)),
            first,
            jac=True,
            bounds=[(0, self.cap)] * count,
            constraints={
                "type": "eq",
                "fun": lambda weights: weights.sum() - 1,
                "jac": lambda weights: np.ones(count),
            },
            method="SLSQP",
            options={"ftol": precision, "maxiter": 300},
        )
        # What SciPy returns may leave the simplex by rounding.
        weights = np.clip(result.x, 0, self.cap)
        return weights / weights.sum()

    @property
    def _size(self) -> int:
        features = self.own[0].shape[1] + 1
        return features * self.classes if self.model == "logistic" else features

    def _weighted(
        self, weights: np.ndarray, point: np.ndarray
    ) -> tuple[float, np.ndarray, np.ndarray]:
        parts = [
            [weight * part for part in self._loss(rows, point)]
            for weight, rows in zip(weights, self.nodes, strict=True)
            if weight > 0
        ]
        loss, gradient, hessian = (sum(column) for column in zip(*parts, strict=True))
        return float(loss), np.asarray(gradient), np.asarray(hessian)

    def _loss(self, rows: Rows, point: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Return the mean loss of some rows with its penalty, its gradient and its Hessian."""
        inputs, labels = np.column_stack([np.ones(len(rows[0])), rows[0]]), rows[1]
        count, identity = len(inputs), np.eye(len(point))
        penalty = 0.5 * L2 * float(point @ point)
        if self.model == "ridge":
            residual = inputs @ point - labels
            loss = 0.5 * float(np.mean(residual**2)) + penalty
            gradient = inputs.T @ residual / count + L2 * point
            return loss, gradient, inputs.T @ inputs / count + L2 * identity
        scores = inputs @ point.reshape(-1, self.classes)
        scores = scores - scores.max(axis=1, keepdims=True)
        logsums = np.log(np.exp(scores).sum(axis=1))
        chances = np.exp(scores - logsums[:, None])
        targets = np.eye(self.classes)[labels]
        loss = float(np.mean(logsums - (scores * targets).sum(axis=1))) + penalty
        gradient = (inputs.T @ (chances - targets) / count).ravel() + L2 * point
        spread = np.einsum("ic,cd->icd", chances, np.eye(self.classes)) - np.einsum(
            "ic,id->icd", chances, chances
        )
        hessian = np.einsum("ip,iq,icd->pcqd", inputs, inputs, spread, optimize=True) / count
        return loss, gradient, hessian.reshape(identity.shape) + L2 * identity


def draw_federation(
    seed: int,
    model: ModelName = "logistic",
    *,
    sizes: tuple[int, ...] | None = None,
    features: int | None = None,
    own_rows: int | None = None,
) -> RandomFederation:
    """Draw a federation.

    Args:
        seed: Decides everything that is drawn.
        model: What the labels are for.
        sizes: The rows of the nodes; drawn if not given, as the other two are.
        features: The number of features.
        own_rows: The rows of the owner.
    """
    rng = np.random.default_rng(seed)
    sizes = sizes or tuple(rng.integers(30, 301, size=rng.integers(3, 7)).tolist())
    features = features or int(rng.integers(3, 12))
    own_rows = own_rows or int(rng.integers(30, 151))
    rule = rng.normal(size=features) * rng.choice([0.5, 1.0, 2.0])
    constant = 0.5 * rng.normal()

    def draw(rows: int, rule: np.ndarray, center: np.ndarray | float = 0.0) -> Rows:
        inputs = rng.normal(size=(rows, features)) + center
        scores = inputs @ rule + constant
        if model == "ridge":
            return inputs, scores + 0.5 * rng.normal(size=rows)
        return inputs, (rng.random(rows) < 1 / (1 + np.exp(-scores))).astype(int)

    def draw_node(rows: int, kind: str) -> Rows:
        if kind == "shifted":
            return draw(rows, rule + 0.5 * rng.normal(size=features), rng.normal(size=features))
        inputs, labels = draw(rows, rule)
        if kind == "relabeled":
            labels = 1 - labels if model == "logistic" else -labels
        if kind == "noise":
            labels = rng.permutation(labels)
        return inputs, labels

    kinds = tuple(str(kind) for kind in rng.choice(KINDS, size=len(sizes)))
    nodes = tuple(draw_node(rows, kind) for rows, kind in zip(sizes, kinds, strict=True))
    return RandomFederation(model, nodes, draw(own_rows, rule), kinds)
