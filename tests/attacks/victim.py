"""A node with a small table, and a center that sends it whatever it likes.

The node answers in this process, as `fedkin.flower.worker` lets it, over the bytes of real messages. The
center knows what every center knows: the node's answers, and fedkin's source. The attacks of this folder use
nothing else; they compare what they have found with the table only to count it.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from flwr.app import Context, Message, RecordDict

from fedkin.flower import wire
from fedkin.flower.node import answer
from fedkin.flower.wire import DESCRIBE, EXCHANGE, JOIN, Parcel
from fedkin.methods.bilevel.node import GRADIENT, SLOPE
from flower.well_formed import exchange

ROWS = 60
NUMBERS = ("age", "weight", "pressure", "glucose", "insulin")
LABEL = "outcome"

LARGEST_ANSWER = 10_000_000


def make_table(path: Path, seed: int = 0, rows: int = ROWS) -> pd.DataFrame:
    """Write a table of patients, none of them real, and return it."""
    random = np.random.default_rng(seed)
    columns = {
        "age": random.integers(20, 95, rows).astype(float),
        "weight": np.round(random.normal(75, 15, rows), 1),
        "pressure": np.round(random.normal(125, 18, rows), 1),
        "glucose": np.round(random.lognormal(4.7, 0.3, rows), 1),
        "insulin": np.round(random.lognormal(4.5, 0.6, rows), 1),
    }
    score = (columns["age"] - 55) / 20 + (columns["glucose"] - 110) / 35
    ill = score + random.logistic(size=rows) > 0
    table = pd.DataFrame(columns | {LABEL: np.where(ill, "ill", "well")})
    table.to_csv(path, index=False)
    return table


@dataclass
class RefusedByNodeError(Exception):
    """The node has refused a request."""

    code: int
    reason: str


class Center:
    """A center that asks one node, and counts how often.

    Args:
        settings: What the node's owner has chosen.
    """

    def __init__(self, settings: dict) -> None:
        self._context = Context(1, 1, settings, RecordDict(), {})
        self.requests = 0
        self.attempts = 0
        self.size = 0

    def send(self, values: dict, vectors: dict | None = None) -> Parcel:
        """Send a request, and return the answer."""
        from flower.fake_grid import through_bytes  # it stands in for Flower's processes

        message = Message(wire.pack("request", Parcel(values, vectors or {})), 1, "train")
        message.metadata.__dict__["_message_id"] = "one"
        self.requests += 1
        reply = through_bytes(answer(through_bytes(message), self._context))
        if reply.has_error():
            raise RefusedByNodeError(reply.error.code, reply.error.reason)
        return wire.unpack("answer", reply.content, LARGEST_ANSWER)

    def describe(self) -> dict:
        """Return the summary of the node's table, as every center gets it."""
        return json.loads(str(self.send({"kind": DESCRIBE}).values["summary"]))

    def join(self, preprocessing: dict, **more) -> dict:
        """Let the node join a run; return what it says."""
        self.attempts += 1
        label = preprocessing["label"]
        values = {
            "kind": JOIN,
            "run": "a run",
            "attempt": str(self.attempts),
            "number": 0,
            "seed": 0,
            "batch-size": 50,
            "model": "logistic" if label["kind"] == "classes" else "ridge",
            "task": "classification" if label["kind"] == "classes" else "regression",
            "classes": len(label["classes"]) if label["kind"] == "classes" else 1,
            "l2": 1e-6,
            "preprocessing": json.dumps(preprocessing),
        }
        written = {name.replace("_", "-"): value for name, value in more.items()}
        joined = dict(self.send(values | written).values)
        self.size = int(joined["size"])
        return joined

    def ask(
        self, task, vectors: dict, key: str = "0000000000000001", models: int | None = None, **more
    ) -> Parcel:
        """Ask for one task, and return the replies under their own names.

        Args:
            task: The task.
            vectors: Its vectors.
            key: Decides what the node draws, if it lets the center decide that.
            models: For how many models; vectors then have a row for each.
            **more: Numbers and options of the task, if they are not the smallest.
        """
        values, arrays = exchange(task, self.size, models=None if models is None else range(models))
        arrays |= {f"ask/{name}": np.asarray(v, np.float32) for name, v in vectors.items()}
        for name, value in more.items():
            kind = "number" if name in task.numbers else "option"
            values[f"ask.{kind}.{name}"] = value
        header = {"kind": EXCHANGE, "attempt": str(self.attempts), "step": 0, "key": key}
        found = self.send(header | values, arrays)
        return Parcel(
            {name.rpartition(".")[2]: value for name, value in found.values.items()},
            {name.rpartition(".")[2]: array for name, array in found.vectors.items()},
        )


class SlopesOnly(Center):
    """A center that is shown no vectors: it puts gradients together from slopes, which are numbers."""

    def ask(self, task, vectors: dict, *arguments, **more) -> Parcel:
        """Ask for a gradient by its components, all in one message; for anything else as it is."""
        if task is not GRADIENT:
            return super().ask(task, vectors, *arguments, **more)
        at = {"theta": np.tile(vectors["theta"], (self.size, 1)), "vector": np.eye(self.size)}
        slopes = super().ask(SLOPE, at, models=self.size).values["slope"]
        return Parcel({}, {"gradient": -np.asarray(slopes)})


def agreed(summary: dict) -> dict:
    """Return the preprocessing that an honest center derives from one node's summary."""
    columns = []
    for name, own in summary["columns"].items():
        if own["kind"] == "text":
            columns.append({"kind": "categorical", "name": name, "categories": own["categories"]})
        else:
            deviation = float(np.sqrt(own["squared_deviations"] / own["count"]))
            numbers = {"mean": own["mean"], "standard_deviation": deviation}
            columns.append({"kind": "numeric", "name": name, **numbers})
    classes = summary["label"]["categories"]
    return {"columns": columns, "label": {"kind": "classes", "name": LABEL, "classes": classes}}


def count_rows(found: np.ndarray, table: pd.DataFrame, tolerance: float = 0.05) -> int:
    """Count the rows of the table that are among those found.

    A row counts if every column is within this share of its standard deviation.

    Args:
        found: Rows in the table's own units.
        table: The node's table.
        tolerance: How near a number must be.
    """
    true = table[list(NUMBERS)].to_numpy()
    if len(found) == 0:
        return 0
    distance = np.abs(found[None, :, :] - true[:, None, :]) / true.std(axis=0)
    return int((distance.max(axis=2).min(axis=1) <= tolerance).sum())
