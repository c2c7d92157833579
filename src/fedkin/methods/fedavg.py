"""FedAvg: Local-SVRG with the same weight for every node."""

from dataclasses import dataclass
from typing import ClassVar

from fedkin.federation.base import Cost, Federation
from fedkin.federation.center import Center
from fedkin.methods.base import Info
from fedkin.methods.local_svrg.center import LocalSvrg, solve_inner
from fedkin.methods.local_svrg.node import INNER_SVRG_ROUND
from fedkin.methods.local_svrg.training import SvrgMethod, TrainingState, training_info
from fedkin.methods.step_size import SMOOTHNESS
from fedkin.methods.weights import equal_weights
from fedkin.types import Key, Vector


@dataclass(frozen=True, kw_only=True)
class FedAvg(SvrgMethod):
    """Train one model on all nodes alike. For the settings see `SvrgMethod`.

    >>> FedAvg(learning_rate=0.1, period=5).period
    5
    """

    name: ClassVar[str] = "fedavg"
    title: ClassVar[str] = "FedAvg"
    color: ClassVar[str] = "#3F98E0"
    dark_color: ClassVar[str | None] = "#6EC1F2"
    marker: ClassVar[str] = "s"
    dashes: ClassVar[tuple[float, ...]] = (5, 2)
    tasks = (INNER_SVRG_ROUND, SMOOTHNESS)
    learning_rate_place: ClassVar[tuple[str, ...]] = ("training",)

    def prepare(
        self, federation: Federation, center: Center, key: Key
    ) -> tuple["FedAvgAlgorithm", Cost]:
        """Choose step size and lengths."""
        training, cost = self.choose_training(federation, key)
        return FedAvgAlgorithm(self.with_rounds_of_an_outer_step(training, federation)), cost


@dataclass(frozen=True)
class FedAvgAlgorithm:
    """Local-SVRG with the weight 1/K for every node; a step is some rounds of it."""

    training: LocalSvrg

    def init(self, theta: Vector, nodes: int) -> TrainingState:
        """Begin at the initial model."""
        return TrainingState(theta, 0)

    def step(
        self, state: TrainingState, key: Key, federation: Federation, center: Center
    ) -> tuple[TrainingState, Info]:
        """Continue for as many rounds as the settings say."""
        node_weights = equal_weights(federation.present)
        solution = solve_inner(
            federation, node_weights, state.theta, key, self.training, begin=state.rounds == 0
        )
        info = training_info(solution, state.theta, self.training, node_weights, solution.cost)
        return state.after(solution), info
