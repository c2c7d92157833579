"""Flax modules as models: their batch normalization, and what is refused."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fedkin
from fedkin.errors import InputError
from fedkin.models.base import as_model
from fedkin.models.cnn import CNN
from fedkin.models.objective import Batch, Objective
from fedkin.training.problem import Problem, simulation
from fedkin.types import Points


class PaperNetwork(nn.Module):
    """The paper's network as a user of Flax would write it."""

    @nn.compact
    def __call__(self, images, train: bool):
        for width, channels in ((4, 1), (2, 2)):
            images = nn.Conv(channels, (width, width), width, padding=1)(images)
            images = nn.relu(nn.BatchNorm(use_running_average=not train)(images))
        return nn.Dense(10)(jnp.moveaxis(images, -1, 1).reshape(len(images), -1))


class NnxNetwork(nnx.Module):
    """The same in Flax's newer interface."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.first = nnx.Conv(1, 1, (4, 4), 4, padding=1, rngs=rngs)
        self.first_norm = nnx.BatchNorm(1, rngs=rngs)
        self.second = nnx.Conv(1, 2, (2, 2), 2, padding=1, rngs=rngs)
        self.second_norm = nnx.BatchNorm(2, rngs=rngs)
        self.last = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, images):
        images = nnx.relu(self.first_norm(self.first(images)))
        images = nnx.relu(self.second_norm(self.second(images)))
        return self.last(jnp.moveaxis(images, -1, 1).reshape(len(images), -1))


def _as_linen(first, second, last):
    def square(layer, width):
        kernel = layer["kernel"].reshape(-1, width, width, layer["kernel"].shape[-1])
        return {"kernel": jnp.moveaxis(kernel, 0, 2), "bias": layer["bias"]}

    def norm(layer):
        return {"scale": layer["scale"], "bias": layer["offset"]}

    return {
        "params": {
            "Conv_0": square(first, 4),
            "BatchNorm_0": norm(first),
            "Conv_1": square(second, 2),
            "BatchNorm_1": norm(second),
            "Dense_0": last,
        }
    }


def _as_nnx(first, second, last):
    params = _as_linen(first, second, last)["params"]
    names = ("first", "first_norm", "second", "second_norm", "last")
    order = ("Conv_0", "BatchNorm_0", "Conv_1", "BatchNorm_1", "Dense_0")
    return {name: params[own] for name, own in zip(names, order, strict=True)}


IMAGES = np.random.default_rng(0).integers(0, 256, (12, 28, 28, 1), np.uint8)


def flat(params):
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(params)])


def numbers(objective, inputs, theta, vector):
    """Loss, gradient and Hessian product of a padded mini-batch, and outputs with the owner's statistics."""
    batch = Batch(inputs, jnp.arange(12) % 10, jnp.where(jnp.arange(12) < 10, 0.1, 0.0))

    @jax.jit
    def compute(theta, vector):
        (loss, gradient), (_, product) = jax.jvp(
            jax.value_and_grad(lambda point: objective.batch_loss(point, batch)),
            (theta,),
            (vector,),
        )
        statistics = objective.statistics(theta, inputs[:5])
        return loss, gradient, product, objective.outputs(theta, inputs[5:7], statistics)

    return compute(theta, vector)


@pytest.fixture(scope="module")
def built_in():
    model = CNN((28, 28, 1))
    prepared = jnp.asarray(model.prepare(IMAGES))
    objective = Objective.create(model, prepared)
    theta = objective.init(jax.random.key(0)) + 0.1
    vector = jax.random.normal(jax.random.key(1), theta.shape)
    return objective, theta, vector, numbers(objective, prepared, theta, vector)


@pytest.mark.parametrize(
    ("module", "arrange"), [(PaperNetwork(), _as_linen), (NnxNetwork(), _as_nnx)]
)
def test_a_twin_of_the_papers_network_gives_its_numbers(built_in, module, arrange):
    own, theta, vector, expected = built_in
    twin = Objective.create(as_model(module, "classification"), IMAGES)
    assert twin.size == own.size == 363

    def arranged(vector):
        return flat(arrange(*own.unflatten(vector)))

    loss, gradient, product, outputs = expected
    found = numbers(twin, jnp.asarray(IMAGES), arranged(theta), arranged(vector))
    for ours, theirs in zip((loss, arranged(gradient), arranged(product)), found[:3], strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=1e-3, atol=2e-5 * max(1, jnp.abs(ours).max()))
    np.testing.assert_allclose(found[3], outputs, rtol=1e-4, atol=1e-4)


