"""Running what JAX has traced on PyTorch tensors.

A task is a pure function that is written for JAX. Traced with placeholders for what concerns the model
(`nodes/foreign.py`), it is a short list of operations on vectors. Here PyTorch does these operations, so that
vectors stay on the module's device, and the placeholders are filled in. Small numbers (draws, counts, step
sizes) stay in NumPy. What the tables below do not have is left to JAX: slower, with the same result.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal
from torch import Tensor

from fedkin.nodes.foreign import placeholder

Value = Any
"""A tensor, a NumPy array or number, or a JAX key."""

Operation = Callable[["Machine", Sequence[Value]], Sequence[Value]]


class Machine(Protocol):
    """What a program needs besides its arguments."""

    oracles: Any
    """Has a method for every oracle of `nodes.oracles`."""
    device: torch.device


class Program:
    """A traced function as a list of operations.

    Args:
        traced: What `jax.make_jaxpr` returned.
    """

    def __init__(self, traced: ClosedJaxpr) -> None:
        self._count = 0
        self._known: list[tuple[int, Value]] = []
        self._steps: list[tuple[Operation, list[int], list[int]]] = []
        self._inputs = [self._place() for _ in traced.jaxpr.invars]
        self._outputs = self._add(traced, self._inputs)
        self._unneeded = self._last_uses()

    def __call__(self, machine: Machine, arguments: Sequence[Value]) -> list[Value]:
        """Run it."""
        values: list[Value] = [None] * self._count
        for place, value in self._known:
            values[place] = value
        for place, value in zip(self._inputs, arguments, strict=True):
            values[place] = value
        for (operation, sources, targets), unneeded in zip(
            self._steps, self._unneeded, strict=True
        ):
            found = operation(machine, [values[place] for place in sources])
            for place, value in zip(targets, found, strict=True):
                values[place] = value
            for place in unneeded:
                values[place] = None
        return [values[place] for place in self._outputs]

    def _place(self) -> int:
        self._count += 1
        return self._count - 1

    def _add(self, traced: ClosedJaxpr, inputs: Sequence[int]) -> list[int]:
        """Add the operations of a traced function; return where its results will be."""
        jaxpr = traced.jaxpr
        places = dict(zip(jaxpr.invars, inputs, strict=True))

        def read(atom: Any) -> int:
            if not isinstance(atom, Literal):
                return places[atom]
            self._known.append((self._place(), _host(atom.val)))
            return self._known[-1][0]

        for variable, value in zip(jaxpr.constvars, traced.consts, strict=True):
            places[variable] = self._place()
            self._known.append((places[variable], _host(value)))
        for equation in jaxpr.eqns:
            sources = [read(atom) for atom in equation.invars]
            called = _called(equation)
            if called is not None:
                targets = self._add(called, sources)
            else:
                targets = [self._place() for _ in equation.outvars]
                self._steps.append((_operation(equation), sources, targets))
            places.update(zip(equation.outvars, targets, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _last_uses(self) -> list[list[int]]:
        """Return what is not needed any more after each step: vectors may be large."""
        later, found = set(self._outputs), []
        for _, sources, targets in reversed(self._steps):
            found.append([place for place in {*sources, *targets} if place not in later])
            later.update(sources)
        return found[::-1]


def _called(equation: JaxprEqn) -> ClosedJaxpr | None:
    """Return the function that an equation calls, if it does nothing but that."""
    if equation.primitive.name in _CONTROL:
        return None
    found = (equation.params.get(name) for name in ("jaxpr", "call_jaxpr", "call"))
    return next((each for each in found if isinstance(each, ClosedJaxpr)), None)


def _operation(equation: JaxprEqn) -> Operation:
    name, parameters = equation.primitive.name, equation.params
    if equation.primitive is placeholder:
        return _oracle(**parameters)
    if name in _CONTROL:
        return _CONTROL[name](**parameters)
    in_torch, in_numpy = _TABLES.get(name, (None, None))

    def run(machine: Machine, values: Sequence[Value]) -> Sequence[Value]:
        if any(isinstance(value, Tensor) for value in values):
            if in_torch is not None:
                given = [_beside_tensors(value, machine.device) for value in values]
                found = in_torch(*given, **parameters)
                if found is not None:
                    return (found,)
        elif in_numpy is not None:
            found = in_numpy(*values, **parameters)
            if found is not None:
                return (found,)
        return _in_jax(equation, machine, values)

    return run


def _in_jax(equation: JaxprEqn, machine: Machine, values: Sequence[Value]) -> Sequence[Value]:
    """Leave an operation to JAX."""
    arguments = [
        jnp.asarray(value.cpu().numpy() if isinstance(value, Tensor) else value) for value in values
    ]
    found = equation.primitive.bind(*arguments, **equation.params)
    results = found if equation.primitive.multiple_results else [found]
    in_torch = any(isinstance(value, Tensor) for value in values)
    return [as_value(result, machine.device) if in_torch else _host(result) for result in results]


def as_value(array: Any, device: torch.device) -> Value:
    """Return vectors of numbers as tensors, and everything else as it is computed with best."""
    if np.ndim(array) > 0 and jnp.issubdtype(array.dtype, jnp.floating):
        return torch.from_numpy(np.array(array)).to(device)
    return _host(array)


def _host(value: Any) -> Value:
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return value
    return np.asarray(value)


def _beside_tensors(value: Value, device: torch.device) -> Value:
    """Return a NumPy value as PyTorch takes it together with tensors."""
    if isinstance(value, Tensor) or not isinstance(value, (np.ndarray, np.generic)):
        return value
    if value.ndim == 0:
        return value.item()
    if value.size > 0 and not any(value.strides):  # one number, repeated
        return value.flat[0].item()
    if value.dtype == np.uint32:
        value = value.astype(np.int64)
    return torch.from_numpy(np.array(value)).to(device)


# Control


def _scan(
    *, jaxpr: ClosedJaxpr, length: int, reverse: bool, num_consts: int, num_carry: int, **_: Any
) -> Operation:
    body = Program(jaxpr)

    def run(machine: Machine, values: Sequence[Value]) -> Sequence[Value]:
        constants = list(values[:num_consts])
        carry = list(values[num_consts : num_consts + num_carry])
        series = values[num_consts + num_carry :]
        rows = []
        for step in reversed(range(length)) if reverse else range(length):
            found = body(machine, [*constants, *carry, *(each[step] for each in series)])
            carry = found[:num_carry]
            rows.append(found[num_carry:])
        if reverse:
            rows.reverse()
        return [*carry, *(_stack(column) for column in zip(*rows, strict=True))]

    return run


def _while(
    *,
    cond_jaxpr: ClosedJaxpr,
    cond_nconsts: int,
    body_jaxpr: ClosedJaxpr,
    body_nconsts: int,
    **_: Any,
) -> Operation:
    condition, body = Program(cond_jaxpr), Program(body_jaxpr)

    def run(machine: Machine, values: Sequence[Value]) -> Sequence[Value]:
        own = list(values[:cond_nconsts])
        constants = list(values[cond_nconsts : cond_nconsts + body_nconsts])
        carry = list(values[cond_nconsts + body_nconsts :])
        while bool(condition(machine, [*own, *carry])[0]):
            carry = body(machine, [*constants, *carry])
        return carry

    return run


def _cond(*, branches: Sequence[ClosedJaxpr], **_: Any) -> Operation:
    programs = [Program(branch) for branch in branches]

    def run(machine: Machine, values: Sequence[Value]) -> Sequence[Value]:
        chosen = min(max(int(values[0]), 0), len(programs) - 1)
        return programs[chosen](machine, values[1:])

    return run


def _oracle(
    *, name: str, structure: Any, mapped: tuple[tuple[bool, ...], ...], **_: Any
) -> Operation:
    def ask(machine: Machine, values: Sequence[Value], levels: tuple) -> Sequence[Value]:
        if not levels:
            arguments = jax.tree.unflatten(structure, values)
            found = getattr(machine.oracles, name)(*arguments)
            return found if isinstance(found, tuple) else (found,)
        *inner, has_axis = levels
        size = next(len(value) for value, own in zip(values, has_axis, strict=True) if own)
        rows = [
            ask(
                machine,
                [value[row] if own else value for value, own in zip(values, has_axis, strict=True)],
                tuple(inner),
            )
            for row in range(size)
        ]
        return [_stack(column) for column in zip(*rows, strict=True)]

    return lambda machine, values: ask(machine, values, mapped)


def _select(**_: Any) -> Operation:
    def run(machine: Machine, values: Sequence[Value]) -> Sequence[Value]:
        which, *cases = values
        if np.ndim(which) == 0:
            return (cases[int(which)],)
        if not any(isinstance(value, Tensor) for value in values):
            return (np.choose(which, cases),)
        chosen, *given = (_beside_tensors(value, machine.device) for value in values)
        found = given[0]
        for number, case in enumerate(given[1:], start=1):
            found = torch.where(chosen == number, case, found)
        return (found,)

    return run


_CONTROL: Mapping[str, Callable[..., Operation]] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "select_n": _select,
}


def _stack(values: Sequence[Value]) -> Value:
    if isinstance(values[0], Tensor):
        return torch.stack(list(values))
    return np.stack(values)


# Operations, for tensors and for NumPy. One that returns None leaves the case to JAX.


def _torch_type(dtype: Any) -> torch.dtype | None:
    return getattr(torch, np.dtype(dtype).name, None)


def _spread_tensor(value: Tensor, *, shape: tuple, broadcast_dimensions: tuple, **_: Any) -> Tensor:
    own = [1] * len(shape)
    for axis, place in enumerate(broadcast_dimensions):
        own[place] = value.shape[axis]
    return value.reshape(own).expand(shape)


def _spread_array(value: Value, *, shape: tuple, broadcast_dimensions: tuple, **_: Any) -> Value:
    own = [1] * len(shape)
    for axis, place in enumerate(broadcast_dimensions):
        own[place] = np.shape(value)[axis]
    return np.broadcast_to(np.reshape(value, own), shape)


def _product(first: Value, second: Value, *, dimension_numbers: tuple, **_: Any) -> Value:
    (own, other), (batch, _) = dimension_numbers
    if batch or not (isinstance(first, Tensor) and isinstance(second, Tensor)):
        return None
    return torch.tensordot(first, second, dims=(list(own), list(other)))  # pyright: ignore


def _part(
    value: Value, *, start_indices: tuple, limit_indices: tuple, strides: tuple | None, **_: Any
) -> Value:
    steps = strides or [1] * len(start_indices)
    return value[tuple(map(slice, start_indices, limit_indices, steps))]


def _without_axes(value: Value, *, dimensions: tuple, **_: Any) -> Value:
    kept = [size for axis, size in enumerate(value.shape) if axis not in dimensions]
    return value.reshape(kept)


def _reshaped(value: Value, *, new_sizes: tuple, dimensions: Any, **_: Any) -> Value:
    return value.reshape(new_sizes) if dimensions is None else None


def _place(value: Value, *begins: Value, slice_sizes: tuple, **_: Any) -> Value:
    firsts = [
        min(max(int(begin), 0), size - part)
        for begin, size, part in zip(begins, value.shape, slice_sizes, strict=True)
    ]
    return value[tuple(slice(f, f + part) for f, part in zip(firsts, slice_sizes, strict=True))]


def _sum_array(value: Value, *, axes: tuple, **_: Any) -> Value:
    return np.sum(value, axis=axes, dtype=value.dtype)


def _sum_tensor(value: Tensor, *, axes: tuple, **_: Any) -> Tensor:
    return torch.sum(value, dim=tuple(axes)) if axes else value


def _reals_only(function: Callable, *values: Value) -> Value:
    kind = values[0].dtype.kind if isinstance(values[0], (np.ndarray, np.generic)) else "f"
    return function(*values) if kind == "f" else None


def _plain(function: Callable) -> Callable:
    """Return a function of values alone, which have no further settings that matter."""
    return lambda *values, **_: function(*values)


def _both(function: Callable) -> tuple[Callable, Callable]:
    return _plain(function), _plain(function)


def _larger(first: Value, second: Value, function: Callable) -> Value:
    """Compare tensors with tensors or numbers: PyTorch's functions take only the former."""
    like = first if isinstance(first, Tensor) else second
    return function(torch.as_tensor(first).to(like), torch.as_tensor(second).to(like))


