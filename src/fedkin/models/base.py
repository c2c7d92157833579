"""What a model is: parameters, outputs, and the loss of single points."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.special import logsumexp

from fedkin.errors import InputError
from fedkin.types import Array, Key, LearningTask, Params

Statistics = Any
"""Means and variances that a model normalizes with; `()` for a model that does not normalize."""


@runtime_checkable
class Model(Protocol):
    """A model of fedkin. Instances are immutable and hashable: they are arguments of compiled code."""

    @property
    def task(self) -> LearningTask:
        """What the outputs are: a row of scores (classification) or one number (regression)."""
        ...

    def prepare(self, inputs: Array) -> Array | np.ndarray:
        """Rearrange raw inputs once, when data are loaded, without changing their type."""
        ...

    def init(self, key: Key, inputs: Array) -> Params:
        """Draw initial parameters; `inputs` are a few prepared points that show the shape."""
        ...

    def apply(
        self,
        params: Params,
        inputs: Array,
        *,
        mask: Array | None = None,
        statistics: Statistics | None = None,
    ) -> Array:
        """Compute the outputs for prepared inputs.

        A model that normalizes does so with the statistics of these very inputs (of those that `mask`
        marks, where some only fill up a batch), or with fixed `statistics` where they are given.
        """
        ...

    def statistics(self, params: Params, inputs: Array) -> Statistics:
        """Return the statistics of these inputs, for evaluation with fixed normalization."""
        ...

    def loss(self, outputs: Array, labels: Array) -> Array:
        """Return the loss of each point."""
        ...

    def penalty(self, params: Params) -> Array:
        """Return the regularizer, part of every point's loss."""
        ...


@runtime_checkable
class LinearModel(Model, Protocol):
    """A model whose loss is convex, with a Hessian that the data bound.

    The Hessian of a batch is at most `curvature_bound` times the second moment of its features (with
    a constant feature where there is an intercept), plus `l2` times the identity.
    """

    @property
    def l2(self) -> float:
        """The factor of ½‖θ‖² in the loss: at least this strongly convex."""
        ...

    @property
    def curvature_bound(self) -> float:
        """The largest curvature of a point's loss along its own features."""
        ...

    @property
    def intercept(self) -> bool:
        """Whether the features are completed by a constant one."""
        ...


def point_loss(task: LearningTask, outputs: Array, labels: Array) -> Array:
    """Cross-entropy for scores, half the squared error for numbers: the loss of each point."""
    if task == "classification":
        # The label's score by comparison, not by look-up: the derivative of a look-up is a scatter,
        # which is slow on every device.
        chosen = labels[:, None] == jnp.arange(outputs.shape[-1])
        return logsumexp(outputs, axis=-1) - jnp.sum(jnp.where(chosen, outputs, 0), axis=-1)
    return 0.5 * jnp.square(outputs - labels)


def as_float(inputs: Array) -> Array:
    """Turn images stored as bytes into numbers from 0 to 1; leave all else as it is."""
    if inputs.dtype == jnp.uint8:
        return inputs.astype(jnp.result_type(float)) / 255
    return inputs


def squared_norm(params: Params) -> Array:
    """Return ‖θ‖² of all parameters together."""
    return optax.tree.norm(params, squared=True)


@dataclass(frozen=True)
class WrappedModel:
    """Any object with `init(key, inputs)` and `apply(params, inputs)`, such as a Flax linen module.

    Args:
        module: The object; it must be hashable.
        task: What its outputs are.
        l2: Adds ½·l2·‖θ‖² to the loss.
    """

    module: Any
    task: LearningTask = "classification"
    l2: float = 0.0

    def prepare(self, inputs: Array) -> Array:
        """Leave the inputs alone: the module knows best."""
        return inputs

    def init(self, key: Key, inputs: Array) -> Params:
        """Draw the module's parameters, and refuse what cannot be trained here."""
        params = self.module.init(key, as_float(inputs))
        if isinstance(params, dict) and set(params) - {"params"} and "params" in params:
            extra = ", ".join(sorted(set(params) - {"params"}))
            raise InputError(
                f"the model keeps variables besides its parameters ({extra}), which fedkin would train "
                "as if they were parameters; use layers without running state (LayerNorm or GroupNorm "
                "in place of BatchNorm)"
            )
        return params

    def apply(
        self,
        params: Params,
        inputs: Array,
        *,
        mask: Array | None = None,
        statistics: Statistics | None = None,
    ) -> Array:
        """Call the module; it is taken to treat each point by itself."""
        outputs = self.module.apply(params, as_float(inputs))
        return outputs[..., 0] if self.task == "regression" and outputs.ndim == 2 else outputs

    def statistics(self, params: Params, inputs: Array) -> Statistics:
        """Return nothing: there is no normalization over points."""
        return ()

    def loss(self, outputs: Array, labels: Array) -> Array:
        """Return the loss that goes with the task."""
        return point_loss(self.task, outputs, labels)

    def penalty(self, params: Params) -> Array:
        """Return ½·l2·‖θ‖²."""
        return 0.5 * self.l2 * squared_norm(params)


def as_model(candidate: Any, task: LearningTask) -> Model:
    """Accept a fedkin model as it is, wrap anything else that has `init` and `apply`."""
    if isinstance(candidate, Model):
        return candidate
    if callable(getattr(candidate, "init", None)) and callable(getattr(candidate, "apply", None)):
        try:
            hash(candidate)
        except TypeError as error:
            raise InputError(f"the model {type(candidate).__name__} is not hashable") from error
        return WrappedModel(candidate, task)
    raise InputError(
        f"a model needs methods init(key, inputs) and apply(params, inputs); "
        f"{type(candidate).__name__} has not both"
    )
