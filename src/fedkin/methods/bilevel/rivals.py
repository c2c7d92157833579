"""Further models next to the one that found the weights; the best on the validation data remains.

The first model is trained from the start on weights that are still wrong, and a small network may not
recover from that. Its rivals are started when the weights have settled, and trained in the same exchanges.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.federation.center import Center
from fedkin.models.objective import Objective
from fedkin.types import Array, Key, Vector

FIRST_COMPARISON, NEXT_COMPARISON = 8, 4
"""The rounds of training after which the worst of several models is given up, and between further ones."""


class Rivals(NamedTuple):
    """The models that were started when the weights had settled."""

    models: Array
    """Their parameters, a row for each."""
    alive: Array
    """Which of them still take part."""
    started: bool
    rounds: int
    """Rounds that they have been trained for."""

    @classmethod
    def none_yet(cls, count: int, size: int) -> "Rivals":
        """Leave room for some models of a size."""
        return cls(jnp.zeros((count, size)), jnp.zeros(count, bool), started=False, rounds=0)

    def start(self, objective: Objective, key: Key) -> "Rivals":
        """Start all of them, each at random."""
        keys = jax.random.split(key, len(self.alive))
        models = jnp.stack([objective.init(each) for each in keys])
        return Rivals(models, jnp.ones_like(self.alive), started=True, rounds=0)

    @property
    def places(self) -> np.ndarray:
        """The rows of those that still take part."""
        return np.flatnonzero(np.asarray(self.alive))

    def trained(self, models: Array) -> "Rivals":
        """Return them after a round of training, given the models of those that still take part."""
        return self._replace(models=self.models.at[self.places].set(models))

    def compare(self, leader: Vector, center: Center) -> tuple[Vector, "Rivals", bool]:
        """Count a round. When it is time, let the best model lead, and give up the worst of the others.

        Returns:
            The model that leads, the others, and whether the lead has changed.
        """
        rivals = self._replace(rounds=self.rounds + 1)
        late = rivals.rounds - FIRST_COMPARISON
        if late < 0 or late % NEXT_COMPARISON:
            return leader, rivals, False
        places = rivals.places
        own, *losses = _losses(center, [leader, *rivals.models[places]])
        best = int(np.argmin(losses))
        overtaken = losses[best] < own
        if overtaken:
            # The former leader is one of the others now.
            place = places[best]
            leader, models = rivals.models[place], rivals.models.at[place].set(leader)
            rivals, losses[best] = rivals._replace(models=models), own
        worst = places[int(np.argmax(losses))]
        return leader, rivals._replace(alive=rivals.alive.at[worst].set(False)), overtaken


def _losses(center: Center, models: Sequence[Vector]) -> list[float]:
    """Return the validation loss of each model; infinite for one that has diverged."""
    return [loss if math.isfinite(loss) else math.inf for loss in center.losses(models)]
