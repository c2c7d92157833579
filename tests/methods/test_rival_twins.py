"""The rivals against their papers' rules, written as plain NumPy on a federation of four nodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from federations import classification_nodes, own_data, problem
from fedkin.methods.apfl.center import ApflAlgorithm
from fedkin.methods.apple.center import AppleAlgorithm
from fedkin.methods.cobo.center import CoBoAlgorithm, draw_partners
from fedkin.methods.descent.center import Descent
from fedkin.methods.fedala.center import FedAlaAlgorithm
from fedkin.methods.fedamp.center import FedAmpAlgorithm
from fedkin.methods.fedavg import FedAvgAlgorithm
from fedkin.methods.fedfomo.center import FedFomoAlgorithm
from fedkin.methods.finetune.center import FineTuningAlgorithm
from fedkin.methods.ifca.center import IfcaAlgorithm
from fedkin.methods.local_svrg.center import LocalSvrg
from fedkin.methods.pfedgraph.center import PFedGraphAlgorithm
from fedkin.methods.robust.center import KrumAlgorithm, MedianAlgorithm, TrimmedMeanAlgorithm
from fedkin.methods.tawt.center import TawtAlgorithm
from fedkin.models.linear import Logistic
from fedkin.nodes.draws import draw_batches
from pseudocode import ditto_steps, drawn_batches, gradient_of

pytestmark = pytest.mark.usefixtures("float64")

SIZES = (30, 17, 24, 20)
DESCENT = Descent(0.2, period=3, rounds=2)


def make(batch_size=10):
    nodes, validation = classification_nodes(SIZES)
    return problem(Logistic(classes=3, l2=0.1), nodes, validation, batch_size=batch_size)


def take_steps(algorithm, made, count=2):
    """Take steps from zero; return the last state and what each step reports."""
    state = algorithm.init(jnp.zeros(made.objective.size), len(SIZES))
    infos = []
    for number in range(count):
        key = jax.random.fold_in(jax.random.key(0), number)
        state, info = algorithm.step(state, key, made.federation, made.center)
        infos.append(info)
    return state, infos


def step_keys(count=2, rounds=2):
    """The keys of the rounds of some steps."""
    for number in range(count):
        key = jax.random.fold_in(jax.random.key(0), number)
        for place in range(rounds):
            yield number, place, key, jax.random.fold_in(key, place)


class Everybody:
    """The nodes' data and, last, the owner's; plain local steps on each."""

    def __init__(self, made):
        self.gradient = gradient_of(made.objective)
        self.loss = jax.jit(made.objective.batch_loss)
        self.nodes = [own_data(made.federation.data, node) for node in range(len(SIZES))]
        self.all = [*self.nodes, own_data(made.center.data, 0)]

    def full(self, data, theta):
        """The loss and the gradient of all mini-batches."""
        batches = [data.batch(index) for index in range(int(data.batches))]
        losses = [float(self.loss(theta, batch)) for batch in batches]
        return np.mean(losses), np.mean([self.gradient(theta, batch) for batch in batches], axis=0)

    def steps(self, data, key, start, pull=0.0):
        return ditto_steps(self.gradient, data, key, 3, start, rate=0.2, shared=start, pull=pull)[0]

    def train(self, models, key, pull=0.0):
        """Everybody trains a model of their own for a round: the owner with a key of its own."""
        nodes_key, own_key = jax.random.split(key)
        keys = [jax.random.fold_in(nodes_key, node) for node in range(len(SIZES))]
        keys.append(jax.random.fold_in(own_key, 0))
        return np.array(
            [self.steps(*each, pull) for each in zip(self.all, keys, models, strict=True)]
        )


def assert_same(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10)


def test_finetune():
    """From FedAvg's model: a trial on two of the owner's three mini-batches, then all three."""
    made = make()
    training = LocalSvrg(0.2, period=3, rounds=2)
    algorithm = FineTuningAlgorithm(FedAvgAlgorithm(training), personal_steps=40)
    _, (_, info) = take_steps(algorithm, made)
    again, everybody = make(), Everybody(made)
    state = algorithm.shared.init(jnp.zeros(made.objective.size), len(SIZES))
    for number in range(2):
        key = jax.random.fold_in(jax.random.key(0), number)
        nodes_key, own_key = jax.random.split(key)
        state, _ = algorithm.shared.step(state, nodes_key, again.federation, again.center)
    own, own_key = everybody.all[-1], jax.random.fold_in(own_key, 0)
    assert int(own.batches) == 3
    point, losses = np.asarray(state.theta), []
    for number, index in enumerate(np.asarray(draw_batches(own_key, 40, 2))):
        if number % 4 == 0:
            losses.append(float(everybody.loss(point, own.batch(2))))
        point = point - 0.2 * everybody.gradient(point, own.batch(index))
    losses.append(float(everybody.loss(point, own.batch(2))))
    best = 4 * int(np.argmin(losses))
    point = np.asarray(state.theta)
    for batch, _ in list(drawn_batches(own, own_key, 40))[:best]:
        point = point - 0.2 * everybody.gradient(point, batch)
    assert info.diagnostics["taken"] == best
    assert info.diagnostics["gain"] == pytest.approx(losses[0] - min(losses))
    assert_same(info.theta, point)


def test_tawt():
    """With one mini-batch per node, Local-SVRG is gradient descent."""
    made = make(batch_size=50)
    algorithm = TawtAlgorithm(LocalSvrg(0.2, period=3, rounds=2), outer_learning_rate=0.7)
    _, infos = take_steps(algorithm, made)
    everybody = Everybody(made)
    theta, weights = np.zeros(made.objective.size), np.full(4, 0.25)
    for info in infos:
        _, own = everybody.full(everybody.all[-1], theta)
        gradients = [everybody.full(data, theta)[1] for data in everybody.nodes]
        cosines = [g @ own / np.linalg.norm(g) / np.linalg.norm(own) for g in gradients]
        weights = weights * np.exp(0.7 * np.array(cosines))
        weights /= weights.sum()
        for _ in range(2):
            trained = []
            for data in everybody.nodes:
                point = theta
                for _ in range(3):
                    point = point - 0.2 * everybody.full(data, point)[1]
                trained.append(point)
            theta = weights @ np.array(trained)
        assert_same(info.node_weights, weights)
        assert_same(info.theta, theta)
        assert info.cost.synchronizations == 3


def test_ifca():
    made = make()
    algorithm = IfcaAlgorithm(DESCENT, clusters=2)
    state, infos = take_steps(algorithm, made)
    everybody = Everybody(made)
    first = jax.random.fold_in(jax.random.key(0), 0)
    models = np.zeros((2, made.objective.size))

    def nearest(data):
        return int(np.argmin([everybody.full(data, model)[0] for model in models]))

    members = list(np.asarray(jax.random.permutation(first, 4) % 2))
    for number, place, _, key in step_keys():
        trained = np.array(
            [
                everybody.steps(data, jax.random.fold_in(key, node), models[members[node]])
                for node, data in enumerate(everybody.nodes)
            ]
        )
        following = [nearest(data) for data in everybody.nodes]
        for cluster in set(members):
            models[cluster] = trained[np.array(members) == cluster].mean(axis=0)
        members = following if number + place > 0 else members
        if place == 1:
            own = nearest(everybody.all[-1])
            assert_same(infos[number].theta, models[own])
            together = np.array(members) == own
            assert_same(infos[number].node_weights, together / max(together.sum(), 1))
    assert_same(state.models, models)
    assert [info.cost.synchronizations for info in infos] == [2, 2]


def test_fedfomo():
    made = make()
    _, infos = take_steps(FedFomoAlgorithm(DESCENT), made)
    everybody = Everybody(made)
    theta = np.zeros(made.objective.size)
    for number, place, _, key in step_keys():
        own = everybody.full(everybody.all[-1], theta)[0]
        gains, moves = [], []
        for node, data in enumerate(everybody.nodes):
            point = everybody.steps(data, jax.random.fold_in(key, node), theta)
            loss = everybody.full(everybody.all[-1], point)[0]
            gains.append(max((own - loss) / np.linalg.norm(point - theta), 0))
            moves.append(point - theta)
        weights = np.array(gains) / sum(gains)
        theta = theta + weights @ np.array(moves)
        if place == 1:
            assert_same(infos[number].theta, theta)
            assert_same(infos[number].node_weights, weights)
    assert [info.cost.synchronizations for info in infos] == [2, 2]


def follow(made, algorithm, weigh, pull=0.0):
    """Mix everybody's models, train them, and compare with what the algorithm does."""
    state, infos = take_steps(algorithm, made)
    everybody = Everybody(made)
    models = np.zeros((5, made.objective.size))
    for number, place, _, key in step_keys():
        weights = weigh(models)
        models = everybody.train(weights @ models, key, pull)
        if place == 1:
            assert_same(infos[number].theta, models[4])
            assert_same(infos[number].node_weights, weights[4, :4])
    assert np.linalg.norm(models - models.mean(axis=0)) > 0.1
    return state, models


