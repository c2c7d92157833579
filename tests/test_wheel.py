"""What is installed is the library: the laboratory of this repository is not part of it."""

import ast
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedkin.cli.app import Commands, app

ROOT = Path(__file__).parents[1]
LABORATORY = ("reproduction", "benchmarks", "bench", "claims", "results", "evidence")
"""Folders and modules that the wheel must not have."""


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """Build the wheel, without a network, and list its files."""
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", out]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return [Path(name) for name in archive.namelist()]


def test_the_wheel_has_the_package_and_nothing_else(names):
    (information,) = {path.parts[0] for path in names} - {"fedkin", "fedkin_start.py"}
    assert information.endswith(".dist-info")
    package = ROOT / "src" / "fedkin"
    sources = {
        path.relative_to(ROOT / "src")
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {path for path in names if path.parts[0] == "fedkin"} == sources


def test_the_wheel_has_no_laboratory(names):
    found = [path for path in names if {*path.parts, path.stem} & set(LABORATORY)]
    assert found == []
    tables = [path for path in names if path.suffix in (".csv", ".gz", ".jinja", ".md")]
    assert tables == []  # neither the paper's table, nor collected results, nor the page's template


def test_the_command_line_has_no_laboratory():
    answer = CliRunner().invoke(app, ["--help"])
    assert answer.exit_code == 0
    listed = set(Commands.places)
    assert all(f" {name} " in answer.stdout for name in listed)
    assert {"demo", "fit", "run", "reproduce", "report"} <= listed
    assert not listed & {"bench", "compare", "theory"}


def test_nothing_in_the_package_imports_the_laboratory():
    imported = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.split(".")[0])
    assert {"jax", "fedkin"} <= imported
    assert not imported & {"reproduction", "benchmarks"}
