"""PyTorch modules: the same numbers as fedkin's own models, files, and modules that are refused."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra torch")
from torch import nn  # noqa: E402

import fedkin  # noqa: E402
from fedkin.federation.base import PerNode, WeightedSum  # noqa: E402
from fedkin.federation.center import Center  # noqa: E402
from fedkin.federation.simulation import SimulatedFederation  # noqa: E402
from fedkin.methods.bilevel.node import DECREMENT, HESSIAN_PRODUCT, SLOPE  # noqa: E402
from fedkin.methods.ditto.node import DITTO_SHARED_ROUND  # noqa: E402
from fedkin.methods.local_svrg.node import INNER_SVRG_ROUND  # noqa: E402
from fedkin.methods.pfedme.node import PFEDME_ROUND  # noqa: E402
from fedkin.models.base import as_model  # noqa: E402
from fedkin.models.cnn import CNN  # noqa: E402
from fedkin.models.linear import Logistic  # noqa: E402
from fedkin.models.mlp import MLP  # noqa: E402
from fedkin.models.objective import Objective  # noqa: E402
from fedkin.models.torch_module import TorchModel  # noqa: E402
from torch_twins import twin_of  # noqa: E402

torch.set_num_threads(1)

MODELS = {
    "logistic": Logistic(classes=3, l2=0.01),
    "mlp": MLP(outputs=3, hidden=5),
    "cnn": CNN((10, 10, 1), classes=3, kernels=(2, 2)),
}
SIZES = (23, 30, 17)
"""Mini-batches of 8 then differ in size: some have padding in JAX, and none in PyTorch."""


def images(rows, seed):
    draw = np.random.default_rng(seed)
    inputs = draw.normal(size=(rows, 10, 10, 1)).astype(np.float32)
    labels = np.digitize(inputs[:, :5].mean(axis=(1, 2, 3)) + (seed == 2) * 0.3, [-0.06, 0.06])
    return inputs, labels.astype(np.int32)


NODES = [images(size, seed) for seed, size in enumerate(SIZES)]
VALIDATION = images(20, 9)


class Pair:
    """A model and its twin on the same nodes."""

    def __init__(self, name):
        self.model = MODELS[name]
        prepared = [(np.asarray(self.model.prepare(jnp.asarray(x))), y) for x, y in NODES]
        own = np.asarray(self.model.prepare(jnp.asarray(VALIDATION[0])))
        objective = Objective.create(self.model, prepared[0][0])
        # The twin gets the images themselves, so its model is made for their shape.
        self.twin, self.order = twin_of(objective)
        theirs = Objective.create(self.twin, NODES[0][0][:2])
        self.objectives = objective, theirs
        self.federations = [
            SimulatedFederation(each, nodes, batch_size=8, seed=3)
            for each, nodes in ((objective, prepared), (theirs, NODES))
        ]
        self.centers = [
            Center(each, inputs, VALIDATION[1], batch_size=8, seed=3)
            for each, inputs in ((objective, own), (theirs, VALIDATION[0]))
        ]

    def vector(self, seed, scale=1.0):
        start = self.objectives[0].init(jax.random.key(0))
        noise = jax.random.normal(jax.random.key(seed), start.shape)
        found = start + 0.1 * noise if scale == 1 else scale * noise
        return found, found[self.order]


@pytest.fixture(scope="module", params=MODELS)
def pair(request):
    return Pair(request.param)


def near(found, expected, tolerance=1e-5):
    """Compare two vectors or tables by the norm of their difference."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert np.linalg.norm(found - expected) <= tolerance * np.linalg.norm(expected)


NUMBERS = {"learning_rate": 0.05}
STEPS = {
    "svrg": (
        INNER_SVRG_ROUND,
        "point",
        {**NUMBERS, "refresh_probability": 0.5, "averaging_rate": 0.1},
        {"steps": 1, "reply": "average"},
    ),
    "ditto": (DITTO_SHARED_ROUND, "shared", NUMBERS, {"steps": 1}),
    "pfedme": (
        PFEDME_ROUND,
        "shared",
        {**NUMBERS, "proximal": 2.0, "tolerance": 0.05},
        {"steps": 1, "iterations": 3},
    ),
}


