"""Ditto and pFedMe as wholes: the nodes, the shared model, and node 0's personal model."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from federations import classification_nodes, own_data, problem, regression_nodes
from fedkin.compilation import COMPILED
from fedkin.errors import DivergedError, InputError
from fedkin.federation.base import Cost
from fedkin.federation.task import slots_of
from fedkin.methods.ditto.center import Ditto, DittoAlgorithm
from fedkin.methods.pfedme.center import PFedMe, PFedMeAlgorithm
from fedkin.methods.registry import make_method
from fedkin.models.linear import Logistic, Ridge
from fedkin.models.mlp import MLP
from pseudocode import ditto_steps, gradient_of, pfedme_rounds

DITTO = DittoAlgorithm(0.1, period=4, rounds=3, proximal=0.5, personal_steps=6)
PFEDME = PFedMeAlgorithm(0.1, period=4, rounds=3, proximal=2.0, tolerance=0.1, iterations=5)


def make(model=None, seed=0):
    nodes, validation = classification_nodes((30, 17))
    return problem(model or Logistic(classes=3, l2=0.1), nodes, validation, seed=seed)


def take_steps(algorithm, made, count=2, seed=0):
    """Take steps from zero; return the last state and what each step reports."""
    state, infos = algorithm.init(jnp.zeros(made.objective.size), 2), []
    for number in range(count):
        key = jax.random.fold_in(jax.random.key(seed), number)
        state, info = algorithm.step(state, key, made.federation, made.center)
        infos.append(info)
    return state, infos


def plain_ditto(made, count=2):
    """Li et al. 2021, Algorithm 2: shared models, personal models and evaluations of each step."""
    gradient = gradient_of(made.objective)
    nodes = [own_data(made.federation.data, node) for node in range(2)]
    own = own_data(made.center.data, 0)
    shared = personal = np.zeros(made.objective.size)
    for number in range(count):
        step_key, busiest = jax.random.fold_in(jax.random.key(0), number), 0
        for round_number in range(3):
            keys = jax.random.split(jax.random.fold_in(step_key, round_number))
            trained = [
                ditto_steps(gradient, data, jax.random.fold_in(keys[0], node), 4, shared, rate=0.1)
                for node, data in enumerate(nodes)
            ]
            personal, evaluations = ditto_steps(
                gradient,
                own,
                jax.random.fold_in(keys[1], 0),
                6,
                personal,
                rate=0.1,
                shared=shared,
                pull=0.5,
            )
            busiest += max(evaluations, *(count for _, count in trained))
            shared = np.mean([point for point, _ in trained], axis=0)
        yield shared, personal, busiest


def plain_pfedme(made, count=2):
    """Dinh et al. 2020, Algorithm 1: shared models, personal models and evaluations of each step."""
    gradient = gradient_of(made.objective)
    nodes = [own_data(made.federation.data, node) for node in range(2)]
    own = own_data(made.center.data, 0)
    settings = {"rate": 0.1, "pull": 2.0, "tolerance": 0.1, "iterations": 5}
    shared = personal = np.zeros(made.objective.size)
    for number in range(count):
        step_key, busiest = jax.random.fold_in(jax.random.key(0), number), 0
        for round_number in range(3):
            keys = jax.random.split(jax.random.fold_in(step_key, round_number))
            trained = [
                pfedme_rounds(
                    gradient, data, jax.random.fold_in(keys[0], node), 4, shared, **settings
                )
                for node, data in enumerate(nodes)
            ]
            counts = [count for _, _, count, _ in trained]
            if round_number == 2:  # the last of the step: only its personal model is looked at
                _, personal, evaluations, _ = pfedme_rounds(
                    gradient, own, jax.random.fold_in(keys[1], 0), 4, shared, **settings
                )
                counts.append(evaluations)
            busiest += max(counts)
            shared = np.mean([point for point, *_ in trained], axis=0)
        yield shared, personal, busiest


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(("algorithm", "plain"), [(DITTO, plain_ditto), (PFEDME, plain_pfedme)])
def test_steps_follow_the_pseudocode_of_the_papers(algorithm, plain):
    made = make()
    state, infos = take_steps(algorithm, made)
    expected = list(plain(made))
    for info, (_, personal, evaluations) in zip(infos, expected, strict=True):
        np.testing.assert_allclose(info.theta, personal, rtol=1e-9, atol=1e-12)
        assert info.cost.points == evaluations
        assert info.cost.synchronizations == 3
        assert info.stop is None
        np.testing.assert_array_equal(info.node_weights, [0.5, 0.5])
    np.testing.assert_allclose(state.shared, expected[-1][0], rtol=1e-9, atol=1e-12)
    assert np.linalg.norm(infos[-1].theta - state.shared) > 1e-2


def quadratics(nodes=3, l2=0.1):
    """Ridge regression with one mini-batch per node: Hessians H_k and linear terms b_k, node 0's last."""
    points, validation = regression_nodes((20,) * nodes)
    made = problem(Ridge(l2=l2, intercept=False), points, validation, batch_size=25)
    everyone = [*made.nodes, made.validation]
    hessians = [x.T @ x / len(x) + l2 * np.eye(4) for x, _ in everyone]
    return made, hessians, [x.T @ y / len(x) for x, y in everyone]


