"""What `fedkin.contributions` returns: every node's Shapley value and what is lost without it."""

from dataclasses import dataclass, replace
from html import escape
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from fedkin.federation.base import Cost
from fedkin.messages import join_names

ScoreName = Literal["loss", "accuracy"]
"""What groups of nodes are judged by: the loss, which counts how sure a model is, or the accuracy."""

GroupWeights = Literal["size", "equal", "learned"]
"""The weights of the nodes of a group: their shares of its rows, equal ones, or the result's."""

CLEAR = 2.0
"""A contribution of this many standard errors is no chance."""

LITTLE = 0.25
"""A node is hardly missed where less than this share of its contribution is lost without it."""

INTERVAL = 1.645
"""The standard errors to both sides of a 90% interval."""

ERRORS = ("sampling_error", "row_error")
"""The two standard errors of a Shapley value."""

VALUES = ("weight", "shapley", *ERRORS, "leave_one_out", "leave_one_out_error")
"""The columns that hold fractions."""


class NodeValue(NamedTuple):
    """The numbers of one node."""

    node: str
    rows: int
    weight: float
    """Its weight in the result; NaN if it has none."""
    shapley: float
    error: float
    """The standard error of its Shapley value."""
    leave_one_out: float
    leave_one_out_error: float


@dataclass(frozen=True, repr=False)
class Contributions:
    """What each node contributes to the owner's score, as a second opinion beside the learned weights.

    >>> import numpy as np, fedkin
    >>> draw = np.random.default_rng(0)
    >>> def rows(count, sign=1):
    ...     x = draw.normal(size=(count, 2))
    ...     return x, (sign * x[:, 0] > 0).astype(int)
    >>> nodes = {"north": rows(50), "south": rows(50), "west": rows(50, -1)}
    >>> validation = rows(60)
    >>> result = fedkin.fit(nodes, validation)
    >>> found = fedkin.contributions(result, nodes, validation)
    >>> found.table["shapley"].idxmin(), found.exact
    ('west', True)
    >>> bool(abs(found.table["shapley"].sum() - (found.everyone - found.nobody)) < 1e-9)
    True
    """

    table: pd.DataFrame
    """One row per node: its `rows`, its `weight` in the result, its `shapley` value with two standard errors
    (`sampling_error` over the draw of orders, 0 if exact; `row_error` over the owner's rows), and
    `leave_one_out`, what all nodes together lose without it, with `leave_one_out_error` over these rows."""
    score: ScoreName
    regression: bool
    weights: GroupWeights
    everyone: float
    """The score with all nodes: minus the mean loss, or the accuracy."""
    nobody: float
    """The score without any: that of the best constant answer."""
    exact: bool
    """Whether Shapley values are of all groups of nodes, and not of sampled orders."""
    orders: int
    """How many orders were drawn; 0 if exact."""
    ended_early: int
    """In how many of them the last nodes had next to nothing left to add, and were not tried one by one."""
    groups: int
    """How many groups of nodes a model was trained on."""
    converged: bool
    """Whether models were trained to convergence; if not, for a few rounds each."""
    cost: Cost
    """What the exchanges with the nodes have cost."""
    warnings: tuple[str, ...] = ()

    @property
    def score_name(self) -> str:
        """What is gained, in words."""
        if self.score == "accuracy":
            return "accuracy"
        return "squared error" if self.regression else "log loss"

    @property
    def nodes(self) -> list[NodeValue]:
        """Every node's numbers, with one error of its Shapley value: over orders and rows together."""
        return [
            NodeValue(
                str(node),
                int(row["rows"]),
                float(row["weight"]),
                float(row["shapley"]),
                float(np.hypot(*(row[name] for name in ERRORS))),
                float(row["leave_one_out"]),
                float(row["leave_one_out_error"]),
            )
            for node, row in self.table.to_dict(orient="index").items()
        ]

    @property
    def replaceable(self) -> tuple[str, ...]:
        """The nodes that clearly contribute, but are hardly missed: others can stand in for them."""
        return tuple(
            each.node
            for each in self.nodes
            if each.shapley > CLEAR * each.error
            and each.leave_one_out <= CLEAR * each.leave_one_out_error
            and each.leave_one_out < LITTLE * each.shapley
        )

    @property
    def sentence(self) -> str:
        """What the values sum to, in words."""
        values = (self.everyone, self.nobody)
        unit = self.score_name
        if self.score == "loss":
            values = (-self.everyone, -self.nobody)
        scheme = {
            "size": "weighted by their rows",
            "equal": "with equal weights",
            "learned": "with the learned weights",
        }
        article = "an" if unit == "accuracy" else "a"
        return (
            f"All nodes together, {scheme[self.weights]}, reach {article} {unit} of {values[0]:.3g}; the "
            f"best constant answer has {values[1]:.3g}. Shapley values divide the difference of "
            f"{_signed(self.everyone - self.nobody)} among the nodes."
        )

    @property
    def caution(self) -> str | None:
        """Which nodes leave-one-out is misleading about, if any."""
        names = self.replaceable
        if not names:
            return None
        if len(names) == 1:
            return (
                f"{names[0]} clearly contributes, but leaving it out costs little: other nodes can stand in "
                "for it."
            )
        return (
            f"{join_names(names, most=6)} clearly contribute, but leaving any one of them out costs little: "
            "other nodes can stand in for it. Do not drop these nodes together."
        )

    @property
    def method(self) -> str:
        """How it was found out, in a sentence."""
        how = "All groups of nodes" if self.exact else f"Groups of nodes from {self.orders} orders"
        trained = "trained to convergence" if self.converged else "trained for a few rounds each"
        return (
            f"{how} were compared: {self.groups} models, {trained}, in "
            f"{self.cost.synchronizations} synchronizations."
        )

    def __repr__(self) -> str:
        lines = [self.sentence, "", self.table.round(4).to_string(), ""]
        return "\n".join([*lines, *filter(None, [self.caution]), self.method])

    def _repr_html_(self) -> str:
        """Show the table in a notebook."""
        notes = " ".join(filter(None, [self.caution, self.method]))
        return (
            f"<p>{escape(self.sentence)}</p>{self.table.round(4).to_html()}<p>{escape(notes)}</p>"
        )

    def in_unit(self, unit: float) -> "Contributions":
        """Return the same with squared errors in another unit of the label, this many times smaller."""
        if self.score != "loss" or not self.regression:
            return self
        table = self.table.copy()
        values = [name for name in VALUES if name != "weight"]
        table[values] = unit**2 * table[values]
        return replace(
            self, table=table, everyone=unit**2 * self.everyone, nobody=unit**2 * self.nobody
        )

    def summary(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON; `from_summary` reads them."""
        nodes = [
            {"node": str(node), **{str(name): _plain(value) for name, value in row.items()}}
            for node, row in self.table.to_dict(orient="index").items()
        ]
        return {
            "score": self.score,
            "score_name": self.score_name,
            "weights": self.weights,
            "everyone": self.everyone,
            "nobody": self.nobody,
            "exact": self.exact,
            "orders": self.orders,
            "ended_early": self.ended_early,
            "groups": self.groups,
            "converged": self.converged,
            "replaceable": list(self.replaceable),
            "synchronizations": self.cost.synchronizations,
            "bytes_up": self.cost.bytes_up,
            "bytes_down": self.cost.bytes_down,
            "warnings": list(self.warnings),
            "nodes": nodes,
        }

    @classmethod
    def from_summary(cls, summary: dict[str, Any]) -> "Contributions":
        """Return what `summary` describes."""
        table = pd.DataFrame(summary["nodes"]).set_index("node")
        return cls(
            table=table.astype(dict.fromkeys(VALUES, float)),
            regression=summary["score_name"] == "squared error",
            cost=Cost(summary["synchronizations"], summary["bytes_up"], summary["bytes_down"]),
            warnings=tuple(summary["warnings"]),
            **{name: summary[name] for name in PLAIN},
        )


PLAIN = (
    "score",
    "weights",
    "everyone",
    "nobody",
    "exact",
    "orders",
    "ended_early",
    "groups",
    "converged",
)
"""The fields of which the summary has nothing but the value."""


def with_error(value: float, error: float) -> str:
    """Write a number with its standard error.

    >>> with_error(-0.01234, 0.0021)
    '−0.012 ± 0.002'
    """
    digits = 3 if abs(value) < 100 else 0
    return f"{value:+.{digits}f} ± {error:.{digits}f}".replace("-", "−")


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _signed(value: float) -> str:
    return f"{value:+.3g}".replace("-", "−")
