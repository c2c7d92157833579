"""Running what JAX has traced on PyTorch tensors.

A task is a pure function that is written for JAX. Traced with placeholders for what concerns the model
(`nodes/foreign.py`), it is a short list of operations on vectors. Here PyTorch does these operations, so that
vectors stay on the module's device, and the placeholders are filled in. Small numbers (draws, counts, step
sizes) stay in NumPy. What `torch_operations.py` does not have is left to JAX: slower, with the same result.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from torch import Tensor

from fedkin.federation.torch_operations import OPERATIONS, Value, tensor_type
from fedkin.nodes.foreign import placeholder

Operation = Callable[["Worker", Sequence[Value]], Sequence[Value]]


class Worker(NamedTuple):
    """What one thread computes with."""

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

    def __call__(self, worker: Worker, arguments: Sequence[Value]) -> list[Value]:
        """Run it."""
        values: list[Value] = [None] * self._count
        for place, value in self._known:
            values[place] = value
        for place, value in zip(self._inputs, arguments, strict=True):
            values[place] = value
        for (operation, sources, targets), unneeded in zip(
            self._steps, self._unneeded, strict=True
        ):
            found = operation(worker, [values[place] for place in sources])
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
    for name in ("jaxpr", "call_jaxpr", "call"):
        found = equation.params.get(name)
        if isinstance(found, Jaxpr) and not found.constvars:  # of `jax.checkpoint`
            return ClosedJaxpr(found, [])
        if isinstance(found, ClosedJaxpr):
            return found
    return None


def _operation(equation: JaxprEqn) -> Operation:
    name, parameters = equation.primitive.name, equation.params
    if equation.primitive is placeholder:
        return _oracle(**parameters)
    if name in _CONTROL:
        return _CONTROL[name](**parameters)
    given: list[Any] = [atom.aval for atom in equation.invars]
    if name not in OPERATIONS or not all(_is_known_to_numpy(each.dtype) for each in given):
        return partial(_in_jax, equation)
    in_torch, in_numpy = OPERATIONS[name]
    result: Any = equation.outvars[0].aval
    kind = tensor_type(result.dtype)

    def run(worker: Worker, values: Sequence[Value]) -> Sequence[Value]:
        are_tensors = [isinstance(value, Tensor) for value in values]
        if any(are_tensors):
            if in_torch is not None and kind is not None:
                own = (
                    values
                    if all(are_tensors)
                    else [_for_torch(value, worker.device) for value in values]
                )
                found = in_torch(*own, **parameters)
                if found is not None and found.dtype == kind:
                    return (found,)
        elif in_numpy is not None:
            found = in_numpy(*values, **parameters)
            if found is not None:
                return (found,)
        return _in_jax(equation, worker, values)

    return run


def _in_jax(equation: JaxprEqn, worker: Worker, values: Sequence[Value]) -> Sequence[Value]:
    """Leave an operation to JAX."""
    arguments = [
        jnp.asarray(value.cpu().numpy() if isinstance(value, Tensor) else value) for value in values
    ]
    found = equation.primitive.bind(*arguments, **equation.params)
    results = found if equation.primitive.multiple_results else [found]
    in_torch = any(isinstance(value, Tensor) for value in values)
    return [as_value(result, worker.device) if in_torch else _host(result) for result in results]


def as_value(array: Any, device: torch.device) -> Value:
    """Return vectors of numbers as tensors, and everything else as it is computed with best."""
    if np.ndim(array) > 0 and np.issubdtype(array.dtype, np.floating):
        return torch.from_numpy(np.array(array)).to(device)
    return _host(array)


def _is_known_to_numpy(dtype: Any) -> bool:
    """Tell whether NumPy has a type itself, and not by an extension, such as bfloat16."""
    return not jnp.issubdtype(dtype, jax.dtypes.extended) and np.dtype(dtype).kind in "biuf"


def _host(value: Any) -> Value:
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return value
    return np.asarray(value)


def _for_torch(value: Value, device: torch.device) -> Value:
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
    shapes = [(each.shape, each.dtype) for each in jaxpr.out_avals[num_carry:]]

    def run(worker: Worker, values: Sequence[Value]) -> Sequence[Value]:
        constants = list(values[:num_consts])
        carry = list(values[num_consts : num_consts + num_carry])
        series = values[num_consts + num_carry :]
        rows = []
        for step in reversed(range(length)) if reverse else range(length):
            found = body(worker, [*constants, *carry, *(each[step] for each in series)])
            carry = found[:num_carry]
            rows.append(found[num_carry:])
        if reverse:
            rows.reverse()
        columns = [[row[place] for row in rows] for place in range(len(shapes))]
        return [*carry, *map(partial(_stack, device=worker.device), columns, shapes)]

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

    def run(worker: Worker, values: Sequence[Value]) -> Sequence[Value]:
        own = list(values[:cond_nconsts])
        constants = list(values[cond_nconsts : cond_nconsts + body_nconsts])
        carry = list(values[cond_nconsts + body_nconsts :])
        while bool(condition(worker, [*own, *carry])[0]):
            carry = body(worker, [*constants, *carry])
        return carry

    return run


def _cond(*, branches: Sequence[ClosedJaxpr], **_: Any) -> Operation:
    programs = [Program(branch) for branch in branches]

    def run(worker: Worker, values: Sequence[Value]) -> Sequence[Value]:
        chosen = min(max(int(values[0]), 0), len(programs) - 1)
        return programs[chosen](worker, values[1:])

    return run


def _oracle(
    *,
    name: str,
    structure: Any,
    mapped: tuple[tuple[bool, ...], ...],
    results: Sequence[tuple[tuple[int, ...], Any]],
) -> Operation:
    def ask(worker: Worker, values: Sequence[Value], levels: tuple) -> Sequence[Value]:
        if not levels:
            arguments = jax.tree.unflatten(structure, values)
            found = getattr(worker.oracles, name)(*arguments)
            return found if isinstance(found, tuple) else (found,)
        *inner, has_axis = levels
        size = next(len(value) for value, own in zip(values, has_axis, strict=True) if own)
        rows = [
            ask(
                worker,
                [value[row] if own else value for value, own in zip(values, has_axis, strict=True)],
                tuple(inner),
            )
            for row in range(size)
        ]
        own_shapes = [(shape[len(levels) :], dtype) for shape, dtype in results]
        return [
            _stack([row[place] for row in rows], each, worker.device)
            for place, each in enumerate(own_shapes)
        ]

    return lambda worker, values: ask(worker, values, mapped)


def _select(**_: Any) -> Operation:
    def run(worker: Worker, values: Sequence[Value]) -> Sequence[Value]:
        which, *cases = values
        if np.ndim(which) == 0:
            return (cases[int(which)],)
        if not any(isinstance(value, Tensor) for value in values):
            return (np.choose(which, cases),)
        chosen, *given = (_for_torch(value, worker.device) for value in values)
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


def _stack(
    values: Sequence[Value], shape: tuple[tuple[int, ...], Any], device: torch.device
) -> Value:
    """Return values as the rows of one array.

    Args:
        values: Any number of them: tensors, numbers that are not tensors, or both.
        shape: The shape and the type of each.
        device: Where tensors are.
    """
    if not values:
        return as_value(np.zeros((0, *shape[0]), shape[1]), device)
    if any(isinstance(value, Tensor) for value in values):
        return torch.stack(
            [
                value if isinstance(value, Tensor) else torch.from_numpy(np.array(value)).to(device)
                for value in values
            ]
        )
    if not isinstance(values[0], (np.ndarray, np.generic)):  # keys
        return jnp.stack(values)
    return np.stack(values)
