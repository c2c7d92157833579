"""PyTorch modules of all kinds: what they compute, in threads and modes, and what is refused."""

import copy
import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
import torch
from torch import nn

import fedkin
from fedkin.errors import InputError
from fedkin.federation.base import PerNode
from fedkin.federation.center import Center
from fedkin.federation.simulation import SimulatedFederation
from fedkin.methods.bilevel.node import SLOPE
from fedkin.models.objective import Objective
from fedkin.models.torch_module import TorchModel
from fedkin.models.torch_network import _OnVector

DRAW = np.random.default_rng(0)
INPUTS = DRAW.normal(size=(12, 4)).astype(np.float32)
LABELS = (np.arange(12) % 3).astype(np.int32)


def bind(module, inputs=INPUTS, task="classification"):
    return Objective.create(TorchModel(module, task), inputs[:2])


def start(objective):
    return objective.start(jax.random.key(0))


def trained(module, inputs=INPUTS, **settings):
    points = inputs, LABELS
    settings = {"method": "fedavg", "rounds": 1, "period": 2, "learning_rate": 0.1} | settings
    return fedkin.fit([points, points], points, model=module, steps=1, **settings)


class Normalized(nn.Module):
    """A linear layer and batch normalization, called in one way or another."""

    def __init__(self, way="once"):
        super().__init__()
        self.way = way
        self.linear, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)

    def forward(self, inputs):
        hidden = self.linear(inputs)
        if self.way == "never":
            return hidden
        if self.way == "by name":
            return self.norm(input=hidden)
        return self.norm(self.norm(hidden)) if self.way == "twice" else self.norm(hidden)


# Threads and copies


class Meeting(nn.Linear):
    """Waits for another thread before it uses its parameters."""

    barrier = None

    def forward(self, inputs):
        if Meeting.barrier is not None:
            Meeting.barrier.wait(timeout=30)
        return super().forward(inputs)


def test_threads_that_predict_at_once_do_not_mix_their_models(monkeypatch):
    first = trained(Meeting(4, 3))
    both = first, dataclasses.replace(first, theta=-first.theta)
    expected = [each.predict_proba(INPUTS) for each in both]
    monkeypatch.setattr(Meeting, "barrier", threading.Barrier(2))
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda result: result.predict_proba(INPUTS), both))
    np.testing.assert_array_equal(found, expected)


def test_a_copy_of_a_result_predicts_by_its_own_parameters():
    result = trained(nn.Linear(4, 3))
    result.predict(INPUTS)
    other = dataclasses.replace(copy.deepcopy(result), theta=-result.theta)
    expected = dataclasses.replace(result, theta=-result.theta).predict_proba(INPUTS)
    np.testing.assert_array_equal(other.predict_proba(INPUTS), expected)


def test_only_one_copy_of_the_module_per_thread_trains(monkeypatch):
    copies = []
    create = _OnVector.__init__

    def count(self, module, names):
        copies.append(module.training)
        create(self, module, names)

    monkeypatch.setattr(_OnVector, "__init__", count)
    objective = bind(nn.Linear(4, 3))
    federation = SimulatedFederation(
        objective, [(INPUTS, LABELS)] * 4, batch_size=6, seed=0, threads=2
    )
    message = {"theta": start(objective), "vector": start(objective)}
    federation.exchange(slope=PerNode(SLOPE, message, begin=True), key=jax.random.key(0))
    assert copies == [True]  # too little work for two threads
    Center(objective, INPUTS, LABELS, seed=0).validate(message["theta"])
    assert copies == [True, False]


def test_the_number_of_threads_follows_from_counted_work():
    """A stopwatch would let the last bits change from run to run."""
    layer = nn.Linear(4, 3)
    assert bind(layer).operations == 2 * 4 * 3
    convolution = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))
    images = np.zeros((2, 1, 4, 4), np.float32)
    assert bind(convolution, images).operations == 2 * (2 * 2 * 2 * 9 + 8 * 3)
    objective = dataclasses.replace(bind(layer), operations=1000)
    assert objective.is_heavy(10_000)
    assert not objective.is_heavy(9_999)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_modes_of_the_caller_do_not_matter(mode):
    torch.manual_seed(0)
    module = nn.Linear(4, 3)
    expected = trained(module, method="bilevel")
    with mode():
        found = trained(module, method="bilevel")
        np.testing.assert_array_equal(found.predict(INPUTS), expected.predict(INPUTS))
    np.testing.assert_array_equal(found.theta, expected.theta)


# Kinds of layers


class Attention(nn.Module):
    """Attention over three steps, by PyTorch's fused operation or by a formula."""

    def __init__(self, fused, masked):
        super().__init__()
        self.fused, self.masked = fused, masked
        self.inner, self.last = nn.Linear(4, 12), nn.Linear(4, 3)

    def forward(self, inputs):
        inner = self.inner(inputs[:, None] * inputs[:, :3, None])
        query, key, value = inner[:, None].split(4, dim=3)  # with an axis of heads
        mask = torch.ones(3, 3, dtype=torch.bool).tril() if self.masked else None
        if self.fused:
            found = nn.functional.scaled_dot_product_attention(query, key, value, mask)
        else:
            scores = query @ key.mT / 2
            if mask is not None:
                scores = scores.masked_fill(~mask, -torch.inf)
            found = torch.softmax(scores, 3) @ value
        return self.last(found.sum((1, 2)))


