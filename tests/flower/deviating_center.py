"""A program of a real SuperLink that asks for what secure sums are to prevent, and reports what came of it.

It begins as an honest center does, with a sum over all nodes, and then changes the messages. The attacks of
`attacks/malicious_center.py` follow, on one of the nodes.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from flwr.serverapp import ServerApp

from attacks.malicious_center import ATTACKS, L2, rows_by_chosen_models
from attacks.summed_center import summary_of
from attacks.victim import Center, RefusedByNodeError, SlopesOnly, agreed
from fedkin.data.preprocessing import Preprocessing
from fedkin.federation.base import WeightedSum
from fedkin.federation.secure.fixed_point import decode
from fedkin.flower.discovery import describe_nodes
from fedkin.flower.engine import FlowerFederation
from fedkin.flower.joining import RunDescription
from fedkin.flower.messenger import Messenger
from fedkin.flower.wire import REVEALED, SUM, Parcel, Value
from fedkin.methods.bilevel.node import GRADIENT
from fedkin.models.linear import Logistic
from fedkin.models.objective import Objective

NAMES = ("north", "east", "south", "west")
CAP = 0.5
MASKED_KEYS = (
    "sum.weights",
    "sum.totals",
    "sum.nodes",
    "sum.exponent.gradient",
    "sum.exponent.loss",
)

app = ServerApp()


class NodeFarAway(Center):
    """One real node, asked over a real SuperLink.

    Args:
        messenger: Sends the messages.
        address: Flower's number of the node.
    """

    def __init__(self, messenger: Messenger, address: int) -> None:
        self._messenger, self._address = messenger, address
        self.requests = self.attempts = self.size = 0

    def send(self, values: dict, vectors: dict | None = None) -> Parcel:
        """Send a request, and return the answer."""
        self.requests += 1
        request = {self._address: Parcel(values, vectors or {})}
        response = self._messenger.exchange(request, 10**7)[self._address]
        if response.parcel is None:
            raise RefusedByNodeError(response.refusal or 0, response.fault or "")
        return response.parcel


class NumbersFarAway(SlopesOnly, NodeFarAway):
    """The same, with gradients put together from slopes."""


class Deviating:
    """An honest federation, whose messages can be sent again with changes.

    Args:
        messenger: Sends the messages.
        tables: The nodes' tables, for the columns that an honest center would agree on with them.
    """

    def __init__(self, messenger: Messenger, tables: Mapping[str, pd.DataFrame]) -> None:
        self._messenger = messenger
        found = describe_nodes(messenger, len(NAMES), 300)
        self.addresses = {node.name: node.node for node in found}
        written = json.dumps(agreed(summary_of(pd.concat(tables.values()))))
        run = RunDescription(
            run="a run",
            seed=0,
            batch_size=50,
            model="logistic",
            task="classification",
            classes=2,
            preprocessing=Preprocessing.model_validate_json(written),
        )
        self.objective = Objective.create(Logistic(l2=L2), jnp.zeros((2, 5)))
        self.federation = FlowerFederation(
            messenger, self.objective, NAMES, found, run, secure=True, largest_share=CAP
        )
        self.number = 1
        self._asked: dict[int, Parcel] = {}
        send = self.federation._exchange

        def noted(requests, largest, patience=None):
            self._asked.update(requests)
            return send(requests, largest, patience)

        self.federation._exchange = noted

    def honest_sum(self) -> np.ndarray:
        """Return the mean of all nodes' gradients at the model zero."""
        request = WeightedSum(
            GRADIENT,
            {"theta": jnp.zeros(self.objective.size)},
            weights=jnp.full(len(NAMES), 1 / len(NAMES)),
            begin=True,
        )
        found = self.federation.exchange(key=jax.random.key(0), sum=request)
        return np.asarray(found.sum["gradient"])

    def ask(
        self, node: int, moved: float = 0.0, without: tuple[str, ...] = (), **values: Value
    ) -> tuple[int, str, Parcel | None]:
        """Ask one node what it was asked, with changes; return its refusal, the reason, and its answer.

        Args:
            node: The number of the node.
            moved: What is added to each number of the model.
            without: Values that are left out.
            **values: Values in place of the honest ones.
        """
        asked = self._asked[node]
        changed = {name: own for name, own in asked.values.items() if name not in without} | values
        vectors = {name: array + np.float32(moved) for name, array in asked.vectors.items()}
        address = self.addresses[NAMES[node]]
        response = self._messenger.exchange({address: Parcel(changed, vectors)}, 10**6)[address]
        return int(response.refusal or 0), response.fault or "", response.parcel

    def next_number(self) -> dict[str, Value]:
        """Return a number that no exchange has had."""
        self.number += 1
        return {"exchange-number": self.number}


