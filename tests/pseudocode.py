"""The loops of the papers on Ditto and pFedMe, line by line: slow, plain, for comparison."""

import jax
import numpy as np

from fedkin.nodes.draws import draw_batches


def gradient_of(objective):
    compiled = jax.jit(jax.grad(objective.batch_loss))
    return lambda point, batch: np.asarray(compiled(point, batch))


def drawn_batches(data, key, count):
    """The mini-batches that a node draws, and the number of its own points in each."""
    for index in draw_batches(key, count, data.batches):
        batch = data.batch(index)
        points = len(batch.labels) if batch.weights is None else int((batch.weights > 0).sum())
        yield batch, points


def ditto_steps(gradient, data, key, steps, start, *, rate, shared=None, pull=0.0):
    """Li et al. 2021, Algorithm 2: local iterations, for the personal model with its pull."""
    point, evaluations = np.asarray(start), 0
    for batch, points in drawn_batches(data, key, steps):
        direction = gradient(point, batch)
        if shared is not None:
            direction = direction + pull * (point - np.asarray(shared))
        point = point - rate * direction
        evaluations += points
    return point, evaluations


def pfedme_rounds(gradient, data, key, rounds, start, *, rate, pull, tolerance, iterations):
    """Dinh et al. 2020, Algorithm 1, lines 5-8; also the iterations of each subproblem."""
    shared, theta, evaluations, counts = np.asarray(start), None, 0, []
    for batch, points in drawn_batches(data, key, rounds):
        theta, count = shared, 0
        while count < iterations:
            direction = gradient(theta, batch) + pull * (theta - shared)
            count += 1
            if np.sqrt(np.sum(direction**2)) < tolerance:
                break
            theta = theta - rate * direction
        shared = shared - rate * pull * (shared - theta)
        evaluations += points * count
        counts.append(count)
    return shared, theta, evaluations, counts
