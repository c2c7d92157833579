"""The center's part of APPLE (Luo and Wu 2022). Everybody trains with `descent_round`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.federation.base import Cost, Federation
from fedkin.federation.center import Center
from fedkin.methods.base import Info
from fedkin.methods.descent.center import (
    Descent,
    DescentMethod,
    Participants,
    PersonalModels,
    train_each,
)
from fedkin.methods.descent.node import DESCENT_ROUND
from fedkin.methods.settings import count, from_zero, positive
from fedkin.methods.step_size import SMOOTHNESS
from fedkin.types import Array, Key, Vector


@dataclass(frozen=True, kw_only=True)
class Apple(DescentMethod):
    """Personal models that are combinations of everybody's core models. See also `TrainedMethod`.

    Args:
        mixing_rate: The step size of the combination, relative to that of the models; 1 if open.
        proximal: The penalty μ on leaving equal shares; 0.1 if open.
        decay_rounds: The synchronizations L over which the penalty's factor falls to zero; 40 if open.

    >>> Apple(decay_rounds=20).decay_rounds
    20
    """

    name: ClassVar[str] = "apple"
    title: ClassVar[str] = "APPLE"
    color: ClassVar[str] = "#5E118E"
    dark_color: ClassVar[str | None] = "#B794CC"
    marker: ClassVar[str] = "X"
    dashes: ClassVar[tuple[float, ...]] = (12, 3, 3, 3)
    tasks = (DESCENT_ROUND, SMOOTHNESS)
    reveals_models: ClassVar[bool] = True
    tuning_grid: ClassVar[Mapping[str, Sequence[Any]]] = {
        "mixing_rate": (0.1, 1.0),
        "proximal": (0.01, 0.1, 1.0),
    }

    mixing_rate: float | None = positive()
    proximal: float | None = from_zero()
    decay_rounds: int | None = count()

    def prepare(
        self, federation: Federation, center: Center, key: Key
    ) -> tuple["AppleAlgorithm", Cost]:
        """Choose step sizes and lengths."""
        descent, cost = self.choose_descent(federation, center, key)
        penalty = 0.1 if self.proximal is None else self.proximal
        chosen = AppleAlgorithm(descent, self.mixing_rate or 1.0, penalty, self.decay_rounds or 40)
        return chosen, cost


class AppleState(NamedTuple):
    """Everybody's core models, and how personal models combine them."""

    cores: PersonalModels
    shares: Array
    """Row i: how much of each core model is in the personal model of i."""


@dataclass(frozen=True)
class AppleAlgorithm:
    r"""Everybody trains :math:`x_i = \sum_j p_{ij} c_j`; the center divides what they have learned.

    With the move Δ_i of x_i in a round, the core model c_i moves by :math:`\Delta_i \min(1, m p_{ii})`, and
    :math:`p_{ij}` by :math:`\rho (\langle \Delta_i, c_j \rangle / \sum_k \|c_k\|^2 - \gamma \tau \mu
    \lambda(t) (p_{ij} - 1/m))`.

    Args:
        descent: How everybody trains.
        mixing_rate: ρ.
        penalty: μ.
        decay_rounds: The synchronizations L over which λ(t) falls from 1 to 0, as a cosine.
    """

    descent: Descent
    mixing_rate: float = 1.0
    penalty: float = 0.1
    decay_rounds: int = 40

    def init(self, theta: Vector, nodes: int) -> AppleState:
        """Begin with the initial model as everybody's core; shares are set in the first step."""
        return AppleState(
            PersonalModels.begin(theta, nodes), jnp.zeros((nodes + 1, nodes + 1), theta.dtype)
        )

    def step(
        self, state: AppleState, key: Key, federation: Federation, center: Center
    ) -> tuple[AppleState, Info]:
        """Continue for as many synchronizations as the settings say."""
        everybody = Participants(federation, center)
        count = everybody.count
        cores, cost = state.cores.of(everybody), Cost()
        shares = state.shares[:count, :count]
        if state.cores.rounds == 0:
            shares = jnp.full_like(shares, 1 / count)
        watch = self.descent.watch()
        for number in range(self.descent.rounds):
            personal = shares @ cores
            trained, round_cost = train_each(
                everybody, personal, jax.random.fold_in(key, number), self.descent
            )
            cost += round_cost
            factor = self.penalty_factor(state.cores.rounds + number)
            cores, shares = self._divide(cores, shares, trained.models - personal, factor)
            watch.see(cores, trained.loss)
        own = everybody.own
        positive_shares = np.maximum(np.asarray(shares[own], np.float64), 0)
        info = Info(
            shares[own] @ cores,
            everybody.node_weights(positive_shares / max(positive_shares.sum(), 1e-12)),
            cost,
            {"training_loss": watch.loss, "own_share": float(shares[own, own])},
        )
        kept = state.shares.at[:count, :count].set(shares)
        return AppleState(state.cores.after(cores, self.descent.rounds), kept), info

    def penalty_factor(self, rounds: int) -> float:
        """Return λ(t) after some synchronizations."""
        done = min(rounds / self.decay_rounds, 1.0)
        return (1 + math.cos(math.pi * done)) / 2

    def _divide(
        self, cores: Array, shares: Array, moves: Array, factor: float
    ) -> tuple[Array, Array]:
        """Move the core models and the shares by what everybody has learned in a round."""
        count = len(cores)
        own = jnp.clip(count * jnp.diag(shares), -1.0, 1.0)
        length = jnp.maximum(jnp.sum(cores**2), jnp.finfo(cores.dtype).tiny)
        pull = self.descent.learning_rate * self.descent.period * self.penalty * factor
        change = moves @ cores.T / length - pull * (shares - 1 / count)
        return cores + own[:, None] * moves, shares + self.mixing_rate * change
