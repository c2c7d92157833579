"""The command `rates`: Local-SVRG and Algorithms 2 and 3 converge as the propositions and theorems say."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.special import j1

from fedkin.data.batches import stack_nodes
from fedkin.methods.local_svrg import node as svrg
from fedkin.models.linear import Ridge
from fedkin.models.objective import Objective
from fedkin.theory.schedules import largest_learning_rate, local_svrg_bound
from reproduction.theory import rates
from reproduction.theory.hard_federation import hard_federation
from reproduction.theory.local_svrg_error import (
    SvrgStudy,
    heterogeneous_nodes,
    largest_share_of_bound,
    measure_local_svrg,
)
from reproduction.theory.quadratic_svrg import draw, local_svrg, quadratic_nodes
from reproduction.theory.slopes import fit_slopes

pytestmark = pytest.mark.usefixtures("float64")


def quiet(what):
    """Progress that nobody watches."""


def test_the_fast_local_svrg_is_the_nodes_local_svrg(monkeypatch):
    """The same points and coins: the same average, to the last digits, over two rounds of three steps."""
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(2, 5, 3)), rng.normal(size=(2, 5))
    weights = jnp.asarray([0.3, 0.7])
    nodes = quadratic_nodes(jnp.asarray(rows), 0.4)
    targets = jnp.asarray(np.einsum("kni,kn->ki", rows, labels) / 5)
    key = jax.random.key(3)
    settings = {"learning_rate": 0.05, "refresh_probability": 0.4, "averaging_rate": 0.02}
    fast = local_svrg(nodes, targets[None], weights[None], key, **settings, period=3, rounds=2)[
        0, 0
    ]

    model = Ridge(l2=0.4, intercept=False)
    objective = Objective.create(model, jnp.asarray(rows[0]))
    data = stack_nodes(list(rows), list(labels), 1, seed=0)
    # Mini-batches of one point come in an order of their own.
    order = [
        [
            int(
                np.nonzero((rows[node] == np.asarray(data.of_node(node).batch(i).inputs)).all(1))[
                    0
                ][0]
            )
            for i in range(5)
        ]
        for node in range(2)
    ]
    point, states = jnp.zeros(3), [None, None]
    for number in range(2):
        draws = draw(jax.random.fold_in(key, number), nodes, 1, 3, 0.4)
        moved = []
        for node in range(2):
            own = data.of_node(node)
            functions = svrg.inner_problem(objective, own, kept=5)
            state = states[node] or svrg.svrg_start(functions, point)
            drawn = jnp.asarray([order[node].index(int(i)) for i in draws.points[:, 0, node]])
            coins = draws.coins[:, 0, node]
            monkeypatch.setattr(
                svrg, "draw_batches_and_coins", lambda *_, drawn=drawn, coins=coins: (drawn, coins)
            )
            done = svrg.svrg_round(functions, state, point, key, steps=3, **settings)
            monkeypatch.undo()
            states[node] = done.state
            moved.append(done.point)
        point = weights @ jnp.stack(moved)
    expected = weights @ jnp.stack([state.average for state in states])
    np.testing.assert_allclose(fast, expected, rtol=1e-12)


def test_local_svrg_never_exceeds_its_bound():
    """The proposition: mean over 40 runs plus two standard errors, at every point of every curve."""
    study = SvrgStudy(periods=(1, 5), fractions=(1.0, 0.3), runs=40, steps=600, checkpoints=10)
    table = measure_local_svrg(study, quiet)
    assert len(table) == 40
    assert largest_share_of_bound(table) <= 1


WEIGHTS = np.array([0.4, 0.3, 0.2, 0.1])
Q = 0.1


class Solve:
    """Local-SVRG on the nodes of the study, all of its constants known."""

    def __init__(self, alike=False):
        nodes, targets = heterogeneous_nodes(np.random.default_rng(0))
        if alike:  # every node is the first
            nodes = nodes._replace(
                rows=jnp.broadcast_to(nodes.rows[0], nodes.rows.shape),
                moment=jnp.broadcast_to(nodes.moment[0], nodes.moment.shape),
            )
            targets = jnp.broadcast_to(targets[0], targets.shape)
        self.nodes, self.targets = nodes, targets
        self.smoothness = float(jnp.max(jnp.sum(nodes.rows**2, axis=-1)) + nodes.l2)
        self.strong_convexity = float(jnp.min(jnp.linalg.eigvalsh(nodes.moment)))
        self.total = jnp.einsum("k,kij->ij", WEIGHTS, nodes.moment)
        self.best = jnp.linalg.solve(self.total, WEIGHTS @ targets)
        slopes = jnp.einsum("kij,j->ki", nodes.moment, self.best) - targets
        self.heterogeneity = float(WEIGHTS @ jnp.sum(slopes**2, axis=1))

    def largest_step(self, period):
        return largest_learning_rate(
            self.smoothness, self.strong_convexity, period=period, refresh_probability=Q
        )

    def errors(self, gamma, period, steps, keep, runs=16):
        """Return E f(x̄) − f(x*) at `keep` times, the last of them after so many steps."""
        every = steps // (period * keep)
        averages = local_svrg(
            self.nodes,
            jnp.broadcast_to(self.targets, (runs, *self.targets.shape)),
            jnp.broadcast_to(WEIGHTS, (runs, 4)),
            jax.random.key(0, impl="rbg"),
            learning_rate=gamma,
            refresh_probability=Q,
            averaging_rate=min(gamma * self.strong_convexity, Q / 4),
            period=period,
            rounds=every * keep,
            every=every,
            keep=keep,
        )
        away = averages - self.best
        return 0.5 * np.asarray(jnp.einsum("cri,ij,crj->c", away, self.total, away)) / runs


@pytest.mark.parametrize("fraction", [1.0, 0.25])
def test_local_svrg_converges_linearly_without_local_steps(fraction):
    """τ = 1: by (1 − γμ) a step or faster, and to nothing: the noise of single points vanishes.

    The average gives the first iterates the share (1 − γμ)^T, so its distance falls like that and no faster,
    and its error like the square.
    """
    solve = Solve()
    gamma = fraction * solve.largest_step(1)
    rate = math.log1p(-gamma * solve.strong_convexity)
    steps = round(-18 / rate)
    errors = solve.errors(gamma, 1, steps, keep=12)
    assert errors[-1] <= 1e-12 * errors[0]
    measured = np.diff(np.log(errors)) / (steps // 12)
    assert (measured <= rate).all()
    np.testing.assert_allclose(measured[-4:], 2 * rate, rtol=0.02)


def test_local_svrg_with_local_steps_ends_on_the_floor_of_the_proposition():
    """τ > 1: what is left grows as γ²(τ − 1)², is below the bound's floor, and comes of heterogeneity."""
    solve = Solve()
    gamma = solve.largest_step(8)

    def floor(period, gamma, solve=solve):
        steps = 8 * round(24 / (gamma * solve.strong_convexity) / 8)
        return solve.errors(gamma, period, steps, keep=6)

    first, *_, middle, _, reached = floor(8, gamma)
    assert first > 10 * reached
    assert reached == pytest.approx(middle, rel=0.1)  # it is a floor
    assert reached / floor(8, gamma / 2)[-1] == pytest.approx(4, rel=0.2)
    assert reached / floor(4, gamma)[-1] == pytest.approx((7 / 3) ** 2, rel=0.2)
    bound = local_svrg_bound(
        smoothness=solve.smoothness,
        strong_convexity=solve.strong_convexity,
        learning_rate=gamma,
        period=8,
        refresh_probability=Q,
        steps=10**6,
        start_distance=1.0,
        heterogeneity=solve.heterogeneity,
    )
    assert reached <= bound
    # Nodes that are all alike have none: heterogeneity, not noise, is what local steps cost.
    alike = Solve(alike=True)
    assert alike.heterogeneity == pytest.approx(0, abs=1e-20)
    assert floor(8, alike.largest_step(8), alike)[-1] <= 1e-6 * reached


