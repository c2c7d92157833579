"""What JAX has traced gives the same on tensors: every operation, loops, choices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import lax

from fedkin.federation.torch_operations import OPERATIONS
from fedkin.federation.torch_program import Worker, as_value
from fedkin.federation.torch_work import _Traced

WORKER = Worker(oracles=None, device=torch.device("cpu"))


def same(function, *arguments):
    """Run a function in JAX and on tensors, compare, and return the operations of which it consists."""
    expected = jax.tree.leaves(function(*arguments))
    traced = _Traced.trace(function, *arguments)
    given = [as_value(each, WORKER.device) for each in arguments]
    found = jax.tree.leaves(traced(WORKER, *given))
    for own, wanted in zip(found, expected, strict=True):
        own, wanted = np.asarray(own), np.asarray(wanted)
        assert own.dtype == wanted.dtype, (function, own.dtype, wanted.dtype)
        np.testing.assert_allclose(own, wanted, rtol=2e-6, atol=1e-6)
    return {each.primitive.name for each in jax.make_jaxpr(function)(*arguments).eqns}


REALS = jnp.array([-2.5, -0.0, 0.0, 0.75, 3e38, jnp.inf, -jnp.inf, jnp.nan], jnp.float32)
OTHERS = jnp.array([1.5, -0.5, 0.0, 0.75, 2.0, -jnp.inf, -jnp.inf, 1.0], jnp.float32)
WHOLE = jnp.array([-7, -1, 0, 5, 2**31 - 1], jnp.int32)

ARGUMENTS = {
    "tensors": [(REALS, OTHERS)],
    "numbers": list(zip(REALS, OTHERS, strict=True)),
    "whole numbers": [(WHOLE, WHOLE[::-1] * 2 + 3)],
    "positive numbers": [(WHOLE.astype(jnp.uint32), jnp.arange(1, 6, dtype=jnp.uint32))],
    "truth values": [(WHOLE > 0, WHOLE > 3)],
}


def twice_differentiated(x, y):
    return jax.grad(lambda v: jnp.sum(v * v))(jnp.where(jnp.isfinite(x), x, y))


FUNCTIONS = {
    "add": lax.add,
    "add_any": twice_differentiated,
    "sub": lax.sub,
    "mul": lax.mul,
    "div": lax.div,
    "neg": lambda x, y: lax.neg(x),
    "rem": lax.rem,
    "shift_right_logical": lambda x, y: lax.shift_right_logical(x, jnp.full_like(x, 3)),
    "max": lax.max,
    "min": lax.min,
    "eq": lax.eq,
    "ne": lax.ne,
    "lt": lax.lt,
    "le": lax.le,
    "gt": lax.gt,
    "ge": lax.ge,
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
    "not": lambda x, y: lax.bitwise_not(x),
    "square": lambda x, y: lax.square(x),
    "integer_pow": lambda x, y: lax.integer_pow(x, 3),
    "sqrt": lambda x, y: lax.sqrt(x),
    "abs": lambda x, y: lax.abs(x),
    "sign": lambda x, y: lax.sign(x),
    "exp": lambda x, y: lax.exp(x),
    "log": lambda x, y: lax.log(x),
    "tanh": lambda x, y: lax.tanh(x),
    "is_finite": lambda x, y: lax.is_finite(x),
    "copy": lambda x, y: jnp.array(x, copy=True),
    "convert_element_type": lambda x, y: [
        x.astype(each) for each in (jnp.int32, jnp.uint32, jnp.float32, bool)
    ],
    "broadcast_in_dim": lambda x, y: lax.broadcast_in_dim(x, (2, len(x), 3), (1,)),
    "reshape": lambda x, y: x.reshape(-1, 1),
    "squeeze": lambda x, y: lax.squeeze(x[None, :2], (0,)),
    "slice": lambda x, y: x[1:4:2],
    "dynamic_slice": lambda x, y: lax.dynamic_slice(x, (jnp.int32(4),), (3,)),
    "stack": lambda x, y: jnp.stack([x, y], -1),
    "transpose": lambda x, y: jnp.swapaxes(jnp.stack([x, y])[None], 0, 1),
    "dot_general": lambda x, y: [jnp.dot(x[:4], y[:4]), jnp.outer(x[:4], y[:4]) @ y[:4]],
    "reduce_sum": lambda x, y: [jnp.sum(x[:4]), jnp.sum(jnp.stack([x, y]), axis=0)],
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_is_that_of_jax(name):
    function, tried = FUNCTIONS[name], 0
    prepared = {
        "as they are": lambda x: x,
        "truth values of tensors": lambda x: x > 0,
        "whole numbers of tensors": lambda x: (x > 0).astype(jnp.int32) * 7 - 3,
    }
    for kind, prepare in prepared.items():
        for given in ARGUMENTS.values() if kind == "as they are" else [ARGUMENTS["tensors"]]:
            for pair in given:

                def run(x, y, prepare=prepare):
                    return function(prepare(x), prepare(y))

                try:
                    jax.eval_shape(run, *pair)
                except (TypeError, ValueError, IndexError):
                    continue  # JAX does not have that
                assert name in same(run, *pair)
                tried += 1
    assert tried


VECTOR, NUMBER = jnp.arange(5.0) - 2, jnp.float32(0.5)


@pytest.mark.parametrize(
    "function",
    [
        lambda v: lax.scan(lambda c, _: (c * 2, (c, c[0])), v, None, length=0),
        lambda v: lax.scan(lambda c, x: (c * 2 + x, c), v, v),
        # The first value that is kept is a number, and the others are tensors.
        lambda v: lax.scan(lambda c, x: (c * 2 + x, c), NUMBER, v),
        lambda v: lax.scan(lambda c, x: (c * 2 + x, c), NUMBER, v, reverse=True),
        lambda v: lax.while_loop(lambda c: jnp.sum(c) < 100, lambda c: c * c + 1, v),
        lambda v: lax.cond(jnp.sum(v) > 0, lambda: v, lambda: 2 * v),
        lambda v: jnp.where(v > 0, v, 2 * v),
        lambda v: jnp.where(v > 0, 1.0, 0.0),
        lambda v: jax.checkpoint(lambda x: jnp.sin(x) * x)(v),
        lambda v: jnp.sum(v > -1) // 3,
        lambda v: jnp.sum(v.astype(jnp.bfloat16) * 1.1),
        lambda v: jnp.argsort(v * v)[:2],
        lambda v: jax.nn.softmax(v) @ jnp.sort(v),
    ],
)
def test_loops_and_choices_are_those_of_jax(function):
    same(function, VECTOR)