@pytest.mark.parametrize("kind", STEPS)
def test_a_step_is_that_of_the_jax_engine(pair, kind):
    task, name, numbers, options = STEPS[kind]
    points = pair.vector(1)
    replies = [
        federation.exchange(
            train=WeightedSum(
                task,
                {name: point, **numbers},
                weights=jnp.array([0.5, 0.3, 0.2]),
                begin=bool(task.slots),
                **options,
            ),
            key=jax.random.key(7),
        )
        for federation, point in zip(pair.federations, points, strict=True)
    ]
    ours, theirs = replies
    near(theirs.train["point"] - points[1], (ours.train["point"] - points[0])[pair.order], 2e-5)
    near(theirs.train["point"], ours.train["point"][pair.order])
    near(theirs.train["loss"], ours.train["loss"])
    assert theirs.cost == ours.cost


def test_products_slopes_and_decrements_are_those_of_the_jax_engine(pair):
    thetas, vectors = pair.vector(1), pair.vector(2, 0.3)
    ours, theirs = (
        federation.exchange(
            hessian=WeightedSum(
                HESSIAN_PRODUCT,
                {"theta": theta, "vector": vector},
                weights=jnp.array([0.5, 0.3, 0.2]),
                begin=True,
            ),
            slope=PerNode(SLOPE, {"theta": theta, "vector": vector}, begin=True),
            decrement=PerNode(
                DECREMENT,
                {"theta": theta, "damping": 0.5},
                begin=True,
                iterations=3,
                batches=2,
            ),
            key=jax.random.key(7),
        )
        for federation, theta, vector in zip(pair.federations, thetas, vectors, strict=True)
    )
    near(theirs.hessian["product"], ours.hessian["product"][pair.order])
    near(theirs.slope["slope"], ours.slope["slope"])
    near(theirs.decrement["decrement"], ours.decrement["decrement"], 2e-5)


def test_the_center_computes_the_same(pair):
    thetas = pair.vector(1)
    (loss, gradient), (own_loss, own_gradient) = (
        center.loss_and_gradient(theta) for center, theta in zip(pair.centers, thetas, strict=True)
    )
    near(own_loss, loss)
    near(own_gradient, gradient[pair.order])
    ours, theirs = (
        center.solve(theta, target, damping=1.0, iterations=4)
        for center, theta, target in zip(
            pair.centers, thetas, (gradient, own_gradient), strict=True
        )
    )
    near(theirs.solution, ours.solution[pair.order], 2e-5)
    near(theirs.curvature, ours.curvature, 2e-5)
    assert bool(theirs.convex) == bool(ours.convex)
    raw = VALIDATION[0][:7]
    scores = [
        center.outputs(theta, inputs)
        for center, theta, inputs in zip(
            pair.centers, thetas, (np.asarray(pair.model.prepare(raw)), raw), strict=True
        )
    ]
    near(scores[1], scores[0])
    assert (
        pair.centers[1].validate(thetas[1]).accuracy == pair.centers[0].validate(thetas[0]).accuracy
    )


LOOPS = {
    "proximal": {"outer": "proximal", "outer_learning_rate": 0.1, "damping": 1.0, "rounds": 2},
    "single": {"restarts": 0},
}


@pytest.mark.parametrize("loop", LOOPS)
def test_five_outer_steps_learn_the_same_weights(pair, loop):
    if loop == "single" and isinstance(pair.model, Logistic):
        pytest.skip("fedkin's linear models have Newton steps there, and others do not")
    nodes = dict(zip("abc", NODES, strict=True))
    settings = {"period": 4, "learning_rate": 0.05, "steps": 5, "batch_size": 8, "keep": "last"}
    ours, theirs = (
        fedkin.fit(nodes, VALIDATION, model=model, **settings, **LOOPS[loop])
        for model in (pair.model, pair.twin)
    )
    columns = [name for name in ours.history if name.startswith("weight")]
    assert len(columns) == 3
    np.testing.assert_allclose(theirs.history[columns], ours.history[columns], atol=1e-3)
    assert np.ptp(list(ours.weights.values())) > 0.01  # they have moved
    near(theirs.theta, ours.theta[pair.order], 1e-3)
    assert theirs.cost == ours.cost
    np.testing.assert_allclose(
        theirs.predict_proba(VALIDATION[0]), ours.predict_proba(VALIDATION[0]), atol=1e-3
    )