@pytest.mark.parametrize("masked", [False, True])
def test_attention_has_the_derivatives_of_its_formula(masked):
    torch.manual_seed(0)
    fused = Attention(fused=True, masked=masked)
    plain = Attention(fused=False, masked=masked)
    plain.load_state_dict(fused.state_dict())
    found = []
    for module in (fused, plain):
        objective = bind(module)
        assert objective.attention == module.fused
        center = Center(objective, INPUTS, LABELS, batch_size=12, seed=0)
        theta = start(objective)
        gradient = center.loss_and_gradient(theta)[1]
        found.append((gradient, center.solve(theta, gradient, damping=1.0, iterations=2).solution))
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    assert torch.backends.cuda.flash_sdp_enabled()  # the switch is back


def test_a_transformer_is_trained_by_the_default_method():
    layer = nn.TransformerEncoderLayer(4, 2, 5, dropout=0.0, batch_first=True)
    module = nn.Sequential(nn.Unflatten(1, (1, 4)), layer, nn.Flatten(), nn.Linear(4, 3))
    assert np.isfinite(trained(module, method="bilevel").theta).all()


class Words(nn.Module):
    def __init__(self, bag=False, sparse=False):
        super().__init__()
        self.table = (nn.EmbeddingBag if bag else nn.Embedding)(9, 4, sparse=sparse)
        self.last = nn.Linear(4, 3)

    def forward(self, words):
        found = self.table(words)
        return self.last(found.mean(1) if found.ndim == 3 else found)


WORDS = DRAW.integers(0, 9, (12, 5))


def test_a_module_that_looks_words_up_gets_whole_numbers(tmp_path):
    torch.manual_seed(0)
    module = Words()
    result = trained(module, WORDS, method="bilevel")
    with torch.no_grad():
        scores = torch.softmax(result.module()(torch.tensor(WORDS)), 1)
    np.testing.assert_allclose(result.predict_proba(WORDS), scores, atol=1e-6)
    result.save(tmp_path / "words.fedkin")
    again = fedkin.load(tmp_path / "words.fedkin", model=Words())
    np.testing.assert_array_equal(again.predict_proba(WORDS), result.predict_proba(WORDS))
    with pytest.raises(InputError, match=r"takes whole numbers only.*int64"):
        result.predict(WORDS + 0.5)
    with pytest.raises(InputError, match=r"Words fails on points .*type float32.*indices"):
        trained(module, WORDS.astype(np.uint8))


def test_whole_numbers_reach_other_modules_as_reals():
    assert trained(nn.Linear(5, 3), WORDS).theta.shape == (18,)


# Batch normalization


def test_a_layer_that_is_called_by_keyword_is_measured():
    torch.manual_seed(0)
    module = Normalized("by name")
    objective = bind(module)
    ((mean, variance),) = objective.statistics(start(objective), INPUTS)
    hidden = module.linear(torch.tensor(INPUTS)).detach().numpy()
    np.testing.assert_allclose(mean, hidden.mean(0), rtol=1e-5)
    np.testing.assert_allclose(variance, hidden.var(0), rtol=1e-5)
    assert not module.norm._forward_pre_hooks


def test_a_layer_that_is_never_called_is_left_alone():
    torch.manual_seed(0)
    module = Normalized("never")
    result = trained(module)
    np.testing.assert_array_equal(result.module().norm.running_var, np.ones(3))
    linear = nn.Sequential(copy.deepcopy(module.linear))
    np.testing.assert_allclose(trained(linear).theta, result.theta[:15], rtol=1e-5)


# What is refused


class Noisy(nn.Linear):
    """Draws random numbers, and seldom with an effect on the outputs."""

    def forward(self, inputs):
        return nn.functional.dropout(super().forward(inputs), p=1e-6, training=self.training)


class Remembering(nn.Linear):
    calls = 0

    def forward(self, inputs):
        self.calls += 1
        return self.calls * super().forward(inputs)


class Picky(nn.Linear):
    def forward(self, inputs):
        if len(inputs) > 2:
            raise ValueError("too many\nsecond line")
        return super().forward(inputs)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (lambda: Noisy(4, 3), "Noisy draws random numbers"),
        (lambda: Remembering(4, 3), "keeps something from one call to the next"),
        (lambda: Normalized("twice"), "calls its layer norm of batch normalization more than once"),
        (lambda: Picky(4, 3), r"Picky raised ValueError for 12 points of shape \(4,\): too many"),
    ],
)
def test_modules_that_cannot_be_trained_are_refused(module, message):
    with pytest.raises(InputError, match=message):
        trained(module())


def test_batch_normalization_of_single_points_is_refused():
    with pytest.raises(InputError, match=r"Normalized raised ValueError for 1 point .*more than 1"):
        trained(Normalized(), batch_size=1)


def test_layers_without_the_derivatives_that_are_needed_are_refused():
    with pytest.raises(InputError, match="layer table has sparse gradients"):
        trained(Words(sparse=True), WORDS)
    bag = Words(bag=True)
    with pytest.raises(InputError, match="Words has a layer that PyTorch cannot differentiate twi"):
        trained(bag, WORDS, method="bilevel")
    assert np.isfinite(trained(bag, WORDS).theta).all()


def test_double_precision_in_jax_is_refused(float64):
    with pytest.raises(InputError, match="jax_enable_x64"):
        trained(nn.Linear(4, 3))


# Files


class Stateful(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.register_buffer("scale", torch.full((3,), 1.5, dtype=torch.bfloat16))

    def forward(self, inputs):
        return super().forward(inputs) * self.scale.float()

    def get_extra_state(self):
        return {"version": 1}

    def set_extra_state(self, state):
        assert state == {"version": 1}


def test_any_state_dict_can_be_saved(tmp_path):
    result = trained(Stateful())
    result.save(tmp_path / "own.fedkin")
    other = Stateful()
    other.scale.zero_()
    again = fedkin.load(tmp_path / "own.fedkin", model=other)
    assert again.module().scale.dtype == torch.bfloat16
    np.testing.assert_array_equal(again.predict_proba(INPUTS), result.predict_proba(INPUTS))
