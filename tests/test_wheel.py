"""What is installed is the library: the laboratory of this repository is not part of it."""

import ast
import subprocess
import sys
import tarfile
import zipfile
from importlib.util import module_from_spec, spec_from_file_location
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


@pytest.fixture(scope="module")
def release():
    spec = spec_from_file_location("release", ROOT / "scripts" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def distributions(release, tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    (out / "other-1.0-py3-none-any.whl").write_text("")  # of whoever uses the directory too
    return release.build(out)


def test_neither_distribution_has_data_tests_or_results(release, distributions, tmp_path):
    release.check_content(*distributions)
    with tarfile.open(distributions[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"src/fedkin/__init__.py", "src/fedkin_start.py", "README.md", "CHANGELOG.md"} <= names
    stray = tmp_path / "stray.whl"
    stray.write_bytes(distributions[0].read_bytes())
    with zipfile.ZipFile(stray, "a") as archive:
        archive.writestr("fedkin/patients.csv", "age\n51\n")
    with pytest.raises(release.ReleaseError, match=r"fedkin/patients\.csv"):
        release.check_content(stray, distributions[1])


def test_an_index_would_take_both_distributions(release, distributions):
    pytest.importorskip("twine", reason="needs the extra release")
    release.check_metadata(*distributions)


def test_version_changelog_and_citation_must_agree(release, tmp_path):
    (tmp_path / "src" / "fedkin").mkdir(parents=True)
    texts = {
        "src/fedkin/version.py": '__version__ = "1.2.3"\n',
        "CHANGELOG.md": "# Changelog\n\n## 1.2.3 (2026-11-19)\n",
        "CITATION.cff": "version: 1.2.3\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    assert release.check_version(tmp_path) == "1.2.3"
    for name, old, new, words in (
        ("CITATION.cff", "1.2.3", "1.2.4", "differ"),
        ("CHANGELOG.md", "1.2.3 (2026-11-19)", "Unreleased", "CHANGELOG.md names no released"),
        ("src/fedkin/version.py", "1.2.3", "1.2.3.dev0", "version.py names no released"),
    ):
        (tmp_path / name).write_text(texts[name].replace(old, new))
        with pytest.raises(release.ReleaseError, match=words):
            release.check_version(tmp_path)
        (tmp_path / name).write_text(texts[name])


def test_a_tree_with_changes_is_not_released(release, tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    release.check_tree(tmp_path)
    (tmp_path / "new.py").write_text("")
    with pytest.raises(release.ReleaseError, match=r"commit these first:\n\?\? new.py"):
        release.check_tree(tmp_path)


@pytest.mark.slow
def test_the_wheel_runs_the_demo_in_a_bare_environment(release, distributions):
    shown = release.try_in_bare_environment(distributions[0], constraints=ROOT / "constraints.txt")
    assert "report: " in shown
    assert "bilevel" in shown.lower() or "Bi-level" in shown
