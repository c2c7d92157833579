"""`fedkin.advise`: join a federation or stay alone, with what that gains and how sure it is."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedkin.advice.candidates import (
    ALL_ROWS,
    CANDIDATES,
    Candidates,
    Federated,
    Splits,
    fold_name,
    row_losses,
    row_mistakes,
    train_candidates,
    train_with_nodes,
)
from fedkin.advice.judgment import FEWEST_OF_A_CLASS, Judgment, judge, mean_scores, rarest_class
from fedkin.advice.result import Advice
from fedkin.advice.verdict import (
    Interval,
    gain,
    weight_intervals,
)
from fedkin.data.arrays import FEWEST_ROWS, check_arrays, check_several_nodes
from fedkin.errors import InputError
from fedkin.events import OnEvent
from fedkin.methods.settings import check_seed, whole_number
from fedkin.models.named import model_for
from fedkin.numerics.simplex import check_cap
from fedkin.training.alone import FEWEST_OWN_ROWS, OwnRows, add_ones, parameters
from fedkin.training.refit import owner_share
from fedkin.training.result import Result, capped_nodes
from fedkin.types import LearningTask, Points

MOST_PARAMETERS = 600
"""The largest model: the center solves systems of this size for the model trained alone."""


def advise(
    nodes: Mapping[str, Any] | Sequence[Any],
    owner: tuple[Any, Any],
    *,
    task: LearningTask | None = None,
    model: str | None = None,
    test: tuple[Any, Any] | None = None,
    classes: int | Sequence[Any] | None = None,
    cap: float = 1.0,
    l2: float | None = None,
    folds: int = 5,
    repeats: int = 2,
    seed: int = 0,
    batch_size: int = 50,
    minimum_rows: int = FEWEST_ROWS,
    on_event: OnEvent | None = None,
) -> Advice:
    """Say whether to learn with the nodes or alone, what that gains, and how sure it is.

    Four candidates compete: alone on all own rows, all nodes with equal weights, with weights by size, and
    with learned weights. Cross-validation of the owner's rows judges them; the folds share their exchanges
    with the nodes. docs/verdict.md has the procedure and its evidence.

    >>> import numpy as np
    >>> draw = np.random.default_rng(0)
    >>> def rows(count, sign=1):
    ...     x = draw.normal(size=(count, 3))
    ...     return x, (sign * x[:, 0] + 0.5 * draw.normal(size=count) > 0).astype(int)
    >>> nodes = {"north": rows(80, -1), "south": rows(80, -1)}
    >>> advice = advise(nodes, owner=rows(60))
    >>> advice.verdict
    'alone'
    >>> advice.gain.high < 0.1, advice.weights.columns.tolist()
    (True, ['rows', 'weight', 'low', 'high', 'at_cap', 'share'])

    Args:
        nodes: (X, y) of each node: a dict by name, or a list, as for `fedkin.fit`. Standardize X.
        owner: (X, y) of the owner: all rows that it has for learning.
        task: `classification` or `regression`; by default what the model is for, or classification.
        model: `logistic` or `ridge`; by default the one for the task.
        test: (X, y) to report on; it decides nothing.
        classes: All labels that may occur, or their number; by default those that do.
        cap: The largest weight that one node may get, from 1/K to 1.
        l2: The factor of ½‖θ‖² where nodes train (default: 0.001).
        folds: How many folds the owner's rows are divided into.
        repeats: How often they are divided.
        seed: The same seed gives the same advice.
        batch_size: The number of points in a mini-batch.
        minimum_rows: The fewest points that a node may have.
        on_event: Called with the events of training (`fedkin.events`).

    Returns:
        The verdict, the gain, the candidates, the weights, and the final model.

    Raises:
        InputError: If data or settings cannot be used; the message says what to do.
    """
    seed = check_seed(seed)
    folds = whole_number("folds", folds, least=2)
    repeats = whole_number("repeats", repeats)
    chosen = _linear_model(model, task)
    task = "regression" if chosen == "ridge" else "classification"
    arrays = check_arrays(
        nodes,
        owner,
        test,
        task=task,
        classes=classes,
        minimum_rows=whole_number("minimum_rows", minimum_rows),
        judge="the owner's data",
    )
    check_several_nodes(len(arrays.names))
    check_cap(cap, len(arrays.names))
    _check_owner(arrays.validation, task, folds)
    unit = _LabelUnit.of(arrays.validation.labels, task)
    rows = OwnRows(
        add_ones(arrays.validation.inputs),
        unit.reduce(arrays.validation.labels),
        task,
        1 if arrays.classes is None else len(arrays.classes),
    )
    if rows.inputs.shape[1] * rows.outputs > MOST_PARAMETERS:
        raise InputError(
            f"the model would have {rows.inputs.shape[1] * rows.outputs} parameters, more than the "
            f"{MOST_PARAMETERS} that advise can judge; leave out columns, or use fedkin.fit"
        )
    splits = Splits.draw(rows, folds, repeats, seed)
    federated = train_with_nodes(
        {
            name: Points(points.inputs, unit.reduce(points.labels))
            for name, points in zip(arrays.names, arrays.nodes, strict=True)
        },
        Points(arrays.validation.inputs, rows.labels),
        splits,
        model=chosen,
        classes=arrays.classes,
        cap=cap,
        l2=l2,
        batch_size=whole_number("batch_size", batch_size),
        seed=seed,
        on_event=on_event,
    )
    candidates = train_candidates(rows, splits, federated)
    return _conclude(
        rows,
        splits,
        federated,
        candidates,
        unit,
        names=arrays.names,
        node_rows=[len(points.labels) for points in arrays.nodes],
        test=arrays.test,
        classes=arrays.classes,
        columns=arrays.columns,
        cap=cap,
    )


class _LabelUnit:
    """Numbers are learned in units of the owner's own labels: centered, with deviation 1.

    Held-out rows are among those that decide the unit, which changes penalties a little and nothing else.
    """

    def __init__(self, mean: float, deviation: float) -> None:
        self.mean, self.deviation = mean, deviation

    @classmethod
    def of(cls, labels: np.ndarray, task: LearningTask) -> "_LabelUnit":
        if task == "classification":
            return cls(0.0, 1.0)
        return cls(float(np.mean(labels)), float(np.std(labels)))

    def reduce(self, labels: np.ndarray) -> np.ndarray:
        if (self.mean, self.deviation) == (0.0, 1.0):
            return labels
        return ((labels - self.mean) / self.deviation).astype(np.float32)

    def restore(self, model: np.ndarray) -> np.ndarray:
        """Return a model whose outputs are in the labels' own unit."""
        restored = self.deviation * model
        if self.mean:
            restored[-1] += self.mean
        return restored


