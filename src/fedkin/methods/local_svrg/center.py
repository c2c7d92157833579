"""The center's part of Local-SVRG on weighted nodes (Algorithm 1, `alg:localsvrg`)."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedkin.errors import DivergedError, InputError
from fedkin.federation.base import Cost, Federation, WeightedSum
from fedkin.methods.local_svrg.node import INNER_SVRG_ROUND
from fedkin.types import Array, Key, Vector

LOSS_CEILING = 10.0
"""A training loss this many times above the first one (or above 1) counts as divergence."""


@dataclass(frozen=True)
class LocalSvrg:
    """The settings of a Local-SVRG solve.

    Args:
        learning_rate: The step size γ.
        period: The number τ of local steps between two synchronizations.
        rounds: The number of synchronizations; the paper's T is `period * rounds`.
        refresh_probability: The probability q of renewing a reference point in a step.
        strong_convexity: The constant μ where it is known; it shapes the averaging weights.
        result: The weighted average of all iterates, as in the paper, or the last iterate.
        tolerance: Stop when a round moves the iterate by less than this fraction of its norm; None to
            take all rounds, which an average needs: only the last round asks for it.
    """

    learning_rate: float
    period: int = 20
    rounds: int = 20
    refresh_probability: float = 0.02
    strong_convexity: float = 0.0
    result: Literal["average", "last"] = "last"
    tolerance: float | None = None

    def __post_init__(self) -> None:
        if self.result == "average" and self.tolerance is not None:
            raise InputError("an average needs all rounds: it cannot go with a tolerance")

    @property
    def averaging_rate(self) -> float:
        """The rate ρ = min{γμ, q/4} of the averaging weights."""
        return min(self.learning_rate * self.strong_convexity, self.refresh_probability / 4)

    def message(self, point: Vector) -> dict[str, Array | float]:
        """Return what a round needs to know, given its first iterate."""
        return {
            "point": point,
            "learning_rate": self.learning_rate,
            "refresh_probability": self.refresh_probability,
            "averaging_rate": self.averaging_rate,
        }

    def reply_of_round(self, number: int) -> Literal["point", "average"]:
        """Return what nodes reply with: the average only at the end, where it is the result."""
        is_last = number == self.rounds - 1
        return "average" if is_last and self.result == "average" else "point"


class SvrgSolution(NamedTuple):
    """What a solve found and what it cost."""

    point: Vector
    cost: Cost
    rounds: int
    loss: float
    """The weighted training loss over the last round (inner problem)."""
    settled: bool
    """Whether the last round has hardly moved the iterate any more (see `LocalSvrg.tolerance`)."""


def solve_inner(
    federation: Federation,
    node_weights: Array,
    start: Vector,
    key: Key,
    settings: LocalSvrg,
    *,
    begin: bool = True,
) -> SvrgSolution:
    """Minimize the weighted loss of the nodes (`eq:blopt_inner`).

    Args:
        federation: The nodes.
        node_weights: The weights w.
        start: The first iterate.
        key: Decides the mini-batches and coins.
        settings: Step size, period and rounds.
        begin: Whether the nodes take `start` as their first reference point; False continues with the
            reference points they have.

    Raises:
        DivergedError: If the loss or the iterate leaves all bounds.
    """
    return _solve(federation, node_weights, start, key, settings, begin=begin)


def solve_side_by_side(
    federation: Federation, rows: Array, start: Vector, key: Key, settings: LocalSvrg
) -> tuple[SvrgSolution, list[Vector]]:
    """Minimize the loss of several weights in the same exchanges, all equally long.

    Args:
        federation: The nodes.
        rows: The weights: (models, nodes).
        start: The first iterate of all.
        key: Decides the mini-batches and coins.
        settings: Step size, period and rounds.

    Returns:
        The solution for the first weights, with what all have cost, and the models of the others.
    """
    starts = jnp.tile(start, (len(rows), 1))
    found = _solve(federation, rows, starts, key, settings, begin=True)
    return found._replace(point=found.point[0]), list(found.point[1:])


def _solve(
    federation: Federation,
    node_weights: Array,
    start: Vector,
    key: Key,
    settings: LocalSvrg,
    *,
    begin: bool,
) -> SvrgSolution:
    """Train one model or several, with a row each; the loss is the first one's."""
    point, cost = start, Cost()
    first_loss = loss = float("nan")
    number, settled = 0, False
    for number in range(settings.rounds):
        reply = federation.exchange(
            train=WeightedSum(
                INNER_SVRG_ROUND,
                settings.message(point),
                weights=node_weights,
                begin=begin and number == 0,
                steps=settings.period,
                reply=settings.reply_of_round(number),
            ),
            key=jax.random.fold_in(key, number),
        )
        cost += reply.cost
        moved, loss = reply.train["point"], float(jnp.ravel(reply.train["loss"])[0])
        first_loss = loss if number == 0 else first_loss
        refuse_divergence(
            "the model", number + 1, moved, first_loss, loss, learning_rate=settings.learning_rate
        )
        move, point = jnp.linalg.norm(moved - point, axis=-1), moved
        settled = settings.tolerance is not None and bool(
            jnp.all(move <= settings.tolerance * jnp.linalg.norm(point, axis=-1))
        )
        if settled:
            break
    return SvrgSolution(point, cost, number + 1, loss, settled)


def refuse_divergence(
    what: str,
    round_number: int,
    point: Vector,
    first_loss: float,
    loss: float,
    *,
    learning_rate: float,
) -> None:
    """Check that training is still within bounds.

    Args:
        what: What is trained, for the message.
        round_number: The round of this step, from 1 on, for the message.
        point: The iterate after it.
        first_loss: The training loss in the first round.
        loss: The training loss in this round.
        learning_rate: The step size γ to blame.

    Raises:
        DivergedError: If the loss has grown out of proportion, or a number is not finite.
    """
    finite = math.isfinite(loss) and bool(jnp.isfinite(point).all())
    if not (finite and loss <= LOSS_CEILING * max(first_loss, 1.0)):
        raise DivergedError(
            f"training {what} diverged in round {round_number} (loss {first_loss:.3g} at first, "
            f"{loss:.3g} now): the learning rate γ = {learning_rate:g} is too large for "
            f"these data; try learning_rate={learning_rate / 10:g}"
        )
