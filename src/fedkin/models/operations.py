"""How much arithmetic a traced function does, in its matrix products and convolutions."""

import math
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, primitives


def count_operations(jaxpr: Jaxpr) -> int:
    """Count multiplications and additions in matrix products and convolutions.

    A loop whose number of turns is not known counts as one turn, a choice as the sum of its branches.

    >>> import jax, jax.numpy as jnp
    >>> traced = jax.make_jaxpr(lambda left, right: left @ right)(jnp.ones((2, 3)), jnp.ones((3, 4)))
    >>> count_operations(traced.jaxpr)
    48
    """
    return sum(map(_operations, jaxpr.eqns))


def _operations(equation: JaxprEqn) -> int:
    primitive = equation.primitive
    if primitive is primitives.dot_general_p:
        (contracted, _), _ = equation.params["dimension_numbers"]
        shape = _shape(equation.invars[0])
        return 2 * _outputs(equation) * math.prod(shape[axis] for axis in contracted)
    if primitive is primitives.conv_general_dilated_p:
        kernel = _shape(equation.invars[1])
        outputs = kernel[equation.params["dimension_numbers"].rhs_spec[0]]
        return 2 * _outputs(equation) * (math.prod(kernel) // max(1, outputs))
    if primitive.name == "fedkin_convolution":
        return 2 * _outputs(equation) * _shape(equation.invars[1])[0]
    if primitive.name == "fedkin_columns":
        return 2 * _outputs(equation) * _shape(equation.invars[0])[-2]
    turns = equation.params["length"] if primitive is primitives.scan_p else 1
    return turns * sum(map(count_operations, inner_functions(equation)))


def _outputs(equation: JaxprEqn) -> int:
    return math.prod(_shape(equation.outvars[0]))


def _shape(value: Any) -> tuple[int, ...]:
    return value.aval.shape


def inner_functions(equation: JaxprEqn) -> list[Jaxpr]:
    """Return the traced functions that an operation calls."""
    found = []
    for setting in equation.params.values():
        for part in setting if isinstance(setting, tuple | list) else (setting,):
            if isinstance(part, ClosedJaxpr):
                found.append(part.jaxpr)
            elif isinstance(part, Jaxpr):
                found.append(part)
    return found