@pytest.mark.parametrize("method", ["fedavg", "local", "ditto", "pfedme"])
def test_every_other_method_trains_the_same(method):
    pair = Pair("mlp")
    settings = {"period": 3, "rounds": 2, "learning_rate": 0.05, "steps": 2, "batch_size": 8}
    ours, theirs = (
        fedkin.fit(NODES, VALIDATION, model=model, method=method, keep="last", **settings)
        for model in (pair.model, pair.twin)
    )
    near(theirs.theta, ours.theta[pair.order], 1e-4)
    assert theirs.weights == ours.weights
    assert theirs.cost == ours.cost


def test_the_network_of_fedavg_is_the_same_in_flax_and_pytorch():
    """Two convolutions of 5 x 5 without padding, pooling, 512 hidden units: 582,026 parameters."""
    linen = pytest.importorskip("flax.linen")
    from benchmarks.torch_modules import fedavg_network
    from torch_twins import fill

    class Net(linen.Module):
        @linen.compact
        def __call__(self, inputs):
            for channels in (32, 64):
                inputs = linen.relu(linen.Conv(channels, (5, 5), padding="VALID")(inputs))
                inputs = linen.max_pool(inputs, (2, 2), (2, 2))
            # PyTorch has the channel first when it flattens.
            hidden = linen.Dense(512)(inputs.transpose(0, 3, 1, 2).reshape(len(inputs), -1))
            return linen.Dense(10)(linen.relu(hidden))

    draw = np.random.default_rng(0)
    inputs = draw.integers(0, 255, (4, 28, 28, 1)).astype(np.uint8)
    labels = draw.integers(0, 10, 4).astype(np.int32)
    model = as_model(Net(), "classification")
    objective = Objective.create(model, inputs[:2])
    assert objective.size == 582_026

    def in_order(vector):
        layers = objective.unflatten(vector)["params"]
        parts = []
        for name in ("Conv_0", "Conv_1", "Dense_0", "Dense_1"):
            kernel = np.asarray(layers[name]["kernel"])
            parts += [kernel.transpose(3, 2, 0, 1) if kernel.ndim == 4 else kernel.T]
            parts += [np.asarray(layers[name]["bias"])]
        return np.concatenate([part.ravel() for part in parts])

    theta = objective.init(jax.random.key(0))
    module = fedavg_network()
    fill(module, in_order(theta))
    channel_first = inputs.transpose(0, 3, 1, 2)
    twin = Objective.create(TorchModel(module), channel_first[:2])
    assert twin.size == objective.size
    (loss, gradient), (own_loss, own_gradient) = (
        Center(each, points, labels, batch_size=4, seed=0).loss_and_gradient(at)
        for each, points, at in (
            (objective, inputs, theta),
            (twin, channel_first, jnp.asarray(in_order(theta))),
        )
    )
    near(own_loss, loss)
    near(own_gradient, in_order(gradient))


def test_threads_change_nothing(monkeypatch):
    from fedkin.federation import torch_work

    monkeypatch.setattr(torch_work, "LONG_GRADIENT", 0.0)
    pair = Pair("cnn")
    federations = [
        SimulatedFederation(pair.objectives[1], NODES, batch_size=8, seed=3, threads=threads)
        for threads in (1, 2)
    ]
    message = {"theta": pair.vector(1)[1], "vector": pair.vector(2)[1]}
    before = torch.get_num_threads()
    alone, together = (
        federation.exchange(
            slope=PerNode(SLOPE, message, begin=True),
            hessian=WeightedSum(HESSIAN_PRODUCT, message, weights=jnp.ones(3) / 3, begin=True),
            key=jax.random.key(0),
        )
        for federation in federations
    )
    np.testing.assert_array_equal(together.slope["slope"], alone.slope["slope"])
    np.testing.assert_array_equal(together.hessian["product"], alone.hessian["product"])
    assert torch.get_num_threads() == before


# What a user sees of it


def network(classes=3):
    return nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(128, classes)
    )


def tensors(points):
    inputs, labels = points
    return torch.tensor(inputs).movedim(-1, 1), torch.tensor(labels)


TENSORS = [tensors(points) for points in NODES]


