"""Times synchronizations of fedkin's nodes and of bare ones in turn, in one run.

fedkin's workers answer as fedkin's nodes, whatever app a run brings; all other nodes run the bare
client of this app.
"""

import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp import ServerApp

from fedkin.data.sources import load_images
from fedkin.federation.base import WeightedSum
from fedkin.flower.discovery import describe_nodes
from fedkin.flower.engine import FlowerFederation
from fedkin.flower.joining import RunDescription
from fedkin.flower.messenger import Messenger
from fedkin.methods.local_svrg.node import INNER_SVRG_ROUND
from fedkin.models.named import named_model
from fedkin.models.objective import Objective

app = ServerApp()


def elapsed(work):
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


@app.main()
def main(grid, context):
    rounds = int(context.run_config["rounds"])
    messenger = Messenger(grid)
    while len(messenger.connected()) < 6:
        time.sleep(0.5)
    ours = describe_nodes(messenger, 3, 60)
    bare = sorted(messenger.connected().keys() - {node.node for node in ours})
    model = named_model("cnn", "classification", 10, (8, 8, 1))
    images = model.prepare(load_images("digits").train_images[:2])
    objective = Objective.create(model, images)
    run = RunDescription(
        run="timing",
        seed=0,
        batch_size=50,
        model="cnn",
        task="classification",
        classes=10,
        preprocessing=None,
    )
    federation = FlowerFederation(messenger, objective, [node.name for node in ours], ours, run)
    key = jax.random.key(0)
    point = objective.init(key)

    weights = jnp.ones(len(ours)) / len(ours)

    def synchronize(begin=False):
        message = {
            "point": point,
            "learning_rate": 0.01,
            "refresh_probability": 0.02,
            "averaging_rate": 0.0,
        }
        request = WeightedSum(
            INNER_SVRG_ROUND, message, weights=weights, begin=begin, steps=20, reply="point"
        )
        federation.exchange(train=request, key=key)

    def messages():
        vectors = ArrayRecord({"point": Array(np.asarray(point))})
        return [Message(RecordDict({"vectors": vectors}), node, "train") for node in bare]

    def ping_as_flower_does():
        assert len(list(grid.send_and_receive(messages(), timeout=60))) == len(bare)

    synchronize(begin=True)
    synchronize()  # everything is compiled now
    ping_as_flower_does()
    times = {"fedkin": [], "flower": []}
    for _ in range(rounds):
        times["fedkin"].append(elapsed(synchronize))
        times["flower"].append(elapsed(ping_as_flower_does))
    assert federation.end_step() == ()
    Path(context.run_config["out"]).write_text(json.dumps(times))
