"""Shapley values against their definition, and against the properties that define them."""

from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkin.valuation.game import Game, exact_shapley, leave_one_out, sampled_shapley


def game(players, worth, rows=1):
    """Return a game with a function of the group; the empty group is worth that of it, too."""
    return Game(
        players,
        np.broadcast_to(worth(frozenset()), (rows,)),
        lambda groups: [np.broadcast_to(worth(group), (rows,)) for group in groups],
    )


def random_game(players, seed, rows=3):
    random = np.random.default_rng(seed)
    every = [
        frozenset(c) for size in range(players + 1) for c in combinations(range(players), size)
    ]
    table = {group: random.normal(size=rows) for group in every}
    return game(players, table.__getitem__, rows)


games = st.builds(random_game, st.integers(2, 5), st.integers(0, 10_000))


@pytest.mark.parametrize("players", [2, 3, 4])
def test_exact_values_are_the_mean_over_all_orders(players):
    played = random_game(players, seed=players)
    gains = np.zeros((players, 3))
    orders = list(permutations(range(players)))
    for order in orders:
        for place, player in enumerate(order):
            gains[player] += played.worth(order[: place + 1]) - played.worth(order[:place])
    np.testing.assert_allclose(exact_shapley(played), gains / len(orders), atol=1e-12)


@given(games)
@settings(max_examples=30, deadline=None)
def test_values_sum_to_the_worth_of_everyone(played):
    total = played.worth(played.everyone) - played.worth(())
    np.testing.assert_allclose(exact_shapley(played).sum(axis=0), total, atol=1e-9)
    for truncation in (0.0, 0.5):
        found = sampled_shapley(played, 6, np.random.default_rng(0), truncation=truncation)
        np.testing.assert_allclose(found.values.sum(axis=0), total, atol=1e-9)


@given(games)
@settings(max_examples=20, deadline=None)
def test_a_player_who_changes_nothing_has_no_value(played):
    """A further player adds nothing to any group: nobody else's value changes either."""
    last = played.players
    larger = game(last + 1, lambda group: played.worth(group - {last}), rows=3)
    values = exact_shapley(larger)
    np.testing.assert_allclose(values[last], 0, atol=1e-9)
    np.testing.assert_allclose(values[:last], exact_shapley(played), atol=1e-9)


@given(st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_players_who_do_the_same_have_the_same_value(seed):
    """Players 0 and 1 are alike: only how many of them there are counts."""
    played = random_game(5, seed)

    def worth(group):
        alike = len(group & {0, 1})
        return played.worth({player + 1 for player in group - {0, 1}} | set(range(alike)))

    values = exact_shapley(game(4, worth, rows=3))
    np.testing.assert_allclose(values[0], values[1], atol=1e-9)


@given(games, games)
@settings(max_examples=20, deadline=None)
def test_values_of_a_sum_of_games_are_sums(first, second):
    players = min(first.players, second.players)
    both = game(players, lambda group: first.worth(group) + 2 * second.worth(group), rows=3)
    parts = [exact_shapley(game(players, each.worth, rows=3)) for each in (first, second)]
    np.testing.assert_allclose(exact_shapley(both), parts[0] + 2 * parts[1], atol=1e-9)


def test_a_duplicate_is_useless_to_leave_one_out_and_shares_the_credit_in_shapley_values():
    played = game(3, lambda group: float(bool(group & {0, 1})) + (2 in group))
    np.testing.assert_allclose(leave_one_out(played).ravel(), [0, 0, 1])
    np.testing.assert_allclose(exact_shapley(played).ravel(), [0.5, 0.5, 1])


def test_each_group_is_asked_for_once():
    asked = []

    def evaluate(groups):
        asked.extend(groups)
        return [np.array([float(len(group))]) for group in groups]

    played = Game(4, np.zeros(1), evaluate)
    leave_one_out(played)
    sampled_shapley(played, 8, np.random.default_rng(0))
    exact_shapley(played)
    assert len(asked) == len(set(asked)) == played.groups == 15


@pytest.mark.parametrize("orders", [20, 40])
def test_sampled_values_are_unbiased_with_honest_standard_errors(orders):
    """200 samples: means within 4 standard errors of the truth, and 2 of them cover 90 to 99% of values."""
    played = random_game(6, seed=1, rows=1)
    truth = exact_shapley(played).mean(axis=1)
    samples = [sampled_shapley(played, orders, np.random.default_rng(seed)) for seed in range(200)]
    away = np.stack([sample.values.mean(axis=1) - truth for sample in samples])
    errors = np.stack([sample.error for sample in samples])
    assert (np.abs(away.mean(axis=0)) < 4 * away.std(axis=0) / np.sqrt(200)).all()
    assert 0.9 < (np.abs(away) < 2 * errors).mean() < 0.99
    # The variance that is reported is that of the values, over all players.
    assert (errors**2).mean() == pytest.approx(away.var(axis=0).mean(), rel=0.15)


def test_where_the_order_makes_no_difference_nothing_is_left_to_chance():
    found = sampled_shapley(game(6, lambda group: float(sum(group))), 4, np.random.default_rng(0))
    np.testing.assert_allclose(found.values.ravel(), range(6), atol=1e-12)
    np.testing.assert_allclose(found.error, 0, atol=1e-12)


def test_chains_end_where_little_is_left_to_gain():
    """Two players reach nearly everything: most groups are never tried, and hardly anything is lost."""
    players = 12
    rows = np.array([0.9, 1.1])  # everyone gains 1 with a standard error of 0.1

    def worth(group):
        return rows * (1 - 0.001 * (players - len(group)) if len(group) > 1 else 0.5 * len(group))

    whole, cut = game(players, worth, rows=2), game(players, worth, rows=2)
    exactly = sampled_shapley(whole, 8, np.random.default_rng(0))
    early = sampled_shapley(cut, 8, np.random.default_rng(0), truncation=0.2)
    assert exactly.ended_early == 0
    assert early.ended_early == 8
    assert cut.groups < 0.7 * whole.groups
    np.testing.assert_allclose(early.values.mean(axis=1), exactly.values.mean(axis=1), atol=0.02)
