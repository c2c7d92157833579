"""The studies of `fedkin theory`: their tools against truth, and their claims on small problems."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from fedkin.claims import rates
from fedkin.claims.cap import CapStudy, best_caps, measure_cap
from fedkin.claims.examples import (
    ExampleStudy,
    constant_at,
    distance_to_best,
    largest_share_of_error_bound,
    measure_error_bound,
    measure_mean_estimation,
    outer_gap,
)
from fedkin.claims.linear_regression import (
    Federation,
    Moments,
    draw_moments,
    draw_sample,
    excess_risks,
    learn_weights,
    validation_loss,
)
from fedkin.claims.quadratic_svrg import draw, local_svrg, quadratic_nodes
from fedkin.claims.regimes import RegimeStudy, measure_regimes, measured_border
from fedkin.cli import app
from fedkin.data.batches import stack_nodes
from fedkin.models.linear import Ridge
from fedkin.models.objective import Objective
from fedkin.nodes import svrg

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
            functions = svrg.inner_problem(objective, own)
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
    study = rates.SvrgStudy(
        periods=(1, 5), fractions=(1.0, 0.3), runs=40, steps=600, checkpoints=10
    )
    table = rates.measure_local_svrg(study, quiet)
    assert len(table) == 40
    assert rates.largest_share_of_bound(table) <= 1
    # It converges at all: with τ = 1 and γ_0 by more than an order of magnitude here.
    first = table.query("period == 1 and fraction == 1.0")["error"]
    assert first.iloc[-1] < 0.1 * first.iloc[0]


def test_the_hard_federation_is_what_it_says():
    made = rates.hard_federation(4, 3.0)
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


def test_rounds_and_slopes_of_a_small_study():
    study = rates.RoundsStudy(nodes=3, decades=2.0, iterations=(24, 24, 12, 12), runs=2)
    table = rates.measure_rounds(study, quiet)
    # The promise is kept, and the hypergradient is as exact as the schedule wants it.
    assert (table["accuracy"] <= table["promised"]).all()
    assert (table["gradient_error"] <= table["allowed_error"]).all()
    for _, group in table.groupby(["outer_problem", "period"]):
        assert group["rounds"].is_monotonic_increasing
        assert group["accuracy"].iloc[-1] < 0.7 * group["accuracy"].iloc[0]
    by_kind = {(s.outer_problem, s.period): s for s in rates.fit_slopes(table)}
    # Algorithm 3's random iterate is as slow as the theory says, and not slower.
    slope = by_kind["non-convex", 1]
    assert slope.slope >= slope.promised_slope - 2 * slope.standard_error


def test_slopes_of_an_exact_power_law():
    iterations = np.arange(1, 60)
    table = pd.DataFrame(
        {
            "outer_problem": "convex",
            "period": 1,
            "rounds": iterations * 10.0,
            "accuracy": 3.0 * iterations**-2.0,
            "promised": 7.0 * iterations**-1.0,
        }
    )
    (slope,) = rates.fit_slopes(table)
    assert slope.slope == pytest.approx(-0.5)
    assert slope.promised_slope == pytest.approx(-1)
    assert slope.standard_error == pytest.approx(0, abs=1e-9)
    assert slope.no_worse


def test_moments_have_the_distribution_of_data():
    truths = np.array([[1.0, -2.0]])
    drawn = draw_moments(np.random.default_rng(0), truths, 0.5, 7, 4000)
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(4000, 7, 2))
    labels = inputs @ truths[0] + 0.5 * rng.normal(size=(4000, 7))
    matrix = np.swapaxes(inputs, 1, 2) @ inputs / 7
    vector = np.einsum("rni,rn->ri", inputs, labels) / 7
    for ours, theirs in ((drawn.matrix[:, 0], matrix), (drawn.vector[:, 0], vector)):
        ours = np.asarray(ours)
        error = theirs.std(axis=0) * math.sqrt(2 / 4000)
        assert (np.abs(ours.mean(axis=0) - theirs.mean(axis=0)) <= 5 * error).all()
        np.testing.assert_allclose(ours.std(axis=0), theirs.std(axis=0), rtol=0.1)


def test_excess_risks_against_closed_forms():
    """Least squares with normal inputs loses σ²d/2(n − d − 1) on average."""
    federation = Federation(similar=2, others=2, features=3, offset=0.0)
    sample = draw_sample(np.random.default_rng(0), federation, valid=30, train=50, runs=600)
    risks = excess_risks(sample, 1.0)
    for values, points in ((risks.local, 30), (risks.equal, 4 * 50)):
        error = values.std() / math.sqrt(600)
        assert abs(values.mean() - 3 / (2 * (points - 4))) <= 4 * error
    # Far from the centre, equal weights have the bias of the mean of the truths, ½‖θ̄‖².
    away = Federation(similar=2, others=2, features=3, offset=50.0)
    sample = draw_sample(np.random.default_rng(0), away, valid=30, train=5000, runs=20)
    bias = 0.5 * np.sum(away.truths.mean(axis=0) ** 2)
    assert excess_risks(sample, 1.0).equal.mean() == pytest.approx(bias, rel=0.05)


def test_learned_weights_are_the_best_ones():
    federation = Federation(similar=2, others=2, features=3, offset=1.0)
    sample = draw_sample(np.random.default_rng(4), federation, valid=20, train=30, runs=1)
    nodes = Moments(*(array[0] for array in sample.nodes))
    centre = Moments(*(array[0] for array in sample.centre))
    found = learn_weights(nodes, centre, 0.6)
    assert float(found.sum()) == pytest.approx(1)
    assert float(found.max()) <= 0.6 + 1e-9
    reached = float(validation_loss(nodes, centre, found))
    steps = np.linspace(0, 0.6, 25)
    grid = [
        np.array([a, b, c, 1 - a - b - c])
        for a in steps
        for b in steps
        for c in steps
        if 0 <= 1 - a - b - c <= 0.6
    ]
    values = jax.vmap(lambda w: validation_loss(nodes, centre, w))(jnp.asarray(grid))
    assert reached <= float(values.min()) + 1e-9


def test_regimes_have_the_predicted_direction():
    """Small G: Bi-level beats local training; large G and many own points: it does not; never for free."""
    study = RegimeStudy(
        offsets=(0.05, 0.8, 3.2), valid=(20, 2000), train=(50, 500), fixed_train=50, runs=40
    )
    cells = measure_regimes(study, quiet)
    small = cells[cells["offset"] == 0.05]
    scarce = small[small["valid"] <= 100]
    assert (scarce["gain_over_local"] > 2 * scarce["gain_over_local_standard_error"]).all()
    corner = cells.query("axis == 'valid' and offset == 3.2 and valid == 2000").iloc[0]
    assert corner["winner"] == "local"
    assert corner["certain"]
    # Equal weights: beaten beyond doubt where nodes are far away, and better where they are near.
    far = cells[cells["offset"] == 3.2]
    assert (far["gain_over_equal"] > 2 * far["gain_over_equal_standard_error"]).all()
    near = small[small["valid"] == 20].iloc[0]
    assert near["gain_over_equal"] < -2 * near["gain_over_equal_standard_error"]
    borders = {each.size: each for each in measured_border(cells, "valid", "local")}
    assert borders[20].always == "bilevel"
    assert borders[2000].distance is None or borders[2000].distance < 10


def test_the_best_cap_is_not_below_one_over_similar():
    study = CapStudy(nodes=8, similar=(2, 4), caps=4, runs=60)
    cells = measure_cap(study, quiet)
    for best in best_caps(cells):
        assert best.cap >= 1 / best.similar - 1e-3
        assert best.excess_risk < 0.5 * best.at_smallest_cap
    below = cells[cells["cap"] * cells["similar"] < 0.99]
    # A cap of less than 1/J leaves at least 1 − Jb to others, whatever is learned.
    forced = 1 - below["cap"] * below["similar"]
    assert (below["weight_on_others"] >= forced - 1e-6).all()


def test_mean_estimation_tends_to_half_and_half():
    study = ExampleStudy(offsets=(1.0,), valid=(100, 2500), runs=1000)
    table = measure_mean_estimation(study, quiet)
    for row in table.to_dict("records"):
        assert row["weight_error"] == pytest.approx(row["predicted_weight_error"], rel=0.1)
    first, last = table["weight_error"]
    assert first / last == pytest.approx(5, rel=0.15)  # √25


def test_the_error_bound_holds_and_its_constant_grows_as_nodes_come_nearer():
    study = ExampleStudy(weights=400, scales=(0.1, 1.0))
    scatter, constants = measure_error_bound(study, quiet)
    here = constant_at(constants, 1.0)
    assert 0.5 <= largest_share_of_error_bound(scatter, here) <= 1 + 1e-6
    # F is quadratic: ten times nearer, ten times the constant.
    assert constant_at(constants, 0.1) == pytest.approx(10 * here, rel=0.02)


def test_distance_to_the_best_weights_by_hand():
    weights = np.array([[0.5, 0.2, 0.3], [0.6, 0.4, 0.0], [0.0, 0.0, 1.0]])
    # J = 2, no cap: the missing weight goes in equal parts to both.
    expected = [math.hypot(0.3, 0.15 * math.sqrt(2)), 0, math.hypot(1, 0.5 * math.sqrt(2))]
    np.testing.assert_allclose(distance_to_best(weights, 2), expected, atol=1e-12)
    federation = Federation(similar=2, others=1, features=2, offset=2.0)
    np.testing.assert_allclose(outer_gap(weights, federation), [0.18, 0, 2], atol=1e-12)


def test_the_command_writes_figure_and_table(tmp_path):
    runner = CliRunner()
    out = tmp_path / "new" / "theory"
    done = runner.invoke(app, ["theory", "examples", "--out", str(out), "--runs", "50", "--json"])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["largest_share_of_error_bound"] <= 1
    for name in ("examples.svg", "examples.png", "examples-means.csv"):
        assert (out / name).stat().st_size > 500
    assert str(out / "examples.svg") in answer["files"]
    table = pd.read_csv(out / "examples-means.csv")
    assert list(table["runs"].unique()) == [50]


def test_an_output_that_is_a_file_is_refused_before_any_work(tmp_path):
    from fedkin.errors import InputError

    wrong = tmp_path / "file"
    wrong.write_text("")
    done = CliRunner().invoke(app, ["theory", "rates", "--out", str(wrong)])
    assert isinstance(done.exception, InputError)
    assert "no directory" in str(done.exception)
