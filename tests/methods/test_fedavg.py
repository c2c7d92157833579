"""FedAvg, where nobody says how long to train."""

import numpy as np

import fedkin
from fedkin.methods.local_svrg import training


def test_training_that_moves_in_circles_ends(monkeypatch):
    """Mini-batches move the model in every round; a step of forty rounds leads nowhere any more."""
    draw = np.random.default_rng(0)

    def node(sign):
        x = draw.normal(size=(70, 3))
        return x, (sign * x[:, 0] + 0.5 * draw.normal(size=70) > 0).astype(int)

    nodes, own = [node(1), node(1), node(-1), node(1)], node(1)

    def train(steps):
        result = fedkin.fit(nodes, own, method="fedavg", steps=steps)
        likely = [result.predict_proba(x)[np.arange(len(y)), y] for x, y in nodes]
        return result, -np.mean(np.log(likely))

    ended, loss = train(steps=50)
    assert ended.stopped.startswith("converged")
    monkeypatch.setattr(training, "MEAN_MOVE", 0)
    longer, least = train(steps=20)
    assert longer.stopped.startswith("stopped")
    assert ended.cost.synchronizations < 0.5 * longer.cost.synchronizations
    assert loss < 1.002 * least
