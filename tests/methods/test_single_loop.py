"""The single loop: one exchange per step moves model, h and weights."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from federation.attended import NOTHING, AttendedSimulation
from federations import problem
from fedkin.errors import InputError
from fedkin.federation.base import PerNode
from fedkin.federation.task import RATE
from fedkin.methods.bilevel import single_loop
from fedkin.methods.bilevel.method import Bilevel
from fedkin.methods.bilevel.node import DECREMENT, MOST_DAMPING
from fedkin.methods.bilevel.rivals import FIRST_COMPARISON, Rivals
from fedkin.methods.fedavg import FedAvg
from fedkin.models.linear import Ridge
from fedkin.models.mlp import MLP
from fedkin.numerics.linear_solve import damped_conjugate_gradients
from fedkin.studies.cell import draw_problem
from fedkin.studies.config import RunConfig
from fedkin.training.problem import Problem, simulation
from fedkin.training.runner import Budget

POINTS, FEATURES, CLASSES = 60, 6, 3
KIN = np.arange(12) < 4


def federation_of(seed=7):
    """Twelve nodes and an owner; eight of the nodes call the classes by other names."""
    rng = np.random.default_rng(seed)
    target = 2 * rng.normal(size=(FEATURES, CLASSES))

    def draw():
        inputs = rng.normal(size=(POINTS, FEATURES))
        noise = 0.3 * rng.gumbel(size=(POINTS, CLASSES))
        return inputs, np.argmax(np.tanh(inputs) @ target + noise, axis=1).astype(np.int32)

    nodes = [draw() for _ in KIN]
    nodes = [(x, y if kin else (y + 1) % 3) for (x, y), kin in zip(nodes, KIN, strict=True)]
    return nodes, draw()


def build(seed=7, wrap=lambda federation: federation):
    nodes, validation = federation_of(seed)
    names = [f"node {number}" for number in range(len(nodes))]
    engine = simulation(dict(zip(names, nodes, strict=True)), batch_size=10, seed=0)
    return Problem.build(
        lambda objective: wrap(engine(objective)),
        validation,
        model=MLP(CLASSES, hidden=8),
        classes=np.arange(CLASSES),
        batch_size=10,
    )


def train(method, steps, *, made=None, **options):
    return (made or build()).train(method, budget=Budget(steps=steps), **options).state


def kin_share(row):
    return float(row.node_weights[KIN].sum())


# The center's solve for h, and the errors of slopes


def ridge(seed=0, rows=20):
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(rows, 3))
    return inputs, inputs @ rng.normal(size=3)


@pytest.mark.usefixtures("float64")
def test_the_center_solves_with_the_hessian_of_the_validation_loss():
    """With as many iterations as unknowns, exactly."""
    rng, validation = np.random.default_rng(0), ridge()
    made = problem(Ridge(l2=0.1, intercept=False), [validation] * 2, validation, batch_size=20)
    target, damping = rng.normal(size=3), 0.4
    found = made.center.solve(
        jnp.asarray(rng.normal(size=3)), jnp.asarray(target), damping=damping, iterations=3
    )
    hessian = validation[0].T @ validation[0] / 20 + 0.1 * np.eye(3)
    exact = np.linalg.solve(hessian + damping * np.eye(3), target)
    np.testing.assert_allclose(found.solution, exact, rtol=1e-9)
    largest = np.linalg.eigvalsh(hessian)[-1]
    assert 0.5 * largest < found.curvature <= largest + 1e-12
    assert bool(found.convex)


class MatrixCenter:
    """A center whose Hessian is a given matrix."""

    def __init__(self, matrix):
        self.matrix, self.solves = jnp.asarray(matrix), 0

    def solve(self, theta, target, *, damping, iterations):
        self.solves += 1
        return damped_conjugate_gradients(lambda v: self.matrix @ v, target, damping, iterations)


@pytest.mark.usefixtures("float64")
def test_negative_curvature_is_damped_away():
    center = MatrixCenter(np.diag([8.0, 1.0, -2.0]))
    state = single_loop.SingleLoop(1 / 3, 20).init(jnp.zeros(3), 12)
    target = jnp.array([1.0, -1.0, 1.0])
    solution, damping = single_loop._damped_solve(state, target, center)
    assert 2 < damping <= 8
    exact = np.asarray(target) / (np.diag(center.matrix) + damping)
    np.testing.assert_allclose(solution.solution, exact, rtol=1e-9)
    # What is not finite leaves the curvature that was known before.
    center = MatrixCenter(np.full((3, 3), np.nan))
    known = state._replace(curvature=5.0, damping=1.0)
    solution, damping = single_loop._damped_solve(known, target, center)
    assert 0.3 <= damping <= 10
    assert single_loop._curvature_met(solution, known) == 5.0


def test_step_size_and_damping_stay_within_what_nodes_accept():
    loop = single_loop.SingleLoop(1 / 3, 20)
    state, target = loop.init(jnp.zeros(3), 12), jnp.array([1.0, -1.0, 1.0])
    flat, _ = loop._solve(state, target, MatrixCenter(1e-9 * np.eye(3)))
    assert flat.learning_rate == RATE[1]
    steep, _ = loop._solve(state, target, MatrixCenter(1e9 * np.diag([1.0, 0.5, -0.1])))
    assert steep.damping <= MOST_DAMPING


@pytest.mark.usefixtures("float64")
def test_nodes_report_how_far_they_are_from_their_own_minimum():
    nodes = [ridge(seed) for seed in range(3)]
    made = problem(Ridge(l2=0.1, intercept=False), nodes, nodes[0], batch_size=20)
    theta, damping = np.random.default_rng(3).normal(size=3), 0.4
    reply = made.federation.exchange(
        decrement=PerNode(
            DECREMENT,
            {"theta": jnp.asarray(theta), "damping": damping},
            nodes=np.array([True, False, True]),
            begin=True,
            iterations=3,
            batches=2,
        ),
        key=jax.random.key(0),
    )
    for number, (inputs, labels) in enumerate(nodes):
        hessian = inputs.T @ inputs / 20 + 0.1 * np.eye(3)
        gradient = inputs.T @ (inputs @ theta - labels) / 20 + 0.1 * theta
        exact = gradient @ np.linalg.solve(hessian + damping * np.eye(3), gradient)
        found = float(reply.decrement["decrement"][number])
        assert found == (
            pytest.approx(exact, rel=1e-9) if number != 1 else pytest.approx(np.nan, nan_ok=True)
        )
    # A pass for the gradient, and three products with 2 · 20 points.
    assert reply.cost.node_points == (140, 0, 140)
    assert reply.cost.synchronizations == 1


@pytest.mark.usefixtures("float64")
def test_the_errors_of_slopes_are_those_of_redrawn_validation_points():
    """Logistic regression at its true model: the slope's spread over 400 draws of the validation data."""
    rng = np.random.default_rng(1)
    truth, points = rng.normal(size=3), 200

    def draw(rows):
        inputs = rng.normal(size=(rows, 3))
        chance = 1 / (1 + np.exp(-inputs @ truth))
        return inputs, chance, rng.random(rows) < chance

    inputs, chance, _ = draw(20_000)
    hessian = (inputs * (chance * (1 - chance))[:, None]).T @ inputs / len(inputs)
    direction = rng.normal(size=3)  # a node's gradient
    solved = np.linalg.solve(hessian, direction)
    slopes = []
    for _ in range(400):
        inputs, chance, labels = draw(points)
        slopes.append(-(inputs.T @ (chance - labels) / points) @ solved)
    made = problem(MLP(2, hidden=2), [draw(20)[::2]], draw(points)[::2], batch_size=20)
    decrement = jnp.asarray([direction @ solved])
    found = float(single_loop._standard_errors(decrement, 0.5, made.center)[0])
    assert found == pytest.approx(np.std(slopes), rel=0.1)


