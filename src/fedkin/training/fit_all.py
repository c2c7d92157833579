"""`fedkin.fit_all`: every node asks whom it should learn with, and all share their exchanges."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedkin.data.arrays import (
    FEWEST_ROWS,
    check_enough_rows,
    check_parts,
    describe_node,
    name_nodes,
)
from fedkin.data.labels import shuffle_by_class
from fedkin.data.partitions.base import random_stream
from fedkin.data.sites import as_nodes
from fedkin.errors import FedkinError, InputError
from fedkin.events import OnEvent
from fedkin.messages import join_names
from fedkin.methods.base import Keep, Method, PresetName
from fedkin.methods.registry import make_method
from fedkin.methods.settings import check_seed, whole_number
from fedkin.training.collaboration import Collaboration
from fedkin.training.fit import choose_task, make_result
from fedkin.training.joint import JointProblem, JointRun, OwnerData
from fedkin.training.problem import TrainedRun
from fedkin.training.runner import Budget
from fedkin.types import LearningTask, Points

VALIDATION_FRACTION = 0.2
"""The share of a node's rows that its weights are learned by, if nothing is said."""

FEWEST_VALIDATION_ROWS = 5
"""Weights that are learned by fewer rows say little."""

COMPARED = ("local", "fedavg")
"""The methods that every node's score is compared with: learning alone, and equal weights."""


def fit_all(
    nodes: Mapping[str, Any] | Sequence[Any] | pd.DataFrame,
    *,
    site: str | None = None,
    label: str | None = None,
    validation_fraction: float | None = None,
    validations: Mapping[str, Any] | Sequence[Any] | None = None,
    test_fraction: float | None = None,
    tests: Mapping[str, Any] | Sequence[Any] | None = None,
    model: Any = "logistic",
    method: str | Method = "bilevel",
    cap: float | None = None,
    own_cap: float | None = None,
    seed: int = 0,
    classes: int | Sequence[Any] | None = None,
    task: LearningTask | None = None,
    l2: float | None = None,
    batch_size: int = 50,
    steps: int | None = None,
    synchronizations: int | None = None,
    ask_all: bool | None = None,
    keep: Keep | None = None,
    preset: PresetName | None = None,
    compare: Sequence[str] = COMPARED,
    minimum_rows: int = FEWEST_ROWS,
    on_event: OnEvent | None = None,
    **settings: Any,
) -> Collaboration:
    """Learn for every node at once whom it should learn with, and how much.

    Each node is an owner: part of its rows, split off at random or given, are its validation data, by
    which its weights are learned; the others are what all nodes train on. One exchange serves all
    owners, and each gets what `fit` would give it with the same data and seed.

    >>> import numpy as np
    >>> draw = np.random.default_rng(0)
    >>> def node(sign):
    ...     x = draw.normal(size=(80, 2))
    ...     return x, (sign * x[:, 0] > 0).astype(int)
    >>> nodes = {"north": node(1), "south": node(1), "west": node(-1), "east": node(-1)}
    >>> everyone = fit_all(nodes, model="logistic", compare=["local"])
    >>> everyone.groups
    (('north', 'south'), ('west', 'east'))
    >>> sorted(everyone.scores.columns)
    ['bilevel', 'local', 'points']

    Args:
        nodes: (X, y) of each node: a dict by name, or a list; or one DataFrame with a column that names the
            site.
        site: That column.
        label: The column of the DataFrame to predict; all others must be numbers.
        validation_fraction: The share of a node's rows that its weights are learned by (0.2 if open).
        validations: (X, y) of each node for that instead, by the same names or in the same order.
        test_fraction: The share of a node's rows that only its scores are for; none by default.
        tests: (X, y) of each node for that instead.
        model: As for `fit`.
        method: As for `fit`: a name or an object. Every method works for all owners; those that train alone,
            in part or altogether (`local`, `ditto`, `pfedme`), do so on the node's own training rows.
        cap: The largest weight that one node may get.
        own_cap: The largest weight that a node may give to its own training rows, if it is to be larger
            than `cap`.
        seed: Decides everything random, the splits included.
        classes: All labels that may occur, or their number; by default those that do.
        task: `classification` or `regression`, for a model of your own.
        l2: The factor of ½‖θ‖² in the loss.
        batch_size: The number of points in a mini-batch.
        steps: The largest number of outer steps of an owner.
        synchronizations: Begin no outer step of an owner that would probably need more than these in all.
        ask_all: Whether nodes of weight zero are asked too.
        keep: Which iterate is the result.
        preset: Where open settings come from, for the method and for those it is compared with.
        compare: Methods that run for all nodes too, for their scores.
        minimum_rows: The fewest points that a node may have, those held out among them.
        on_event: Called with the events of all runs; `run` is the name of the method and of the node.
        **settings: Settings of the method, as for `fit`.

    Returns:
        The matrix of weights, every node's model, and the scores.

    Raises:
        InputError: If data or settings cannot be used; the message says what to do.
    """
    seed = check_seed(seed)
    batch_size = whole_number("batch_size", batch_size)
    budget = Budget(
        None if steps is None else whole_number("steps", steps),
        None if synchronizations is None else whole_number("synchronizations", synchronizations),
    )
    chosen = make_method(method, {"cap": cap, "own_cap": own_cap, "preset": preset, **settings})
    others = [make_method(name, {"preset": preset}) for name in compare if name != chosen.name]
    task = choose_task(model, task)
    named = name_nodes(as_nodes(nodes, site, label))
    if len(named) < 2:
        raise InputError(
            f"there is one node only, {describe_node(next(iter(named)))}: it has nobody to learn with; "
            "give at least two"
        )
    for what, share, given in (
        ("validation", validation_fraction, validations),
        ("test", test_fraction, tests),
    ):
        if share is not None and given is not None:
            raise InputError(f"give either {what}_fraction or {what}s, not both")
    owners, known, warnings = _owners(
        named,
        _by_name("validations", validations, named),
        _by_name("tests", tests, named),
        fractions=(
            VALIDATION_FRACTION if validation_fraction is None else validation_fraction,
            test_fraction,
        ),
        task=task,
        classes=classes,
        seed=seed,
    )
    for name, owner in owners.items():
        check_enough_rows(
            _all_rows(owner), describe_node(name), whole_number("minimum_rows", minimum_rows)
        )
    chosen.check(len(owners))
    problem = JointProblem.build(
        {name: owner.own for name, owner in owners.items() if owner.own is not None},
        owners,
        model=model,
        task=task,
        classes=known,
        l2=l2,
        batch_size=batch_size,
        seed=seed,
    )
    runs = {
        each.name: problem.train(
            each,
            budget=budget,
            keep=keep,
            ask_all=ask_all,
            on_event=on_event,
            run_name=lambda name, each=each: f"{each.name}: {name}",
        )
        for each in (chosen, *others)
    }
    return make_collaboration(problem, chosen.name, runs, warnings)


