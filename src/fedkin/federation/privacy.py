r"""Differential privacy for the rows of a node: how much noise, and how much privacy has been spent.

What is released is a Gaussian mechanism each time: a quantity that changes by at most Δ if one row of the
node's table is replaced by another, plus noise of standard deviation zΔ. Such releases compose exactly, also
if whoever asks chooses each question by the answers before: z_1, z_2, … together are one Gaussian mechanism
with :math:`z^{-2} = \sum_i z_i^{-2}` (Dong, Roth and Su 2022; Smith and Thakurta 2022 for questions chosen
on the way). What is spent is therefore counted as that sum, and `dp-accounting` says which (ε, δ) it is.
"""

import math
import secrets
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from scipy.special import ndtri

from fedkin.errors import InputError

LOSS_NOISE = 10.0
"""Losses only tell whether training diverges: they get this many times the noise of gradients, and so cost
hardly anything."""


class BudgetSpentError(InputError):
    """A node's privacy budget does not allow another answer."""


class NotPrivateError(InputError):
    """A node that protects its rows has no private answer to a question."""


@dataclass(frozen=True)
class Privacy:
    """What a node's owner grants, over all runs together.

    Args:
        epsilon: The largest ε.
        delta: The δ that goes with it.
        clip: The largest norm of a row's gradient.
        steps: How many gradients the budget is divided over.
    """

    epsilon: float
    delta: float
    clip: float
    steps: int

    @property
    def limit(self) -> float:
        """The largest sum of 1/z² that is (ε, δ)-private."""
        return _limit(self.epsilon, self.delta)

    @property
    def cost_of_step(self) -> float:
        """What a gradient and the loss beside it add to the sum of 1/z²."""
        return self.limit / self.steps

    @property
    def noise(self) -> float:
        """The standard deviation z of a gradient's noise, in units of what one row can change."""
        return math.sqrt((1 + LOSS_NOISE**-2) / self.cost_of_step)

    def epsilon_of(self, spent: float) -> float:
        """Return the ε that a sum of 1/z² stands for, at this δ."""
        return _epsilon(spent, self.delta)


class Budget:
    """What a node has granted and what of it is spent. This one is kept in memory.

    Args:
        privacy: What is granted.
    """

    def __init__(self, privacy: Privacy) -> None:
        self.privacy = privacy
        self._spent = 0.0

    @property
    def spent(self) -> float:
        """The sum of 1/z² over everything that was released."""
        return self._spent

    @property
    def epsilon(self) -> float:
        """The ε that is spent so far, at the owner's δ."""
        return self.privacy.epsilon_of(self.spent)

    def spend(self, steps: int) -> None:
        """Pay for some gradients before they are computed.

        Raises:
            BudgetSpentError: If that is more than is left. Nothing is spent then.
        """
        self._spent = self.total_with(self._spent, steps)

    def total_with(self, spent: float, steps: int) -> float:
        """Return what will be spent after some more gradients, or refuse."""
        privacy = self.privacy
        total = spent + steps * privacy.cost_of_step
        if total > privacy.limit * (1 + 1e-9):
            raise BudgetSpentError(
                f"the privacy budget of this node is spent: ε = {privacy.epsilon_of(spent):.4g} of "
                f"{privacy.epsilon:g} (δ = {privacy.delta:g}) is used, and {steps} more "
                f"{'step' if steps == 1 else 'steps'} would exceed it; only its owner can grant more "
                "(epsilon)"
            )
        return total


def system_normal(shape: tuple[int, ...]) -> np.ndarray:
    """Draw standard normal numbers from the operating system's random source, which nobody can predict."""
    count = math.prod(shape)
    bits = np.frombuffer(secrets.token_bytes(8 * count), np.uint64) >> np.uint64(12)
    return ndtri((bits.astype(np.float64) + 0.5) * 2.0**-52).reshape(shape)


def require_accountant() -> Any:
    """Return the package that turns noise into (ε, δ), or say in one line how to install it."""
    try:
        import dp_accounting
    except ModuleNotFoundError as error:
        raise InputError(
            "differential privacy (epsilon) needs the package dp-accounting: pip install 'fedkin[privacy]'"
        ) from error
    return dp_accounting


@cache
def _limit(epsilon: float, delta: float) -> float:
    return float(require_accountant().get_sigma_gaussian(epsilon, delta)) ** -2


@cache
def _epsilon(spent: float, delta: float) -> float:
    if spent == 0:
        return 0.0
    return float(require_accountant().get_epsilon_gaussian(spent**-0.5, delta))