@pytest.mark.parametrize("sigma", [0.3, None])
def test_fedamp(sigma):
    def weigh(models):
        squared = np.array([[np.sum((x - y) ** 2) for y in models] for x in models])
        width = sigma or squared.sum() / 20 or 1.0
        weights = 0.8 / 4 * np.exp(-squared / width)  # α A', with α = 0.8 σ / 4
        np.fill_diagonal(weights, 0)
        return weights + np.diag(1 - weights.sum(axis=1))

    algorithm = FedAmpAlgorithm(Descent(0.2, 3, 2, proximal=0.5), attraction=0.8, sigma=sigma)
    state, models = follow(make(), algorithm, weigh, pull=0.5)
    assert_same(state.models, models)


def test_pfedgraph():
    """The quadratic program by bisection on its multiplier."""
    sizes = np.array([*SIZES, 25])

    def weigh(models):
        norms = np.maximum(np.linalg.norm(models, axis=1), 1e-300)
        cosines = models @ models.T / norms[:, None] / norms
        rows = []
        for row in cosines:
            target, low, high = sizes / sizes.sum() + row / (2 * 0.5), -10.0, 10.0
            for _ in range(100):
                middle = (low + high) / 2
                too_much = np.maximum(target - middle, 0).sum() > 1
                low, high = (middle, high) if too_much else (low, middle)
            rows.append(np.maximum(target - low, 0))
        return np.array(rows)

    state, models = follow(make(), PFedGraphAlgorithm(DESCENT, fidelity=0.5), weigh)
    assert_same(state.personal.models, models)
    assert_same(state.sizes, sizes)


