"""The federation on which `rates` counts rounds: built to be as hard as the theory allows.

θ_k = a_k e_k with a_k² falling over decades, and best weights that differ from equal ones by the same amount
everywhere. So there is always a direction left in which F is too flat for the steps taken so far, and the
rate is the one of the theory and not a faster one that easy problems have.
"""

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from fedkin.theory.constants import Constants
from fedkin.theory.schedules import OuterProblem
from fedkin.types import Array
from reproduction.theory.quadratic_svrg import QuadraticNodes, quadratic_nodes


@dataclass(frozen=True)
class HardFederation:
    """Ridge regression with the same inputs everywhere: F(w) = ½(Aw − θ_0)ᵀH(Aw − θ_0) + a constant."""

    nodes: QuadraticNodes
    targets: Array
    """c_k = H θ_k of each node."""
    truths: Array
    """θ_k, one per row."""
    validation_target: Array
    """H θ_0: ∇L_0(θ) = Hθ − this."""
    constants: Constants
    outer_smoothness: float
    """The largest eigenvalue of ∇²F: the ℓ_F that `eq:LF` bounds from above, here by a factor of
    about fifty-six with the defaults of the study."""

    condition: float
    """The largest eigenvalue of ∇²F over the smallest."""

    @property
    def hessian(self) -> Array:
        """H, the same everywhere."""
        return self.nodes.moment[0]

    def last_sublinear(self, problem: OuterProblem) -> int:
        r"""Return the outer iteration in which the flattest direction of F begins to be solved.

        What is left in a direction with eigenvalue λ after s iterations is :math:`2J_1(x)/x` with
        :math:`x = s\sqrt{\eta\lambda/2}` in Algorithm 2 (a Bessel function, for small η), and
        :math:`e^{-x}` with :math:`x = s\eta\lambda` in Algorithm 3. With η = 1/(3 λ_max), x = 1 is reached
        in the flattest at s = √(6 λ_max/λ_min) and 3 λ_max/λ_min. From there on convergence is faster than
        any power of s, on this federation as on any of finite size, and says nothing of the exponent.
        """
        return int(math.sqrt(6 * self.condition) if problem == "convex" else 3 * self.condition)

    def outer_loss(self, weights: Array) -> Array:
        """Return F(w) − min F; the best weights are known."""
        away = weights @ self.truths - jnp.linalg.solve(self.hessian, self.validation_target)
        return 0.5 * jnp.sum((away @ self.hessian) * away, axis=-1)

    def outer_gradient(self, weights: Array) -> Array:
        """Return ∇F(w), exactly: −∇L_kᵀ H⁻¹ ∇L_0."""
        theta = weights @ self.truths
        adjoint = theta - jnp.linalg.solve(self.hessian, self.validation_target)
        gradients = (theta[..., None, :] - self.truths) @ self.hessian
        return -jnp.sum(gradients * adjoint[..., None, :], axis=-1)


def hard_federation(nodes: int, decades: float) -> HardFederation:
    """Build it: orthogonal inputs of length one, θ_k along the axes, l2 = 1 (H is a multiple of I)."""
    inputs = np.broadcast_to(np.eye(nodes), (nodes, nodes, nodes))
    l2 = 1.0
    sizes = 10 ** (-0.5 * decades * np.arange(nodes) / max(nodes - 1, 1))
    truths = np.diag(sizes)
    best = np.full(nodes, 1 / nodes) + np.where(np.arange(nodes) % 2, -0.5, 0.5) / nodes
    best /= best.sum()
    prepared = quadratic_nodes(jnp.asarray(inputs), l2)
    hessian = np.asarray(prepared.moment[0])
    # θ(w) runs over the hull of the θ_k; a gradient's norm is convex, so largest at a corner.
    corners = [*truths, best @ truths]
    lipschitz = max(
        np.linalg.norm(hessian @ (corner - other)) for corner in truths for other in corners
    )
    constants = Constants(
        lipschitz=float(lipschitz),
        smoothness=1.0 + l2,
        hessian_lipschitz=0.0,
        strong_convexity=float(np.linalg.eigvalsh(hessian)[0]),
        radius=float(max(np.linalg.norm(truths, axis=1))),
    )
    curvatures = np.linalg.eigvalsh(truths @ hessian @ truths.T)
    return HardFederation(
        prepared,
        jnp.asarray(truths @ hessian),
        jnp.asarray(truths),
        jnp.asarray(best @ truths @ hessian),
        constants,
        float(curvatures[-1]),
        float(curvatures[-1] / curvatures[0]),
    )
