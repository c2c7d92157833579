"""What Ditto and pFedMe share: K nodes train one model, and the center, node 0, personalizes it.

The shared model is a plain average: every node has the weight 1/K, and these are the weights that the
two methods report. Node 0 works at the same time as the nodes and sends nothing: its points are
counted as those of one more node.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from fedkin.errors import InputError
from fedkin.federation.base import Cost, Federation
from fedkin.federation.center import Center
from fedkin.methods.base import Keep, TrainedMethod
from fedkin.methods.local_svrg.training import SMOOTHNESS_MARGIN, paper_rounds_of_an_outer_step
from fedkin.methods.settings import positive
from fedkin.methods.step_size import largest_curvature
from fedkin.models.objective import Objective
from fedkin.types import Key, Vector

LARGEST_PULL = 0.75
"""An open step size γ keeps γλ at this or below: the largest product on the paper's grids, 0.05 x 15."""


class PersonalizedState(NamedTuple):
    """State of pFedMe, whose personal model begins at the shared one in every step."""

    shared: Vector
    """The shared model w."""
    rounds: int
    """Synchronizations so far."""


class Lengths(NamedTuple):
    """What is chosen for both methods alike."""

    learning_rate: float
    period: int
    rounds: int
    proximal: float


@dataclass(frozen=True, kw_only=True)
class PersonalizedMethod(TrainedMethod):
    """A method that pulls a personal model toward a shared one.

    Args:
        proximal: The strength λ of the pull toward the shared model.
    """

    default_proximal: ClassVar[float]
    proximal: float | None = positive()

    @property
    def chosen_proximal(self) -> float:
        """The strength of the pull."""
        return self.proximal or self.default_proximal

    def check(self, nodes: int) -> None:
        """Refuse a pull that is too strong for the step size."""
        if self.learning_rate is not None:
            check_pull(self.learning_rate, self.chosen_proximal)

    def default_keep(self, objective: Objective) -> Keep:
        """The best: these methods hover around their limit."""
        return "best"

    def choose(self, federation: Federation, center: Center, key: Key) -> tuple[Lengths, Cost]:
        """Choose step size and lengths.

        An open step size suits the nodes, the center's own data, and the pull, which adds λ to the
        curvature.
        """
        cost = Cost()
        objective, proximal = federation.objective, self.chosen_proximal
        learning_rate = self.learning_rate
        if learning_rate is None and self.is_convex(objective):
            curvature, cost = largest_curvature(federation, key)
            curvature = max(curvature, largest_curvature(center.alone, key)[0])
            learning_rate = 1 / (SMOOTHNESS_MARGIN * (curvature + proximal))
        elif learning_rate is None:
            learning_rate = min(self.usual_learning_rate, LARGEST_PULL / proximal)
        period, rounds = self.chosen_period(objective), self.chosen_rounds(objective)
        if self.preset == "paper" and self.rounds is None:
            rounds = paper_rounds_of_an_outer_step(federation, period)
        return Lengths(learning_rate, period, rounds, proximal), cost


def with_center(cost: Cost, own: Cost) -> Cost:
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