# A run


@pytest.fixture(scope="module")
def run():
    return train(Bilevel(), 30)


@pytest.mark.parametrize("seed", [7, 8, 10])
def test_kin_have_the_weight_within_thirty_exchanges(seed):
    history = train(Bilevel(restarts=0), 30, made=build(seed)).history
    first = next(row.step for row in history if kin_share(row) >= 0.95)
    assert first <= 15
    assert min(kin_share(row) for row in history[first - 1 :]) >= 0.93
    assert history[-1].validation.accuracy > 0.75  # two thirds of the points have other labels


def test_weights_do_not_leave_after_their_arrival():
    """Steps are taken back in this run, once to a model from before the weights had arrived."""
    history = train(Bilevel(), 60, made=build(0)).history
    first = next(row.step for row in history if kin_share(row) >= 0.95)
    assert any(row.diagnostics["taken_back"] for row in history[first:])
    assert min(kin_share(row) for row in history[first - 1 :]) >= 0.93


def test_a_take_back_does_not_return_to_weights_from_before_arrival():
    loop = single_loop.SingleLoop(1 / 3, 20)
    made = build()
    state, key = loop.init(made.center.objective.init(jax.random.key(0)), 12), jax.random.key(1)
    while not state.search.arrived:
        key = jax.random.fold_in(key, 1)
        state, _ = loop.step(state, key, made.federation, made.center)
    np.testing.assert_array_equal(state.best_weights, state.search.node_weights)
    # The best model is one of before; weights that have changed a little since arrival are taken back.
    changed = jnp.where(jnp.arange(12) < 6, 1 / 6, 0.0)
    rivals = state.rivals._replace(started=True, rounds=3)
    moved = state._replace(search=state.search.restarted(changed), rivals=rivals, first_loss=1.0)
    back, warning = single_loop._take_back(moved)
    np.testing.assert_array_equal(back.search.node_weights, state.search.node_weights)
    assert "of the weight returns" in warning
    # Nor does the next new minimum, of a model that was trained before the arrival, lead back there.
    following = single_loop._remember(state, state.best_loss / 2, improving=True)
    np.testing.assert_array_equal(following.best_weights, state.search.node_weights)


