"""What Ditto and pFedMe share: K nodes train one model, and node 0, the center, makes it its own.

The shared model is a plain average: every node has the weight 1/K, and these are the weights that the
two methods report. Node 0 works at the same time as the nodes and sends nothing: its points are
counted as those of one more node.
"""

from dataclasses import replace
from typing import NamedTuple

from fedkin.errors import InputError
from fedkin.federation.base import Cost
from fedkin.types import Vector


class PersonalizedState(NamedTuple):
    """State of Ditto and pFedMe; node 0's personal model is kept by node 0."""

    shared: Vector
    """The shared model w."""
    rounds: int
    """Synchronizations so far."""


def beside(cost: Cost, own: Cost) -> Cost:
    """Return the cost of a synchronization during which the center has worked on its own data."""
    return replace(cost, node_points=cost.node_points + own.node_points)


def check_pull(learning_rate: float, proximal: float) -> None:
    """Refuse a pull toward the shared model that would carry a step of γ beyond it."""
    if not learning_rate * proximal < 1:
        raise InputError(
            f"learning_rate times proximal must be below 1, not {learning_rate:g} x {proximal:g} = "
            f"{learning_rate * proximal:g}: choose a smaller learning_rate (below {1 / proximal:.3g}) or a "
            f"smaller proximal (below {1 / learning_rate:.3g})"
        )
