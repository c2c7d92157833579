"""A model's convolutions and pooling in the form that is fast on CPUs, whoever wrote the model.

`with_fast_layers` traces a function, and computes what it does with convolutions replaced by matrix
products (`layers.py`), and pooling by comparisons or sums of slices, whose derivatives are cheap. The
numbers are the same to rounding. Everything else, and what is unusual (dilation, groups, layers inside a
function with derivatives of its own), runs as it was written.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Primitive, primitives

from fedkin.models.layers import convolve
from fedkin.models.operations import inner_functions
from fedkin.models.pooling import maximum_of_windows, sum_of_windows
from fedkin.models.windows import Geometry
from fedkin.types import Array


def with_fast_layers(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes the same, with fast convolutions and pooling.

    On other devices than CPUs it is the function itself: there XLA's own layers are faster.

    >>> def blur(images, kernel):
    ...     return lax.conv_general_dilated(images, kernel, (1, 1), "SAME")
    >>> images, kernel = jnp.ones((1, 1, 4, 4)), jnp.ones((1, 1, 3, 3))
    >>> with_fast_layers(blur)(images, kernel)[0, 0, 0].tolist()
    [4.0, 6.0, 6.0, 4.0]
    """

    def rewritten(*arguments: Any) -> Any:
        if jax.default_backend() != "cpu":
            return function(*arguments)
        traced, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        outputs = _evaluate(traced, *jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shapes), outputs)

    return rewritten


def _evaluate(closed: ClosedJaxpr, *arguments: Array) -> list[Array]:
    """Compute what a traced function does, with layers replaced."""
    jaxpr, known = closed.jaxpr, {}

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else known[atom]

    known.update(zip(jaxpr.constvars, closed.consts, strict=True))
    known.update(zip(jaxpr.invars, arguments, strict=True))
    for equation in jaxpr.eqns:
        outputs = _compute(equation, [read(atom) for atom in equation.invars])
        known.update(zip(equation.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _compute(equation: JaxprEqn, operands: list[Array]) -> Sequence[Array]:
    primitive, settings = equation.primitive, equation.params
    layer = LAYERS.get(primitive)
    if layer is not None and (found := layer(*operands, **settings)) is not None:
        return [found]
    around = AROUND.get(primitive)
    if around is not None and any(map(_has_layers, inner_functions(equation))):
        return around(equation, operands)
    found = primitive.bind(*operands, **primitive.get_bind_params(settings))
    return found if primitive.multiple_results else [found]


def _has_layers(jaxpr: Jaxpr) -> bool:
    return any(
        equation.primitive in LAYERS or any(map(_has_layers, inner_functions(equation)))
        for equation in jaxpr.eqns
    )


def _convolution(
    images: Array,
    kernel: Array,
    *,
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    dimension_numbers: Any,
    feature_group_count: int,
    batch_group_count: int,
    precision: Any,
    preferred_element_type: Any,
    **others: Any,
) -> Array | None:
    """Compute a convolution as a matrix product; None for one that is left to XLA."""
    point, channel, *places = dimension_numbers.lhs_spec
    output, channel_in, *offsets = dimension_numbers.rhs_spec
    geometry = Geometry(
        image=tuple(images.shape[axis] for axis in places),
        window=tuple(kernel.shape[axis] for axis in offsets),
        strides=tuple(window_strides),
        padding=tuple((int(low), int(high)) for low, high in padding),
    )
    usual = (
        places
        and {*lhs_dilation, *rhs_dilation, feature_group_count, batch_group_count} == {1}
        and images.dtype == kernel.dtype == (preferred_element_type or images.dtype)
        and jnp.issubdtype(images.dtype, jnp.floating)
        and min(*geometry.positions, images.size, kernel.size) > 0
    )
    if not usual:
        return None
    ordered_kernel = lax.transpose(kernel, (*offsets, channel_in, output))
    found = convolve(
        lax.transpose(images, (*places, point, channel)),
        ordered_kernel.reshape(-1, kernel.shape[output]),
        geometry,
        precision,
    )
    point_out, output_out, *places_out = dimension_numbers.out_spec
    wanted = (*places_out, point_out, output_out)
    return lax.transpose(found, tuple(wanted.index(axis) for axis in range(found.ndim)))


def _call(equation: JaxprEqn, operands: list[Array]) -> list[Array]:
    return _evaluate(equation.params["jaxpr"], *operands)


def _rematerialized(equation: JaxprEqn, operands: list[Array]) -> Sequence[Array]:
    settings = equation.params
    closed = ClosedJaxpr(settings["jaxpr"], ())

    def inner(*operands: Array) -> list[Array]:
        return _evaluate(closed, *operands)

    return jax.checkpoint(inner, prevent_cse=settings["prevent_cse"], policy=settings["policy"])(
        *operands
    )


def _loop_or_choice(equation: JaxprEqn, operands: list[Array]) -> Sequence[Array]:
    """Run a loop or a choice with layers replaced in all that it calls."""
    settings = {name: _rewrite_all(setting) for name, setting in equation.params.items()}
    return equation.primitive.bind(*operands, **equation.primitive.get_bind_params(settings))


def _rewrite_all(setting: Any) -> Any:
    if isinstance(setting, ClosedJaxpr):
        return jax.make_jaxpr(lambda *operands: _evaluate(setting, *operands))(*setting.in_avals)
    if isinstance(setting, tuple) and any(isinstance(part, ClosedJaxpr) for part in setting):
        return tuple(map(_rewrite_all, setting))
    return setting


LAYERS: dict[Primitive, Callable[..., Array | None]] = {
    primitives.conv_general_dilated_p: _convolution,
    primitives.reduce_window_max_p: maximum_of_windows,
    primitives.reduce_window_sum_p: sum_of_windows,
}
"""What is replaced."""

AROUND: dict[Primitive, Callable[[JaxprEqn, list[Array]], Sequence[Array]]] = {
    primitives.jit_p: _call,
    primitives.remat_p: _rematerialized,
    primitives.scan_p: _loop_or_choice,
    primitives.while_p: _loop_or_choice,
    primitives.cond_p: _loop_or_choice,
}
"""Operations that call functions in which layers are replaced, too. Functions with derivatives of their own
are not among them: these derivatives belong to what was written."""