def _linear_model(model: str | None, task: LearningTask | None) -> str:
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


def _check_owner(owner: Points, task: LearningTask, folds: int) -> None:
    count = len(owner.labels)
    least = max(FEWEST_OWN_ROWS, folds)
    if count < least:
        raise InputError(
            f"the owner has {count} rows, fewer than the {least} that a verdict needs; collect more"
        )
    if task == "regression" and float(np.std(owner.labels)) == 0:
        raise InputError("all labels of the owner are the same number: there is nothing to learn")


def _conclude(
    rows: OwnRows,
    splits: Splits,
    federated: Federated,
    candidates: Candidates,
    unit: _LabelUnit,
    *,
    names: tuple[str, ...],
    node_rows: list[int],
    test: Points | None,
    classes: np.ndarray | None,
    columns: tuple[str, ...] | None,
    cap: float,
) -> Advice:
    judged = judge(rows, splits, candidates, federated.without)
    models = [unit.restore(model) for model in judged.models.models]
    scale = 2 * unit.deviation**2 if rows.task == "regression" else 1.0
    table = _candidate_table(judged, scale)
    accuracy_gain = None
    if rows.task == "classification":
        mistakes = mean_scores(rows, judged.models, row_mistakes)
        table["accuracy"] = 1 - mistakes.mean(axis=0)
        accuracy_gain = gain(mistakes, judged.compared).interval
    test_scores = None
    if test is not None:
        on_test = _test_scores(models, test, rows.task)
        table = table.join(on_test)
        test_scores = {name: float(value) for name, value in on_test.loc["final"].items()}
    rows_of_nodes = pd.Series(node_rows, index=pd.Index(names, name="node"), name="rows")
    weights = weight_table(splits, federated, judged.shares, rows_of_nodes, rows.total, cap)
    final = Result(
        method="advise",
        weights=dict(zip(names, weights["share"].tolist(), strict=True)),
        history=pd.DataFrame(),
        cost=federated.cost,
        stopped=f"advised: {judged.verdict}",
        warnings=(),
        classes=classes,
        theta=parameters(models[-1], federated.objective),
        objective=federated.objective,
        statistics=(),
        point_shape=federated.point_shape,
        columns=columns,
    )
    return Advice(
        verdict=judged.verdict,
        gain=Interval(*(scale * number for number in judged.gain.interval)),
        accuracy_gain=accuracy_gain,
        best=CANDIDATES[judged.best],
        candidates=table,
        weights=weights,
        owner_rows=rows.total,
        caution=_caution(rows, classes),
        test_scores=test_scores,
        cost=federated.cost,
        model=final,
    )


