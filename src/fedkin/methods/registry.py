"""All known methods. To add one of fedkin's own, add it to the list below."""

from collections.abc import Mapping
from typing import Any, TypeVar

from fedkin.errors import InputError
from fedkin.federation.task import Task, slots_of
from fedkin.methods.apfl.center import Apfl
from fedkin.methods.apple.center import Apple
from fedkin.methods.base import Method
from fedkin.methods.bilevel.method import Bilevel
from fedkin.methods.cobo.center import CoBo
from fedkin.methods.ditto.center import Ditto
from fedkin.methods.fedala.center import FedAla
from fedkin.methods.fedamp.center import FedAmp
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.fedfomo.center import FedFomo
from fedkin.methods.finetune.center import FineTuning
from fedkin.methods.ifca.center import Ifca
from fedkin.methods.local import LocalTraining
from fedkin.methods.pfedgraph.center import PFedGraph
from fedkin.methods.pfedme.center import PFedMe
from fedkin.methods.robust.center import Krum, Median, TrimmedMean
from fedkin.methods.tawt.center import Tawt
from fedkin.registry import Registry

METHODS: Registry[type[Method]] = Registry("method", "fedkin.methods")
"""All known methods, in the order of tables and legends."""

PAPER_METHODS = ("bilevel", "fedavg", "local", "ditto", "pfedme")
"""The five methods that the paper compares."""


MethodClass = TypeVar("MethodClass", bound=type[Method])


def register(method: MethodClass) -> MethodClass:
    """Make a method known by its name to `fit`, studies, reports and the command line.

    May be used as a decorator. Other processes do not see it: for them, name the method as
    `package.module:Class`, or declare an entry point in the group `fedkin.methods`.

    >>> from fedkin.methods.fedavg import FedAvg
    >>> register(FedAvg).title
    'FedAvg'
    """
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise InputError(f"a method is a class that derives from fedkin.Method, not {method!r}")
    _refuse_clashes(method)
    METHODS.add(method.name, method)
    return method


def _refuse_clashes(method: type[Method]) -> None:
    """Refuse a task or slot whose name already stands for another: nodes know them by name."""
    for known in METHODS.registered():
        if known.name == method.name:
            continue
        tasks = {task.name: task for task in known.tasks}
        slots = slots_of(known.tasks)
        for task in method.tasks:
            if tasks.get(task.name, task) is not task:
                raise InputError(
                    f"{method.name} and {known.name} both have a task called {task.name!r}: rename one"
                )
        for name, slot in slots_of(method.tasks).items():
            if slots.get(name, slot) is not slot:
                raise InputError(
                    f"{method.name} and {known.name} both have a slot called {name!r}: rename one"
                )


for own in (
    Bilevel,
    FedAvg,
    FineTuning,
    Tawt,
    Ifca,
    FedFomo,
    FedAmp,
    PFedGraph,
    Apfl,
    FedAla,
    Apple,
    CoBo,
    Median,
    TrimmedMean,
    Krum,
    Ditto,
    PFedMe,
    LocalTraining,
):
    register(own)


def method_class(name: str) -> type[Method]:
    """Return the method that a name stands for."""
    found = METHODS.get(name)
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise InputError(f"method={name!r} is not a class that derives from fedkin.Method")
    return found


def make_method(method: str | Method, settings: Mapping[str, Any] | None = None) -> Method:
    """Return a method from its name and settings, or as it is.

    >>> make_method("fedavg", {"period": 5}).period
    5
    """
    given = {name: value for name, value in (settings or {}).items() if value is not None}
    if isinstance(method, str):
        return method_class(method).from_settings(given)
    if not isinstance(method, Method):
        raise InputError(
            f"method must be a name ({', '.join(METHODS.names())}) or an object such as "
            f"fedkin.Bilevel(cap=0.5), not {method!r}"
        )
    if given:
        name = next(iter(given))
        raise InputError(
            f"{name} is a setting of the method: give it to the object, {type(method).__name__}"
            f"({name}=…)"
        )
    return method


def known_tasks() -> dict[str, Task]:
    """Return the tasks of all known methods by name."""
    return {task.name: task for method in METHODS.all() for task in method.tasks}
