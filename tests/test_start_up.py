"""What is loaded when: names and commands come without the libraries that they do not need."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import fedkin
from fedkin.cli.app import Commands, app
from fedkin.cli.lazy import first_paragraph

SOURCE = Path(fedkin.__file__)
HEAVY = ("jax", "pandas", "scipy", "sklearn", "matplotlib", "flwr", "torch")


def loaded_by(program):
    """Return the heavy libraries that a program of one line has loaded at its end."""
    ending = f"; import sys; print([name for name in {HEAVY} if name in sys.modules])"
    command = [sys.executable, "-c", program + ending]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[
        -1
    ]


def test_importing_fedkin_loads_no_library():
    assert loaded_by("import fedkin") == "[]"


def test_help_loads_no_library():
    program = (
        "import contextlib, sys; sys.argv = ['fedkin', '--help']; from fedkin.cli.app import main\n"
        "with contextlib.suppress(SystemExit): main()\npass"
    )
    assert loaded_by(program) == "[]"


def test_a_fit_loads_only_the_libraries_that_it_needs():
    program = "import fedkin.cli.fit, fedkin.cli.report_summary, fedkin.report.html"
    assert loaded_by(program) == "['jax', 'pandas']"


def test_the_names_for_type_checkers_are_those_that_are_loaded():
    checked = {
        alias.name: statement.module
        for block in ast.parse(SOURCE.read_text(encoding="utf-8")).body
        if isinstance(block, ast.If)
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert checked == {name: f"fedkin.{place}" for name, place in fedkin._PLACES.items()}
    assert sorted(checked) == sorted(fedkin.__all__)


def test_every_public_name_is_there():
    for name in fedkin.__all__:
        assert getattr(fedkin, name) is not None
    assert set(fedkin.__all__) <= set(dir(fedkin))


def test_modules_are_found_as_attributes():
    assert loaded_by("import fedkin; assert fedkin.errors.InputError is fedkin.InputError") == "[]"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'fitt'"):
        fedkin.fitt  # noqa: B018


@pytest.mark.parametrize("name", Commands.places)
def test_the_list_says_what_the_loaded_command_says(name):
    group = typer.main.get_command(app)
    listed = group.commands[name].help
    group.load(name)
    loaded = group.commands[name]
    assert loaded.name == name
    assert loaded.help.split("\n\n")[0].replace("\n", " ") == listed
    assert listed.endswith(".")


def test_the_first_paragraph_is_one_line():
    text = first_paragraph("fedkin.cli.map:map_command")
    assert text.startswith("Answer every node's question at once")
    assert "\n" not in text
