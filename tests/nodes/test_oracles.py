import jax
import jax.numpy as jnp
import numpy as np
import pytest

from federations import classification_nodes, own_data, problem, regression_nodes, reveal
from fedkin.data.batches import divide, stack_nodes
from fedkin.methods.step_size import SMOOTHNESS
from fedkin.models.cnn import CNN
from fedkin.models.linear import Logistic, Ridge
from fedkin.models.mlp import MLP
from fedkin.nodes import oracles


@pytest.mark.parametrize(
    ("points", "batch_size"), [(1, 50), (7, 50), (50, 50), (51, 50), (130, 50), (4000, 50)]
)
def test_every_point_is_in_exactly_one_mini_batch_of_nearly_equal_size(points, batch_size):
    parts = divide(points, batch_size, seed=0, node=3)
    assert sorted(np.concatenate(parts)) == list(range(points))
    sizes = [len(part) for part in parts]
    assert len(parts) == -(-points // batch_size)
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= batch_size


def test_the_division_depends_on_seed_and_node_alone():
    labels = [np.arange(70), np.arange(30)]
    inputs = [own[:, None] for own in labels]
    both = stack_nodes(inputs, labels, 20, seed=5)
    same = stack_nodes([np.arange(9)[:, None], inputs[1]], [np.arange(9), labels[1]], 20, seed=5)
    other = stack_nodes(inputs, labels, 20, seed=6)
    second, same_second = (data.labels[data.first[1] :, :15] for data in (both, same))
    np.testing.assert_array_equal(second, same_second)
    assert (both.labels != other.labels).any()


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("sizes", [(20, 20), (23, 4), (7, 31)])
def test_full_gradient_and_product_are_those_of_the_plain_mean(sizes):
    nodes, validation = classification_nodes(sizes)
    model = Logistic(classes=3, l2=0.1)
    made = problem(model, nodes, validation)
    theta, vector = np.random.default_rng(0).normal(size=(2, made.objective.size))

    def mean_loss(theta, inputs, labels):
        params = made.objective.unflatten(theta)
        return model.loss(model.apply(params, inputs), labels).mean() + model.penalty(params)

    for node, (inputs, labels) in enumerate(nodes):
        data = own_data(made.federation.data, node)
        loss, gradient = jax.jit(oracles.full_loss_and_gradient, static_argnums=0)(
            made.objective, theta, data
        )
        product = jax.jit(oracles.full_hessian_product, static_argnums=0)(
            made.objective, theta, data, vector
        )
        plain_loss, plain_gradient = jax.jit(jax.value_and_grad(mean_loss))(theta, inputs, labels)
        np.testing.assert_allclose(loss, plain_loss)
        np.testing.assert_allclose(gradient, plain_gradient, atol=1e-12)
        hessian = jax.jit(jax.hessian(mean_loss))(theta, inputs, labels)
        np.testing.assert_allclose(product, hessian @ vector, atol=1e-12)
        by_class = jax.jit(oracles.full_class_product, static_argnums=0)(
            made.objective, theta, data, vector
        )
        blocks = np.asarray(hessian) - model.l2 * np.eye(len(theta))
        # The scores of a feature's classes lie next to each other in the vector of parameters.
        classes = np.arange(len(theta)) % 3
        blocks = np.where(classes[:, None] == classes, blocks, 0)
        np.testing.assert_allclose(by_class, blocks @ vector, atol=1e-12)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("model", [Ridge(l2=0.1), Ridge(l2=0.01, intercept=False)])
def test_smoothness_is_the_largest_curvature_of_a_mini_batch(model):
    nodes, validation = regression_nodes((23, 4))
    made = problem(model, nodes, validation)
    replies, _ = reveal(made.federation, SMOOTHNESS, key=jax.random.key(0))
    for node in range(2):
        data = own_data(made.federation.data, node)
        hessians = [
            jax.hessian(made.objective.batch_loss)(
                jnp.zeros(made.objective.size), data.batch(index)
            )
            for index in range(int(data.batches))
        ]
        exact = max(float(np.linalg.eigvalsh(hessian).max()) for hessian in hessians)
        assert exact * (1 - 1e-4) <= replies["smoothness"][node]
        # Mini-batches of unequal size weigh the penalty a little differently from the data.
        assert replies["smoothness"][node] <= exact * (1 + 1e-9) + model.l2


@pytest.mark.usefixtures("float64")
def test_cnn_products_are_finite_differences_of_its_gradient():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, 28, 28, 1), np.uint8)
    nodes = [(images[:20], rng.integers(0, 10, 20)), (images[20:37], rng.integers(0, 10, 17))]
    made = problem(CNN((28, 28, 1)), nodes, (images[37:], np.arange(3)))
    theta = made.objective.init(jax.random.key(0))
    product = jax.jit(oracles.full_hessian_product, static_argnums=0)
    gradient = jax.jit(oracles.full_loss_and_gradient, static_argnums=0)
    step = 1e-6
    for node in range(2):
        data = own_data(made.federation.data, node)
        for _ in range(5):
            vector = rng.normal(size=theta.size)
            ahead = gradient(made.objective, theta + step * vector, data)[1]
            behind = gradient(made.objective, theta - step * vector, data)[1]
            exact = (ahead - behind) / (2 * step)
            ours = product(made.objective, theta, data, vector)
            assert np.linalg.norm(ours - exact) <= 1e-3 * np.linalg.norm(exact)


@pytest.mark.usefixtures("float64")
def test_products_of_drawn_mini_batches_are_those_of_their_mean_hessian():
    made = problem(MLP(3, hidden=4), *classification_nodes((23, 4)), batch_size=4)
    theta, vector = np.random.default_rng(0).normal(size=(2, made.objective.size))
    product = jax.jit(oracles.drawn_hessian_product, static_argnums=0)
    hessian = jax.jit(jax.hessian(made.objective.batch_loss))
    for node, indices in ((0, [3, 1, 3, 3]), (0, [0, 2, 4, 5]), (1, [0, 0, 0, 0])):
        data = own_data(made.federation.data, node)
        found = product(made.objective, theta, data, jnp.array(indices), vector)
        mean = np.mean([hessian(theta, data.batch(index)) for index in indices], axis=0)
        np.testing.assert_allclose(found, mean @ vector, atol=1e-12)
