"""A network with one hidden layer."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from fedkin.models.base import Statistics, as_float, point_loss, squared_norm
from fedkin.types import Array, Key, LearningTask, Params


@dataclass(frozen=True)
class MLP:
    """One hidden layer of tanh units, which are smooth: the hypergradient needs second derivatives.

    Args:
        outputs: The number of classes. Regression has one output and ignores this.
        hidden: The number of hidden units.
        l2: Adds ½·l2·‖θ‖² to the loss.
        task: Classification or regression.

    >>> model, inputs = MLP(outputs=3, hidden=4), jnp.ones((5, 2))
    >>> model.apply(model.init(jax.random.key(0), inputs), inputs).shape
    (5, 3)
    """

    outputs: int = 2
    hidden: int = 32
    l2: float = 1e-3
    task: LearningTask = "classification"

    def prepare(self, inputs: Array) -> Array:
        """Flatten each point to a row of features."""
        return inputs.reshape(len(inputs), -1)

    def init(self, key: Key, inputs: Array) -> Params:
        """Draw weights with variance 1/(inputs of the layer), and set biases to zero."""
        widths = (
            inputs.shape[-1],
            self.hidden,
            self.outputs if self.task == "classification" else 1,
        )
        draw = jax.nn.initializers.lecun_normal()
        return [
            {"kernel": draw(layer_key, (width_in, width_out)), "bias": jnp.zeros(width_out)}
            for layer_key, width_in, width_out in zip(
                jax.random.split(key), widths[:-1], widths[1:], strict=True
            )
        ]

    def apply(
        self,
        params: Params,
        inputs: Array,
        *,
        mask: Array | None = None,
        statistics: Statistics | None = None,
    ) -> Array:
        """Compute the two layers."""
        first, second = params
        hidden = jnp.tanh(as_float(inputs) @ first["kernel"] + first["bias"])
        outputs = hidden @ second["kernel"] + second["bias"]
        return outputs[..., 0] if self.task == "regression" else outputs

    def statistics(self, params: Params, inputs: Array) -> Statistics:
        """Return nothing: this model does not normalize over points."""
        return ()

    def loss(self, outputs: Array, labels: Array) -> Array:
        """Return the loss of the task."""
        return point_loss(self.task, outputs, labels)

    def penalty(self, params: Params) -> Array:
        """Return ½·l2·‖θ‖²."""
        return 0.5 * self.l2 * squared_norm(params)
