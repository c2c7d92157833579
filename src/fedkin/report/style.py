"""Names and appearances of methods and groups, the same in every table, figure and page.

The colors are Okabe and Ito's, darkened where thin lines would be too pale on white (the contrast is at
least 3:1). They are distinct for all common kinds of color blindness. Dashes, markers and hatching
distinguish them in gray print. Groups of nodes have colors that no method has.
"""

from dataclasses import dataclass
from pathlib import Path

METHODS = {
    "bilevel": "Bi-level",
    "fedavg": "FedAvg",
    "ditto": "Ditto",
    "pfedme": "pFedMe",
    "local": "Local-train",
}
"""Titles of methods by their names in configs, in the order of tables and legends."""


@dataclass(frozen=True)
class Appearance:
    """How a method is drawn: its number in the page's palette, color, marker and dashes."""

    number: int
    color: str
    marker: str
    dashes: tuple[float, ...]


APPEARANCES = {
    "bilevel": Appearance(0, "#D55E00", "o", ()),
    "fedavg": Appearance(1, "#3F98E0", "s", (5, 2)),
    "ditto": Appearance(2, "#007F5C", "^", (3, 1.5)),
    "pfedme": Appearance(3, "#C2639A", "D", (7, 2, 1.5, 2)),
    "local": Appearance(4, "#3A3A3A", "x", (3, 3)),
}
OTHER = Appearance(5, "#7B4FC9", "v", (9, 3))

SIMILAR, DISSIMILAR, UNGROUPED = "similar", "dissimilar", "node"
GROUP_COLORS = {SIMILAR: "#0072B2", DISSIMILAR: "#C27C00", UNGROUPED: "#0072B2"}

VARIANT_DASHES = ((), (6, 2), (2, 1.5), (8, 2, 2, 2), (1, 2), (4, 1, 1, 1, 1, 1))
"""Variants of a method (with other parameters) share its color and differ in dashes."""


def appearance(method: str, variant: int = 0) -> Appearance:
    """Return how a variant of a method is drawn; variant 0 is the method itself."""
    base = APPEARANCES.get(method, OTHER)
    if variant == 0:
        return base
    dashes = VARIANT_DASHES[variant % len(VARIANT_DASHES)]
    return Appearance(base.number, base.color, base.marker, dashes)


def group(similar: bool | None) -> str:
    """Return the name of a node's group; `similar` is None if it is unknown."""
    return UNGROUPED if similar is None else (SIMILAR if similar else DISSIMILAR)


def method_title(method: str) -> str:
    """Return a method's title."""
    return METHODS.get(method, method)


def scenario_title(setting: str) -> str:
    """Return the title of a scenario: the paper's by number, a user's by the name of its file.

    >>> scenario_title("2"), scenario_title("scenarios/own.toml")
    ('setting 2', 'own')
    """
    return f"setting {setting}" if setting.isdigit() else Path(setting).stem
