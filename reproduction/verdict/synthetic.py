"""Federations whose truth is known: ten nodes, of which 10, 4, 2, 1 or 0 are like the owner.

The owner has 20, 50, 100 or 300 rows, a node 50 to 1,000; there are 5 to 20 features, and the classes may be
unbalanced. Nodes that are not like the owner are near (a rule that correlates 0.7 with the owner's), hostile
(the opposite rule) or unrelated (another rule). Test rows are so many that scores on them are the truth, for
the purposes here.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

SIZES = (50, 50, 100, 100, 200, 200, 300, 300, 500, 1000)
OWNER_ROWS = (20, 50, 100, 300)
TEST_ROWS = 5000
FEATURES = (5, 20)
"""The fewest and the most features."""

Rows = tuple[np.ndarray, np.ndarray]
TaskName = Literal["classification", "regression"]
MixName = Literal["common", "misleading"]

MIXES: dict[MixName, tuple[tuple[int, str], ...]] = {
    "common": ((10, "near"), (4, "near"), (2, "near"), (1, "near"), (0, "near"), (0, "hostile")),
    "misleading": (
        (4, "hostile"),
        (2, "hostile"),
        (1, "hostile"),
        (4, "unrelated"),
        (2, "unrelated"),
        (1, "unrelated"),
        (0, "unrelated"),
    ),
}
"""How many nodes are like the owner, and what the others are. `common`: either most nodes are of some use, or
all contradict the owner. `misleading`: few nodes are of use, and the others do harm."""


class Case(NamedTuple):
    """What kind of federation it is."""

    owner_rows: int
    kin: int
    kind: str
    """What the other nodes are."""

    @property
    def is_hostile(self) -> bool:
        """Whether every node contradicts the owner."""
        return self.kin == 0 and self.kind == "hostile"


@dataclass(frozen=True)
class Synthetic:
    """A federation, and more rows of its owner."""

    nodes: dict[str, Rows]
    owner: Rows
    test: Rows
    other_owners: tuple[Rows, ...]
    """Fresh draws of the owner's rows."""


def cases(mix: MixName) -> list[Case]:
    """Return all kinds of federations of a mix."""
    return [Case(rows, *kind) for rows in OWNER_ROWS for kind in MIXES[mix]]


def draw(
    seed: int, case: Case, *, task: TaskName = "classification", other_owners: int = 0
) -> Synthetic:
    """Draw a federation."""
    random = np.random.default_rng(seed)
    features = int(random.integers(FEATURES[0], FEATURES[1] + 1))
    length = random.uniform(1.5, 4)
    rule = _direction(random, features) * length
    intercept = random.normal()
    shape = 0.3 * random.normal(size=(features, features)) / np.sqrt(features / 10)
    shape = 0.8 * (shape + np.eye(features))

    def rows(slopes: np.ndarray, at_zero: float, count: int, shift: np.ndarray | float) -> Rows:
        inputs = random.normal(size=(count, features)) @ shape + shift
        outputs = at_zero + inputs @ slopes
        if task == "regression":
            return inputs, outputs + length * random.normal(size=count)
        chance = 1 / (1 + np.exp(-np.clip(outputs, -40, 40)))
        return inputs, (random.uniform(size=count) < chance).astype(int)

    def owner(count: int) -> Rows:
        while True:
            drawn = rows(rule, intercept, count, 0.0)
            if task == "regression" or 3 <= drawn[1].sum() <= count - 3:
                return drawn

    kin = random.choice(len(SIZES), case.kin, replace=False).tolist()
    nodes = {}
    for number, size in enumerate(random.permutation(SIZES).tolist()):
        kind = "kin" if number in kin else case.kind
        other = _direction(random, features) * length
        slopes = {
            "kin": rule + 0.1 * other,
            "near": 0.7 * rule + 0.7 * other,
            "hostile": -rule + 0.3 * other,
            "unrelated": other,
        }[kind]
        at_zero = -intercept if kind == "hostile" else intercept
        at_zero += (0.1 if kind == "kin" else 0.5) * random.normal()
        nodes[f"node {number}"] = rows(slopes, at_zero, size, 0.2 * random.normal(size=features))
    return Synthetic(
        nodes,
        owner(case.owner_rows),
        owner(TEST_ROWS),
        tuple(owner(case.owner_rows) for _ in range(other_owners)),
    )


def _direction(random: np.random.Generator, features: int) -> np.ndarray:
    drawn = random.normal(size=features)
    return drawn / np.linalg.norm(drawn)
