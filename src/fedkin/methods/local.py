"""Local training: the owner's own data alone."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from fedkin.federation.base import Cost, Federation
from fedkin.federation.center import Center
from fedkin.methods.base import Info
from fedkin.methods.local_svrg.center import LocalSvrg, solve_inner
from fedkin.methods.local_svrg.node import INNER_SVRG_ROUND
from fedkin.methods.local_svrg.training import SvrgMethod, TrainingState, training_info
from fedkin.methods.step_size import SMOOTHNESS
from fedkin.types import Key, Vector


@dataclass(frozen=True, kw_only=True)
class LocalTraining(SvrgMethod):
    """Train on the owner's validation data alone. For the settings see `SvrgMethod`.

    >>> LocalTraining.paper().default_steps
    20
    """

    name: ClassVar[str] = "local"
    title: ClassVar[str] = "Local-train"
    color: ClassVar[str] = "#3A3A3A"
    dark_color: ClassVar[str | None] = "#D0D0D0"
    marker: ClassVar[str] = "x"
    dashes: ClassVar[tuple[float, ...]] = (3, 3)
    tasks = (INNER_SVRG_ROUND, SMOOTHNESS)
    learning_rate_place: ClassVar[tuple[str, ...]] = ("training",)

    def prepare(
        self, federation: Federation, center: Center, key: Key
    ) -> tuple["LocalAlgorithm", Cost]:
        """Choose step size and lengths; nobody is asked."""
        training, _ = self.choose_training(center.alone, key)
        return LocalAlgorithm(self.with_rounds_of_an_outer_step(training, federation)), Cost()


@dataclass(frozen=True)
class LocalAlgorithm:
    """SVRG on the owner's own data D_0: nobody is asked, nothing is sent."""

    training: LocalSvrg

    def init(self, theta: Vector, nodes: int) -> TrainingState:
        """Begin at the initial model."""
        return TrainingState(theta, 0)

    def step(
        self, state: TrainingState, key: Key, federation: Federation, center: Center
    ) -> tuple[TrainingState, Info]:
        """Continue for as many rounds as the settings say."""
        solution = solve_inner(
            center.alone, jnp.ones(1), state.theta, key, self.training, begin=state.rounds == 0
        )
        cost = Cost(node_points=solution.cost.node_points)
        info = training_info(solution, state.theta, self.training, None, cost, solution.rounds)
        return state.after(solution), info
