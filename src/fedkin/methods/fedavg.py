"""The two methods that only train: on all nodes alike, and on the center's own data."""

from dataclasses import dataclass

import jax.numpy as jnp

from fedkin.federation.base import Cost, Federation
from fedkin.federation.center import Center
from fedkin.methods.base import Info, TrainingState
from fedkin.methods.local_svrg.center import LocalSvrg, SvrgSolution, solve_inner
from fedkin.methods.weights import equal_weights
from fedkin.types import Array, Key, Vector


@dataclass(frozen=True)
class FedAvg:
    """Local-SVRG with the same weight 1/K for every node; a step is some rounds of it."""

    settings: LocalSvrg

    def init(self, theta: Vector, nodes: int) -> TrainingState:
        """Begin at the initial model."""
        return TrainingState(theta, 0)

    def step(
        self, state: TrainingState, key: Key, federation: Federation, center: Center
    ) -> tuple[TrainingState, Info]:
        """Go on for as many rounds as the settings say."""
        node_weights = equal_weights(federation.present)
        solution = solve_inner(
            federation, node_weights, state.theta, key, self.settings, begin=state.rounds == 0
        )
        info = _info(solution, node_weights, solution.cost)
        return TrainingState(solution.point, state.rounds + solution.rounds), info


@dataclass(frozen=True)
class LocalTrain:
    """SVRG on the center's own data D_0: nobody is asked, nothing is sent."""

    settings: LocalSvrg

    def init(self, theta: Vector, nodes: int) -> TrainingState:
        """Begin at the initial model."""
        return TrainingState(theta, 0)

    def step(
        self, state: TrainingState, key: Key, federation: Federation, center: Center
    ) -> tuple[TrainingState, Info]:
        """Go on for as many rounds as the settings say."""
        solution = solve_inner(
            center.alone, jnp.ones(1), state.theta, key, self.settings, begin=state.rounds == 0
        )
        info = _info(solution, None, Cost(node_points=solution.cost.node_points), solution.rounds)
        return TrainingState(solution.point, state.rounds + solution.rounds), info


def _info(
    solution: SvrgSolution, node_weights: Array | None, cost: Cost, silent_rounds: int = 0
) -> Info:
    # A solve that is settled from its first round on has nothing left to do.
    finished = solution.settled and solution.rounds == 1
    return Info(
        solution.point,
        node_weights,
        cost,
        {"training_loss": solution.loss},
        stop="converged: training no longer moves the model" if finished else None,
        silent_rounds=silent_rounds,
    )
