"""Who imports what: Flower and private names in their places only, and every package declared."""

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fedkin"

FLOWER = "flower/"
FLOWER_INTERNALS = "flower/internals/"
PUBLIC_FLOWER = {"flwr.app", "flwr.clientapp", "flwr.serverapp"}
EXPERIMENTAL_JAX = {"compilation.py"}
"""Executables and the cache of compiled code have no other interface."""

DISTRIBUTIONS = {"PIL": "pillow", "mlflow": "mlflow-skinny", "sklearn": "scikit-learn"}
"""By name of import, where the name of the distribution is another."""

EXTRAS = {
    "flower": (FLOWER, "cli/federation", "federation/secure/"),
    "data": ("data/",),
    "flax": ("models/flax_modules.py",),
    "cluster": ("studies/cluster.py",),
    "mlflow": ("tracking/with_mlflow.py",),
    "onnx": ("training/onnx_export.py",),
    "privacy": ("federation/privacy.py",),
    "tensorboard": ("tracking/with_tensorboard.py",),
    "torch": ("models/torch_", "nodes/torch_", "federation/torch_", "training/onnx_export.py"),
}
"""Where the packages of an extra may be imported: code that runs only where the extra is installed."""


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield every module that a file imports, also by `import_module("…")`; `from a import b` as a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (each.value for each in node.args if isinstance(each, ast.Constant))


def all_imports() -> list[tuple[str, str]]:
    return [
        (path.relative_to(SOURCE).as_posix(), name)
        for path in sorted(SOURCE.rglob("*.py"))
        for name in imports(ast.parse(path.read_text(encoding="utf-8")))
    ]


IMPORTS = all_imports()


def within(name, modules):
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def test_flower_is_imported_in_its_folder_only():
    flower = [(file, name) for file, name in IMPORTS if within(name, ["flwr"])]
    assert len(flower) > 20
    assert [each for each in flower if not each[0].startswith(FLOWER)] == []


def test_flowers_internals_are_imported_in_one_package_only():
    private = [
        (file, name)
        for file, name in IMPORTS
        if within(name, ["flwr"]) and not within(name, PUBLIC_FLOWER)
    ]
    assert len(private) > 20
    assert [each for each in private if not each[0].startswith(FLOWER_INTERNALS)] == []


def test_what_is_imported_from_flowers_public_modules_is_public():
    pytest.importorskip("flwr", reason="needs the extra flower")
    from importlib import import_module

    for file, name in IMPORTS:
        if within(name, PUBLIC_FLOWER):
            module, _, member = name.rpartition(".")
            assert module in PUBLIC_FLOWER, f"{file}: {name}"
            assert member in import_module(module).__all__, f"{file}: {name}"


def test_nothing_private_of_jax_is_imported_and_experiments_in_one_file_only():
    assert [each for each in IMPORTS if within(each[1], ["jax._src"])] == []
    experimental = {file for file, name in IMPORTS if within(name, ["jax.experimental"])}
    assert experimental == EXPERIMENTAL_JAX


def normalized(requirement):
    name = requirement
    for sign in "[<>=!~; ":
        name = name.partition(sign)[0]
    return name.lower().replace("_", "-")


def declared():
    """The names of the declared packages: the dependencies, and those of each extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    return set(map(normalized, project["dependencies"])), {
        extra: set(map(normalized, packages)) for extra, packages in extras.items()
    }


def undeclared(imported):
    """Return who imports a package that is not declared for it."""
    base, extras = declared()
    faults = []
    for file, name in imported:
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top in ("fedkin", "fedkin_start"):
            continue
        allowed = base.union(
            *(extras.get(extra, ()) for extra, places in EXTRAS.items() if file.startswith(places))
        )
        if normalized(DISTRIBUTIONS.get(top, top)) not in allowed:
            faults.append(f"{file} imports {top}: declare it in pyproject.toml")
    return faults


def test_every_imported_package_is_declared():
    assert undeclared(IMPORTS) == []


def test_a_package_that_is_not_declared_is_found():
    assert undeclared([("report/html.py", "flask.app"), ("data/images.py", "PIL.Image")]) == [
        "report/html.py imports flask: declare it in pyproject.toml"
    ]
    assert undeclared([("report/html.py", "psutil"), ("flower/worker.py", "psutil")]) == [
        "report/html.py imports psutil: declare it in pyproject.toml"
    ]


def test_the_packages_that_the_commands_ask_for_are_those_of_the_extra():
    from fedkin.flower.certificates import REQUIRED_PACKAGES

    _, extras = declared()
    assert {normalized(name) for name in REQUIRED_PACKAGES} == extras["flower"]


def test_lower_bounds_fit_the_versions_that_are_tested():
    from packaging.requirements import Requirement

    pins = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if "==" in line and not line.startswith("#"):
            name, _, pinned = line.partition("==")
            pins[normalized(name)] = pinned.strip()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *(each for extra in extras for each in extra)]
    for requirement in map(Requirement, wanted):
        pinned = pins.get(normalized(requirement.name))
        if pinned is not None:
            assert requirement.specifier.contains(pinned), f"{requirement} against {pinned}"
