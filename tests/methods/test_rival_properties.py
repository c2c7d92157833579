"""What the papers of the rivals promise, on federations where the truth is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from federations import problem
from fedkin.methods.apfl.center import ApflAlgorithm
from fedkin.methods.apple.center import AppleAlgorithm
from fedkin.methods.cobo.center import CoBoAlgorithm, draw_partners
from fedkin.methods.descent.center import Descent
from fedkin.methods.fedala.center import FedAlaAlgorithm
from fedkin.methods.fedamp.center import FedAmpAlgorithm, attention
from fedkin.methods.fedavg import FedAvgAlgorithm
from fedkin.methods.fedfomo.center import FedFomoAlgorithm, fomo_weights
from fedkin.methods.finetune.center import FineTuningAlgorithm
from fedkin.methods.ifca.center import IfcaAlgorithm
from fedkin.methods.local_svrg.center import LocalSvrg
from fedkin.methods.pfedgraph.center import PFedGraphAlgorithm, collaboration_graph
from fedkin.methods.robust.rules import coordinate_median, krum, trimmed_mean
from fedkin.methods.tawt.center import TawtAlgorithm, mirror_step
from fedkin.models.linear import Logistic

DESCENT = Descent(0.5, period=5, rounds=10)
KIN = (0, 1, 2)
STRANGERS = (3, 4, 5)


def draw(truth, rows, seed, noise=0.3):
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 4))
    return x, (x @ truth + noise * random.normal(size=rows) > 0).astype(np.int32)


def two_groups(rows=40):
    """Three nodes like the owner, and three whose labels are the other way round."""
    truth = np.array([1.0, -1.0, 0.5, 0.0])
    nodes = [draw(truth if node in KIN else -truth, rows, node) for node in (*KIN, *STRANGERS)]
    made = problem(Logistic(classes=2, l2=0.01), nodes, draw(truth, 30, 50), batch_size=20)
    return made, draw(truth, 500, 51, noise=0.0)


def train(algorithm, made, steps=3):
    state = algorithm.init(jnp.zeros(made.objective.size), len(made.nodes))
    info = None
    for number in range(steps):
        key = jax.random.fold_in(jax.random.key(1), number)
        state, info = algorithm.step(state, key, made.federation, made.center)
    return state, info


def accuracy(made, theta, test):
    return made.center.score(theta, test[0].astype(np.float32), test[1]).accuracy


def test_fine_tuning_helps_an_owner_whom_the_average_does_not():
    """Half of the nodes say the opposite: FedAvg knows next to nothing, and held-out rows tell."""
    made, test = two_groups()
    shared = FedAvgAlgorithm(LocalSvrg(0.2, period=5, rounds=10))
    state, info = train(FineTuningAlgorithm(shared, 200), made)
    assert info.diagnostics["taken"] > 0
    assert info.diagnostics["gain"] > 0.05
    tuned, average = (accuracy(made, theta, test) for theta in (info.theta, state.theta))
    assert tuned > 0.85 > average + 0.1


def test_fine_tuning_takes_no_step_that_held_out_rows_do_not_gain_from():
    """The owner's labels are coins: the initial model, without any opinion, is as good as it gets."""
    made, _ = two_groups()
    random = np.random.default_rng(3)
    coins = random.integers(0, 2, size=40).astype(np.int32)
    x = 3 * random.normal(size=(40, 4))
    other = problem(Logistic(classes=2, l2=0.01), made.nodes, (x, coins), batch_size=20)
    quiet = FedAvgAlgorithm(LocalSvrg(1e-9, period=1, rounds=1))
    _, info = train(FineTuningAlgorithm(quiet, 10), other, steps=1)
    reply = FineTuningAlgorithm(FedAvgAlgorithm(LocalSvrg(3.0, period=1, rounds=1)), 10)
    _, wild = train(reply, other, steps=1)
    assert info.diagnostics["gain"] < 1e-6
    assert wild.diagnostics["taken"] == 0


def test_tawt_leaves_nodes_with_other_labels():
    made, test = two_groups()
    algorithm = TawtAlgorithm(LocalSvrg(0.2, period=5, rounds=5), outer_learning_rate=1.0)
    _, info = train(algorithm, made, steps=6)
    weights = np.asarray(info.node_weights)
    assert weights.sum() == pytest.approx(1, abs=1e-6)
    assert weights[list(STRANGERS)].sum() < 0.01
    assert accuracy(made, info.theta, test) > 0.9