class Normalized(nn.Module):
    """A linear layer with batch normalization, called in one way or another."""

    way: str = "once"

    @nn.compact
    def __call__(self, inputs, train: bool):
        norm = nn.BatchNorm(use_running_average=not train)
        if self.way == "twice":
            return nn.Dense(3)(norm(norm(inputs)))
        if self.way == "folded":
            return norm(nn.Dense(3)(inputs.reshape(-1, 2))).reshape(len(inputs), -1)[:, :3]
        hidden = nn.Dense(3)(inputs)
        if self.way == "masked":
            return norm(hidden, mask=inputs[:, :1] > 0)
        return norm(x=hidden)


class NnxNormalized(nnx.Module):
    """The same in Flax's newer interface."""

    def __init__(self, way):
        self.way = way
        self.layer = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
        self.norm = nnx.BatchNorm(3, momentum=0.0, rngs=nnx.Rngs(0))

    def __call__(self, inputs):
        hidden = self.layer(inputs)
        if self.way == "twice":
            hidden = self.norm(hidden)
        return self.norm(hidden, mask=inputs[:, :1] > 0 if self.way == "masked" else None)


def test_a_module_with_batch_normalization_is_trained():
    """With D_0 as its only node, training lowers the loss on D_0, which evaluation measures."""
    points = INPUTS, INPUTS[:, :3].argmax(1)
    result = fedkin.fit(
        [points], points, model=Normalized(), method="fedavg", steps=2, rounds=2, keep="last"
    )
    losses = result.history["validation_loss"].to_numpy()
    assert losses[-1] < losses[0] < np.log(3)
    # One point at a time is normalized with the same statistics.
    alone = [result.predict_proba(INPUTS[row : row + 1])[0] for row in range(3)]
    np.testing.assert_allclose(alone, result.predict_proba(INPUTS)[:3], atol=1e-6)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("module", [Normalized("masked"), NnxNormalized("masked")])
def test_the_mask_of_a_layer_is_kept(module, padded):
    """Flax itself, on the real points, is the judge; padding repeats the first."""
    real, count = INPUTS, len(INPUTS)
    inputs = np.concatenate([real, real[:1], real[:1]]) if padded else real
    mask = jnp.arange(len(inputs)) < count if padded else None
    objective = Objective.create(as_model(module, "classification"), real)
    params = objective.unflatten(objective.init(jax.random.key(0)))
    found = objective.model.apply(params, jnp.asarray(inputs), mask=mask)[:count]
    if isinstance(module, nnx.Module):
        expected = module(jnp.asarray(real))
    else:
        expected = module.apply(params, real, True, mutable=["batch_stats"])[0]
    np.testing.assert_allclose(found, expected, atol=1e-5)


class Dropped(nn.Module):
    fixed: bool = False

    @nn.compact
    def __call__(self, inputs, train: bool = False):
        key = jax.random.key(0) if self.fixed else None
        return nn.Dropout(0.5)(nn.Dense(3)(inputs), deterministic=not train, rng=key)


class OwnAverage(nn.Module):
    """Keeps an average where BatchNorm does, in its own way."""

    @nn.compact
    def __call__(self, inputs, train: bool):
        hidden = nn.Dense(3)(inputs)
        average = self.variable("batch_stats", "mean", lambda: jnp.zeros(3))
        if train and not self.is_initializing():
            average.value = 0.9 * average.value + 0.1 * hidden.mean(0)
        return hidden - average.value


class NnxCounting(nnx.Module):
    def __init__(self):
        self.layer = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
        self.count = nnx.Variable(jnp.zeros(()))

    def __call__(self, inputs):
        self.count[...] += 1
        return self.count[...] * self.layer(inputs)


