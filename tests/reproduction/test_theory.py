"""The measurements of the theory: their tools against truth, and their claims on small problems."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from fedkin.errors import InputError
from reproduction.theory.cap import CapStudy, best_caps, cap_bounds, measure_cap
from reproduction.theory.commands import app
from reproduction.theory.examples import (
    ExampleStudy,
    constant_at,
    distance_to_best,
    largest_share_of_error_bound,
    measure_error_bound,
    measure_mean_estimation,
    outer_gap,
)
from reproduction.theory.linear_regression import (
    PARAMETER_RADIUS,
    Federation,
    Moments,
    draw_moments,
    draw_sample,
    excess_risks,
    learn_weights,
    validation_loss,
)
from reproduction.theory.regimes import (
    RegimeStudy,
    cells_lost_to_equal,
    measure_regimes,
    measured_border,
    predicted_border,
)

pytestmark = pytest.mark.usefixtures("float64")


def quiet(what):
    """Progress that nobody watches."""


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


def test_fewer_points_than_features_are_refused():
    """Least squares has no one solution then, and what a solver returns would be noise, or NaN."""
    truths = np.zeros((2, 3))
    with pytest.raises(InputError, match="2 points do not determine 3 parameters"):
        draw_moments(np.random.default_rng(0), truths, 1.0, 2, 5)
    enough = draw_moments(np.random.default_rng(0), truths, 1.0, 3, 5)
    assert (np.linalg.eigvalsh(enough.matrix) > 0).all()


def test_excess_risks_against_closed_forms():
    """Least squares with normal inputs loses σ²d/2(n − d − 1) on average."""
    federation = Federation(similar=2, others=2, features=3, offset=0.0)
    sample = draw_sample(np.random.default_rng(0), federation, valid=30, train=50, runs=600)
    risks = excess_risks(sample, 1.0, federation.similar)
    for values, points in ((risks.local, 30), (risks.equal, 4 * 50), (risks.similar, 2 * 50)):
        error = values.std() / math.sqrt(600)
        assert abs(values.mean() - 3 / (2 * (points - 4))) <= 4 * error
    # Far from the center, equal weights have the bias of the mean of the truths, ½‖θ̄‖².
    away = Federation(similar=2, others=2, features=3, offset=50.0)
    sample = draw_sample(np.random.default_rng(0), away, valid=30, train=5000, runs=20)
    bias = 0.5 * np.sum(away.truths.mean(axis=0) ** 2)
    risks = excess_risks(sample, 1.0, away.similar)
    assert risks.equal.mean() == pytest.approx(bias, rel=0.05)
    # The models of the nodes themselves are the farthest that are met, at δ = 50.
    assert risks.largest_parameter == pytest.approx(50, rel=0.01)


def test_learned_weights_are_the_best_ones():
    federation = Federation(similar=2, others=2, features=3, offset=1.0)
    sample = draw_sample(np.random.default_rng(4), federation, valid=20, train=30, runs=1)
    nodes = Moments(*(array[0] for array in sample.nodes))
    center = Moments(*(array[0] for array in sample.center))
    found = learn_weights(nodes, center, 0.6)
    assert float(found.sum()) == pytest.approx(1)
    assert float(found.max()) <= 0.6 + 1e-9
    reached = float(validation_loss(nodes, center, found))
    steps = np.linspace(0, 0.6, 25)
    grid = [
        np.array([a, b, c, 1 - a - b - c])
        for a in steps
        for b in steps
        for c in steps
        if 0 <= 1 - a - b - c <= 0.6
    ]
    values = jax.vmap(lambda w: validation_loss(nodes, center, w))(jnp.asarray(grid))
    assert reached <= float(values.min()) + 1e-9


@pytest.fixture(scope="session")
def regimes():
    """A small map: n_valid from scarce to plenty, and n_train too, over more than two decades of G."""
    study = RegimeStudy(
        offsets=(0.02, 0.1, 0.4, 0.8, 1.6, 3.2),
        valid=(20, 500, 2000),
        train=(20, 100, 1000),
        fixed_train=100,
        fixed_valid=500,
        runs=60,
    )
    return study, measure_regimes(study, quiet)


def below(cells, axis, rival):
    """Return for every size the G below which Bi-level is ahead of a rival; ∞: at any G, 0: at none."""
    return [
        border.distance or (0.0 if border.always == rival else math.inf)
        for border in measured_border(cells, axis, rival)
    ]


def above(cells, axis, rival, way="bilevel"):
    """Return for every size the G above which one way is ahead of a rival; ∞: at none, 0: at any G."""
    return [
        border.distance or (math.inf if border.always == rival else 0.0)
        for border in measured_border(cells, axis, rival, way)
    ]


def beyond_doubt(cells, gain, sign=1):
    return (sign * cells[gain] > 2 * cells[f"{gain}_standard_error"]).all()


def test_the_border_with_local_training_moves_as_predicted(regimes):
    """Bi-level is ahead below it; it falls with n_valid and rises with n_train, as Corollary 1's does."""
    study, cells = regimes
    with_valid, with_train = below(cells, "valid", "local"), below(cells, "train", "local")
    assert with_valid[0] > with_valid[1] > with_valid[2]
    assert with_train[0] < with_train[1] < with_train[2]
    # Scarce own data and plenty of others': Bi-level at every G. A border in between is a border.
    assert with_valid[0] == with_train[-1] == math.inf
    assert 0 < with_valid[1] < math.inf
    predicted = predicted_border(study, "valid", np.array([10.0, 30.0, 90.0, 500.0]))
    assert (np.diff(predicted) < 0).all()
    predicted = predicted_border(study, "train", np.array([500.0, 600.0, 1000.0, 5000.0]))
    assert (np.diff(predicted) > 0).all()
    # Below and above the border, beyond doubt.
    assert beyond_doubt(cells.query("offset == 0.02 and valid <= train"), "gain_over_local")
    own = cells.query("offset == 3.2 and valid >= 10 * train")
    assert len(own) == 2
    assert beyond_doubt(own, "gain_over_local", sign=-1)