def deviations(center: Deviating) -> dict[str, tuple[int, str]]:
    """Ask the first node for what it should refuse."""
    found = {}

    def ask(name: str, **changes) -> None:
        refusal, reason, _ = center.ask(0, **changes)
        found[name] = refusal, reason

    ask("the same exchange again")
    ask("the same exchange with other peers", **{"sum.nodes": "0,1,2"})
    new = center.next_number()
    ask("a sum of one node", **new, **{"sum.nodes": "0"})
    ask("a sum of two nodes", **new, **{"sum.nodes": "0,1"})
    ask("a sum that it is not in", **new, **{"sum.nodes": "1,2,3"})
    ask("a sum with a node that nobody knows", **new, **{"sum.nodes": "0,1,2,9"})
    ask("a share above the limit", **new, **{"sum.weights": [0.9]})
    ask("a share that is more than all", **new, **{"sum.weights": [2.0]})
    ask("words that nobody waits for", **new, **{"answer-within": 0.0})
    for form in (SUM, REVEALED):
        ask(f"the form {form}", without=MASKED_KEYS, **{"sum.form": form})
    ask("the same question for fewer nodes", **center.next_number(), **{"sum.nodes": "0,1,2"})
    new = center.next_number()
    ask("and then for all again", **new)
    ask("and then for others", **new, **{"sum.nodes": "0,1,3"})
    return found


def decoded(center: Deviating, words: np.ndarray) -> np.ndarray:
    """Read words as if they were not masked."""
    exponent = int(str(center._asked[0].values["sum.exponent.gradient"]))
    return decode(words[: center.objective.size], exponent)


def noise(center: Deviating) -> dict[str, float]:
    """Return the norms of what a center reads that tries to open sums; those of gradients are about one."""

    def ask(moved: float, **members: str) -> list[np.ndarray]:
        number, words = center.next_number(), []
        for node, name in enumerate(NAMES):
            told = {"sum.nodes": members[name]} if name in members else {}
            _, reason, parcel = center.ask(node, moved, **number, **told)
            if parcel is None:
                raise AssertionError(f"{name} has refused an honest question: {reason}")
            words.append(parcel.vectors["sum.vector.words"])
        return words

    def norm(words: list[np.ndarray]) -> float:
        total = np.sum(np.array(words), axis=0, dtype=np.uint64)
        return float(np.linalg.norm(decoded(center, total)))

    honest = ask(0.01)
    split = ask(0.02, north="0,1,2", east="0,1,3", south="0,2,3", west="1,2,3")
    return {
        "a complete sum": norm(honest),
        "a sum without one node": norm(honest[1:]),
        "the words of one node": norm(honest[:1]),
        "nodes that were told different things": norm(split),
    }


@app.main()
def main(grid, context):
    """Deviate, and write down what came of it."""
    directory = Path(str(context.run_config["tables"]))
    tables = {name: pd.read_csv(directory / f"{name}.csv") for name in NAMES}
    messenger = Messenger(grid, patience=300)
    center = Deviating(messenger, tables)
    victim = center.addresses[NAMES[0]]
    found = {
        "sum": center.honest_sum().tolist(),
        "deviations": deviations(center),
        "noise": noise(center),
        "attacks": {
            name: asdict(attack(NodeFarAway(messenger, victim), tables[NAMES[0]]))
            for name, attack in ATTACKS.items()
        },
        "numbers": asdict(
            rows_by_chosen_models(NumbersFarAway(messenger, victim), tables[NAMES[0]])
        ),
    }
    Path(str(context.run_config["out"])).write_text(json.dumps(found, default=sorted))