class NnxConstant(nnx.Module):
    """State that does not change is part of the model; transformations hand all state back."""

    def __init__(self):
        self.layer = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
        self.scale = nnx.Variable(2 * jnp.ones(3))

    def __call__(self, inputs):
        return nnx.jit(lambda module, x: module.layer(x) * module.scale)(self, inputs)


def test_constant_state_is_part_of_an_nnx_model():
    objective = Objective.create(as_model(NnxConstant(), "classification"), INPUTS)
    theta = objective.init(jax.random.key(0))
    kernel, module = objective.unflatten(theta)["layer"]["kernel"], NnxConstant()
    np.testing.assert_allclose(kernel, module.layer.kernel[...])
    found = objective.outputs(theta, jnp.asarray(INPUTS), ())
    np.testing.assert_allclose(found, module(INPUTS), rtol=1e-5)


class NnxDropped(nnx.Module):
    def __init__(self):
        self.layer = nnx.Dropout(0.5, rngs=nnx.Rngs(0))

    def __call__(self, inputs):
        return self.layer(inputs)


class Counting(nn.Module):
    @nn.compact
    def __call__(self, inputs):
        self.variable("counts", "calls", lambda: jnp.zeros(()))
        return nn.Dense(3)(inputs)


class Returning(nn.Module):
    outputs: str

    @nn.compact
    def __call__(self, inputs):
        scores = nn.Dense(3)(inputs)
        if self.outputs == "raises":
            raise RuntimeError("no scores today\nsecond line")
        return {"wide": nn.Dense(4)(inputs), "pair": (scores, scores), "none": inputs}[self.outputs]


class NoParameters(nn.Module):
    @nn.compact
    def __call__(self, inputs):
        return inputs[:, :3]


POINTS = Points(np.ones((6, 4), np.float32), np.arange(6) % 3)
INPUTS = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Dropped(), r"dropout \(rate 0.5\).*fixed key"),
        (NnxDropped(), r"dropout \(rate 0.5\).*eval\(\)$"),
        (Counting(), r"besides its parameters \(counts\)"),
        (OwnAverage(), r"besides its parameters \(batch_stats/mean\)"),
        (NnxCounting(), "changes its variable count when it is called"),
        (Normalized("twice"), "layer BatchNorm_0 of batch normalization more than once"),
        (NnxNormalized("twice"), "BatchNorm of batch normalization more than once"),
        (Normalized("folded"), r"shape \(4, 3\) whose first axis is not that of the 2 points"),
        (Returning("wide"), r"must give 3 scores, one per class, .* but gives shape \(4,\)"),
        (Returning("pair"), "Returning must return one array, not tuple"),
        (Returning("raises"), r"raised RuntimeError in init, .*\(2, 4\): no scores today"),
        (NoParameters(), "no parameters"),
        (nn.Dense(3, param_dtype=jnp.float64), "type float64.* make all parameters float32"),
        (nn.Dense(3, param_dtype=jnp.bfloat16), "type bfloat16.* make all parameters float32"),
    ],
)
def test_models_that_cannot_be_trained_are_refused(module, message):
    engine = simulation({"one": POINTS}, batch_size=3, seed=0)
    with pytest.raises(InputError, match=message):
        Problem.build(engine, POINTS, model=module, classes=np.arange(3))


def test_several_numbers_per_point_are_no_regression():
    engine = simulation({"one": POINTS}, batch_size=3, seed=0)
    with pytest.raises(InputError, match=r"must give one number for each point.*shape \(3,\)"):
        Problem.build(engine, POINTS, model=nn.Dense(3), task="regression", classes=None)


def test_dropout_with_a_fixed_key_drops_in_training_only():
    objective = Objective.create(as_model(Dropped(fixed=True), "classification"), INPUTS)
    theta, inputs = objective.init(jax.random.key(0)), jnp.asarray(INPUTS)
    layer = objective.unflatten(theta)["params"]["Dense_0"]
    whole = INPUTS @ layer["kernel"] + layer["bias"]
    dropped = objective.model.apply(objective.unflatten(theta), inputs)
    np.testing.assert_allclose(dropped, np.where(dropped == 0, 0, 2 * whole), atol=1e-5)
    assert 0 < (dropped == 0).mean() < 1
    np.testing.assert_allclose(objective.outputs(theta, inputs, ()), whole, atol=1e-5)