def test_a_leader_that_has_diverged_is_replaced():
    made = build()
    objective = made.federation.objective
    rivals = Rivals.none_yet(2, objective.size).start(objective, jax.random.key(0))
    rivals = rivals._replace(rounds=FIRST_COMPARISON - 1)
    leader, others, overtaken = rivals.compare(jnp.full(objective.size, jnp.nan), made.center)
    assert overtaken
    assert np.isfinite(leader).all()
    # The former leader is the worst now, and given up.
    assert len(others.places) == 1
    assert np.isfinite(others.models[others.places]).all()


def test_a_step_is_one_synchronization(run):
    assert [row.cost.synchronizations for row in run.history] == list(range(1, 31))
    for row in run.history:
        assert row.node_weights.sum() == pytest.approx(1, abs=1e-5)
        assert np.isfinite(row.validation.loss)
        assert np.isfinite(list(row.diagnostics.values())).all()


def steps_of(history):
    """For each step after the first: its row, and what it alone cost."""
    for before, row in pairwise(history):
        points = np.subtract(row.cost.node_points, before.cost.node_points)
        names = ("bytes_up", "bytes_down", "nodes_asked")
        yield row, points, *(getattr(row.cost, n) - getattr(before.cost, n) for n in names)


def test_slopes_are_asked_for_in_every_fourth_step_once_the_weights_rest():
    made = build()
    size, history = made.federation.objective.size, train(Bilevel(restarts=0), 30).history
    slope_steps = []
    for row, points, up, down, asked in steps_of(history):
        counted = row.node_weights > 0
        # A pass over the data for the gradient and a solve with a few mini-batches, or nothing.
        idle = int(np.count_nonzero(points[~counted]))
        assert set(points[~counted]) <= {0, POINTS + 5 * 5 * 10}
        working = int(counted.sum())
        assert asked == working + idle
        slopes = round((down / 4 - working * (size + 3)) / (size + 1))
        if idle == 0 and slopes == 0:
            # The model there and back, and a loss: a round of training.
            assert (down, up) == (4 * working * (size + 3), 4 * working * (size + 1))
            continue
        slope_steps.append(row.step)
        # θ for all, h and the damping too; three numbers for those that train.
        assert down == 4 * ((2 * size + 1) * (working + idle) + 3 * working)
        # A slope and a decrement of all; a model and a loss of those.
        assert up == 4 * (2 * (working + idle) + (size + 1) * working)
    assert {2, 3, 4, 5, 6} <= set(slope_steps)
    late = [step for step in slope_steps if 12 < step < 30]
    assert late
    assert {after - before for before, after in pairwise(late)} == {4}
    costs = {row.step: points for row, points, *_ in steps_of(history)}
    assert all((costs[step] > 0).all() for step in late)  # nodes without weight too


