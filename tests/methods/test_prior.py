"""A prior on the weights, against SciPy, and its two extremes."""

import numpy as np
import pytest
from scipy.optimize import minimize

import fedkin
from fedkin.methods.bilevel.prior import Prior
from reproduction.random_federations import draw_federation


def test_weights_with_a_prior_minimize_the_penalized_validation_loss():
    federation = draw_federation(1003, "logistic")
    names = [f"n{i}" for i in range(len(federation.nodes))]
    sizes = np.array([len(y) for _, y in federation.nodes], float)
    prior = Prior(tuple(sizes), 1 / len(federation.own[1]))

    def value(weights):
        weights = np.clip(weights, 0, 1) / np.clip(weights, 0, 1).sum()
        return federation.outer(weights)[0] + prior.loss(weights)

    method = fedkin.Bilevel(cap=1.0, prior=tuple(sizes))
    nodes = dict(zip(names, federation.nodes, strict=True))
    result = fedkin.fit(nodes, federation.own, method=method, batch_size=1000)
    found = np.array(list(result.weights.values()))
    best = min(
        minimize(
            value,
            start,
            method="SLSQP",
            bounds=[(0, 1)] * len(names),
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        ).fun
        for start in (prior.shares, np.full(len(names), 1 / len(names)))
    )
    assert value(found) <= best * 1.002
    assert value(found) < value(prior.shares)


def test_an_infinite_prior_keeps_its_weights_and_trains_the_model():
    federation = draw_federation(1003, "ridge")
    nodes = {f"n{i}": rows for i, rows in enumerate(federation.nodes)}
    shares = np.arange(1, len(nodes) + 1, dtype=float)
    method = fedkin.Bilevel(cap=1.0, prior=tuple(shares), prior_strength=np.inf)
    result = fedkin.fit(nodes, federation.own, model="ridge", method=method, batch_size=1000)
    np.testing.assert_allclose(list(result.weights.values()), shares / shares.sum(), atol=1e-6)
    assert result.stopped.startswith("converged")
    exact = federation.outer(shares / shares.sum())[0]
    assert result.history["outer_loss"].iloc[-1] == pytest.approx(exact, rel=1e-3)


def test_priors_that_make_no_sense():
    with pytest.raises(fedkin.InputError, match="changes nothing without a prior"):
        fedkin.Bilevel(prior_strength=1.0)
    with pytest.raises(fedkin.InputError, match="one positive weight per node"):
        fedkin.Bilevel(prior=(1.0, 0.0))
    with pytest.raises(fedkin.InputError, match="needs the nodes' rows"):
        fedkin.Bilevel(prior="size")
    with pytest.raises(fedkin.InputError, match="outer='single'"):
        fedkin.Bilevel(prior=(1.0, 1.0), outer="proximal")
    x = np.eye(12)
    owner = (x, np.arange(12) % 2)
    with pytest.raises(fedkin.InputError, match="3 weights, but there are 2 nodes"):
        fedkin.fit([owner, owner], owner, method=fedkin.Bilevel(prior=(1.0, 1.0, 1.0)))