def test_apfl():
    made = make()
    state, infos = take_steps(ApflAlgorithm(DESCENT, mixing=0.3, mixing_rate=0.4), made)
    everybody = Everybody(made)
    shared = personal = np.zeros(made.objective.size)
    share = 0.3
    for number, place, _, key in step_keys():
        nodes_key, own_key = jax.random.split(key)
        local = shared
        for batch, _ in drawn_batches(everybody.all[-1], jax.random.fold_in(own_key, 0), 3):
            gradient = everybody.gradient(share * personal + (1 - share) * local, batch)
            slope = gradient @ (personal - local)
            local = local - 0.2 * everybody.gradient(local, batch)
            personal = personal - 0.2 * share * gradient
            share = min(max(share - 0.4 * slope, 0.0), 1.0)
        trained = [
            everybody.steps(data, jax.random.fold_in(nodes_key, node), shared)
            for node, data in enumerate(everybody.nodes)
        ]
        shared = np.mean(trained, axis=0)
        if place == 1:
            assert_same(infos[number].theta, share * personal + (1 - share) * local)
            assert infos[number].diagnostics["personal_share"] == pytest.approx(share)
    assert share != pytest.approx(0.3, abs=1e-4)
    assert_same(state.shared, shared)


def test_fedala():
    made = make()
    algorithm = FedAlaAlgorithm(DESCENT, mixing_rate=5.0, mixing_steps=2)
    state, infos = take_steps(algorithm, made)
    everybody = Everybody(made)
    size = made.objective.size
    shared = np.zeros(size)
    local, mixing = np.zeros((5, size)), np.ones((5, size))
    for number, place, _, key in step_keys():
        nodes_key, own_key = jax.random.split(key)
        keys = [jax.random.fold_in(nodes_key, node) for node in range(4)]
        keys.append(jax.random.fold_in(own_key, 0))
        for who, data in enumerate(everybody.all):
            batches = [batch for batch, _ in drawn_batches(data, keys[who], 5)]
            difference = shared - local[who]
            for batch in batches[:2]:
                gradient = everybody.gradient(local[who] + difference * mixing[who], batch)
                mixing[who] = np.clip(mixing[who] - 5.0 * gradient * difference, 0, 1)
            point = local[who] + difference * mixing[who]
            for batch in batches[2:]:
                point = point - 0.2 * everybody.gradient(point, batch)
            local[who] = point
        shared = local[:4].mean(axis=0)
        if place == 1:
            assert_same(infos[number].theta, local[4])
            assert infos[number].diagnostics["taken_over"] == pytest.approx(mixing[4].mean())
    assert 0 < mixing.mean() < 1
    assert_same(state.shared, shared)


