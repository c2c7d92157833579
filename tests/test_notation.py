"""Every code name in docs/notation.md is a name of the package."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import fedkin

PACKAGE = Path(fedkin.__file__).parent
PAGE = Path(__file__).parent.parent / "docs" / "notation.md"


def trees() -> Iterator[ast.Module]:
    for path in PACKAGE.rglob("*.py"):
        yield ast.parse(path.read_text(encoding="utf-8"))


@cache
def members() -> dict[str, set[str]]:
    """Return the attributes and methods that each class defines or inherits, by the class's name."""
    own: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                names = {
                    target.id
                    for item in node.body
                    for target in getattr(item, "targets", [getattr(item, "target", None)])
                    if isinstance(target, ast.Name)
                }
                names |= {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
                own.setdefault(node.name, set()).update(names)
                inherited = {base.id for base in node.bases if isinstance(base, ast.Name)}
                bases.setdefault(node.name, set()).update(inherited)

    def all_members(name: str) -> set[str]:
        return own.get(name, set()).union(*(all_members(base) for base in bases.get(name, ())))

    return {name: all_members(name) for name in own}


@cache
def identifiers() -> set[str]:
    """Return every name that the package gives to a function, argument, variable, task or column."""
    found: set[str] = set()
    for tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                found.add(node.name)
            elif isinstance(node, ast.arg):
                found.add(node.arg)
            elif isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return found


def documented() -> list[str]:
    """Return the names in the column `code` of every table."""
    names, column = [], None
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if "code" in cells:
            column = cells.index("code")
        elif line.startswith("|") and column is not None:
            for code in re.findall(r"`([^`]+)`", cells[column]):
                names += re.findall(r"[A-Za-z_][\w.]*", code)
    return [name for name in names if name != "len"]


def exists(name: str) -> bool:
    first, *rest = name.split(".")
    if first in members():
        return not rest or (len(rest) == 1 and rest[0] in members()[first])
    return all(part in identifiers() for part in (first, *rest))


def test_every_documented_name_exists():
    names = documented()
    assert len(names) > 50
    assert [name for name in names if not exists(name)] == []


@pytest.mark.parametrize(
    "name", ["Objective.sise", "NoSuchClass", "no_such_function", "federation.no_such_name"]
)
def test_a_wrong_name_is_found(name):
    assert not exists(name)
