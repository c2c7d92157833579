import jax
import numpy as np
import pytest

from fedkin.nodes.draws import draw_batches, draw_batches_and_coins


def test_all_mini_batches_are_equally_likely():
    drawn = np.asarray(draw_batches(jax.random.key(0), 70_000, 7))
    counts = np.bincount(drawn, minlength=7)
    assert len(counts) == 7
    assert np.abs(counts - 10_000).max() < 4 * np.sqrt(10_000 * 6 / 7)


@pytest.mark.parametrize("chance", [0.02, 0.5])
def test_coins_come_up_with_their_chance_whatever_is_drawn(chance):
    batches, coins = draw_batches_and_coins(jax.random.key(1), 100_000, 4, chance)
    for batch in range(4):
        own = np.asarray(coins)[np.asarray(batches) == batch]
        error = np.sqrt(chance * (1 - chance) / len(own))
        assert abs(own.mean() - chance) < 4 * error


def test_certain_and_impossible_coins():
    assert np.all(draw_batches_and_coins(jax.random.key(2), 10_000, 4, 1.0)[1])
    assert not np.any(draw_batches_and_coins(jax.random.key(2), 10_000, 4, 0.0)[1])


def test_keys_decide():
    first, again, other = (draw_batches(jax.random.key(seed), 20, 100) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)
