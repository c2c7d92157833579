"""Flax modules as models, with their batch normalization.

Gradients and Hessian products normalize with the statistics of their own mini-batch, evaluation with those of
the owner's data. So a module's running averages are never used: whatever mode a `BatchNorm` layer is in,
fedkin chooses the statistics.
"""

import inspect
import sys
from dataclasses import dataclass, field
from typing import Any

import jax

from fedkin.errors import InputError
from fedkin.models.base import Statistics, WrappedModel
from fedkin.types import Array, Key, LearningTask, Params

TRAINING_FLAGS = ("train", "training", "is_training")
"""Arguments of a module's `__call__` that say whether it is trained: fedkin sets them."""


def _is_module(candidate: Any, package: str) -> bool:
    """Return whether something is a module of a part of Flax, without importing it."""
    found = sys.modules.get(package)
    return found is not None and isinstance(candidate, found.Module)


@dataclass(frozen=True)
class LinenModel(WrappedModel):
    """A module of `flax.linen`. Its parameters are what `init` gives under `params`."""

    def _draw(self, key: Key, inputs: Array) -> Params:
        variables = dict(self._run(None, inputs, None, None, key=key))
        extra = sorted(set(variables) - {"params", "batch_stats"})
        if extra:
            raise InputError(
                f"the model keeps variables besides its parameters ({', '.join(extra)}), which nobody "
                "would update: use layers without state of their own; only BatchNorm may have it"
            )
        return {"params": variables["params"]} if "params" in variables else {}

    def _outputs(
        self, params: Params, inputs: Array, mask: Array | None, statistics: Statistics | None
    ) -> Array:
        return self._run(params, inputs, mask, statistics or None)[0]

    def _measured(self, params: Params, inputs: Array) -> Statistics:
        return self._run(params, inputs, None, None)[1] or ()

    def _run(
        self,
        params: Params | None,
        inputs: Array,
        mask: Array | None,
        statistics: Statistics | None,
        key: Key | None = None,
    ) -> Any:
        """Call the module, or draw its variables if there is a key.

        Returns:
            The outputs and the statistics of these inputs; or the variables.
        """
        from flax import linen

        def intercept(call: Any, arguments: tuple, options: dict[str, Any], context: Any) -> Any:
            layer = context.module
            if context.method_name == "__call__" and isinstance(layer, linen.Dropout):
                _refuse_dropout(layer.rate, *_dropout_options(layer, *arguments[1:], **options))
            if context.method_name != "__call__" or not isinstance(layer, linen.BatchNorm):
                return call(*arguments, **options)
            # A layer refuses the mode if it has one itself. Without momentum the running averages
            # become the statistics of these inputs.
            object.__setattr__(layer, "use_running_average", None)
            object.__setattr__(layer, "momentum", 0.0)
            return call(
                arguments[0],
                use_running_average=statistics is not None,
                mask=_column(mask, arguments[0].ndim),
            )

        flags = _flags(self.module, training=statistics is None)
        with linen.intercept_methods(intercept):
            if key is not None:
                return self.module.init(key, inputs, **flags)
            variables = dict(params or {"params": {}})
            if statistics is not None:
                outputs = self.module.apply(
                    variables | {"batch_stats": statistics}, inputs, **flags
                )
                return outputs, statistics
            outputs, updates = self.module.apply(
                variables, inputs, mutable=["batch_stats"], **flags
            )
            return outputs, updates.get("batch_stats")


@dataclass(frozen=True, eq=False)
class NnxModel(WrappedModel):
    """A module of `flax.nnx`. Its initial parameters are those it was made with, whatever the key."""

    definition: Any = field(init=False, repr=False)
    parameters: Any = field(init=False, repr=False)
    others: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        from flax import nnx

        for _, layer in nnx.iter_graph(self.module):
            if isinstance(layer, nnx.Dropout):
                _refuse_dropout(layer.rate, bool(layer.deterministic), None)
        definition, parameters, others = nnx.split(self.module, nnx.Param, ...)
        for name, part in zip(
            ("definition", "parameters", "others"), (definition, parameters, others), strict=True
        ):
            object.__setattr__(self, name, part)

    def _draw(self, key: Key, inputs: Array) -> Params:
        from flax import nnx

        return nnx.to_pure_dict(self.parameters)

    def _outputs(
        self, params: Params, inputs: Array, mask: Array | None, statistics: Statistics | None
    ) -> Array:
        return self._run(params, inputs, mask, statistics or None)[0]

    def _measured(self, params: Params, inputs: Array) -> Statistics:
        return self._run(params, inputs, None, None)[1]

    def _run(
        self, params: Params, inputs: Array, mask: Array | None, statistics: Statistics | None
    ) -> tuple[Array, Statistics]:
        from flax import nnx

        class Normalization(nnx.BatchNorm):
            """Normalizes with the statistics that fedkin chooses."""

            def __call__(self, x: Array, *arguments: Any, **options: Any) -> Array:
                chosen = _column(mask, x.ndim)
                return super().__call__(x, use_running_average=statistics is not None, mask=chosen)

        own = jax.tree.map(lambda leaf: leaf, self.parameters)
        nnx.replace_by_pure_dict(own, params)
        module = nnx.merge(self.definition, own, self.others, copy=True)
        layers = [layer for _, layer in nnx.iter_graph(module) if isinstance(layer, nnx.BatchNorm)]
        for number, layer in enumerate(layers):
            layer.__class__ = Normalization
            layer.momentum = 0.0
            if statistics is not None:
                layer.mean[...], layer.var[...] = statistics[number]
        flags = _flags(module, training=statistics is None)
        outputs = module(inputs, **flags)
        return outputs, tuple((layer.mean[...], layer.var[...]) for layer in layers)


def flax_model(module: Any, task: LearningTask) -> WrappedModel | None:
    """Return a Flax module as a model; None for anything else."""
    if _is_module(module, "flax.linen"):
        return LinenModel(module, task)
    return NnxModel(module, task) if _is_module(module, "flax.nnx") else None


def _flags(module: Any, *, training: bool) -> dict[str, bool]:
    """Return the arguments that tell a module whether it is trained."""
    known = inspect.signature(type(module).__call__).parameters
    return {name: training for name in TRAINING_FLAGS if name in known}


def _column(mask: Array | None, axes: int) -> Array | None:
    """Return a mask of points in the form that `BatchNorm` takes."""
    return None if mask is None else mask.reshape(-1, *[1] * (axes - 1))


def _dropout_options(
    layer: Any, deterministic: bool | None = None, rng: Any = None
) -> tuple[bool, Any]:
    return bool(layer.deterministic if deterministic is None else deterministic), rng


def _refuse_dropout(rate: float, deterministic: bool, key: Any) -> None:
    if rate > 0 and not deterministic and key is None:
        raise InputError(
            f"the model has dropout (rate {rate:g}), which would draw other units in each call; fedkin "
            "compares gradients of the same mini-batch, so the loss must not change by itself: set "
            "deterministic=True, leave dropout out, or give the layer a fixed key (rng=jax.random.key(0))"
        )
