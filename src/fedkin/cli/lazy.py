"""A command line whose commands are loaded when they are called, so that help appears at once."""

import ast
import importlib
import inspect
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup
from typer.models import ArgumentInfo


class LazyGroup(TyperGroup):
    """A group of commands that are named by where they are defined, as `package.module:name`.

    A list of commands shows the first paragraph of their docstrings, which is read from the source. A Typer
    application is a group of its own, and is described by its module's docstring.
    """

    places: ClassVar[Mapping[str, str]] = {}
    """Where each command is defined, in the order of the list."""
    settings: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """The context settings of those commands that have any."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._waiting = set(self.places)
        for name, place in self.places.items():
            self.commands[name] = TyperCommand(name, help=first_paragraph(place))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that is called, and load it."""
        if args:
            self.load(args[0])
        return super().resolve_command(ctx, args)

    def load(self, name: str) -> None:
        """Put the command itself in the place of its entry in the list."""
        if name in self._waiting:
            self._waiting.remove(name)
            self.commands[name] = _make_command(name, self.places[name], self.settings.get(name))

    def load_all(self) -> None:
        """Load every command, for those who look into them."""
        for name in self.places:
            self.load(name)


def _make_command(name: str, place: str, settings: Mapping[str, Any] | None) -> Any:
    module, _, attribute = place.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    if isinstance(found, typer.Typer):
        made = typer.main.get_command(found)
    else:
        app = typer.Typer(add_completion=False)
        app.command(name, context_settings=dict(settings or {}))(found)
        made = typer.main.get_command(app)
    made.name = name
    _restore_help(made)
    return made


def _restore_help(command: Any) -> None:
    """Give arguments their help texts, which Typer 0.20 loses with click 8.4: click sets `help`, too."""
    for each in getattr(command, "commands", {}).values():
        _restore_help(each)
    if (function := getattr(command.callback, "__wrapped__", None)) is None:
        return
    declared = inspect.signature(function).parameters
    for parameter in command.params:
        if isinstance(parameter, TyperArgument) and parameter.help is None:
            annotation = declared[str(parameter.name)].annotation
            notes = [
                note
                for note in getattr(annotation, "__metadata__", ())
                if isinstance(note, ArgumentInfo)
            ]
            parameter.help = notes[0].help if notes else None


@cache
def first_paragraph(place: str) -> str:
    """Return what a command does: the first paragraph of its docstring, without loading it."""
    module, _, attribute = place.partition(":")
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ImportError(f"there is no module {module}")
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    functions = [
        each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == attribute
    ]
    text = ast.get_docstring(functions[0] if functions else tree) or ""
    return text.split("\n\n")[0].replace("\n", " ")