def test_a_mirror_step_keeps_the_simplex_and_leaves_out_who_is_away():
    weights = jnp.array([0.2, 0.3, 0.5, 0.0])
    exponents = jnp.array([1.0, -50.0, jnp.nan, 0.5])
    found = np.asarray(mirror_step(weights, exponents, jnp.array([True, True, True, False])))
    expected = np.array([0.2 * np.e, 0.3 * np.exp(-50), 0.5, 0.0])
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-5, atol=1e-9)


def test_ifca_recovers_two_clusters():
    made, test = two_groups()
    algorithm = IfcaAlgorithm(DESCENT, clusters=2)
    state, info = train(algorithm, made, steps=2)
    members = np.asarray(state.members)
    assert len(set(members[list(KIN)])) == len(set(members[list(STRANGERS)])) == 1
    assert members[0] != members[3]
    np.testing.assert_allclose(info.node_weights, [1 / 3] * 3 + [0] * 3)
    assert accuracy(made, info.theta, test) > 0.9


def test_fedfomo_gives_nothing_to_worse_models():
    """Positive only where the owner gains, and in proportion to the gain per unit of distance."""
    moves = np.array([[3.0, 4.0], [1.0, 0.0], [0.0, 2.0], [0.0, 0.0], [1.0, 1.0]])
    losses = np.array([0.5, 1.2, 0.8, 1.0, np.nan])
    weights = fomo_weights(1.0, losses, moves)
    np.testing.assert_allclose(weights, [0.5, 0.0, 0.5, 0.0, 0.0])
    assert not fomo_weights(1.0, losses + 1, moves).any()
    made, test = two_groups()
    _, info = train(FedFomoAlgorithm(Descent(0.1, period=5, rounds=5)), made)
    assert np.all(np.asarray(info.node_weights)[list(STRANGERS)] == 0)
    assert accuracy(made, info.theta, test) > 0.9


def test_fedamp_follows_the_gradient_of_its_objective():
    """u_i moves along the gradient of Σ A(‖x_i − x_j‖²), with A(t) = 1 − exp(−t / σ)."""
    random = np.random.default_rng(0)
    models, sigma = random.normal(size=(5, 3)), 2.0
    everyone = np.ones(5, bool)
    weights = attention(models, everyone, attraction=1.0, sigma=sigma)
    np.testing.assert_allclose(weights.sum(axis=1), 1)
    assert (weights >= 0).all()

    def objective(x):
        squared = jnp.sum((x[:, None] - x) ** 2, axis=-1)
        return jnp.sum(jnp.triu(1 - jnp.exp(-squared / sigma), 1))

    with jax.enable_x64(True):
        gradient = np.asarray(jax.grad(objective)(jnp.asarray(models)))
    # ∇ has a factor 2 from ‖·‖²; the paper's step is α, here σ / (m − 1).
    np.testing.assert_allclose(weights @ models, models - sigma / 4 / 2 * gradient, rtol=1e-6)


@pytest.mark.parametrize("algorithm", [FedAmpAlgorithm(DESCENT), PFedGraphAlgorithm(DESCENT, 0.5)])
def test_near_models_get_the_weight(algorithm):
    made, test = two_groups()
    _, info = train(algorithm, made)
    weights = np.asarray(info.node_weights)
    assert weights[list(KIN)].min() > 2 * weights[list(STRANGERS)].max()
    assert weights.sum() + info.diagnostics["own_weight"] == pytest.approx(1, abs=1e-5)
    assert accuracy(made, info.theta, test) > 0.9


def test_the_collaboration_graph_is_what_an_independent_solver_finds():
    random = np.random.default_rng(1)
    updates, sizes = random.normal(size=(5, 3)), np.array([10.0, 20, 30, 5, 15])
    share = sizes / sizes.sum()
    for fidelity in (0.2, 0.8, 5.0):
        found = collaboration_graph(updates, sizes, np.ones(5, bool), fidelity)
        units = updates / np.linalg.norm(updates, axis=1, keepdims=True)
        for row, cosines in zip(found, units @ units.T, strict=True):
            solved = minimize(
                lambda w, c=cosines, f=fidelity: f * np.sum((w - share) ** 2) - c @ w,
                share,
                bounds=[(0, 1)] * 5,
                constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
                method="SLSQP",
                options={"ftol": 1e-14, "maxiter": 500},
            )
            np.testing.assert_allclose(row, solved.x, atol=1e-5)
    away = np.array([True, False, True, True, True])
    assert not collaboration_graph(updates, sizes, away, 0.8)[:, 1].any()


