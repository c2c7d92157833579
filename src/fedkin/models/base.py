"""What a model is: parameters, outputs, and the loss of single points."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from fedkin.errors import InputError
from fedkin.models.rewriting import with_fast_layers
from fedkin.types import Array, Key, LearningTask, Params

Statistics = Any
"""The means and variances that a model normalizes with; `()` for a model that does not normalize."""


@runtime_checkable
class Model(Protocol):
    """What fedkin needs of a model. Instances are immutable and hashable: compiled code depends on them."""

    @property
    def task(self) -> LearningTask:
        """Whether a point's output is a row of scores (classification) or one number (regression)."""
        ...

    def prepare(self, inputs: Array) -> Array | np.ndarray:
        """Rearrange raw inputs once, when data are loaded, without changing their type."""
        ...

    def init(self, key: Key, inputs: Array) -> Params:
        """Draw initial parameters; `inputs` are a few prepared points, used for their shape only."""
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

        A model that normalizes uses the given `statistics`, or else those of these inputs. `mask` marks
        the real points of a batch that is padded; the others do not enter the statistics.
        """
        ...

    def statistics(self, params: Params, inputs: Array) -> Statistics:
        """Return the statistics of these inputs, for evaluation with fixed normalization."""
        ...

    def loss(self, outputs: Array, labels: Array) -> Array:
        """Return the loss of each point."""
        ...

    def penalty(self, params: Params) -> Array:
        """Return the regularizer, which is part of every point's loss."""
        ...


@runtime_checkable
class LinearModel(Model, Protocol):
    """A model with a convex loss whose Hessian has a bound that follows from the data.

    The Hessian of a batch is at most `curvature_bound` times the second moment of its features (with
    a constant feature where there is an intercept), plus `l2` times the identity.
    """

    @property
    def l2(self) -> float:
        """The factor of ½‖θ‖² in the loss, which makes the loss at least l2-strongly convex."""
        ...

    @property
    def curvature_bound(self) -> float:
        """The largest curvature of a point's loss as a function of the model's outputs."""
        ...

    @property
    def intercept(self) -> bool:
        """Whether a constant feature is added."""
        ...


def point_loss(task: LearningTask, outputs: Array, labels: Array) -> Array:
    """Return the loss of each point: cross-entropy for scores, half the squared error for numbers."""
    if task == "classification":
        # Select the label's score by comparison, not by indexing: the derivative of indexing is a
        # scatter, which is slow on every device.
        chosen = labels[:, None] == jnp.arange(outputs.shape[-1])
        return logsumexp(outputs, axis=-1) - jnp.sum(jnp.where(chosen, outputs, 0), axis=-1)
    return 0.5 * jnp.square(outputs - labels)


def as_float(inputs: Array) -> Array:
    """Scale images stored as bytes to numbers from 0 to 1; leave other inputs unchanged."""
    if inputs.dtype == jnp.uint8:
        return inputs.astype(jnp.result_type(float)) / 255
    return inputs


def squared_norm(params: Params) -> Array:
    """Return ‖θ‖² over all parameters."""
    import optax  # only where something is traced: code that was kept is not

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
        """Return the inputs unchanged."""
        return inputs

    def init(self, key: Key, inputs: Array) -> Params:
        """Draw the module's parameters; refuse a module that keeps other variables."""
        with self._users_errors("init", inputs):
            return self._draw(key, as_float(inputs))

    def apply(
        self,
        params: Params,
        inputs: Array,
        *,
        mask: Array | None = None,
        statistics: Statistics | None = None,
    ) -> Array:
        """Call the module, which must treat every point independently, but for batch normalization."""

        def call(params: Params, inputs: Array, rest: tuple) -> Array:
            return self._outputs(params, inputs, *rest)

        with self._users_errors("apply", inputs):
            outputs = with_fast_layers(call)(params, as_float(inputs), (mask, statistics))
        if not hasattr(outputs, "ndim"):
            raise InputError(
                f"the model {self._name} must return one array, not {type(outputs).__name__}"
            )
        column = self.task == "regression" and outputs.ndim == 2 and outputs.shape[1] == 1
        return outputs[:, 0] if column else outputs

    def statistics(self, params: Params, inputs: Array) -> Statistics:
        """Return the statistics of these inputs; nothing if the module does not normalize over points."""
        with self._users_errors("apply", inputs):
            return with_fast_layers(self._measured)(params, as_float(inputs))

    def _draw(self, key: Key, inputs: Array) -> Params:
        params = self.module.init(key, inputs)
        if isinstance(params, dict) and set(params) - {"params"} and "params" in params:
            extra = ", ".join(sorted(set(params) - {"params"}))
            raise InputError(
                f"the model keeps variables besides its parameters ({extra}), which fedkin would train "
                "as if they were parameters; use layers without state"
            )
        return params

    def _outputs(
        self, params: Params, inputs: Array, mask: Array | None, statistics: Statistics | None
    ) -> Array:
        return self.module.apply(params, inputs)

    def _measured(self, params: Params, inputs: Array) -> Statistics:
        return ()

    @property
    def _name(self) -> str:
        return type(self.module).__name__

    @contextmanager
    def _users_errors(self, method: str, inputs: Array) -> Iterator[None]:
        """Tell a user which of the model's methods raised an error, and for what."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            said = str(error).strip().split("\n")[0]
            raise InputError(
                f"the model {self._name} raised {type(error).__name__} in {method}, for inputs of shape "
                f"{tuple(inputs.shape)}: {said}"
            ) from error

    def loss(self, outputs: Array, labels: Array) -> Array:
        """Return the loss of the task."""
        return point_loss(self.task, outputs, labels)

    def penalty(self, params: Params) -> Array:
        """Return ½·l2·‖θ‖²."""
        return 0.5 * self.l2 * squared_norm(params)


def is_torch_module(candidate: Any) -> bool:
    """Tell whether something is a PyTorch module, without loading PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(candidate, torch.nn.Module)


def torch_model(module: Any, task: LearningTask, l2: float = 0.0) -> Model:
    """Return a PyTorch module as a model."""
    from fedkin.models.torch_module import TorchModel

    return TorchModel(module, task, l2)


def as_model(candidate: Any, task: LearningTask) -> Model:
    """Return a fedkin model unchanged; wrap a PyTorch module, or any object with `init` and `apply`."""
    if isinstance(candidate, Model):
        return candidate
    if is_torch_module(candidate):
        return torch_model(candidate, task)
    from fedkin.models.flax_modules import NnxModel, flax_model  # which needs this module

    from_flax = flax_model(candidate, task)
    if isinstance(from_flax, NnxModel):
        return from_flax
    if callable(getattr(candidate, "init", None)) and callable(getattr(candidate, "apply", None)):
        try:
            hash(candidate)
        except TypeError as error:
            raise InputError(
                f"the model {type(candidate).__name__} is not hashable; make it a frozen dataclass"
            ) from error
        return from_flax or WrappedModel(candidate, task)
    if isinstance(candidate, type):
        raise InputError(f"the model is the class {candidate.__name__}: give an object of it")
    if callable(getattr(candidate, "get_params", None)) and callable(
        getattr(candidate, "fit", None)
    ):
        raise InputError(
            f"{type(candidate).__name__} is an estimator of scikit-learn, which nodes cannot train together: "
            "use model='logistic' or 'ridge', or fedkin.FederatedClassifier or FederatedRegressor"
        )
    raise InputError(
        f"a model is a PyTorch module, or has the methods init(key, inputs) and apply(params, inputs); "
        f"{type(candidate).__name__} lacks at least one of them"
    )
