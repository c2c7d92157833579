"""Choosing how Local-SVRG trains: what FedAvg, local training and Bi-level have in common."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax.numpy as jnp

from fedkin.federation.base import Cost, Federation
from fedkin.methods.base import Info, TrainedMethod
from fedkin.methods.local_svrg.center import LocalSvrg, SvrgSolution
from fedkin.methods.settings import flag, share
from fedkin.methods.step_size import largest_curvature
from fedkin.models.base import LinearModel
from fedkin.types import Array, Key, Vector

SMOOTHNESS_MARGIN = 2.0
"""Step size = 1 / (this x the largest curvature of a mini-batch): SVRG's usual safety, and a margin
for the power iteration, which finds that curvature from below."""

PAPER_PASSES = 5
"""Passes over a node's data in one solve: the paper's T_s."""

MEAN_MOVE = 0.25
"""Training ends, too, after a step whose rounds have moved the model by less than this part of the tolerance
on average: draws of mini-batches can move it by more in every round, and lead nowhere."""


def paper_rounds(federation: Federation, period: int) -> int:
    """Return the rounds of the paper's T_s: five passes over a node's data."""
    return math.ceil(PAPER_PASSES * federation.batches / period)


def paper_rounds_of_an_outer_step(federation: Federation, period: int) -> int:
    """Return as many synchronizations as the paper's solver needs for one outer iteration of Bi-level.

    That is two solves, and one synchronization for the hypergradient. The other methods are evaluated
    after as many.
    """
    return 2 * paper_rounds(federation, period) + 1


class TrainingState(NamedTuple):
    """State of the methods that only train a model: FedAvg and local training."""

    theta: Vector
    rounds: int
    """Rounds taken so far."""

    def after(self, solution: SvrgSolution) -> "TrainingState":
        """Return the state after further training."""
        return TrainingState(solution.point, self.rounds + solution.rounds)


@dataclass(frozen=True, kw_only=True)
class SvrgMethod(TrainedMethod):
    """A method that trains by Local-SVRG. `None` leaves a setting open.

    Args:
        preset: Where open settings come from: `automatic` (from the data), or `paper`.
        learning_rate: The step size γ of training.
        period: The number τ of local steps between two synchronizations.
        rounds: The synchronizations of one training run within an outer step.
        refresh_probability: The probability q of renewing a reference point in a step.
        averaging: Whether training returns the weighted average of its iterates, as in Algorithm 1 of
            the paper, and not the last one.
    """

    refresh_probability: float | None = share()
    averaging: bool | None = flag()

    def choose_training(self, learners: Federation, key: Key) -> tuple[LocalSvrg, Cost]:
        """Choose how the model is trained, asking the nodes for their curvature if need be."""
        cost = Cost()
        objective = learners.objective
        model = objective.model
        convex = self.is_convex(objective)
        learning_rate = self.learning_rate
        if learning_rate is None and convex:
            curvature, cost = largest_curvature(learners, key)
            learning_rate = 1 / (SMOOTHNESS_MARGIN * curvature)
        training = LocalSvrg(
            learning_rate=learning_rate or self.usual_learning_rate,
            period=self.chosen_period(objective),
            rounds=self.chosen_rounds(objective),
            refresh_probability=self.refresh_probability or 0.02,
            strong_convexity=model.l2 if isinstance(model, LinearModel) else 0.0,
            result="average" if self.averaging else "last",
            tolerance=1e-3 if convex and not self.averaging else None,
        )
        return training, cost

    def with_rounds_of_an_outer_step(
        self, training: LocalSvrg, federation: Federation
    ) -> LocalSvrg:
        """Let one step of a method without weights be as long as an outer step of Bi-level."""
        if self.preset != "paper" or self.rounds is not None:
            return training
        return replace(training, rounds=paper_rounds_of_an_outer_step(federation, training.period))


def training_info(
    solution: SvrgSolution,
    start: Vector,
    training: LocalSvrg,
    node_weights: Array | None,
    cost: Cost,
    silent_rounds: int = 0,
) -> Info:
    """Report a step that did nothing but train, from a start on."""
    # A solve that is settled from its first round on has nothing left to do.
    finished = solution.settled and solution.rounds == 1
    if training.tolerance is not None and not finished:
        allowed = MEAN_MOVE * training.tolerance * solution.rounds
        move = jnp.linalg.norm(solution.point - start)
        finished = bool(move <= allowed * jnp.linalg.norm(solution.point))
    return Info(
        solution.point,
        node_weights,
        cost,
        {"training_loss": solution.loss},
        stop="converged: training no longer moves the model" if finished else None,
        silent_rounds=silent_rounds,
    )
