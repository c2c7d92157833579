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
import numpy as np

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
        normalizing: set[tuple[str, ...]] = set()
        variables = dict(self._run(None, inputs, None, None, key=key, normalizing=normalizing))
        extra = set(variables) - {"params", "batch_stats"}
        statistics, _ = jax.tree_util.tree_flatten_with_path(variables.get("batch_stats", {}))
        for path, _ in statistics:
            names = tuple(str(step.key) for step in path)
            if names[:-1] not in normalizing:
                extra.add("/".join(("batch_stats", *names)))
        if extra:
            raise InputError(
                f"the model keeps variables besides its parameters ({', '.join(sorted(extra))}), which "
                "nobody would update: use layers without state; only BatchNorm may have it"
            )
        return {"params": variables["params"]} if "params" in variables else {}

    def _outputs(
        self, params: Params, inputs: Array, mask: Array | None, statistics: Statistics | None
    ) -> Array:
        return self._run(params, inputs, mask, statistics)[0]

    def _measured(self, params: Params, inputs: Array) -> Statistics:
        return self._run(params, inputs, None, None)[1] or ()

    def _run(
        self,
        params: Params | None,
        inputs: Array,
        mask: Array | None,
        statistics: Statistics | None,
        key: Key | None = None,
        normalizing: set[tuple[str, ...]] | None = None,
    ) -> Any:
        """Call the module, or draw its variables if there is a key.

        Args:
            params: The parameters; None if they are drawn.
            inputs: The points.
            mask: Which points are real; None if all are.
            statistics: What to normalize with in evaluation, `()` if there is nothing; None in training.
            key: Draws the variables.
            normalizing: Gains the places of all `BatchNorm` layers.

        Returns:
            The outputs and the statistics of these inputs; or the variables.
        """
        from flax import linen

        def intercept(call: Any, arguments: tuple, options: dict[str, Any], context: Any) -> Any:
            layer = context.module
            if context.method_name == "__call__" and isinstance(layer, linen.Dropout):
                _refuse_dropout(
                    layer.rate,
                    *_dropout_options(layer, *arguments[1:], **options),
                    "give the layer a fixed key (rng=jax.random.key(0))",
                )
            if context.method_name != "__call__" or not isinstance(layer, linen.BatchNorm):
                return call(*arguments, **options)
            if statistics is None and layer.has_variable("batch_stats", "mean"):
                _refuse_second_call(layer.name)
            if normalizing is not None:
                normalizing.add(layer.path)
            # A layer refuses the mode if it has one itself. Without momentum the running averages
            # become the statistics of these inputs.
            object.__setattr__(layer, "use_running_average", None)
            object.__setattr__(layer, "momentum", 0.0)
            normalized, theirs = _normalization_options(*arguments, **options)
            return call(
                normalized,
                use_running_average=statistics is not None,
                mask=_joint_mask(mask, theirs, normalized, len(inputs)),
            )

        flags = _flags(self.module, training=statistics is None)
        with linen.intercept_methods(intercept):
            if key is not None:
                return self.module.init(key, inputs, **flags)
            variables = dict(params or {"params": {}})
            if statistics is not None:
                given = {"batch_stats": statistics} if statistics else {}
                return self.module.apply(variables | given, inputs, **flags), statistics
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
                _refuse_dropout(
                    layer.rate, bool(layer.deterministic), None, "call the module's eval()"
                )
        definition, parameters, others = nnx.split(self.module, nnx.Param, ...)
        for name, part in zip(
            ("definition", "parameters", "others"), (definition, parameters, others), strict=True
        ):
            object.__setattr__(self, name, part)

    def _draw(self, key: Key, inputs: Array) -> Params:
        from flax import nnx

        parameters = nnx.to_pure_dict(self.parameters)
        with jax.ensure_compile_time_eval():
            points = np.random.default_rng(0).random(inputs.shape).astype(inputs.dtype)
            self._refuse_changes(parameters, jax.numpy.asarray(points))
        return parameters

    def _outputs(
        self, params: Params, inputs: Array, mask: Array | None, statistics: Statistics | None
    ) -> Array:
        return self._run(params, inputs, mask, statistics)[0]

    def _measured(self, params: Params, inputs: Array) -> Statistics:
        return self._run(params, inputs, None, None)[1]

    def _refuse_changes(self, params: Params, inputs: Array) -> None:
        """Refuse a module that changes state other than that of `BatchNorm` when it is called."""
        from flax import nnx

        _, _, module = self._run(params, inputs, None, None)
        normalizing = [
            path for path, layer in nnx.iter_graph(module) if isinstance(layer, nnx.BatchNorm)
        ]
        before, after = (
            dict(nnx.to_flat_state(state))
            for state in (self.others, nnx.state(module, nnx.Not(nnx.Param)))
        )
        for path, variable in after.items():
            if path[:-1] in normalizing or isinstance(variable, nnx.RngState):
                continue
            if path not in before or not np.array_equal(before[path][...], variable[...]):
                raise InputError(
                    f"the model changes its variable {'.'.join(map(str, path))} when it is called, and "
                    "nobody would keep the change: use layers without state; only BatchNorm may have it"
                )

    def _run(
        self, params: Params, inputs: Array, mask: Array | None, statistics: Statistics | None
    ) -> tuple[Array, Statistics, Any]:
        """Call the module.

        Returns:
            The outputs, the statistics of these inputs, and the module after the call.
        """
        from flax import nnx

        called = []

        class Normalization(nnx.BatchNorm):
            """Normalizes with the statistics that fedkin chooses."""

            def __call__(self, *arguments: Any, **options: Any) -> Array:
                if any(each is self for each in called):
                    _refuse_second_call("BatchNorm")
                called.append(self)
                normalized, theirs = _normalization_options(*arguments, **options)
                return super().__call__(
                    normalized,
                    use_running_average=statistics is not None,
                    mask=_joint_mask(mask, theirs, normalized, len(inputs)),
                )

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
        return outputs, tuple((layer.mean[...], layer.var[...]) for layer in layers), module


