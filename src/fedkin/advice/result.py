"""What `fedkin.advise` returns: a verdict in words and numbers, and the final model."""

import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedkin.advice.candidates import TITLES
from fedkin.advice.verdict import Interval, VerdictName
from fedkin.errors import InputError
from fedkin.federation.base import Cost
from fedkin.files import write_atomically
from fedkin.messages import join_names
from fedkin.training import plots
from fedkin.training.result import Result, result_from_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMAT = 1
"""The version of the file format."""

NOTABLE = 0.05
"""A node counts as one to learn with where its weight is at least this large."""


@dataclass(frozen=True, repr=False)
class Advice:
    """Whether to join, what it gains, with whom, and the model to use.

    >>> import numpy as np, fedkin
    >>> draw = np.random.default_rng(0)
    >>> def rows(count):
    ...     x = draw.normal(size=(count, 10))
    ...     return x, x.sum(axis=1) + 3 * draw.normal(size=count)
    >>> advice = fedkin.advise({"north": rows(90), "south": rows(90)}, rows(20), task="regression")
    >>> advice.verdict, advice.candidates.index.tolist()
    ('join', ['alone', 'equal', 'size', 'learned', 'final'])
    >>> advice.predict(np.zeros((1, 10))).shape
    (1,)
    """

    verdict: VerdictName
    """`join`, `alone` or `unclear`."""
    gain: Interval
    """How much lower the loss is with the final model than alone: log loss for classes, the mean squared
    error for numbers. With its 90% interval. If the verdict is `alone`, the gain (a loss, most likely) of the
    best way of joining."""
    accuracy_gain: Interval | None
    """The same for the share of rows classified correctly; None for regression."""
    best: str
    """The best way of joining: `equal`, `size` or `learned`."""
    candidates: pd.DataFrame
    """One row per candidate: cross-validated loss and accuracy, gain over `alone` with its interval, its
    share in the final model, and scores on the test rows where they were given. A last row has the final
    model itself."""
    weights: pd.DataFrame
    """One row per node: its rows, its learned weight, the 90% interval of that weight over other rows of
    the owner, whether the cap decides it, and the node's share in the final model. What shares leave to 1 is
    the owner's own."""
    owner_rows: int
    """How many rows the owner has."""
    caution: str | None
    """Why no verdict could be given, whatever the scores are; None if one could."""
    test_scores: dict[str, float] | None
    """The final model's scores on the test rows."""
    cost: Cost
    """What the exchanges with the nodes have cost."""
    model: Result
    """The final model, as `fedkin.fit` returns one."""

    def predict(self, inputs: Any) -> np.ndarray:
        """Return the label (or number) that the final model predicts for each point."""
        return self.model.predict(inputs)

    def predict_proba(self, inputs: Any) -> np.ndarray:
        """Return the final model's probability of each class for each point."""
        return self.model.predict_proba(inputs)

    @property
    def score_name(self) -> str:
        """What losses are called."""
        return "squared error" if self.accuracy_gain is None else "log loss"

    @property
    def headline(self) -> str:
        """The verdict in two or three words."""
        return {"join": "Join.", "alone": "Stay alone.", "unclear": "Not clear yet."}[self.verdict]

    @property
    def explanation(self) -> str:
        """The verdict's reason and how sure it is, in a sentence or two."""
        if self.verdict == "join":
            first = "Learning with the others predicts your cases better than your own rows alone."
            if self.gain.low <= 0:
                first += " It is the better bet, but no certainty."
        elif self.verdict == "alone":
            first = "Your own rows alone predict your cases better than learning with the others."
        else:
            first = (
                f"Your {self.owner_rows} rows cannot tell whether learning with the others helps."
            )
        if self.caution is not None:
            first = f"{first} {self.caution}"
        return f"{first} {self._numbers()}"

    @property
    def sentence(self) -> str:
        """The whole verdict."""
        return f"{self.headline} {self.explanation}"

    @property
    def partners(self) -> str:
        """With whom to learn, in one sentence."""
        if self.verdict == "alone":
            return "With nobody: the final model is trained on your own rows only."
        return (
            f"The final model learns from your own rows ({self.own_share:.0%}) and from "
            f"{self.named_shares}."
        )

    @property
    def own_share(self) -> float:
        """The share of the owner's rows in the final model."""
        return 1 - float(np.sum(self.weights["share"].to_numpy()))

    @property
    def named_shares(self) -> str:
        """The nodes that count in the final model, with their shares, the largest first."""
        nodes = sorted(records(self.weights), key=lambda row: -row["share"])
        names = [f"{row['node']} ({row['share']:.0%})" for row in nodes if row["share"] >= NOTABLE]
        return join_names(names, most=6) if names else "a little of every node"

    @property
    def compared(self) -> str:
        """The candidate that `gain` compares with `alone`: `final`, or the best way of joining."""
        return self.best if self.verdict == "alone" else "final"

    def _numbers(self) -> str:
        alone, best = self.candidates.loc["alone"], self.candidates.loc[self.compared]
        gain = self.gain
        more = "lower" if gain.value >= 0 else "higher"
        text = (
            f"Joining makes the {self.score_name} {abs(gain.value):.3g} {more} ({best['loss']:.3g} instead "
            f"of {alone['loss']:.3g}); with 90% confidence the gain is between {gain.low:.3g} and "
            f"{gain.high:.3g}"
        )
        if self.accuracy_gain is not None:
            low, high = (100 * end for end in self.accuracy_gain[1:])
            text += (
                f". Accuracy: {alone['accuracy']:.1%} alone, {best['accuracy']:.1%} joined; with 90% "
                f"confidence the change is between {low:+.1f} and {high:+.1f} points"
            )
        return text + "."

    def plot_weights(self, ax: Any = None) -> "Axes":
        """Draw each node's learned weight with its 90% interval, on these matplotlib axes or new ones.

        Returns:
            The axes.
        """
        rows = {str(row["node"]): row for row in records(self.weights)}
        return plots.plot_bars(
            {name: row["weight"] for name, row in rows.items()},
            ax,
            "learned weight, with its 90% interval",
            intervals={name: (row["low"], row["high"]) for name, row in rows.items()},
            marked=[name for name, row in rows.items() if row["at_cap"]],
        )

    def plot_gains(self, ax: Any = None) -> "Axes":
        """Draw what each way of joining gains over alone, with its 90% interval; return the axes."""
        rows = {row["candidate"]: row for row in records(self.candidates.drop(index="alone"))}
        ax = plots.plot_bars(
            {name: row["gain"] for name, row in rows.items()},
            ax,
            f"how much lower the {self.score_name} is than alone",
            intervals={name: (row["gain_low"], row["gain_high"]) for name, row in rows.items()},
            marked=[self.compared],
        )
        ax.axvline(0.0, color="#333333", linewidth=0.8)
        return ax

    def __repr__(self) -> str:
        lines = [self.sentence, self.partners, "", self.candidates.round(4).to_string(), ""]
        lines += [self.weights.round(3).to_string(), ""]
        lines.append(
            f"cost: {self.cost.synchronizations} synchronizations, "
            f"{(self.cost.bytes_up + self.cost.bytes_down) / 1e6:.2f} MB"
        )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Show the verdict and both tables in a notebook."""
        tables = self.candidates.round(4).to_html() + self.weights.round(3).to_html()
        return (
            f"<h3>{escape(self.headline)}</h3><p>{escape(self.explanation)} "
            f"{escape(self.partners)}</p>{tables}"
        )

    def in_unit(self, unit: float) -> "Advice":
        """Return the advice with errors in another unit of the label, this many times smaller."""
        square = unit**2
        errors = [name for name in self.candidates if "loss" in name or "gain" in name]
        table = self.candidates.copy()
        table[errors] = square * table[errors]
        test = self.test_scores
        return replace(
            self,
            gain=Interval(*(square * number for number in self.gain)),
            candidates=table,
            test_scores=None if test is None else {k: square * v for k, v in test.items()},
        )

    def with_warnings(self, warnings: Sequence[str]) -> "Advice":
        """Return the advice with these warnings before those of its model."""
        model = replace(self.model, warnings=(*warnings, *self.model.warnings))
        return replace(self, model=model)

    def summary(self) -> dict[str, Any]:
        """Return everything but the model as plain values, for JSON."""
        return {
            "verdict": self.verdict,
            "sentence": self.sentence,
            "partners": self.partners,
            "gain": self.gain._asdict(),
            "accuracy_gain": None if self.accuracy_gain is None else self.accuracy_gain._asdict(),
            "score": self.score_name,
            "best": self.best,
            "owner_rows": self.owner_rows,
            "caution": self.caution,
            "candidates": records(self.candidates),
            "weights": records(self.weights),
            "test": self.test_scores,
            "warnings": list(self.model.warnings),
            "synchronizations": self.cost.synchronizations,
            "bytes_up": self.cost.bytes_up,
            "bytes_down": self.cost.bytes_down,
        }

    def save(self, path: str | Path) -> None:
        """Write everything into one file, to be read by `Advice.load`. Nothing in it is executable."""
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
            description = {"format": FORMAT, **self.summary()}
            archive.writestr("advice.json", json.dumps(description, indent=2, default=_plain))
            archive.writestr("model.fedkin", self.model.to_bytes())
        write_atomically(Path(path), content.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> "Advice":
        """Read what `save` wrote."""
        try:
            with zipfile.ZipFile(path) as archive:
                description = json.loads(archive.read("advice.json"))
                model = archive.read("model.fedkin")
        except FileNotFoundError as error:
            raise InputError(f"there is no file {path}") from error
        except (zipfile.BadZipFile, KeyError, ValueError, OSError) as error:
            raise InputError(f"{path} is not a saved advice, or it is damaged: {error}") from error
        if description.get("format") != FORMAT:
            raise InputError(
                f"{path} has format {description.get('format')}, this version of fedkin reads {FORMAT}"
            )
        return cls.from_summary(description, result_from_bytes(model, str(path)))

    @classmethod
    def from_summary(cls, summary: dict[str, Any], model: Result) -> "Advice":
        """Return the advice that `summary` describes, with its model."""
        accuracy = summary["accuracy_gain"]
        return cls(
            verdict=summary["verdict"],
            gain=Interval(**summary["gain"]),
            accuracy_gain=None if accuracy is None else Interval(**accuracy),
            best=summary["best"],
            candidates=pd.DataFrame(summary["candidates"]).set_index("candidate"),
            weights=pd.DataFrame(summary["weights"]).set_index("node"),
            owner_rows=summary["owner_rows"],
            caution=summary["caution"],
            test_scores=summary["test"],
            cost=model.cost,
            model=model,
        )


def _plain(value: Any) -> Any:
    return value.item()


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table as dicts, the name of each row among them."""
    return [dict(row) for row in table.reset_index().to_dict(orient="records")]  # pyright: ignore


def by_weight(advice: Advice) -> list[dict[str, Any]]:
    """Return the nodes with their weights, the largest first."""
    return sorted(records(advice.weights), key=lambda row: -row["weight"])


def candidate_title(name: str) -> str:
    """Return what a candidate is called in reports.

    >>> candidate_title("alone")
    'alone, on all own rows'
    """
    return TITLES[name]
