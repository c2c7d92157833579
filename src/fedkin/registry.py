"""Things that users name: methods, solvers, models. Other packages may add their own."""

import importlib
import logging
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from fedkin.errors import InputError
from fedkin.messages import suggestion

Thing = TypeVar("Thing")

logger = logging.getLogger(__name__)


class Registry(Generic[Thing]):
    """Things by name: fedkin's own, those of installed packages, and those registered at run time.

    A name of the form `package.module:Name` stands for that object, wherever it is defined, if it can be
    imported. Files that are read by other processes (studies, nodes) should use such names, or a package
    that declares an entry point.

    Args:
        kind: What the things are called in messages, such as `method`.
        group: The entry-point group by which other packages add things.
    """

    def __init__(self, kind: str, group: str) -> None:
        self._kind = kind
        self._group = group
        self._things: dict[str, Thing] = {}

    def add(self, name: str, thing: Thing) -> None:
        """Make a thing known; the same name may not stand for two things."""
        known = self._things.setdefault(name, thing)
        if known is not thing and _place(known) != _place(thing):
            raise InputError(f"there are two {self._kind}s called {name!r}: rename one of them")
        self._things[name] = thing

    def names(self) -> tuple[str, ...]:
        """Return all names, fedkin's own first."""
        return tuple(dict.fromkeys([*self._things, *_declared(self._group)]))

    def get(self, name: str) -> Thing:
        """Return what a name stands for.

        Raises:
            InputError: If there is no such thing; the message suggests a name.
        """
        if name in self._things:
            return self._things[name]
        declared = _declared(self._group)
        if name in declared:
            self._things[name] = self._load(declared[name])
            return self._things[name]
        if ":" in name:
            return self._import(name)
        raise InputError(f"{self._kind}={name!r} is unknown{suggestion(name, self.names())}")

    def registered(self) -> list[Thing]:
        """Return the things that were added in this process, without loading those of other packages."""
        return list(self._things.values())

    def all(self) -> list[Thing]:
        """Return all things that have a name; one that another package fails to load is left out."""
        found = []
        for name in self.names():
            try:
                found.append(self.get(name))
            except InputError as error:
                logger.warning("%s", error)
        return found

    def _load(self, point: EntryPoint) -> Thing:
        try:
            return point.load()
        except Exception as error:
            package = point.dist.name if point.dist is not None else point.module
            raise InputError(
                f"the {self._kind} {point.name!r} of the package {package} cannot be loaded ({error}): "
                "mend or remove that package"
            ) from error

    def _import(self, path: str) -> Thing:
        module, _, name = path.partition(":")
        try:
            return getattr(importlib.import_module(module), name)
        except ImportError as error:
            remedy = "install its package, or add its directory to PYTHONPATH"
            if error.name == "torch":
                remedy = "install PyTorch, for example with pip install 'fedkin[torch]'"
            raise InputError(
                f"{self._kind}={path!r}: the module {module} cannot be imported ({error}): {remedy}"
            ) from error
        except AttributeError as error:
            raise InputError(f"{self._kind}={path!r}: {module} has no {name}") from error


@cache
def _declared(group: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=group)}


def _place(thing: object) -> tuple[str, str]:
    """Return where a thing was defined: a module that is loaded again defines the same things."""
    return getattr(thing, "__module__", ""), getattr(thing, "__qualname__", repr(thing))
