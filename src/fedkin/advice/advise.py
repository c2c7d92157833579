"""`fedkin.advise`: join a federation or stay alone, with what that gains and how sure it is."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from fedkin.advice.question import Question, count_rows, linear_model
from fedkin.advice.result import Advice
from fedkin.data.arrays import FEWEST_ROWS, check_arrays, check_several_nodes
from fedkin.events import OnEvent
from fedkin.methods.settings import check_seed, whole_number
from fedkin.training.joint import JointProblem
from fedkin.types import LearningTask, Points


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
    chosen = linear_model(model, task)
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
    points = dict(zip(arrays.names, arrays.nodes, strict=True))
    question = Question(
        arrays.validation,
        count_rows({name: len(own.labels) for name, own in points.items()}),
        task,
        arrays.classes,
        test=arrays.test,
        columns=arrays.columns,
        cap=cap,
        folds=whole_number("folds", folds, least=2),
        repeats=whole_number("repeats", repeats),
        seed=check_seed(seed),
    )
    build = partial(
        JointProblem.build,
        {
            name: Points(own.inputs, question.unit.reduce(own.labels))
            for name, own in points.items()
        },
        model=chosen,
        task=task,
        classes=arrays.classes,
        l2=l2,
        batch_size=whole_number("batch_size", batch_size),
        seed=question.seed,
    )
    return question.answer(build, on_event=on_event)
