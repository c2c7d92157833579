"""The random keys of a run, each of its seed and of what it is for."""

import jax

from fedkin.types import Key


def initial_model_key(seed: int) -> Key:
    """Return the key of the initial model: the same for all methods with the same seed."""
    return jax.random.fold_in(jax.random.key(seed), 0)


def training_key(seed: int) -> Key:
    """Return the key of everything that is drawn during training."""
    return jax.random.fold_in(jax.random.key(seed), 1)


def building_key(seed: int) -> Key:
    """Return the key of what is asked of the nodes before training."""
    return jax.random.fold_in(jax.random.key(seed), 2)


def judging_key(seed: int) -> Key:
    """Return the key of the training in which nodes are left out."""
    return jax.random.fold_in(jax.random.key(seed), 4)


def refit_key(seed: int) -> Key:
    """Return the key of the training after the weights are chosen."""
    return jax.random.fold_in(jax.random.key(seed), 3)