def _all_rows(owner: OwnerData) -> int:
    """Return how many rows a node has, those held out among them."""
    return sum(len(part.labels) for part in (owner.own, owner.validation, owner.test) if part)


def make_collaboration(
    problem: JointProblem, method: str, runs: Mapping[str, JointRun], warnings: Sequence[str] = ()
) -> Collaboration:
    """Put together what all owners have got.

    Args:
        problem: The owners' problem.
        method: The name of the method whose models count.
        runs: The runs of that method and of those it is compared with, by name.
        warnings: What a reader should know.
    """
    names = tuple(problem.problems)
    models, failures = {}, {}
    for name, run in runs[method].runs.items():
        if isinstance(run, FedkinError):
            failures[name] = str(run)
        else:
            models[name] = make_result(problem.problems[name], run)
    if not models:
        raise next(run for run in runs[method].runs.values() if isinstance(run, FedkinError))
    scored_on = (
        "test" if all(own.test is not None for own in problem.problems.values()) else "validation"
    )
    scores: dict[str, list[float]] = {
        "points": [
            own.center.points
            if scored_on == "validation" or own.test is None
            else len(own.test.labels)
            for own in problem.problems.values()
        ]
    }
    ordered = [name for name in (*COMPARED, *runs) if name in runs and name != method]
    for other in (*dict.fromkeys(ordered), method):
        scores[other] = [_score(runs[other].runs[name], scored_on) for name in names]
    regression = next(iter(problem.problems.values())).classes is None
    shortcomings = [
        f"{other} failed for {join_names(lost)}"
        for other, found in runs.items()
        if other != method
        and (lost := [name for name, run in found.runs.items() if isinstance(run, FedkinError)])
    ]
    return Collaboration(
        method=method,
        nodes=names,
        models=models,
        scores=pd.DataFrame(scores, index=pd.Index(names, name="node")),
        measure="loss" if regression else "accuracy",
        scored_on=scored_on,
        cost=runs[method].cost,
        failures=failures,
        warnings=(*warnings, *shortcomings),
    )


