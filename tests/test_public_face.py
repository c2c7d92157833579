"""The public face: everything exported is documented, and every docstring has an example that runs."""

import inspect
import pkgutil
from pathlib import Path

import pytest

import fedkin

WITHOUT_EXAMPLE = {"DivergedError", "FedkinError", "InputError", "__version__"}


@pytest.mark.parametrize("name", sorted(set(fedkin.__all__) - WITHOUT_EXAMPLE))
def test_the_docstring_has_a_runnable_example(name):
    text = inspect.getdoc(getattr(fedkin, name)) or ""
    assert ">>>" in text
    assert text.split("\n")[0].endswith(".")


def test_nothing_is_exported_by_accident():
    modules = {module.name for module in pkgutil.iter_modules(fedkin.__path__)}
    public = {name for name in dir(fedkin) if not name.startswith("_")} - modules
    assert public == set(fedkin.__all__) - {"__version__"}


def test_the_package_is_typed():
    assert (Path(fedkin.__file__).parent / "py.typed").exists()