def flax_model(module: Any, task: LearningTask) -> WrappedModel | None:
    """Return a Flax module as a model; None for anything else."""
    if _is_module(module, "flax.linen"):
        return LinenModel(module, task)
    return NnxModel(module, task) if _is_module(module, "flax.nnx") else None


def _flags(module: Any, *, training: bool) -> dict[str, bool]:
    """Return the arguments that tell a module whether it is trained."""
    known = inspect.signature(type(module).__call__).parameters
    return {name: training for name in TRAINING_FLAGS if name in known}


def _normalization_options(
    x: Array, use_running_average: bool | None = None, *, mask: Array | None = None
) -> tuple[Array, Array | None]:
    """Return what a `BatchNorm` layer is to normalize, and its mask; fedkin chooses the rest."""
    return x, mask


def _joint_mask(
    ours: Array | None, theirs: Array | None, normalized: Array, points: int
) -> Array | None:
    """Return the mask of a `BatchNorm` layer.

    Args:
        ours: Which points of the mini-batch are real; None if all are.
        theirs: The mask that the module gives to the layer; None if it gives none.
        normalized: What the layer normalizes.
        points: How many points the mini-batch has.
    """
    if len(normalized) != points:
        raise InputError(
            f"a BatchNorm layer of the model normalizes an array of shape {tuple(normalized.shape)} whose "
            f"first axis is not that of the {points} points: normalize before you reshape; BatchNorm takes "
            "any number of axes"
        )
    if ours is None:
        return theirs
    column = ours.reshape(-1, *[1] * (normalized.ndim - 1))
    return column if theirs is None else column & (theirs != 0)


def _dropout_options(
    layer: Any, deterministic: bool | None = None, rng: Any = None
) -> tuple[bool, Any]:
    return bool(layer.deterministic if deterministic is None else deterministic), rng


def _refuse_dropout(rate: float, deterministic: bool, key: Any, advice: str) -> None:
    if rate > 0 and not deterministic and key is None:
        raise InputError(
            f"the model has dropout (rate {rate:g}), which would draw other units in each call; fedkin "
            "compares gradients of the same mini-batch, so the loss must not change by itself: set "
            f"deterministic=True, leave dropout out, or {advice}"
        )


def _refuse_second_call(name: str | None) -> None:
    raise InputError(
        f"the model calls its layer {name} of batch normalization more than once, and a layer has one mean "
        "and variance at evaluation: use a separate layer in each place"
    )