def test_the_hard_federation_is_what_it_says():
    made = hard_federation(4, 3.0)
    rng = np.random.default_rng(0)
    weights = jnp.asarray(rng.dirichlet(np.ones(4)))
    loss = jax.grad(made.outer_loss)(weights)
    # On the simplex only differences of slopes count: the formula ∇F_k = −∇L_kᵀh differs by a constant.
    exact = made.outer_gradient(weights)
    np.testing.assert_allclose(loss - loss.mean(), exact - exact.mean(), atol=1e-12)
    # The minimum, zero, is taken at weights of ½ and 3/2 times the equal ones.
    best = jnp.asarray([1.5, 0.5, 1.5, 0.5]) / 4
    assert float(made.outer_loss(best)) == pytest.approx(0, abs=1e-15)
    hessian = jax.hessian(made.outer_loss)(weights)
    assert made.outer_smoothness == pytest.approx(float(jnp.linalg.eigvalsh(hessian)[-1]))


def test_algorithm_2_solves_a_flat_direction_like_a_bessel_function():
    """What `last_sublinear` builds on: 2J_1(x)/x with x = s√(ηλ/2), for a direction much flatter than 1/η."""
    flat, eta = 1e-3, 1 / 3
    away = aggregate = 1.0
    found = []
    for s in range(400):
        middle = 2 / (s + 2) * away + s / (s + 2) * aggregate
        away = away - eta * (s + 1) / 4 * flat * middle
        aggregate = middle - eta * flat * middle
        found.append(aggregate)
    x = np.arange(1, 401) * math.sqrt(eta * flat / 2)
    np.testing.assert_allclose(found, 2 * j1(x) / x, atol=0.02)
    made = hard_federation(8, 3.5)
    assert made.last_sublinear("convex") == math.floor(math.sqrt(6 * 10**3.5))
    assert made.last_sublinear("non-convex") == math.floor(3 * 10**3.5)


