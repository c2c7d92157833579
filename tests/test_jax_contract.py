"""The contract with JAX: what fedkin uses beyond its documented interface, and where.

A release of JAX may move any of these. The test then says which module has to change.
"""

import ast
from importlib import import_module
from pathlib import Path

import pytest

import fedkin

SOURCE = Path(fedkin.__file__).parent
BEYOND = ("jax.core", "jax.extend", "jax.interpreters", "jax.experimental", "jax._src", "jaxlib")
RELIANCES = {
    "compilation.py": {
        "jax.experimental": {"serialize_executable"},
        "jax.experimental.compilation_cache": {"compilation_cache"},
    },
    "federation/torch_program.py": {
        "jax.extend.core": {"ClosedJaxpr", "Jaxpr", "JaxprEqn", "Literal"}
    },
    "models/bilinear.py": {
        "jax.core": {"ShapedArray"},
        "jax.extend.core": {"Primitive"},
        "jax.interpreters": {"ad", "batching", "mlir"},
    },
    "models/convolutions.py": {"jax.interpreters": {"ad"}},
    "models/operations.py": {"jax.extend.core": {"ClosedJaxpr", "Jaxpr", "JaxprEqn", "primitives"}},
    "models/rewriting.py": {
        "jax.extend.core": {
            "ClosedJaxpr",
            "Jaxpr",
            "JaxprEqn",
            "Literal",
            "Primitive",
            "primitives",
        }
    },
    "nodes/foreign.py": {
        "jax.core": {"ShapedArray"},
        "jax.extend.core": {"Primitive"},
        "jax.interpreters": {"batching"},
    },
    "numerics/simplex.py": {"jax.core": {"Tracer"}},
}
USED = {
    "jax.experimental.serialize_executable": ("serialize", "deserialize_and_load"),
    "jax.experimental.compilation_cache.compilation_cache": ("reset_cache",),
    "jax.interpreters.ad": ("defbilinear",),
    "jax.interpreters.batching": ("primitive_batchers",),
    "jax.interpreters.mlir": ("register_lowering", "lower_fun"),
}
"""Attributes of modules that are used without being imported by name."""


def beyond(module):
    return any(module == each or module.startswith(f"{each}.") for each in BEYOND)


def imports(path):
    found = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and beyond(node.module):
            found.setdefault(node.module, set()).update(alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            found.update({alias.name: set() for alias in node.names if beyond(alias.name)})
    return found


def test_only_these_modules_go_beyond_the_documented_interface():
    found = {str(path.relative_to(SOURCE)): imports(path) for path in SOURCE.rglob("*.py")}
    assert {path: names for path, names in found.items() if names} == RELIANCES


@pytest.mark.parametrize("user", RELIANCES)
def test_what_they_rely_on_is_there(user):
    for module, names in RELIANCES[user].items():
        for name in names:
            try:
                loaded = import_module(module)
                there = hasattr(loaded, name) or import_module(f"{module}.{name}")
            except ImportError:
                there = False
            assert there, f"this version of JAX has no {module}.{name}, which {user} needs"


@pytest.mark.parametrize("module", USED)
def test_attributes_that_are_used_are_there(module):
    for name in USED[module]:
        assert hasattr(import_module(module), name)
        assert any(
            f"{module.rpartition('.')[2]}.{name}" in path.read_text()
            for path in SOURCE.rglob("*.py")
        )
