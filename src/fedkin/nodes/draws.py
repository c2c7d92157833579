"""What a node draws in a round: mini-batches, and coins.

All numbers of a round come from one call of the generator. Its code is long, and each further call would
add more to the time of compilation than a node's whole gradient does.
"""

import jax
import jax.numpy as jnp

from fedkin.types import Array, Key

COIN_BITS = 24
"""Bits of a coin: as many as a single-precision number holds exactly."""


def draw_batches(key: Key, steps: int, batches: Array | int) -> Array:
    """Draw the mini-batch of each step, all equally likely (to one part in 2³² / batches)."""
    return _remainders(jax.random.bits(key, (steps,), jnp.uint32), batches)


def draw_batches_and_coins(
    key: Key, steps: int, batches: Array | int, chance: Array | float
) -> tuple[Array, Array]:
    """Draw the mini-batch of each step, and whether its coin comes up."""
    batch_bits, coin_bits = jax.random.bits(key, (2, steps), jnp.uint32)
    coins = (coin_bits >> (32 - COIN_BITS)) * 2.0**-COIN_BITS
    return _remainders(batch_bits, batches), coins < chance


def _remainders(bits: Array, batches: Array | int) -> Array:
    return (bits % jnp.asarray(batches, jnp.uint32)).astype(jnp.int32)
