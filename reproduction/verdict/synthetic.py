"""Federations whose truth is known: ten nodes, of which 10, 4, 2, 1 or 0 are like the owner.

The owner has 20, 50, 100 or 300 rows, a node 50 to 1,000. Nodes that are not like the owner are hostile (the
opposite rule), unrelated (a rule of their own) or near (half the owner's rule). Test rows are so many that
scores on them are the truth, for the purposes here.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

SIZES = (50, 50, 100, 100, 200, 200, 300, 300, 500, 1000)
OWNER_ROWS = (20, 50, 100, 300)
KIN = (10, 4, 2, 1, 0)
KINDS = ("hostile", "unrelated", "near")
TEST_ROWS = 5000

Rows = tuple[np.ndarray, np.ndarray]
TaskName = Literal["classification", "regression"]


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

    case: Case
    nodes: dict[str, Rows]
    owner: Rows
    test: Rows
    kin: tuple[int, ...]
    other_owners: tuple[Rows, ...]
    """Fresh draws of the owner's rows."""


def cases() -> list[Case]:
    """Return all kinds of federations; with ten kin there are no others."""
    return [
        Case(rows, kin, kind)
        for rows in OWNER_ROWS
        for kin in KIN
        for kind in KINDS
        if kin < len(SIZES) or kind == KINDS[0]
    ]


def draw(
    seed: int,
    case: Case,
    *,
    features: int = 5,
    task: TaskName = "classification",
    other_owners: int = 0,
) -> Synthetic:
    """Draw a federation."""
    random = np.random.default_rng([seed, features])
    length = random.uniform(1.5, 4)
    rule = random.normal(size=features + 1)
    rule[0] *= 0.3
    rule *= length / np.linalg.norm(rule)
    shape = 0.3 * random.normal(size=(features, features)) + np.eye(features)

    def rows(of_rule: np.ndarray, count: int, shift: np.ndarray | float = 0.0) -> Rows:
        inputs = 0.8 * random.normal(size=(count, features)) @ shape + shift
        outputs = of_rule[0] + inputs @ of_rule[1:]
        if task == "regression":
            return inputs, outputs + length * random.normal(size=count)
        chance = 1 / (1 + np.exp(-np.clip(outputs, -40, 40)))
        return inputs, (random.uniform(size=count) < chance).astype(int)

    def owner(count: int) -> Rows:
        while True:
            drawn = rows(rule, count)
            if task == "regression" or 3 <= drawn[1].sum() <= count - 3:
                return drawn

    sizes = random.permutation(SIZES)
    kin = sorted(random.choice(len(SIZES), case.kin, replace=False).tolist())
    nodes = {}
    for number, size in enumerate(sizes.tolist()):
        noise = random.normal(size=features + 1) * length / np.sqrt(features)
        other = random.normal(size=features + 1)
        other *= length / np.linalg.norm(other)
        if number in kin:
            own = rule + 0.1 * noise
        else:
            own = {
                "hostile": -rule + 0.3 * noise,
                "unrelated": other,
                "near": 0.7 * rule + 0.7 * other,
            }[case.kind]
        nodes[f"node {number}"] = rows(own, size, 0.2 * random.normal(size=features))
    return Synthetic(
        case,
        nodes,
        owner(case.owner_rows),
        owner(TEST_ROWS),
        tuple(kin),
        tuple(owner(case.owner_rows) for _ in range(other_owners)),
    )
