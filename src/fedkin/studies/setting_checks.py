"""Parameters of methods in a study's file: those that no method has are refused."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedkin.errors import InputError
from fedkin.messages import suggestion
from fedkin.methods.registry import METHODS, method_class


def setting_names(methods: Iterable[str]) -> tuple[str, ...]:
    """Return the names of all settings that some methods have."""
    return tuple(dict.fromkeys(n for name in methods for n in method_class(name).setting_names()))


def check_settings(source: str, place: str, given: Mapping[str, Any], method: str) -> None:
    """Refuse parameters that a method does not have."""
    own, others = method_class(method).setting_names(), setting_names(METHODS.names())
    for name in given:
        if name not in own and name in others:
            raise InputError(f"{source}: {place}.{name} is not a parameter of that method")
        if name not in own:
            raise InputError(f"{source}: unknown key {place}.{name}{suggestion(name, own)}")


def check_common_setting(methods: Sequence[str], source: str, name: str) -> None:
    """Refuse a parameter that none of a study's methods has."""
    if name in setting_names(methods):
        return
    owners = [each for each in METHODS.names() if name in method_class(each).setting_names()]
    if owners:
        raise InputError(
            f"{source}: settings.{name} is of no use here: it is a parameter of {', '.join(owners)}"
        )
    known = setting_names(METHODS.names())
    raise InputError(f"{source}: unknown key settings.{name}{suggestion(name, known)}")
