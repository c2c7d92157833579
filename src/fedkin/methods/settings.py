"""Settings of methods and solvers: fields of frozen dataclasses that check themselves.

`None` leaves a setting open: it is then chosen from the data, or taken from the preset.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Self

import numpy as np

from fedkin.errors import InputError
from fedkin.messages import suggestion

Check = Callable[[str, Any], Any]
"""Takes a setting's name and value; returns the value in its proper type, or raises `InputError`."""


def positive(default: float | None = None) -> Any:
    """Declare a setting that is a positive number."""
    return field(default=default, metadata={"check": _positive})


def from_zero(default: float | None = None) -> Any:
    """Declare a setting that is zero or a positive number."""
    return field(default=default, metadata={"check": _from_zero})


def count(default: int | None = None, *, least: int = 1) -> Any:
    """Declare a setting that is a whole number from 1 on, or from another least one."""
    return field(default=default, metadata={"check": partial(whole_number, least=least)})


def share(default: float | None = None) -> Any:
    """Declare a setting that is above 0 and at most 1."""
    return field(default=default, metadata={"check": _share})


def flag(default: bool | None = None) -> Any:
    """Declare a setting that is true or false."""
    return field(default=default, metadata={"check": _flag})


def choice(default: str | None, *names: str) -> Any:
    """Declare a setting that is one of some names."""

    def check(name: str, value: Any) -> str:
        if value not in names:
            raise InputError(f"{name}={value!r} is unknown{suggestion(str(value), names)}")
        return value

    return field(default=default, metadata={"check": check})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A frozen dataclass whose fields are settings."""

    def __post_init__(self) -> None:
        for each in fields(self):
            check: Check | None = each.metadata.get("check")
            value = getattr(self, each.name)
            if check is not None and value is not None:
                object.__setattr__(self, each.name, check(each.name, value))

    @classmethod
    def setting_names(cls) -> tuple[str, ...]:
        """Return the names of all settings, as they are written in files and keywords."""
        return tuple(each.name for each in fields(cls))

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Make the object that some settings describe, as they are written in files and keywords."""
        return cls(**settings)

    def typed_settings(self, names: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of these names, each in its proper type."""
        return {name: getattr(self, name) for name in names}


def _number(value: Any) -> float | None:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.number)):
        return None
    return float(value)


def _positive(name: str, value: Any) -> float:
    number = _number(value)
    if number is None or not 0 < number < math.inf:
        raise InputError(f"{name} must be a positive number, not {value!r}")
    return number


def _from_zero(name: str, value: Any) -> float:
    number = _number(value)
    if number is None or not 0 <= number < math.inf:
        raise InputError(f"{name} must be zero or a positive number, not {value!r}")
    return number


def _share(name: str, value: Any) -> float:
    number = _number(value)
    if number is None or not 0 < number <= 1:
        raise InputError(f"{name} must be a number above 0 and at most 1, not {value!r}")
    return number


LARGEST_SEED = 2**32 - 1
"""Random numbers are drawn from 32 bits of the seed: a larger one would repeat a smaller one."""


def check_seed(seed: Any) -> int:
    """Return a seed as a plain integer."""
    seed = whole_number("seed", seed, least=0)
    if seed > LARGEST_SEED:
        raise InputError(f"seed must be at most {LARGEST_SEED} (2^32 - 1), not {seed}")
    return seed


def whole_number(name: str, value: Any, least: int = 1) -> int:
    """Return a setting that counts something, as a plain integer."""
    is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_whole or value < least:
        raise InputError(f"{name} must be a whole number from {least} on, not {value!r}")
    return int(value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise InputError(f"{name} must be true or false, not {value!r}")
    return bool(value)