def test_the_border_with_equal_weights(regimes):
    """Bi-level is ahead above it, and it falls with n_valid; below it, choosing nodes costs too much data.

    Equal weights on the similar nodes alone, the best of W*, lose to equal weights on all where the bias of
    these, ½‖θ̄‖², is less than what the fewer points cost in variance: that border has a closed form.
    """
    study, cells = regimes
    assert beyond_doubt(cells[cells["offset"] == 3.2], "gain_over_equal")
    scarce = cells.query("offset == 0.02 and valid == 20")
    assert beyond_doubt(scarce, "gain_over_equal", sign=-1)
    first, second, third = above(cells, "valid", "equal")
    assert math.inf > first > second >= third
    assert beyond_doubt(cells[cells["offset"] == 0.02], "gain_of_similar_over_equal", sign=-1)
    assert 0 < cells_lost_to_equal(cells, "bilevel") < len(cells) / 2
    federation = study.federation
    bias = np.sum((federation.truths.mean(axis=0) / federation.offset) ** 2)
    grid = cells.drop_duplicates("offset").sort_values("offset")
    for train, border in zip(
        study.train, above(cells, "train", "equal", way="similar"), strict=True
    ):
        fewer, all_nodes = (
            federation.features / (count * train - federation.features - 1)
            for count in (federation.similar, federation.nodes)
        )
        offset = math.sqrt((fewer - all_nodes) / bias)
        expected = np.interp(math.log(offset), np.log(grid["offset"]), np.log(grid["distance"]))
        assert math.log(border) == pytest.approx(expected, abs=math.log(1.5))


def test_all_parameters_that_are_met_lie_in_the_ball_of_g(regimes):
    """G is a maximum over a ball: it must hold the farthest nodes' models, also those with few points."""
    _, cells = regimes
    assert cells["largest_parameter"].max() <= PARAMETER_RADIUS
    assert cells["largest_parameter"].max() >= 3.2


def test_the_best_cap_is_not_below_one_over_similar():
    study = CapStudy(nodes=8, similar=(2, 3, 4), caps=4, runs=60)
    cells = measure_cap(study, quiet)
    for best in best_caps(cells):
        assert best.cap >= 1 / best.similar
        assert best.excess_risk < 0.5 * best.at_smallest_cap
    below = cells[cells["cap"] * cells["similar"] < 0.99]
    # A cap of less than 1/J leaves at least 1 − Jb to others, whatever is learned.
    forced = 1 - below["cap"] * below["similar"]
    assert (below["weight_on_others"] >= forced - 1e-6).all()
    # Corollary 2 says something of bJ ≥ 1 only, and its first term grows in proportion to b there.
    bounds = cap_bounds(study, cells)
    assert not cells.isna().any(axis=None)
    assert not bounds.isna().any(axis=None)
    assert len(bounds) == len(cells) - len(below)
    for similar, own in bounds.groupby("similar"):
        assert own["cap"].min() == 1 / similar
        ratio = own["sampling_term"] / own["cap"]
        np.testing.assert_allclose(ratio, ratio.iloc[0])


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
    done = runner.invoke(app, ["examples", "--out", str(out), "--runs", "50", "--json"])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["largest_share_of_error_bound"] <= 1
    for name in ("examples.svg", "examples.png", "examples-means.csv"):
        assert (out / name).stat().st_size > 500
    assert str(out / "examples.svg") in answer["files"]
    table = pd.read_csv(out / "examples-means.csv")
    assert list(table["runs"].unique()) == [50]


def test_an_output_that_is_a_file_is_refused_before_any_work(tmp_path):
    wrong = tmp_path / "file"
    wrong.write_text("")
    done = CliRunner().invoke(app, ["rates", "--out", str(wrong)])
    assert isinstance(done.exception, InputError)
    assert "not a directory" in str(done.exception)