def test_all_nodes_are_asked_for_everything_where_that_is_wanted():
    history = train(Bilevel(restarts=0), 12, ask_all=True).history
    assert (history[-1].node_weights == 0).sum() >= 6
    for _, points, *_, asked in steps_of(history):
        assert asked == len(KIN)
        assert points.min() > POINTS


# Restarts


def test_models_begin_when_the_weights_have_settled_and_one_remains(run):
    models = [row.diagnostics.get("models", 1.0) for row in run.history]
    assert set(models[: single_loop.FIRST_RESTART]) == {1.0}
    assert max(models) == 4
    after = models[models.index(4) :]
    assert after == sorted(after, reverse=True)
    assert after[-1] == 1
    training = build()
    size, sent = training.federation.objective.size, []
    for row, _, up, *_ in steps_of(run.history):
        counted = np.count_nonzero(row.node_weights)
        vectors = row.diagnostics["models"]
        if counted == KIN.sum():
            sent.append(up / counted - 4 * size * vectors)
    assert sent
    assert max(sent) < 4 * size  # numbers alone


def test_without_restarts_there_is_one_model():
    history = train(Bilevel(restarts=0), 20).history
    assert {row.diagnostics.get("models", 1.0) for row in history} == {1.0}


# Interruptions, bad steps, nodes that leave


class KilledError(Exception):
    pass


def outcome(state):
    rows = [(row.validation, row.cost, row.diagnostics, row.warnings) for row in state.history]
    weights = [row.node_weights.tolist() for row in state.history]
    return rows, weights, state.kept_theta.tolist(), state.last_theta.tolist(), state.stopped


@pytest.mark.parametrize("models", [1.0, 4.0, 3.0])
def test_a_run_continues_from_its_checkpoint_as_if_it_had_not_stopped(models, run, tmp_path):
    """Also while several models are trained."""
    numbers = [row.diagnostics.get("models", 1.0) for row in run.history]
    after = numbers.index(models) + 2
    assert after == 2 or numbers[after] == models  # in the middle

    def kill(state):
        if len(state.history) == after:
            raise KilledError

    checkpoint = tmp_path / "checkpoint.npz"
    with pytest.raises(KilledError):
        train(Bilevel(), 30, checkpoint=checkpoint, after_step=kill)
    assert outcome(train(Bilevel(), 30, checkpoint=checkpoint)) == outcome(run)


@pytest.mark.parametrize("restarts", [0, 2])
def test_steps_that_are_far_too_long_are_taken_back(restarts):
    """About a hundred times the step size that the loop chooses."""
    history = train(Bilevel(learning_rate=300.0, restarts=restarts), 40).history
    warnings = [warning for row in history for warning in row.warnings]
    assert sum("it continues from there with the step size" in each for each in warnings) >= 5
    assert history[-1].diagnostics["learning_rate"] < 100
    last = [row.validation.loss for row in history[-5:]]
    assert np.isfinite(last).all()
    assert min(last) < 2 * history[0].validation.loss


