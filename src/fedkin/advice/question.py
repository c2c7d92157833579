"""The question of `fedkin.advise`, with checked data; where the nodes are is left open."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedkin.advice.candidates import (
    BuildProblem,
    Kept,
    Splits,
    train_candidates,
    train_with_nodes,
)
from fedkin.advice.conclusion import conclude
from fedkin.advice.label_unit import LabelUnit
from fedkin.advice.result import Advice
from fedkin.errors import InputError
from fedkin.events import OnEvent
from fedkin.models.named import model_for
from fedkin.numerics.simplex import check_cap
from fedkin.training.alone import FEWEST_OWN_ROWS, OwnRows, add_ones
from fedkin.training.refit import MOST_PARAMETERS
from fedkin.types import LearningTask, Points


def check_owner_rows(count: int, folds: int = 5) -> None:
    """Refuse an owner with too few rows for a verdict."""
    least = max(FEWEST_OWN_ROWS, folds)
    if count < least:
        raise InputError(
            f"the owner has {count} rows, fewer than the {least} that a verdict needs; collect more"
            + (", or choose fewer folds" if folds > FEWEST_OWN_ROWS else "")
        )


@dataclass(frozen=True, eq=False)
class Question:
    """Whether an owner should learn with some nodes, and how to find out."""

    owner: Points
    """All rows that the owner has for learning."""
    rows_of_nodes: pd.Series
    """The number of rows of each node, by its name."""
    task: LearningTask
    classes: np.ndarray | None
    """The label of each class; None for regression."""
    test: Points | None = None
    columns: tuple[str, ...] | None = None
    cap: float = 1.0
    folds: int = 5
    repeats: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        check_cap(self.cap, len(self.rows_of_nodes))
        check_owner_rows(len(self.owner.labels), self.folds)
        if self.task == "regression" and float(np.std(self.owner.labels)) == 0:
            raise InputError(
                "all labels of the owner are the same number: there is nothing to learn"
            )
        parameters = self.rows.inputs.shape[1] * self.rows.outputs
        if parameters > MOST_PARAMETERS:
            raise InputError(
                f"the model would have {parameters} parameters, more than the {MOST_PARAMETERS} that "
                "advise can judge; leave out columns, or use fedkin.fit"
            )

    @property
    def unit(self) -> LabelUnit:
        """The unit in which nodes have to give their labels."""
        return LabelUnit.of(self.owner.labels, self.task)

    @property
    def rows(self) -> OwnRows:
        """The owner's rows, numbers in that unit."""
        return OwnRows(
            add_ones(self.owner.inputs),
            self.unit.reduce(self.owner.labels),
            self.task,
            1 if self.classes is None else len(self.classes),
        )

    def answer(
        self,
        build: BuildProblem,
        *,
        on_event: OnEvent | None = None,
        kept: Kept | None = None,
        leave_one_out: bool = False,
    ) -> Advice:
        """Train all candidates, and judge them.

        Args:
            build: Lets owners ask the nodes, whose labels are in the unit of this question.
            on_event: Called with the events of training.
            kept: Where to keep what was learned so far; None for nowhere.
            leave_one_out: Whether, at the end, each node that has a learned weight is left out once.
        """
        rows = self.rows
        splits = Splits.draw(rows, self.folds, self.repeats, self.seed)
        federated = train_with_nodes(
            build,
            self.rows_of_nodes.to_numpy(),
            Points(self.owner.inputs, rows.labels),
            splits,
            cap=self.cap,
            on_event=on_event,
            kept=kept,
            leave_one_out=leave_one_out,
        )
        return conclude(
            rows,
            splits,
            federated,
            train_candidates(rows, splits, federated),
            self.unit,
            rows_of_nodes=self.rows_of_nodes,
            test=self.test,
            classes=self.classes,
            columns=self.columns,
            cap=self.cap,
        )


def count_rows(rows: dict[str, int]) -> pd.Series:
    """Return the numbers of rows as `Question` takes them."""
    return pd.Series(rows.values(), index=pd.Index(rows, name="node"), name="rows")


def linear_model(model: str | None, task: LearningTask | None) -> str:
    """Return the model that is compared: the one asked for, or the one of the task."""
    if task not in (None, "classification", "regression"):
        raise InputError(f"task={task!r} is unknown; choose classification or regression")
    if model not in (None, "logistic", "ridge"):
        given = repr(model) if isinstance(model, str) else f"a {type(model).__name__}"
        raise InputError(
            f"advise compares linear models, logistic or ridge, not {given}; for others use fedkin.fit"
        )
    if model is not None and task is None:
        return model
    return model_for(task or "classification", model)
