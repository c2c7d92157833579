r"""Numbers as whole multiples of 2⁻ᵉ modulo 2⁶⁴: sums of such words are exact, whatever is added to them.

With the exponent e, a number is rounded to the nearest multiple of 2⁻ᵉ. The error of a sum over K nodes is at
most K · 2⁻ᵉ⁻¹ in each coordinate, beside the rounding of the result to the model's own type.
"""

import math

import numpy as np

WORD_BITS = 64

HEADROOM_BITS = 10
"""The exponent leaves room for numbers that are this many powers of two larger than the last ones."""

FIRST_BOUND = 2.0**20
"""Before anything is known, weighted vectors are taken to have norms up to this."""

NUMBER_BOUND = 2.0**24
"""Single numbers, such as losses, are taken to be smaller than this."""

SMALLEST_EXPONENT, LARGEST_EXPONENT = -200, 200


def largest_summand(exponent: int, nodes: int) -> float:
    """Return how large the numbers of each node may be, so that the sum over the nodes cannot overflow.

    >>> largest_summand(0, 2) * 2 < 2**63
    True
    """
    return math.ldexp(1.0, WORD_BITS - 2 - exponent) / nodes


def choose_exponent(bound: float, nodes: int) -> int:
    """Return the largest exponent with which numbers up to a bound fit, for each of some nodes.

    >>> exponent = choose_exponent(1.0, 4)
    >>> largest_summand(exponent, 4) >= 1.0 > largest_summand(exponent + 1, 4)
    True
    """
    if not 0 < bound < math.inf:
        return SMALLEST_EXPONENT if bound > 0 else LARGEST_EXPONENT
    fitting = math.floor(WORD_BITS - 2 - math.log2(nodes) - math.log2(bound))
    return min(max(fitting, SMALLEST_EXPONENT), LARGEST_EXPONENT)


def encode(values: np.ndarray, exponent: int) -> np.ndarray:
    """Write numbers as words; they have to fit (`largest_summand`)."""
    return np.rint(np.ldexp(np.asarray(values, np.float64), exponent)).astype(np.int64).view("<u8")


def decode(words: np.ndarray, exponent: int) -> np.ndarray:
    """Read numbers, or sums of them, from words.

    >>> words = encode(np.array([1.5, -2.25]), 20) + encode(np.array([-2.0, 1.0]), 20)
    >>> decode(words, 20).tolist()
    [-0.5, -1.25]
    """
    return np.ldexp(words.view(np.int64).astype(np.float64), -exponent)