@pytest.mark.usefixtures("float64")
def test_ditto_reaches_its_fixed_point_on_quadratics():
    made, hessians, linear = quadratics()
    algorithm = DittoAlgorithm(0.1, period=1, rounds=300, proximal=0.5, personal_steps=2)
    state, info = algorithm.step(
        algorithm.init(jnp.zeros(4), 3), jax.random.key(0), made.federation, made.center
    )
    shared = np.linalg.solve(sum(hessians[:3]), sum(linear[:3]))
    personal = np.linalg.solve(hessians[3] + 0.5 * np.eye(4), linear[3] + 0.5 * shared)
    np.testing.assert_allclose(state.shared, shared, atol=1e-8)
    np.testing.assert_allclose(info.theta, personal, atol=1e-8)


@pytest.mark.usefixtures("float64")
def test_pfedme_minimizes_the_mean_of_the_moreau_envelopes():
    made, hessians, linear = quadratics()
    pull = 2.0
    algorithm = PFedMeAlgorithm(
        0.15, period=1, rounds=300, proximal=pull, tolerance=1e-11, iterations=200
    )
    state, info = algorithm.step(
        algorithm.init(jnp.zeros(4), 3), jax.random.key(0), made.federation, made.center
    )
    # θ_k(w) = P_k (b_k + λw) with P_k = (H_k + λI)^-1, and Σ_k λ(w − θ_k(w)) = 0 at the minimizer.
    proximal = [np.linalg.inv(hessian + pull * np.eye(4)) for hessian in hessians]
    shared = np.linalg.solve(
        sum(np.eye(4) - pull * matrix for matrix in proximal[:3]),
        sum(matrix @ term for matrix, term in zip(proximal[:3], linear[:3], strict=True)),
    )
    np.testing.assert_allclose(state.shared, shared, atol=1e-8)
    np.testing.assert_allclose(info.theta, proximal[3] @ (linear[3] + pull * shared), atol=1e-8)
    # It is another model than that of federated averaging.
    average = np.linalg.solve(sum(hessians[:3]), sum(linear[:3]))
    assert np.linalg.norm(shared - average) > 1e-3


def test_cost_is_what_was_sent_and_computed():
    made = make()
    size = made.objective.size
    _, (ditto,) = take_steps(DITTO, made, count=1)
    # D_0's 25 points are in mini-batches of 9, 8 and 8: six of them have more than 4 x 10 points.
    assert 3 * 6 * 8 <= ditto.cost.points <= 3 * 6 * 9
    assert replace(ditto.cost, node_points=()) == Cost(
        synchronizations=3,
        bytes_up=2 * 3 * 4 * (size + 1),  # an iterate and a loss
        bytes_down=2 * 3 * 4 * (size + 1),  # the shared model and γ
        nodes_asked=2 * 3,
    )
    endless = replace(PFEDME, tolerance=0.0)
    _, (pfedme,) = take_steps(endless, made, count=1)
    assert pfedme.cost == Cost(
        synchronizations=3,
        bytes_up=2 * 3 * 4 * (size + 2),  # an iterate, a loss, the iterations
        bytes_down=2 * 3 * 4 * (size + 3),  # the shared model, γ, λ and δ
        node_points=pfedme.cost.node_points,
        nodes_asked=2 * 3,
    )
    # Every subproblem takes all its iterations, on ten points of the first node; the center runs once.
    assert pfedme.cost.node_points[0] == 3 * 4 * 5 * 10
    assert 4 * 5 * 8 <= pfedme.cost.node_points[2] <= 4 * 5 * 9
    assert pfedme.diagnostics["proximal_iterations"] == 5


@pytest.mark.parametrize("algorithm", [DITTO, PFEDME])
def test_same_seed_same_bits_and_nothing_is_compiled_twice(algorithm):
    first, infos = take_steps(algorithm, make())
    known = set(COMPILED)
    again, infos_again = take_steps(algorithm, make())
    other, _ = take_steps(replace(algorithm, learning_rate=0.05, rounds=2), make(), seed=1)
    assert set(COMPILED) == known
    np.testing.assert_array_equal(first.shared, again.shared)
    np.testing.assert_array_equal(infos[-1].theta, infos_again[-1].theta)
    assert infos[-1].cost == infos_again[-1].cost
    assert np.any(first.shared != other.shared)