def test_apple():
    made = make()
    algorithm = AppleAlgorithm(DESCENT, mixing_rate=0.5, penalty=2.0, decay_rounds=3)
    state, infos = take_steps(algorithm, made)
    everybody = Everybody(made)
    cores, shares = np.zeros((5, made.objective.size)), np.full((5, 5), 0.2)
    for number, place, _, key in step_keys():
        personal = shares @ cores
        moves = everybody.train(personal, key) - personal
        decay = (np.cos(np.pi * min((2 * number + place) / 3, 1)) + 1) / 2
        length = max(np.sum(cores**2), 1e-300)
        before = cores.copy()
        for i in range(5):
            cores[i] = before[i] + min(5 * shares[i, i], 1) * moves[i]
        for i in range(5):
            for j in range(5):
                gain = moves[i] @ before[j] / length
                pull = 0.2 * 3 * 2.0 * decay * (shares[i, j] - 0.2)
                shares[i, j] += 0.5 * (gain - pull)
        if place == 1:
            assert_same(infos[number].theta, shares[4] @ cores)
    assert_same(state.cores.models, cores)
    assert_same(state.shares, shares)
    assert np.ptp(shares) > 0.01


def test_cobo():
    made = make()
    algorithm = CoBoAlgorithm(DESCENT, attraction=0.7, outer_learning_rate=0.3)
    state, infos = take_steps(algorithm, made)
    everybody = Everybody(made)
    models, pairs = np.zeros((5, made.objective.size)), 1 - np.eye(5)
    for number, place, _, key in step_keys():
        round_key, pairs_key = jax.random.split(key)
        trained = everybody.train(models, round_key)
        moved = [
            trained[i] - 0.7 / 5 * sum(pairs[i, j] * (models[i] - models[j]) for j in range(5))
            for i in range(5)
        ]
        for i, j in enumerate(draw_partners(pairs_key, np.ones(5, bool))):
            if i < j:
                middle = (models[i] + models[j]) / 2
                one, other = (everybody.full(everybody.all[k], middle)[1] for k in (i, j))
                cosine = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
                pairs[i, j] = pairs[j, i] = np.clip(pairs[i, j] + 0.3 * cosine, 0, 1)
        models = np.array(moved)
        if place == 1:
            assert_same(infos[number].theta, models[4])
            assert_same(infos[number].node_weights, 0.7 / 5 * pairs[4, :4])
    assert_same(state.personal.models, models)
    assert_same(state.pairs, pairs)


def nearest_to_others(models, bad):
    """Blanchard et al. 2017: the model with the smallest sum over its m − f − 2 nearest others."""
    scores = []
    for place, model in enumerate(models):
        others = [np.sum((model - x) ** 2) for j, x in enumerate(models) if j != place]
        scores.append(sum(sorted(others)[: len(models) - bad - 2]))
    return int(np.argmin(scores))


def middle_values(models, left_out):
    """The mean of what is left of every coordinate without its extremes."""
    return [np.mean(sorted(column)[left_out : len(column) - left_out]) for column in models.T]


@pytest.mark.parametrize(
    ("algorithm", "rule"),
    [
        (MedianAlgorithm(DESCENT), lambda models: middle_values(models, 1)),
        (TrimmedMeanAlgorithm(DESCENT, 0.3), lambda models: middle_values(models, 1)),
        (TrimmedMeanAlgorithm(DESCENT, 0.2), lambda models: models.mean(axis=0)),
        (KrumAlgorithm(DESCENT, 0.3), lambda models: models[nearest_to_others(models, 1)]),
    ],
)
def test_robust_aggregation(algorithm, rule):
    """Of four values the median is the mean of the middle two; 0.3 x 4 leaves out one at either end."""
    made = make()
    _, infos = take_steps(algorithm, made)
    everybody = Everybody(made)
    theta = np.zeros(made.objective.size)
    for number, place, _, key in step_keys():
        trained = [
            everybody.steps(data, jax.random.fold_in(key, node), theta)
            for node, data in enumerate(everybody.nodes)
        ]
        theta = np.asarray(rule(np.array(trained)))
        if place == 1:
            assert_same(infos[number].theta, theta)
    assert [info.cost.synchronizations for info in infos] == [2, 2]
    if isinstance(algorithm, KrumAlgorithm):
        chosen = int(np.argmax(infos[-1].node_weights))
        assert infos[-1].node_weights.tolist() == np.eye(4)[chosen].tolist()
        assert_same(trained[chosen], theta)