def test_it_stops_when_nothing_improves_and_says_so(monkeypatch):
    monkeypatch.setattr(single_loop, "PATIENCE", 3)
    state = train(Bilevel(restarts=0), 150)
    assert len(state.history) < 150
    assert state.stopped.startswith("finished: the validation loss")
    assert "has not improved by 0.2% in 3 synchronizations" in state.stopped
    assert "with the step size halved 3 times" in state.stopped
    rates = [row.diagnostics["learning_rate"] for row in state.history[1:]]
    assert rates[-1] < max(rates) / 4


@pytest.mark.parametrize("gone", [[0], [0, 1], [0, 1, 2, 3]])
def test_nodes_may_leave_and_come_back(gone):
    attended = []

    def wrap(federation):
        def fail(node, call):
            return NOTHING if node in gone and 9 <= call < 20 else None

        attended.append(AttendedSimulation(federation, fail, back=lambda node, step: step >= 20))
        return attended[-1]

    all_kin = len(gone) == KIN.sum()
    history = train(Bilevel(restarts=0), 52 if all_kin else 30, made=build(wrap=wrap)).history
    if all_kin:
        # While they are away, no step is short enough; when they are back, steps grow again.
        rates = [row.diagnostics["learning_rate"] for row in history]
        assert min(rates) < 0.05 * max(rates[:9])
        assert rates[-1] > 2 * min(rates)
        assert kin_share(history[-1]) > 0.8
    away = [row for row in history if 15 <= row.step < 20]
    for row in away:
        assert not row.node_weights[gone].any()
    for row in history:
        assert row.node_weights.sum() == pytest.approx(1, abs=1e-5)
        assert np.isfinite(row.validation.loss)
    asked = [set(nodes) for nodes in attended[0].asked]
    assert not set(gone) & set().union(*asked[14:19])
    assert set(gone) <= set().union(*asked[21:])
    # The kin that are left have nearly all that the cap allows them.
    left = KIN.sum() - len(gone)
    assert kin_share(away[-1]) >= 0.95 * min(1, left / 3)


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"preset": "paper", "restarts": 2}, "restarts is a setting of outer='single', not of"),
        ({"outer": "adaptive", "restarts": 2}, "restarts is a setting of outer='single'"),
        ({"rounds": 5, "restarts": 2}, "restarts is a setting of outer='single'"),
        ({"outer": "single", "rounds": 5}, "rounds changes nothing with outer='single'"),
        ({"outer": "single", "solver": "cg"}, "solver changes nothing with outer='single'"),
        ({"outer": "single", "warm_start": False}, "warm_start changes nothing with"),
        ({"outer": "single", "outer_learning_rate": 0.1}, "is chosen by the outer loop 'single'"),
        ({"restarts": -1}, "restarts"),
    ],
)
def test_settings_that_change_nothing_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        Bilevel(**settings)


def test_open_settings_come_from_the_data():
    made = build()
    algorithm, cost = Bilevel().prepare(made.federation, made.center, jax.random.key(0))
    assert algorithm == single_loop.SingleLoop(1 / 3, period=20, restarts=3)
    assert cost.synchronizations == 0
    given = Bilevel(period=7, restarts=1, learning_rate=0.2, refresh_probability=0.5, cap=0.5)
    algorithm, _ = given.prepare(made.federation, made.center, jax.random.key(0))
    assert algorithm == single_loop.SingleLoop(0.5, 7, 0.2, 0.5, restarts=1)


# Digits


def test_digits_within_thirty_synchronizations():
    """A scenario of the paper, with relabeled nodes: the right nodes, and no worse than FedAvg."""
    config = RunConfig(dataset="digits", setting=2, model="mlp", seed=7, target="minority")
    drawn = draw_problem(config)
    budget = Budget(synchronizations=30)
    own, equal = (
        drawn.problem.train(method, budget=budget).state for method in (Bilevel(), FedAvg(rounds=5))
    )
    assert own.cost.synchronizations == equal.cost.synchronizations == 30
    similar = np.array(drawn.data.similar)
    assert max(row.node_weights[similar].sum() for row in own.history) >= 0.95
    assert own.kept.node_weights[similar].sum() >= 0.95
    assert own.kept.test.accuracy >= equal.kept.test.accuracy