def all_alike():
    """Six nodes like the owner."""
    truth = np.array([1.0, -1.0, 0.5, 0.0])
    nodes = [draw(truth, 40, node) for node in range(6)]
    made = problem(Logistic(classes=2, l2=0.01), nodes, draw(truth, 30, 50), batch_size=20)
    return made, draw(truth, 500, 51, noise=0.0)


@pytest.mark.parametrize(
    ("algorithm", "name", "sign"),
    [
        (ApflAlgorithm(DESCENT, mixing=0.5, mixing_rate=0.5), "personal_share", 1),
        (FedAlaAlgorithm(DESCENT, mixing_rate=5.0), "taken_over", -1),
    ],
)
def test_owners_rely_on_their_own_model_where_the_average_does_not_help(algorithm, name, sign):
    found = []
    for make in (two_groups, all_alike):
        made, test = make()
        _, info = train(algorithm, made)
        assert accuracy(made, info.theta, test) > 0.85
        assert 0 <= info.diagnostics[name] <= 1
        found.append(info.diagnostics[name])
    alone, together = found
    assert sign * (alone - together) > 0.02


def test_apple_takes_from_those_who_are_alike():
    made, test = two_groups()
    algorithm = AppleAlgorithm(DESCENT, mixing_rate=1.0, penalty=0.1, decay_rounds=20)
    state, info = train(algorithm, made, steps=4)
    shares = np.asarray(state.shares)[6, :6]
    assert shares[list(KIN)].min() > shares[list(STRANGERS)].max() + 0.05
    assert np.asarray(info.node_weights)[list(KIN)].sum() > 0.4
    assert accuracy(made, info.theta, test) > 0.9
    factors = [algorithm.penalty_factor(rounds) for rounds in range(25)]
    assert factors[0] == 1
    assert factors[10] == pytest.approx(0.5)
    assert factors[20:] == [0] * 5


def test_cobo_finds_the_blocks():
    """Everybody is paired with everybody sooner or later; only pairs of one kind remain.

    While they learn: at the end, each of a pair is drawn to the minimum of its own sample.
    """
    made, test = two_groups()
    algorithm = CoBoAlgorithm(Descent(0.05, period=2, rounds=40), 1.0, 0.5)
    state, info = train(algorithm, made, steps=1)
    pairs = np.asarray(state.pairs)
    kind = np.array([0, 0, 0, 1, 1, 1, 0])  # the owner is the last
    same = (kind[:, None] == kind) & ~np.eye(7, dtype=bool)
    assert pairs[same].min() > 0.5
    assert pairs[kind[:, None] != kind].max() < 0.1
    assert np.all(np.asarray(info.node_weights)[list(STRANGERS)] < 0.02)
    assert accuracy(made, info.theta, test) > 0.9


def test_partners_are_partners_of_each_other():
    present = np.array([True, True, False, True, True, True, True, True])
    for seed in range(10):
        partners = draw_partners(jax.random.key(seed), present)
        np.testing.assert_array_equal(partners[partners], np.arange(8))
        alone = np.flatnonzero(partners == np.arange(8))
        assert len(alone) == 2
        assert 2 in alone


def test_robust_rules_stay_with_the_good_ones_however_far_the_bad_are():
    """Seven of ten are near 1, three anywhere: what comes of it is within the range of the seven."""
    random = np.random.default_rng(4)
    good = 1 + 0.1 * random.normal(size=(7, 30))
    for far in (5.0, -1e3, 1e6):
        for spread in (0.0, 1.0):
            bad = far * (1 + spread * random.normal(size=(3, 30)))
            models = random.permutation(np.concatenate([good, bad]))
            low, high = good.min(axis=0), good.max(axis=0)
            for found in (coordinate_median(models), trimmed_mean(models, 0.3)):
                assert (low <= found).all()
                assert (found <= high).all()
            assert np.abs(models[krum(models, 3)] - 1).max() < 1
            assert np.abs(models.mean(axis=0) - 1).max() > 1


def test_a_trimmed_mean_of_nearly_half_is_the_median_and_of_little_is_the_mean():
    models = np.random.default_rng(1).normal(size=(9, 5))
    np.testing.assert_allclose(trimmed_mean(models, 0.49), coordinate_median(models))
    np.testing.assert_allclose(trimmed_mean(models, 0.1), models.mean(axis=0))