def _score(run: TrainedRun | FedkinError, scored_on: str) -> float:
    if isinstance(run, FedkinError):
        return float("nan")
    assert run.state.kept is not None
    score = run.state.kept.test if scored_on == "test" else run.state.kept.validation
    assert score is not None
    return score.loss if score.accuracy is None else score.accuracy


def _by_name(
    what: str, given: Mapping[str, Any] | Sequence[Any] | None, nodes: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return what is given for each node, by its name."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        found = {str(name): points for name, points in given.items()}
    else:
        if len(given) != len(nodes):
            raise InputError(f"{what} has {len(given)} entries for {len(nodes)} nodes")
        found = dict(zip(nodes, given, strict=True))
    if missing := [name for name in nodes if name not in found]:
        raise InputError(f"{what} has nothing for {join_names(missing)}: every node is an owner")
    if unknown := [name for name in found if name not in nodes]:
        raise InputError(f"{what} has {unknown[0]!r}, which is not the name of a node")
    return found


def _owners(
    nodes: Mapping[str, Any],
    validations: Mapping[str, Any] | None,
    tests: Mapping[str, Any] | None,
    *,
    fractions: tuple[float, float | None],
    task: LearningTask,
    classes: int | Sequence[Any] | None,
    seed: int,
) -> tuple[dict[str, OwnerData], np.ndarray | None, list[str]]:
    """Check all data, and split off what is not given."""
    parts: dict[str, Any] = {describe_node(name): points for name, points in nodes.items()}
    for what, given in (("validation", validations), ("test", tests)):
        for name, points in (given or {}).items():
            parts[f"the {what} data of {describe_node(name)}"] = points
    points, known = check_parts(parts, task=task, classes=classes)
    checked = dict(zip(parts, points, strict=True))
    of_validation, of_test = fractions
    held_out = {
        "validation": None if validations is not None else of_validation,
        "test": None if tests is not None else of_test,
    }
    owners, warnings = {}, []
    for number, name in enumerate(nodes):
        node = describe_node(name)
        whole = checked[node]
        pieces = _split(whole, held_out, node, task, random_stream(seed, 2, number))
        given = {what: checked.get(f"the {what} data of {node}") for what in ("validation", "test")}
        validation = pieces.get("validation", given["validation"])
        assert validation is not None
        test = pieces.get("test", given["test"])
        owners[name] = OwnerData(validation=validation, own=pieces["train"], test=test)
        if len(validation.labels) < FEWEST_VALIDATION_ROWS:
            count = len(validation.labels)
            warnings.append(
                f"{node} has {count} validation {'row' if count == 1 else 'rows'}: weights that are learned "
                "by so few say little"
            )
        if known is not None and len(np.unique(whole.labels)) == 1:
            warnings.append(
                f"{node} has a single class, {known[whole.labels[0]]}: there a constant answer is always "
                "right, and its weights say little"
            )
    return owners, known, warnings


def _split(
    points: Points,
    held_out: Mapping[str, float | None],
    node: str,
    task: LearningTask,
    random: np.random.Generator,
) -> dict[str, Points]:
    """Split a node's rows, each class in the same proportions, into what is held out and the rest."""
    fractions = {what: share for what, share in held_out.items() if share is not None}
    for what, share in fractions.items():
        if not 0 < share < 1:
            raise InputError(f"{what}_fraction must lie between 0 and 1, not {share!r}")
    if sum(fractions.values()) >= 1:
        raise InputError("validation_fraction and test_fraction leave no rows for training")
    rows = len(points.labels)
    if rows < 1 + len(fractions):
        raise InputError(
            f"{node} has {rows} {'row' if rows == 1 else 'rows'}: too few to hold out "
            f"{' and '.join(fractions)} rows and train on the others; leave it out, or give it more"
        )
    order = (
        shuffle_by_class(points.labels, random)
        if task == "classification"
        else random.permutation(rows)
    )
    pieces: dict[str, Points] = {}
    begin = 0
    for place, (what, share) in enumerate(fractions.items()):
        left = rows - begin - (len(fractions) - place - 1) - 1  # every part gets at least one row
        count = int(np.clip(round(share * rows), 1, left))
        chosen = np.sort(order[begin : begin + count])
        pieces[what] = Points(points.inputs[chosen], points.labels[chosen])
        begin += count
    chosen = np.sort(order[begin:])
    pieces["train"] = Points(points.inputs[chosen], points.labels[chosen])
    return pieces
