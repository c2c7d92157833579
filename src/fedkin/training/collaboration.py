"""What `fedkin.fit_all` returns: who learns with whom, every node's model, and what each gains by it."""

import html
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import pandas as pd
from pydantic import model_validator

from fedkin.errors import InputError
from fedkin.federation.base import Cost
from fedkin.files import write_atomically
from fedkin.messages import join_names, suggestion
from fedkin.numerics.communities import find_groups
from fedkin.training import plots
from fedkin.training.result import Result, read_file, result_from_bytes
from fedkin.training.saved_files import (
    Archive,
    Name,
    Record,
    Text,
    describing_damage,
    read_record,
    read_table,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMAT = 1
"""The version of the file format; a file of another version is refused."""

DESCRIPTION, SCORES = "collaboration.json", "scores.parquet"
"""The files that only a saved collaboration has."""

LEAST_CHANGE = 1e-9
"""Scores that differ by less than this are the same."""


@dataclass(frozen=True, repr=False)
class Collaboration:
    """Who learns with whom in a federation, and every node's model.

    >>> import numpy as np, fedkin
    >>> x = np.linspace(-1, 1, 40)[:, None]
    >>> nodes = {"a": (x, 2 * x[:, 0]), "b": (x, 2 * x[:, 0]), "c": (x, -x[:, 0]), "d": (x, -x[:, 0])}
    >>> everyone = fedkin.fit_all(nodes, model="ridge", cap=0.5)
    >>> everyone.matrix.round(2).loc["a"].tolist()
    [0.5, 0.5, 0.0, 0.0]
    >>> everyone.groups
    (('a', 'b'), ('c', 'd'))
    >>> abs(float(everyone.predict("c", [[0.5]])[0]) + 0.5) < 0.05
    True
    """

    method: str
    nodes: tuple[str, ...]
    """The names of all nodes, each of which is an owner."""
    models: dict[str, Result]
    """Each node's model with its weights and history. The costs in it are what it would have cost alone."""
    scores: pd.DataFrame
    """A row per node: `points`, how many points it is scored on, and a column per method: the method that was
    chosen, `local` (the node's own training data alone) and `fedavg` (equal weights)."""
    measure: str
    """What the scores are: `accuracy`, or `loss` in regression, where less is better."""
    scored_on: str
    """The data that a node's scores are for: `test`, or `validation` where there is no test data. The weights
    were chosen by the latter, so those scores are too good."""
    cost: Cost
    """What learning has cost for all nodes together: an exchange that serves many is one synchronization."""
    failures: dict[str, str]
    """Nodes whose learning failed, and why; they have no model."""
    warnings: tuple[str, ...]
    """What a reader should know."""

    @cached_property
    def matrix(self) -> pd.DataFrame | None:
        """Whom each node learns with: a row per owner, a column per node, NaN where learning failed.

        None for methods that do not weigh nodes.
        """
        rows = {name: result.weights for name, result in self.models.items()}
        if all(weights is None for weights in rows.values()):
            return None
        table = pd.DataFrame(
            [
                [(rows.get(owner) or {}).get(node, np.nan) for node in self.nodes]
                for owner in self.nodes
            ],
            index=pd.Index(self.nodes, name="owner"),
            columns=pd.Index(self.nodes, name="node"),
        )
        return table.astype(float)

    @cached_property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Nodes that learn with each other, the largest group first (`numerics.communities`)."""
        if self.matrix is None:
            return ()
        found = find_groups(np.nan_to_num(self.matrix.to_numpy()))
        return tuple(tuple(self.nodes[place] for place in group) for group in found)

    @property
    def summary(self) -> pd.DataFrame:
        """The scores over all nodes: a row per method.

        `mean`, `std`, `worst`, `tenth_percentile` (nine of ten nodes do at least as well) and
        `weighted_mean` (by the points of each node); `gain` and `lose` count the nodes that do better or
        worse than by learning alone.
        """
        return summarize_scores(self.scores, self.measure)

    def predict(self, node: str, inputs: Any) -> np.ndarray:
        """Return what a node's model predicts."""
        return self._model(node).predict(inputs)

    def predict_proba(self, node: str, inputs: Any) -> np.ndarray:
        """Return the probability of each class by a node's model."""
        return self._model(node).predict_proba(inputs)

    def save(self, path: str | Path) -> None:
        """Write everything into one file, to be read by `Collaboration.load`."""
        description = {
            "format": FORMAT,
            "method": self.method,
            "nodes": self.nodes,
            "models": list(self.models),
            "measure": self.measure,
            "scored_on": self.scored_on,
            "cost": asdict(self.cost),
            "failures": self.failures,
            "warnings": self.warnings,
        }
        table = io.BytesIO()
        self.scores.reset_index().to_parquet(table, index=False)
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(DESCRIPTION, json.dumps(description, indent=2))
            archive.writestr(SCORES, table.getvalue())
            for number, result in enumerate(self.models.values()):
                archive.writestr(f"models/{number}.fedkin", result.to_bytes())
        write_atomically(Path(path), content.getvalue())

    @classmethod
    def load(cls, path: str | Path, model: Any | None = None) -> "Collaboration":
        """Read what `save` wrote.

        Args:
            path: The file.
            model: The model object, needed where it was not one of fedkin's own.
        """
        path = Path(path)
        with describing_damage(str(path), "a saved collaboration"):
            archive = Archive(read_file(path))
            written = archive.read(DESCRIPTION)
            if (found := read_record(written, _Format).format) != FORMAT:
                raise InputError(
                    f"{path} has format {found}, this version of fedkin reads {FORMAT}"
                )
            saved = read_record(written, SavedCollaboration)
            scores = read_table(archive.read(SCORES), "node").set_index("node")
            if tuple(scores.index) != saved.nodes or "points" not in scores.columns:
                raise ValueError("the scores are not those of its nodes")
            contents = [
                archive.read(f"models/{number}.fedkin") for number in range(len(saved.models))
            ]
        return cls(
            method=saved.method,
            nodes=saved.nodes,
            models={
                name: result_from_bytes(content, f"{path}: {name}", model)
                for name, content in zip(saved.models, contents, strict=True)
            },
            scores=scores,
            measure=saved.measure,
            scored_on=saved.scored_on,
            cost=saved.cost,
            failures=saved.failures,
            warnings=saved.warnings,
        )

    def plot_matrix(self, ax: Any = None) -> "Axes":
        """Draw whom each node learns with, in the order of groups, on these matplotlib axes or new ones.

        Returns:
            The axes.
        """
        if self.matrix is None:
            raise InputError(f"the method {self.method!r} has no weights to draw: use plot_scores")
        order = [name for group in self.groups for name in group]
        return plots.plot_matrix(self.matrix.loc[order, order], ax, "owner", "learns with")

    def plot_scores(self, ax: Any = None) -> "Axes":
        """Draw every node's score by each method; return the axes."""
        ax = plots.axes_or_new(ax)
        scores = self.scores.drop(columns="points")
        places = np.arange(len(scores))
        for name in scores.columns:
            ax.plot(scores[name], places, "o", label=str(name), alpha=0.8)
        ax.set_yticks(places, [plots.as_written(node) for node in scores.index])
        ax.invert_yaxis()
        ax.set_xlabel(f"{self.measure} on {self.scored_on} data")
        ax.legend()
        return ax

    def __repr__(self) -> str:
        lines = [
            f"Collaboration of {len(self.nodes)} nodes by {self.method}: "
            f"{self.cost.synchronizations} synchronizations",
            *(f"  group: {join_names(group, 8)}" for group in self.groups),
            f"  {self.measure} on {self.scored_on} data:",
            *(f"    {line}" for line in self.summary.round(3).to_string().splitlines()),
            *(f"  failed: {name}: {why}" for name, why in self.failures.items()),
            *(f"  warning: {warning}" for warning in self.warnings),
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the matrix in the order of groups, shaded by weight, and the scores, for notebooks."""
        head = html.escape(repr(self).split("\n")[0])
        return f"<p>{head}</p>{self._matrix_html()}{self.summary.round(3).to_html()}"

    def _matrix_html(self) -> str:
        if self.matrix is None:
            return ""
        order = [name for group in self.groups for name in group]
        table = self.matrix.loc[order, order]
        largest = float(np.nanmax(table.to_numpy())) or 1.0
        titles = "".join(f"<th>{html.escape(name)}</th>" for name in order)
        rows = []
        for owner in order:
            cells = "".join(
                f'<td style="background:rgba(63,152,224,{np.nan_to_num(weight) / largest:.2f})">'
                f"{weight:.2f}</td>"
                for weight in table.loc[owner].to_numpy(float)
            )
            rows.append(f"<tr><th>{html.escape(owner)}</th>{cells}</tr>")
        return (
            "<table><caption>Rows: who learns. Columns: with whom.</caption>"
            f"<tr><th></th>{titles}</tr>{''.join(rows)}</table>"
        )

    def _model(self, node: str) -> Result:
        if node in self.failures:
            raise InputError(f"node {node!r} has no model: {self.failures[node]}")
        if node not in self.models:
            raise InputError(f"there is no node {node!r}{suggestion(str(node), self.nodes)}")
        return self.models[node]


class SavedCollaboration(Record):
    """What a file says in `collaboration.json`."""

    method: Text
    nodes: tuple[Name, ...]
    models: tuple[Name, ...]
    measure: Literal["accuracy", "loss"]
    scored_on: Literal["test", "validation"]
    cost: Cost
    failures: dict[Name, Text]
    warnings: tuple[Text, ...]

    @model_validator(mode="after")
    def _names_nodes(self) -> Self:
        owners = [*self.models, *self.failures]
        if len(set(self.nodes)) != len(self.nodes) or sorted(owners) != sorted(self.nodes):
            raise ValueError("every node must have a model, or the reason why there is none")
        return self


class _Format(Record):
    format: int


def summarize_scores(scores: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Return mean, spread, worst and tenth percentile over nodes for each method's column of scores.

    >>> table = pd.DataFrame({"points": [1, 3], "local": [0.5, 0.7], "bilevel": [0.7, 0.7]})
    >>> summarize_scores(table, "accuracy").loc["bilevel", ["mean", "worst", "gain", "lose"]].tolist()
    [0.7, 0.7, 1.0, 0.0]
    """
    higher_is_better = measure == "accuracy"
    rows: dict[str, Mapping[str, float]] = {}
    for method in scores.columns.drop("points"):
        own = scores[method].to_numpy(float)
        known = ~np.isnan(own)
        values = own[known]
        if not len(values):
            continue
        points = scores["points"].to_numpy(float)[known]
        row = {
            "mean": float(values.mean()),
            "std": float(values.std()),
            "worst": float(values.min() if higher_is_better else values.max()),
            "tenth_percentile": float(np.quantile(values, 0.1 if higher_is_better else 0.9)),
            "weighted_mean": float(np.average(values, weights=points)),
        }
        if "local" in scores.columns:
            gain = own - scores["local"].to_numpy(float)
            gain = gain if higher_is_better else -gain
            row |= {
                "gain": int(np.count_nonzero(gain > LEAST_CHANGE)),
                "lose": int(np.count_nonzero(gain < -LEAST_CHANGE)),
            }
        rows[method] = row
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("method")