@pytest.mark.parametrize(("algorithm", "method"), [(DITTO, Ditto), (PFEDME, PFedMe)])
def test_a_run_continues_exactly_from_what_was_exported(algorithm, method):
    made, later = make(), make()
    state, _ = take_steps(algorithm, made, count=1)
    slots = slots_of(method.tasks)
    later.federation.import_state(made.federation.export_state(), slots)
    later.center.alone.import_state(made.center.alone.export_state(), slots)
    both = [
        algorithm.step(state, jax.random.key(7), some.federation, some.center)[1].theta
        for some in (made, later)
    ]
    np.testing.assert_array_equal(*both)


@pytest.mark.parametrize(
    "algorithm", [replace(DITTO, proximal=0.001), replace(PFEDME, proximal=0.01)]
)
def test_divergence_names_the_learning_rate(algorithm):
    nodes, validation = regression_nodes((30, 17))
    made = problem(Ridge(l2=0.1, intercept=False), nodes, validation)
    with pytest.raises(DivergedError, match=r"γ = 40 is too large.*learning_rate=4"):
        take_steps(replace(algorithm, learning_rate=40.0, rounds=20), made)


def built(method, model=None, **settings):
    made = make(model)
    chosen = make_method(method, settings)
    chosen.check(len(made.federation.names))
    return chosen.prepare(made.federation, made.center, jax.random.key(0))


def test_open_settings_are_chosen():
    network = MLP(outputs=3)
    assert built("ditto", network) == (DittoAlgorithm(0.05, 20, 20, 0.1, 25), Cost())
    assert built("ditto", network, preset="paper") == (
        DittoAlgorithm(0.02, 20, 3, 0.1, 25),
        Cost(),
    )
    assert built("pfedme", network) == (PFedMeAlgorithm(0.05, 20, 20, 5.0), Cost())
    # A strong pull needs small steps.
    assert built("pfedme", network, proximal=30.0) == (
        PFedMeAlgorithm(0.025, 20, 20, 30.0),
        Cost(),
    )
    assert built("ditto", network, personal_steps=3, period=7, rounds=2) == (
        DittoAlgorithm(0.05, 7, 2, 0.1, 3),
        Cost(),
    )


@pytest.mark.parametrize("method", ["ditto", "pfedme"])
def test_the_step_size_of_a_convex_model_suits_all_data_and_the_pull(method):
    nodes, (inputs, labels) = classification_nodes((30, 17))
    model = Logistic(classes=3, l2=0.1, intercept=False)
    # Node 0's inputs are the largest: its own curvature has to count.
    made = problem(model, nodes, (5 * inputs, labels))
    algorithm, cost = make_method(method).prepare(made.federation, made.center, jax.random.key(0))
    data = own_data(made.center.data, 0)
    largest = 0.0
    for index in range(int(data.batches)):
        batch = data.batch(index)
        features = np.asarray(batch.inputs) * np.sqrt(np.asarray(batch.weights))[:, None]
        largest = max(largest, 0.5 * np.linalg.norm(features, ord=2) ** 2)
    curvature = largest + 0.1 + algorithm.proximal
    assert algorithm.learning_rate == pytest.approx(1 / (2 * curvature), rel=1e-3)
    assert cost.synchronizations == 1


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("fedavg", {"proximal": 0.1}, "proximal is not a setting of the method 'fedavg'"),
        ("bilevel", {"proximal": 0.1}, "proximal is not a setting of the method 'bilevel'"),
        ("local", {"personal_steps": 5}, "personal_steps is not a setting of the method 'local'"),
        ("pfedme", {"personal_steps": 5}, "personal_steps is not a setting of the method 'pfedme'"),
        ("ditto", {"cap": 0.5}, "cap is not a setting of the method 'ditto'"),
        ("ditto", {"refresh_probability": 0.1}, "refresh_probability is not a setting"),
        ("pfedme", {"refresh_probability": 0.1}, "refresh_probability is not a setting"),
        ("pfedme", {"learning_rate": 0.3}, r"0.3 x 5 = 1.5.*below 0.2.*below 3.33"),
        ("ditto", {"learning_rate": 0.1, "proximal": 10.0}, "must be below 1"),
        ("ditto", {"proximal": 0.0}, "proximal must be a positive number, not 0.0"),
        ("pfedme", {"proximal": float("nan")}, "proximal must be a positive number, not nan"),
        ("ditto", {"personal_steps": 2.5}, "personal_steps must be a whole number"),
        ("dito", {}, "method='dito' is unknown; did you mean ditto"),
        (
            "newton",
            {},
            "method='newton' is unknown; choose one of bilevel, fedavg, finetune",
        ),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(method, settings, message):
    with pytest.raises(InputError, match=message):
        built(method, **settings)
