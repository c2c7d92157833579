"""PyTorch modules, as users see them: `fit`, results, files, and modules that are refused."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import fedkin
from fedkin.federation.base import WeightedSum
from fedkin.models.mlp import MLP
from torch_twins import MODELS, NODES, VALIDATION, Pair


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
        (lambda: Noisy(100, 3), "Noisy draws random numbers when it is called"),
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
    pair = Pair(MODELS["mlp"])
    request = WeightedSum(task, {"point": pair.vector(1)[1]}, weights=jnp.ones(3) / 3)
    with pytest.raises(fedkin.InputError, match=r"own_gradient.*fedkin\.nodes\.oracles"):
        pair.federations[1].exchange(each=request, key=jax.random.key(0))


def test_fedkin_does_not_load_pytorch():
    program = "import sys, fedkin; fedkin.fit; sys.exit('torch' in sys.modules)"
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