@pytest.fixture(scope="session")
def small_study():
    """Rounds and accuracies of all four kinds, on a hard federation with a dense spectrum.

    Dense, because gaps make steps in the curve: over a short range their slope is not the theorem's
    (docs/theory.md lists what was tried). The tests that use it are one group, so that two workers do not
    both make it.
    """
    study = rates.RoundsStudy(nodes=10, decades=3.2, iterations=(97, 48, 64, 48), runs=2)
    with jax.enable_x64(True):
        return rates.measure_rounds(study, quiet)


KINDS = [("convex", 1), ("non-convex", 1), ("convex", 2), ("non-convex", 2)]


@pytest.mark.slow
@pytest.mark.parametrize(("problem", "period"), KINDS)
def test_promises_are_kept(small_study, problem, period):
    own = small_study.query("outer_problem == @problem and period == @period")
    assert (own["accuracy"] <= own["promised"]).all()
    # The hypergradient is as exact as the schedule wants it.
    assert (own["gradient_error"] <= own["allowed_error"]).all()
    assert own["rounds"].is_monotonic_increasing
    assert own["accuracy"].iloc[-1] < 0.5 * own["accuracy"].iloc[0]
    fitted = own[own["fitted"]]["iteration"]
    assert fitted.min() == rates.ASYMPTOTIC
    # √(6·10^3.2) = 97.5: no further in the convex case.
    assert fitted.max() == min(own["iteration"].max(), 97 if problem == "convex" else 10**4)


@pytest.mark.slow
@pytest.mark.parametrize(("problem", "period"), KINDS)
def test_rounds_grow_no_faster_than_the_theorems_say(small_study, problem, period):
    slopes = {(slope.outer_problem, slope.period): slope for slope in fit_slopes(small_study)}
    slope = slopes[problem, period]
    assert slope.no_worse
    # And the fit is sharp enough to mean something: the powers −1/2, −3/2, −2 and −4 are all apart.
    assert 2 * slope.standard_error < 0.1 * abs(slope.slope)
    assert (
        slope.predicted
        == {
            ("convex", 1): -0.5,
            ("convex", 2): -1.5,
            ("non-convex", 1): -2.0,
            ("non-convex", 2): -4.0,
        }[problem, period]
    )
    # The federation is hard: nothing is much better than the theory's power either.
    assert slope.slope == pytest.approx(slope.predicted, rel=0.35)


def test_slopes_of_an_exact_power_law():
    iterations = np.arange(1, 60)
    table = pd.DataFrame(
        {
            "outer_problem": "convex",
            "period": 1,
            "fitted": iterations >= 24,
            "rounds": iterations * 10.0,
            "accuracy": 3.0 * iterations**-2.0,
            "promised": 7.0 * iterations**-1.0,
        }
    )
    (slope,) = fit_slopes(table)
    assert slope.slope == pytest.approx(-0.5)
    assert slope.promised_slope == pytest.approx(-1)
    assert slope.standard_error == pytest.approx(0, abs=1e-9)
    assert slope.no_worse
