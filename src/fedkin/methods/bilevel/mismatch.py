r"""Whether the slopes that nodes report are those of the gradients that they send.

A slope is a number of one node, :math:`-\nabla L_k(\theta)^\top h`. In the same exchange the nodes send the
sum :math:`g = \sum_k u_k \nabla L_k(\theta)`. So :math:`\sum_k u_k \cdot` slope has to be :math:`-g^\top h`,
at every θ and for all weights u, up to rounding. Both are there where single vectors are hidden in secure
sums. A node that lies about its slope has to lie about its gradient just as much, and then it is a node with
other data.
"""

import numpy as np

SHARE = 1e-2
"""The sums may differ by this share of the validation loss and of the largest slope: more than rounding."""

SHARE_OF_PRODUCT = 1e-3
"""And by this share of the product of the norms of g and h."""

MISMATCHES = 5
"""After this many exchanges whose sums differ, there is no point in continuing."""

STOPPED_BY_MISMATCH = (
    "stopped: the slopes that nodes report are not those of the gradients that they send, so the weights "
    "cannot be learned"
)


def mismatch_of(
    slopes: np.ndarray, weights: np.ndarray, gradient: np.ndarray, adjoint: np.ndarray, loss: float
) -> str | None:
    """Say, in a sentence, that slopes and gradients do not belong together; None if they do.

    Args:
        slopes: The slope that each node reports; NaN where it was not asked.
        weights: The weights u of the sum of gradients.
        gradient: That sum, g.
        adjoint: The vector h.
        loss: The validation loss.
    """
    difference, allowed = difference_of(slopes, weights, gradient, adjoint, loss)
    if abs(difference) <= allowed:
        return None
    return (
        "a node lies: the slopes that the weighted nodes report do not add up to what the sum of their "
        "gradients says"
    )


def difference_of(
    slopes: np.ndarray, weights: np.ndarray, gradient: np.ndarray, adjoint: np.ndarray, loss: float
) -> tuple[float, float]:
    """Return by how much slopes and gradient differ, and how much is no lie. See `mismatch_of`."""
    counted = weights != 0
    reported = float(slopes[counted] @ weights[counted])
    computed = float(-gradient @ adjoint)
    largest = float(np.abs(slopes[counted]).max())
    allowed = SHARE * (abs(loss) + largest)
    allowed += SHARE_OF_PRODUCT * float(np.linalg.norm(gradient) * np.linalg.norm(adjoint))
    return reported - computed, allowed
