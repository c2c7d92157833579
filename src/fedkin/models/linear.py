"""Convex models: multinomial logistic regression and ridge regression."""

import math
from dataclasses import dataclass

import jax.numpy as jnp

from fedkin.models.base import Statistics, as_float, point_loss, squared_norm
from fedkin.types import Array, Key, LearningTask, Params


@dataclass(frozen=True)
class _Linear:
    """What both models share: an affine map and a penalty on all its parameters."""

    l2: float = 1e-3
    intercept: bool = True

    def prepare(self, inputs: Array) -> Array:
        """Flatten each point to a row of features."""
        return inputs.reshape(len(inputs), math.prod(inputs.shape[1:]))

    def apply(
        self,
        params: Params,
        inputs: Array,
        *,
        mask: Array | None = None,
        statistics: Statistics | None = None,
    ) -> Array:
        """Compute the affine map."""
        outputs = as_float(inputs) @ params["kernel"]
        return outputs + params["bias"] if self.intercept else outputs

    def statistics(self, params: Params, inputs: Array) -> Statistics:
        """Return nothing: this model does not normalize."""
        return ()

    def penalty(self, params: Params) -> Array:
        """Return ½·l2·‖θ‖². It includes the intercept, so that the loss is l2-strongly convex."""
        return 0.5 * self.l2 * squared_norm(params)

    def _zeros(self, *output_shape: int, features: int) -> Params:
        params = {"kernel": jnp.zeros((features, *output_shape))}
        return params | {"bias": jnp.zeros(output_shape)} if self.intercept else params


@dataclass(frozen=True)
class Logistic(_Linear):
    r"""Multinomial logistic regression, :math:`l = -\log p_y(x) + \frac{\lambda}{2}\|\theta\|^2`.

    Args:
        l2: The factor λ.
        intercept: Whether each class has a constant term.
        classes: The number of classes.

    >>> import jax
    >>> model, inputs = Logistic(classes=3, l2=0.1), jnp.ones((4, 2))
    >>> params = model.init(jax.random.key(0), inputs)
    >>> losses = model.loss(model.apply(params, inputs), jnp.zeros(4, int))
    >>> round(float(losses.mean()), 4)  # log 3: all classes are equally likely at the start
    1.0986
    """

    classes: int = 2
    task: LearningTask = "classification"

    @property
    def curvature_bound(self) -> float:
        """Return ½: no eigenvalue of diag(p) − ppᵀ exceeds it."""
        return 0.5

    def init(self, key: Key, inputs: Array) -> Params:
        """Start at zero, where all classes are equally likely."""
        return self._zeros(self.classes, features=inputs.shape[-1])

    def loss(self, outputs: Array, labels: Array) -> Array:
        """Return each point's cross-entropy."""
        return point_loss("classification", outputs, labels)


@dataclass(frozen=True)
class Ridge(_Linear):
    r"""Ridge regression, :math:`l = \frac12 (\theta^\top x - y)^2 + \frac{\lambda}{2}\|\theta\|^2`.

    Args:
        l2: The factor λ.
        intercept: Whether there is a constant term.

    >>> import jax
    >>> model, inputs = Ridge(), jnp.ones((2, 3))
    >>> outputs = model.apply(model.init(jax.random.key(0), inputs), inputs)
    >>> model.loss(outputs, jnp.array([2.0, 0.0])).tolist()
    [2.0, 0.0]
    """

    task: LearningTask = "regression"

    @property
    def curvature_bound(self) -> float:
        """Return 1, the second derivative of half a square."""
        return 1.0

    def init(self, key: Key, inputs: Array) -> Params:
        """Start at zero."""
        return self._zeros(features=inputs.shape[-1])

    def loss(self, outputs: Array, labels: Array) -> Array:
        """Return half of each point's squared error."""
        return point_loss("regression", outputs, labels)
