"""A worker whose node answers tasks with nonsense, or with nothing: what it does is in SABOTAGE."""

import os
import time

import numpy as np
from flwr.app import Message

from fedkin.flower import wire, worker
from fedkin.flower.node import answer
from fedkin.flower.wire import Parcel

TRICKS = {
    "nan": lambda vector: np.full_like(vector, np.nan),
    "shape": lambda vector: vector[:-1],
    "huge": lambda vector: np.full_like(vector, 1e30),
}


def sabotage(message, context):
    reply = answer(message, context)
    parcel = wire.unpack("answer", reply.content, 10**6) if reply.has_content() else Parcel()
    if not parcel.vectors:
        return reply  # it says who it is and joins like everybody else
    trick = os.environ["SABOTAGE"]
    if trick == "silence":
        time.sleep(10_000)
    vectors = {name: TRICKS[trick](vector) for name, vector in parcel.vectors.items()}
    return Message(wire.pack("answer", Parcel(parcel.values, vectors)), reply_to=message)


if __name__ == "__main__":
    worker.answer = sabotage
    worker.main()
