"""From judged candidates to the advice: tables, intervals, and the final model in the labels' own unit."""

import numpy as np
import pandas as pd

from fedkin.advice.candidates import (
    ALL_ROWS,
    CANDIDATES,
    Candidates,
    Federated,
    Splits,
    among_present,
    fold_name,
    row_losses,
    row_mistakes,
)
from fedkin.advice.judgment import FEWEST_OF_A_CLASS, Judgment, judge, mean_scores, rarest_class
from fedkin.advice.label_unit import LabelUnit
from fedkin.advice.result import Advice
from fedkin.advice.verdict import Interval, gain, weight_intervals
from fedkin.training.alone import OwnRows, add_ones, parameters
from fedkin.training.refit import owner_share
from fedkin.training.result import Result, capped_nodes
from fedkin.types import LearningTask, Points


def conclude(
    rows: OwnRows,
    splits: Splits,
    federated: Federated,
    candidates: Candidates,
    unit: LabelUnit,
    *,
    rows_of_nodes: pd.Series,
    test: Points | None,
    classes: np.ndarray | None,
    columns: tuple[str, ...] | None,
    cap: float,
) -> Advice:
    """Judge the candidates, and put the answer together.

    Args:
        rows: The owner's rows, numbers in the unit in which they were learned.
        splits: Their folds.
        federated: What was trained with the nodes.
        candidates: All candidates.
        unit: The unit in which numbers were learned.
        rows_of_nodes: The number of rows of each node, by its name.
        test: Rows to report on.
        classes: The label of each class; None for regression.
        columns: The names of the columns, if they are known.
        cap: The largest weight.
    """
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
    weights = weight_table(splits, federated, judged.shares, rows_of_nodes, rows.total, cap)
    final = Result(
        method="advise",
        weights=dict(zip(weights.index, weights["share"].tolist(), strict=True)),
        history=pd.DataFrame(),
        cost=federated.cost,
        stopped=f"advised: {judged.verdict}",
        warnings=federated.warnings,
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
    # Where nodes are lost, the others may have more than the cap.
    low, high = weight_intervals(learned, of_folds, max(cap, float(learned.max())))
    node_rows = rows_of_nodes.to_numpy()
    capped = capped_nodes(dict(zip(rows_of_nodes.index, learned, strict=True)), cap)
    ways = (np.full(len(node_rows), 1 / len(node_rows)), node_rows / node_rows.sum(), learned)
    present = [among_present(way, federated.present) for way in ways]
    in_model = sum(
        share * (1 - owner_share(way, node_rows, own_rows)) * way
        for share, way in zip(shares[1:], present, strict=True)
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