@pytest.fixture(scope="module")
def fitted():
    torch.manual_seed(0)
    net = network()
    before = {name: each.clone() for name, each in net.state_dict().items()}
    result = fedkin.fit(TENSORS, tensors(VALIDATION), model=net, l2=0.01, steps=3)
    return net, before, result


def test_the_users_module_is_left_alone(fitted):
    net, before, result = fitted
    assert net.training
    for name, each in net.state_dict().items():
        assert torch.equal(each, before[name])
    start = torch.nn.utils.parameters_to_vector(net.parameters()).detach().numpy()
    assert 0.01 < np.linalg.norm(result.theta - start) < 10


def test_the_trained_module_predicts_what_the_result_does(fitted):
    _, _, result = fitted
    module = result.module()
    assert not module.training
    inputs = tensors(VALIDATION)[0]
    with torch.no_grad():
        scores = torch.softmax(module(inputs), 1).numpy()
    np.testing.assert_allclose(scores, result.predict_proba(inputs), atol=1e-6)
    np.testing.assert_allclose(scores, result.predict_proba(inputs.numpy()), atol=1e-6)
    # Statistics of the validation data, not of what is predicted.
    np.testing.assert_allclose(scores[:1], result.predict_proba(inputs[:1]), atol=1e-6)
    hidden = module[0](inputs)
    np.testing.assert_allclose(
        module[1].running_mean, hidden.detach().mean((0, 2, 3)), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_array_equal(
        np.concatenate([part.ravel() for part in result.params.values()]), result.theta
    )


def test_a_file_has_the_state_and_no_code(fitted, tmp_path):
    _, _, result = fitted
    path = tmp_path / "own.fedkin"
    result.save(path)
    inputs = tensors(VALIDATION)[0]
    again = fedkin.load(path, model=network())
    np.testing.assert_array_equal(again.predict_proba(inputs), result.predict_proba(inputs))
    for name, each in again.module().state_dict().items():
        assert torch.equal(each, result.module().state_dict()[name])
    with pytest.raises(fedkin.InputError, match=r"PyTorch module Sequential.*load\(path, model="):
        fedkin.load(path)
    with pytest.raises(fedkin.InputError, match=r"4\.weight has the shape \(4, 128\)"):
        fedkin.load(path, model=network(classes=4))
    with pytest.raises(fedkin.InputError, match="only one of them has"):
        fedkin.load(path, model=nn.Linear(2, 3))
    with pytest.raises(fedkin.InputError, match="give such a module"):
        fedkin.load(path, model=MLP())


def test_frozen_parameters_stay_and_are_saved(tmp_path):
    net = network()
    net[0].requires_grad_(False)
    result = fedkin.fit(TENSORS, tensors(VALIDATION), model=net, method="fedavg", steps=1)
    assert len(result.theta) == 2 * 2 + 128 * 3 + 3
    assert torch.equal(result.module()[0].weight, net[0].weight)
    result.save(tmp_path / "frozen.fedkin")
    other = network()
    other[0].requires_grad_(False)
    again = fedkin.load(tmp_path / "frozen.fedkin", model=other)
    inputs = tensors(VALIDATION)[0]
    np.testing.assert_array_equal(again.predict_proba(inputs), result.predict_proba(inputs))


def test_regression():
    draw = np.random.default_rng(0)
    nodes = [(x, x @ [1.0, -2.0]) for x in draw.normal(size=(2, 40, 2))]
    net = nn.Linear(2, 1)
    result = fedkin.fit(nodes, nodes[0], model=net, task="regression", method="fedavg", steps=5)
    np.testing.assert_allclose(result.theta, [1, -2, 0], atol=0.05)
    assert result.predict(nodes[0][0][:3]).shape == (3,)


def test_a_model_in_jax_has_no_module():
    x = np.linspace(-1, 1, 20)[:, None]
    result = fedkin.fit([(x, x[:, 0])] * 2, (x, x[:, 0]), model="ridge", method="fedavg", steps=1)
    with pytest.raises(fedkin.InputError, match="Ridge, not a PyTorch module"):
        result.module()


# Modules that are refused


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(100, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, inputs):
        self.calls += 1
        return self.inner(inputs.flatten(1))


class Noisy(nn.Linear):
    def forward(self, inputs):
        return nn.functional.dropout(super().forward(inputs.flatten(1)), training=self.training)


class Failing(nn.Linear):
    def forward(self, inputs):
        raise ValueError("the weather is bad")


class Pairs(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs.flatten(1)), inputs


def flat(*layers):
    return nn.Sequential(nn.Flatten(), *layers)


def half_on_meta():
    return flat(nn.Linear(100, 4), nn.Linear(4, 3, device="meta"))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (lambda: flat(nn.Linear(100, 2)), "must give 3 scores, one per class, .* gives shape"),
        (lambda: nn.Linear(10, 3), r"gives shape \(1, 10, 3\)"),
        (lambda: nn.Sequential(nn.Flatten(0), nn.Linear(200, 3)), "a row of outputs per point"),
        (Counting, "the buffer calls of the module Counting changes"),
        (lambda: flat(nn.Linear(100, 3).double()), r"1\.weight .* float64.*module\.float\(\)"),
        (lambda: flat(nn.Linear(100, 3).half()), "float16"),
        (half_on_meta, "spread over several devices .*2.bias on meta"),
        (lambda: flat(nn.Linear(100, 3, device="meta")), "on the device meta"),
        (nn.Flatten, "has no parameters: there is nothing to train"),
        (
            lambda: flat(nn.Linear(100, 3)).requires_grad_(False),
            "no parameters that ask for a grad",
        ),
        (lambda: Failing(100, 3), "Failing fails on points .*ValueError: the weather is bad"),
        (lambda: nn.Linear(7, 3), "Linear fails on points of shape"),
        (lambda: Pairs(100, 3), "must return one tensor, but returns tuple"),
        (lambda: flat(nn.Linear(100, 3), nn.Dropout(0.1)), "the layer 2 is dropout"),
        (lambda: Noisy(100, 3), "different outputs: it draws random numbers"),
        (lambda: flat(nn.LazyLinear(3)), "call it once with a few points"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_module_that_cannot_be_trained_is_refused(module, message):
    with pytest.raises(fedkin.InputError, match=message):
        fedkin.fit(TENSORS, tensors(VALIDATION), model=module())


def test_points_on_another_device_are_refused():
    elsewhere = [(inputs.to("meta"), labels) for inputs, labels in TENSORS]
    with pytest.raises(
        fedkin.InputError, match="points are on the device meta, and the module is on cpu"
    ):
        fedkin.fit(elsewhere, tensors(VALIDATION), model=network())
    with pytest.raises(fedkin.InputError, match="on the device meta has no numbers"):
        fedkin.fit(elsewhere, tensors(VALIDATION), model="mlp")


def test_what_needs_jax_is_refused():
    with pytest.raises(fedkin.InputError, match=r"ridge.*logistic|logistic.*ridge"):
        fedkin.fit(TENSORS, tensors(VALIDATION), model=network(), schedule="theory", epsilon=0.1)


def test_a_task_that_differentiates_by_itself_is_refused():
    from fedkin.federation.task import Task

    def own_gradient(objective, data, state, key, message):
        """Differentiate without the oracles."""
        gradient = jax.grad(objective.batch_loss)(message["point"], data.batch(0))
        return state, {"point": gradient, "evaluations": data.points}

    task = Task("own_gradient", own_gradient, vectors=("point",), vector_replies=("point",))
    pair = Pair("mlp")
    request = WeightedSum(task, {"point": pair.vector(1)[1]}, weights=jnp.ones(3) / 3)
    with pytest.raises(fedkin.InputError, match=r"own_gradient.*fedkin\.nodes\.oracles"):
        pair.federations[1].exchange(each=request, key=jax.random.key(0))


def test_fedkin_does_not_load_pytorch():
    program = "import sys, fedkin; sys.exit('torch' in sys.modules)"
    source = str(Path(fedkin.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": source, "PATH": ""}, check=False
    )
    assert done.returncode == 0


def test_without_pytorch_it_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "needs_torch.py").write_text("import torch\n\n\ndef make(classes, shape): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    x = np.linspace(-1, 1, 20)[:, None]
    points = x, (x[:, 0] > 0).astype(int)
    with pytest.raises(fedkin.InputError, match=r"pip install 'fedkin\[torch\]'"):
        fedkin.fit([points], points, model="needs_torch:make")
