"""Names and appearances of methods and groups, the same in every table, figure and page.

The colors are Okabe and Ito's, darkened where thin lines would be too pale on white (the contrast is at
least 3:1). They are distinct for all common kinds of color blindness. Dashes, markers and hatching
distinguish them in gray print. Groups of nodes have colors that no method has.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from fedkin.errors import InputError
from fedkin.messages import join_names
from fedkin.methods.base import Method
from fedkin.methods.registry import METHODS, method_class


@dataclass(frozen=True)
class Appearance:
    """How a method is drawn: its name on the page, its colors, marker and dashes."""

    name: str
    """For the page's style sheet: letters, digits and dashes."""
    color: str
    dark_color: str
    """For dark backgrounds."""
    marker: str
    dashes: tuple[float, ...]
    place: int
    """The method's place in tables and legends."""


UNKNOWN_COLORS = ("#7B4FC9", "#B79CF0")
"""The colors of a method that is not known here, such as one whose package is not installed."""

SIMILAR, DISSIMILAR, UNGROUPED = "similar", "dissimilar", "node"
GROUP_COLORS = {SIMILAR: "#0072B2", DISSIMILAR: "#C27C00", UNGROUPED: "#0072B2"}

VARIANT_DASHES = ((), (6, 2), (2, 1.5), (8, 2, 2, 2), (1, 2), (4, 1, 1, 1, 1, 1))
"""Variants of a method (with other parameters) share its color and differ in dashes."""


def _known(method: str) -> type[Method] | None:
    """Return the method of a name in a record; None if it is not known here."""
    try:
        return method_class(method)
    except InputError:
        return None


def method_order(method: str) -> int:
    """Return the place of a method in tables and legends."""
    known = METHODS.names()
    return known.index(method) if method in known else len(known)


def appearance(method: str, variant: int = 0) -> Appearance:
    """Return how a variant of a method is drawn; variant 0 is the method itself."""
    known = _known(method)
    name = re.sub(r"[^A-Za-z0-9]+", "-", method)
    if known is None:
        base = Appearance(name, *UNKNOWN_COLORS, Method.marker, Method.dashes, method_order(method))
    else:
        dark = known.dark_color or known.color
        base = Appearance(name, known.color, dark, known.marker, known.dashes, method_order(method))
    if variant == 0:
        return base
    return replace(base, dashes=VARIANT_DASHES[variant % len(VARIANT_DASHES)])


def palette(appearances: Iterable[Appearance]) -> str:
    """Return the part of a page's style sheet that has the colors of methods."""
    distinct = {each.name: each for each in appearances}.values()
    light = " ".join(f"--method-{each.name}: {each.color.lower()};" for each in distinct)
    dark = " ".join(f"--method-{each.name}: {each.dark_color.lower()};" for each in distinct)
    rules = "\n".join(
        f".line.method-{name}, .interval.method-{name} {{ stroke: var(--method-{name}); }} "
        f".shade.method-{name}, .dot.method-{name}, .small.method-{name} "
        f"{{ fill: var(--method-{name}); }}"
        for name in (each.name for each in distinct)
    )
    at_night = "@media screen and (prefers-color-scheme: dark)"
    return f":root {{ {light} }}\n{at_night} {{ :root {{ {dark} }} }}\n{rules}"


def group(similar: bool | None) -> str:
    """Return the name of a node's group; `similar` is None if it is unknown."""
    return UNGROUPED if similar is None else (SIMILAR if similar else DISSIMILAR)


def method_title(method: str) -> str:
    """Return a method's title; its name if it is not known here."""
    known = _known(method)
    return method if known is None else known.title


def revealing(methods: Iterable[str]) -> str:
    """Say which of some methods need single nodes' models; nothing if none does.

    >>> revealing(["bilevel", "fedavg"])
    ''
    """
    known = [found for found in map(_known, dict.fromkeys(methods)) if found is not None]
    titles = [each.title for each in known if each.reveals_models]
    if not titles:
        return ""
    need = "needs" if len(titles) == 1 else "need"
    return f"{join_names(titles, most=len(titles))} {need} single nodes' models: no secure aggregation."


def scenario_title(setting: str) -> str:
    """Return the title of a scenario: the paper's by number, others by the name of file or partition.

    >>> scenario_title("2"), scenario_title("scenarios/own.toml"), scenario_title("dirichlet alpha=0.1")
    ('setting 2', 'own', 'dirichlet alpha=0.1')
    """
    return f"setting {setting}" if setting.isdigit() else Path(setting).name.removesuffix(".toml")