def _caution(rows: OwnRows, classes: np.ndarray | None) -> str | None:
    rare, count = rarest_class(rows)
    if classes is None or count >= FEWEST_OF_A_CLASS:
        return None
    few = "Only one of your rows has" if count == 1 else f"Only {count} of your rows have"
    return f"{few} the class '{classes[rare]}'; a verdict needs {FEWEST_OF_A_CLASS}."


def weight_table(
    splits: Splits,
    federated: Federated,
    shares: np.ndarray,
    rows_of_nodes: pd.Series,
    own_rows: int,
    cap: float,
) -> pd.DataFrame:
    """Return every node's learned weight with its interval, and its share in the final model.

    Args:
        splits: The folds of the owner's rows.
        federated: The learned weights, of all rows and of every fold.
        shares: The shares of the candidates in the final model.
        rows_of_nodes: The number of rows of each node, by its name.
        own_rows: The number of rows of the owner.
        cap: The largest weight.
    """
    learned = federated.weights[ALL_ROWS]
    of_folds = np.stack(
        [
            [federated.weights[fold_name(repeat, fold)] for fold in range(splits.folds)]
            for repeat in range(len(splits.of_rows))
        ]
    )
    low, high = weight_intervals(learned, of_folds, cap)
    node_rows = rows_of_nodes.to_numpy()
    capped = capped_nodes(dict(zip(rows_of_nodes.index, learned, strict=True)), cap)
    ways = (np.full(len(node_rows), 1 / len(node_rows)), node_rows / node_rows.sum(), learned)
    in_model = sum(
        share * (1 - owner_share(way, node_rows, own_rows)) * way
        for share, way in zip(shares[1:], ways, strict=True)
    )
    return pd.DataFrame(
        {
            "rows": node_rows,
            "weight": learned,
            "low": low,
            "high": high,
            "at_cap": rows_of_nodes.index.isin(capped),
            "share": in_model,
        },
        index=rows_of_nodes.index,
    )


def _candidate_table(judged: Judgment, scale: float) -> pd.DataFrame:
    table = []
    for place, share in enumerate([*judged.shares, 1.0]):
        found = gain(judged.losses, place).interval
        table.append(
            {
                "loss": scale * judged.losses[:, place].mean(),
                "gain": scale * found.value,
                "gain_low": scale * found.low,
                "gain_high": scale * found.high,
                "share": share,
            }
        )
    return pd.DataFrame(table, index=pd.Index([*CANDIDATES, "final"], name="candidate"))


def _test_scores(models: list[np.ndarray], test: Points, task: LearningTask) -> pd.DataFrame:
    """Return every candidate's scores on the test rows, and, in a last row, the final model's."""
    found = []
    inputs = add_ones(test.inputs)
    for model in models:
        own = OwnRows(inputs, test.labels, task, model.shape[1])
        outputs = (inputs @ model)[:, None]
        loss = float(row_losses(outputs, own).mean())
        scores = {"test_loss": 2 * loss if task == "regression" else loss}
        if task == "classification":
            scores["test_accuracy"] = 1 - float(row_mistakes(outputs, own).mean())
        found.append(scores)
    return pd.DataFrame(found, index=pd.Index([*CANDIDATES, "final"], name="candidate"))
