"""The paper's network and the nodes' computations as a textbook has them: slow, plain, for comparison."""

import jax
import jax.numpy as jnp


def reference_cnn(model, params, images, moments=None):
    """The same network from XLA's convolutions and the textbook's batch normalization."""
    activations = images.astype(jnp.float32) / 255
    layers = zip(
        params[:2], model.kernels, (model.image_shape[2], model.image_shape[2]), strict=True
    )
    for number, (layer, kernel, channels) in enumerate(layers):
        # Our kernels list the pixels of a window (row, column, channel) or (channel, row, column).
        shape = (kernel, kernel, channels, -1) if number == 0 else (channels, kernel, kernel, -1)
        filters = layer["kernel"].reshape(shape)
        filters = filters if number == 0 else filters.transpose(1, 2, 0, 3)
        activations = layer["bias"] + jax.lax.conv_general_dilated(
            activations,
            filters,
            (kernel, kernel),
            ((1, 1), (1, 1)),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        mean, variance = (
            (activations.mean((0, 1, 2)), activations.var((0, 1, 2)))
            if moments is None
            else moments[number]
        )
        activations = (activations - mean) / jnp.sqrt(variance + 1e-5)
        activations = jax.nn.relu(activations * layer["scale"] + layer["offset"])
    features = activations.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return features @ params[2]["kernel"] + params[2]["bias"]


def reference_loss(model, objective, theta, images, labels, share):
    """The loss of one mini-batch: the sum over its points, each counting as `share` of one."""
    scores = reference_cnn(model, objective.unflatten(theta), images)
    own = jnp.take_along_axis(scores, labels[:, None], axis=1)[:, 0]
    return share * jnp.sum(jax.nn.logsumexp(scores, axis=1) - own)
