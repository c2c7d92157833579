r"""An approximation of the weighted Hessian of a large linear model, from a few products per exchange.

The first approximation is the Hessian class by class (`class_blocks`), which nodes are asked for now and
then. Where even that is too large, or there are no classes, it is the Hessian of the owner's validation loss,
which is free at the center, with a damping that grows after steps that were too long. On top come blocks of
directions V with their exact products HV (block BFGS): the newest block is exact on its span, and what older
ones say is kept elsewhere.
"""

from typing import NamedTuple

import jax
import numpy as np

from fedkin.methods.bilevel.class_blocks import ClassBlocks, class_directions, has_class_blocks
from fedkin.methods.bilevel.curvature import Place, Solve
from fedkin.models.linear import Logistic
from fedkin.types import Key

DIRECTIONS = 8
"""The vectors in one exchange."""

RANDOM_DIRECTIONS = 2
"""How many of them are drawn; the others follow from what is known."""

BLOCKS = 12
"""How many exchanges are remembered."""

FIRST_DAMPING = 0.03
"""The damping at first, as a share of the largest curvature of the validation loss."""

FLOOR = 1e-7
"""Directions of a block whose curvature is below this share of the largest are left out."""


class Sketch(NamedTuple):
    """What is known of the Hessian, oldest block first."""

    classes: ClassBlocks
    """The first approximation, where the model has it."""
    directions: np.ndarray
    """The vectors of each block, made orthonormal by the Hessian: (blocks, vectors, d)."""
    products: np.ndarray
    """The Hessian times each of them, at the model and weights of its time."""
    last_directions: np.ndarray
    """The vectors of the newest block as nodes were asked for their products."""
    last_products: np.ndarray
    """The Hessian times each of these."""
    damping: float
    """What is added to the validation loss's Hessian, as a share of its largest eigenvalue."""

    @classmethod
    def unknown(cls, size: int) -> "Sketch":
        """Return what is known before the first exchange."""
        nothing, none_asked = np.zeros((0, DIRECTIONS, size)), np.zeros((0, size))
        return cls(ClassBlocks.unknown(), nothing, nothing, none_asked, none_asked, FIRST_DAMPING)

    def base(self, place: Place) -> Solve:
        """Return the inverse of the first approximation, as a function."""
        if has_class_blocks(place.objective):
            known = len(self.classes.blocks) > 0
            return self.classes.solver(place) if known else lambda vectors: vectors
        from scipy.linalg import cho_factor, cho_solve  # loaded only for large models

        hessian = place.hessian
        largest = np.abs(hessian).sum(axis=1).max()  # at least the largest eigenvalue
        factor = cho_factor(hessian + self.damping * largest * np.eye(len(hessian)))
        return lambda vectors: cho_solve(factor, vectors.T).T

    def solver(self, place: Place) -> Solve:
        """Return the inverse of the approximation, as a function of a vector or of several, as rows."""
        base = self.base(place)
        corrections = list(zip(self.directions, self.products, strict=True))

        def solve(vectors: np.ndarray) -> np.ndarray:
            # From the newest block to the base, and back.
            rest, inside = vectors, []
            for own, images in reversed(corrections):
                inside.append(rest @ own.T)
                rest = rest - inside[-1] @ images
            rest = base(rest)
            for own, images in corrections:
                rest = rest + (inside.pop() - rest @ images.T) @ own
            return rest

        return solve

    def questions(self, place: Place, known: list[np.ndarray], key: Key) -> np.ndarray:
        """Choose the directions of the next exchange.

        Args:
            place: The model.
            known: Directions that have to be among them: h first, then the last step.
            key: Draws some.
        """
        base = self.base(place)
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        size = self.directions.shape[2]
        rows = [vector / max(float(np.linalg.norm(vector)), 1e-30) for vector in known]
        if len(self.directions) > 0:
            # A power iteration finds the directions that the base is most wrong about.
            images = base(self.last_products) - self.last_directions
            if rows:
                frame = np.linalg.qr(np.stack(rows).T)[0]
                images = images - (images @ frame) @ frame.T
            leading = np.linalg.svd(images, full_matrices=False)[2]
            rows.extend(leading[: DIRECTIONS - len(rows) - RANDOM_DIRECTIONS])
        while len(rows) < DIRECTIONS:
            drawn = base(rng.normal(size=size))
            rows.append(drawn / np.linalg.norm(drawn))
        return np.stack(rows)

    def class_questions(self, place: Place, weights: np.ndarray) -> np.ndarray | None:
        """Return the directions in which the blocks of single classes should be measured now, if any."""
        if not has_class_blocks(place.objective):
            return None
        stale = self.classes.are_stale(np.asarray(place.theta, np.float64), weights)
        return class_directions(place.objective) if stale else None

    def learn_classes(self, place: Place, weights: np.ndarray, products: np.ndarray) -> "Sketch":
        """Begin again with new blocks of single classes: what older products say is out of date too."""
        model = place.objective.model
        assert isinstance(model, Logistic)
        theta = np.asarray(place.theta, np.float64)
        return self._replace(
            classes=ClassBlocks.measured(products, model, theta, weights),
            directions=self.directions[:0],
            products=self.products[:0],
        )

    def learn(self, place: Place, directions: np.ndarray, products: np.ndarray) -> "Sketch":
        """Add a block."""
        scaling = _orthonormal(directions, products)
        kept = slice(-(BLOCKS - 1), None)
        return self._replace(
            directions=np.concatenate([self.directions[kept], (scaling @ directions)[None]]),
            products=np.concatenate([self.products[kept], (scaling @ products)[None]]),
            last_directions=directions,
            last_products=products,
        )

    def image(self, place: Place, vector: np.ndarray) -> np.ndarray:
        """Return the Hessian times the first direction of the last exchange, as long as this vector."""
        length = np.linalg.norm(vector) / np.linalg.norm(self.last_directions[0])
        return self.last_products[0] * length

    def doubt(self) -> "Sketch":
        """Raise the damping after a step that was too long."""
        return self._replace(damping=4 * self.damping)


def _orthonormal(directions: np.ndarray, products: np.ndarray) -> np.ndarray:
    """Return the matrix that makes vectors orthonormal by the Hessian, given its products with them."""
    matrix = directions @ products.T
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    good = values > FLOOR * max(float(values[-1]), 1e-30)
    # Directions without a noticeable curvature become zero, which corrects nothing.
    scales = np.where(good, 1 / np.sqrt(np.where(good, values, 1.0)), 0.0)
    return (vectors * scales).T