_TABLES: Mapping[str, tuple[Callable | None, Callable | None]] = {
    "add": _both(operator.add),
    "add_any": _both(operator.add),
    "sub": _both(operator.sub),
    "mul": _both(operator.mul),
    "div": (
        _plain(operator.truediv),
        _plain(lambda first, second: _reals_only(operator.truediv, first, second)),
    ),
    "neg": _both(operator.neg),
    "rem": (None, _plain(np.fmod)),
    "shift_right_logical": (
        None,
        _plain(lambda value, bits: value >> bits if value.dtype.kind == "u" else None),
    ),
    "max": (_plain(lambda a, b: _larger(a, b, torch.maximum)), _plain(np.maximum)),
    "min": (_plain(lambda a, b: _larger(a, b, torch.minimum)), _plain(np.minimum)),
    "eq": _both(operator.eq),
    "ne": _both(operator.ne),
    "lt": _both(operator.lt),
    "le": _both(operator.le),
    "gt": _both(operator.gt),
    "ge": _both(operator.ge),
    "and": _both(operator.and_),
    "or": _both(operator.or_),
    "not": (_plain(torch.logical_not), _plain(np.invert)),
    "square": _both(lambda value: value * value),
    "integer_pow": (lambda value, *, y: value**y, lambda value, *, y: value**y),
    "sqrt": (_plain(torch.sqrt), _plain(np.sqrt)),
    "abs": (_plain(torch.abs), _plain(np.abs)),
    "sign": (_plain(torch.sign), _plain(np.sign)),
    "exp": (_plain(torch.exp), _plain(np.exp)),
    "log": (_plain(torch.log), _plain(np.log)),
    "tanh": (_plain(torch.tanh), _plain(np.tanh)),
    "is_finite": (_plain(torch.isfinite), _plain(np.isfinite)),
    "copy": _both(lambda value: value),
    "stop_gradient": _both(lambda value: value),
    "convert_element_type": (
        lambda value, *, new_dtype, **_: (
            None if _torch_type(new_dtype) is None else value.to(_torch_type(new_dtype))
        ),
        lambda value, *, new_dtype, **_: value.astype(new_dtype),
    ),
    "broadcast_in_dim": (_spread_tensor, _spread_array),
    "reshape": (_reshaped, _reshaped),
    "squeeze": (_without_axes, _without_axes),
    "slice": (_part, _part),
    "dynamic_slice": (_place, _place),
    "stack": (
        lambda *values, axis, **_: (
            torch.stack(values, axis) if all(isinstance(v, Tensor) for v in values) else None
        ),
        lambda *values, axis, **_: np.stack(values, axis),
    ),
    "transpose": (
        lambda value, *, permutation: value.permute(permutation),
        lambda value, *, permutation: np.transpose(value, permutation),
    ),
    "dot_general": (_product, None),
    "reduce_sum": (_sum_tensor, _sum_array),
}
