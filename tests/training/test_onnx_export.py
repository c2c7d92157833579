"""Exported models against onnxruntime, which computes them without fedkin."""

import sys

import numpy as np
import pytest

import fedkin


@pytest.fixture(autouse=True)
def needs_onnx():
    """Loaded only by those who run these tests, not by all who collect them."""
    pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    pytest.importorskip("onnx", reason="needs the extra onnx")


def points(rows=40, seed=0, labels=("no", "yes"), shape=(3,)):
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(rows, *shape)).astype(np.float32)
    return x, np.array(labels)[(x.reshape(rows, -1)[:, 0] > 0).astype(int)]


def fitted(model, labels=("no", "yes"), shape=(3,), **settings):
    nodes = {name: points(seed=seed, labels=labels, shape=shape) for seed, name in enumerate("ab")}
    judge = points(seed=9, labels=labels, shape=shape)
    return fedkin.fit(nodes, judge, model=model, method="fedavg", steps=2, **settings)


def run(result, inputs, directory):
    import onnxruntime

    result.to_onnx(directory / "model.onnx")
    session = onnxruntime.InferenceSession(
        (directory / "model.onnx").read_bytes(), providers=["CPUExecutionProvider"]
    )
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(None, {"inputs": inputs}), strict=True))


@pytest.mark.parametrize("model", ["logistic", "mlp"])
@pytest.mark.parametrize("labels", [("no", "yes"), (3, 7), (1.0, 2.0)])
def test_labels_and_probabilities(model, labels, tmp_path):
    result = fitted(model, labels)
    inputs, _ = points(rows=17, seed=3)
    answer = run(result, inputs, tmp_path)
    assert answer["label"].tolist() == result.predict(inputs).tolist()
    np.testing.assert_allclose(answer["probabilities"], result.predict_proba(inputs), atol=1e-6)


@pytest.mark.parametrize("model", ["ridge", "mlp"])
def test_numbers(model, tmp_path):
    inputs, _ = points()
    labels = 2 * inputs[:, 0]
    result = fedkin.fit(
        {"a": (inputs, labels), "b": (inputs, labels)},
        (inputs, labels),
        model=model,
        task="regression",
        method="fedavg",
        steps=2,
    )
    answer = run(result, inputs[:5], tmp_path)
    np.testing.assert_allclose(answer["prediction"], result.predict(inputs[:5]), atol=1e-5)


def test_images_of_bytes(tmp_path):
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, size=(40, 4, 4, 1), dtype=np.uint8)
    labels = (images[:, 0, 0, 0] > 127).astype(int)
    result = fedkin.fit(
        {"a": (images, labels), "b": (images, labels)}, (images, labels), method="fedavg", steps=1
    )
    answer = run(result, images[:6], tmp_path)
    np.testing.assert_allclose(answer["probabilities"], result.predict_proba(images[:6]), atol=1e-6)


def test_a_pytorch_module(tmp_path):
    torch = pytest.importorskip("torch", reason="needs the extra torch")
    torch.manual_seed(0)
    nn = torch.nn
    net = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)
    )
    result = fitted(net, ("no", "yes"), shape=(1, 4, 4))
    inputs, _ = points(rows=7, seed=3, shape=(1, 4, 4))
    answer = run(result, inputs, tmp_path)
    assert answer["label"].tolist() == result.predict(inputs).tolist()
    np.testing.assert_allclose(answer["probabilities"], result.predict_proba(inputs), atol=1e-5)


def test_other_models_are_refused_by_name(tmp_path):
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, size=(20, 8, 8, 1), dtype=np.uint8)
    nodes = {name: (images, np.arange(20) % 2) for name in "ab"}
    result = fedkin.fit(nodes, nodes["a"], model="cnn", method="fedavg", steps=1)
    with pytest.raises(fedkin.InputError, match="CNN cannot be exported to ONNX: logistic, ridge"):
        result.to_onnx(tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (".", "is a directory; name a file in it"),
        ("nowhere/model.onnx", "choose another directory"),
        ("file/model.onnx", "choose another directory"),
    ],
)
def test_a_place_that_cannot_be_written(tmp_path, path, words):
    (tmp_path / "file").write_text("")
    with pytest.raises(fedkin.InputError, match=words):
        fitted("logistic").to_onnx(tmp_path / path)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_without_onnx_it_says_what_to_install(tmp_path, monkeypatch):
    result = fitted("logistic")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(fedkin.InputError, match=r"pip install 'fedkin\[onnx\]'"):
        result.to_onnx(tmp_path / "model.onnx")
