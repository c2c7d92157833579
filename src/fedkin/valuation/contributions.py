"""`fedkin.contributions`: what each node adds to the owner's score."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from fedkin.data.arrays import CheckedArrays, check_arrays, check_several_nodes
from fedkin.errors import InputError
from fedkin.events import OnEvent
from fedkin.federation.center import Center
from fedkin.federation.simulation import SimulatedFederation
from fedkin.messages import listing, suggestion
from fedkin.methods.local_svrg.center import LocalSvrg
from fedkin.methods.settings import check_seed, whole_number
from fedkin.models.base import LinearModel
from fedkin.training.keys import initial_model_key
from fedkin.training.problem import prepare_points, simulation
from fedkin.training.result import Result
from fedkin.types import Points
from fedkin.valuation.game import (
    Game,
    Sampled,
    exact_shapley,
    leave_one_out,
    row_error,
    sampled_shapley,
)
from fedkin.valuation.groups import GroupTraining
from fedkin.valuation.judge import Judge
from fedkin.valuation.result import Contributions, GroupWeights, ScoreName

EXACT_UP_TO = 6
"""With this many nodes or fewer, all groups are tried (63 of six)."""

MOST_EXACT = 12
"""More nodes than this have too many groups (4,095 of twelve) to try all."""

ORDERS = 20
"""How many orders are drawn where nothing is said."""

FEWEST_ORDERS = 4
"""Two pairs: fewer have no standard error."""

TRUNCATION = 0.1
"""A chain of groups ends where less than this share of the score's standard error is left to gain."""

ROUNDS = 40
"""The rounds of local steps for a model that is not trained to convergence."""

LEARNING_RATE = 0.05
"""Their step size."""

LONGEST_PERIOD = 50
"""The most local steps in a round."""


def contributions(
    result: Result,
    nodes: Mapping[str, Any] | Sequence[Any],
    validation: tuple[Any, Any],
    *,
    score: ScoreName = "loss",
    weights: GroupWeights = "size",
    orders: int | None = None,
    exact: bool | None = None,
    truncation: float = TRUNCATION,
    seed: int = 0,
    batch_size: int = 50,
    rounds: int | None = None,
    learning_rate: float | None = None,
    warm_start: bool | None = None,
    on_event: OnEvent | None = None,
) -> Contributions:
    """Say what each node contributes to the owner's score: its Shapley value, and what is lost without it.

    A group of nodes is worth the score, on the validation data, of a model trained on these nodes only. The
    empty group is worth that of the best constant answer. All groups share their exchanges.
    docs/contributions.md says what is exact, and what is not.

    >>> import numpy as np, fedkin
    >>> x = np.linspace(-1, 1, 40)[:, None]
    >>> good, bad = (x, 2 * x[:, 0]), (x, -2 * x[:, 0])
    >>> nodes = {"north": good, "twin": good, "south": bad}
    >>> result = fedkin.fit(nodes, good, model="ridge", cap=1.0)
    >>> found = contributions(result, nodes, good).table["shapley"]
    >>> bool(abs(found["north"] - found["twin"]) < 1e-6), bool(found["south"] < 0 < found["north"])
    (True, True)

    Args:
        result: What `fedkin.fit` returned, or the `model` of an advice: it says which model is trained.
        nodes: (X, y) of each node, as they were given to `fedkin.fit`: a result does not keep data.
        validation: (X, y) of the owner, likewise.
        score: `loss` (log loss for classes, squared error for numbers) or `accuracy`. Positive
            contributions are good either way.
        weights: The weights of a group's nodes: by `size`, as if their rows were one table; `equal`; or
            `learned`, those of the result, divided among the group in proportion.
        orders: How many orders of the nodes Shapley values are estimated from: an even number. By default
            20, or all groups of nodes up to six.
        exact: Whether all groups are tried; for up to twelve nodes.
        truncation: An order is not followed further where the rest of the nodes can add less than this
            share of the score's standard error; 0 follows each to its end.
        seed: Decides the orders, and everything random in training.
        batch_size: The number of points in a mini-batch.
        rounds: For models that are not trained to convergence (networks): the rounds of local steps on
            each group (default: 40).
        learning_rate: Their step size (default: 0.05).
        warm_start: Whether training starts from the result's model, or from a new one; by default where it
            is to convergence. In a few rounds, networks do not unlearn the nodes that are left out.
        on_event: Called with the events (`fedkin.events.GroupsTrained`).

    Returns:
        The values with their standard errors.

    Raises:
        InputError: If data or settings cannot be used; the message says what to do.
    """
    _check_result(result)
    regression = result.classes is None
    for name, value, known in (("score", score, ScoreName), ("weights", weights, GroupWeights)):
        if value not in get_args(known):
            raise InputError(
                f"{name}={value!r} is unknown{suggestion(str(value), get_args(known))}"
            )
    if score == "accuracy" and regression:
        raise InputError("score='accuracy' is for classes; this model predicts numbers: use 'loss'")
    arrays = _check_data(result, nodes, validation)
    shares = _shares(result, arrays, weights)
    players = [place for place, share in enumerate(shares) if share > 0]
    exact, orders = _how(exact, orders, len(players))
    if not 0 <= truncation < 1:
        raise InputError(f"truncation must lie between 0 and 1, not {truncation!r}")
    seed = check_seed(seed)
    training = _training(
        result,
        arrays,
        seed=seed,
        batch_size=whole_number("batch_size", batch_size),
        rounds=rounds,
        learning_rate=learning_rate,
        warm_start=warm_start,
    )
    judge = Judge(training, shares, players, score, on_event)
    judge.most = _most_groups(len(players), None if exact else orders)
    game = Game(len(players), judge.nobody(), judge.evaluate)
    if exact:
        found = Sampled(exact_shapley(game), np.zeros(len(players)), 0)
    else:
        found = sampled_shapley(game, orders, np.random.default_rng(seed), truncation=truncation)
    lost = leave_one_out(game)
    table = pd.DataFrame(
        {
            "rows": [len(points.labels) for points in arrays.nodes],
            "weight": [
                np.nan if result.weights is None else result.weights[n] for n in arrays.names
            ],
            **{
                name: _spread_out(column, players, len(arrays.names))
                for name, column in (
                    ("shapley", found.values.mean(axis=1)),
                    ("sampling_error", found.error),
                    ("row_error", row_error(found.values)),
                    ("leave_one_out", lost.mean(axis=1)),
                    ("leave_one_out_error", row_error(lost)),
                )
            },
        },
        index=pd.Index(arrays.names, name="node"),
    )
    return Contributions(
        table,
        score,
        regression,
        weights,
        everyone=float(game.worth(game.everyone).mean()),
        nobody=float(game.worth(()).mean()),
        exact=exact,
        orders=0 if exact else orders,
        ended_early=found.ended_early,
        groups=game.groups,
        converged=training.rounds is None,
        cost=judge.cost,
        warnings=judge.warnings,
    )


def _most_groups(players: int, orders: int | None) -> int:
    """Return how many groups are tried at most: all of them, or those of some orders.

    >>> _most_groups(6, None), _most_groups(15, 20), _most_groups(3, 20)
    (63, 271, 7)
    """
    every = 2**players - 1
    if orders is None:
        return every
    # Everyone, single players, everyone but one, and what is between these in each order.
    return min(every, 1 + 2 * players + orders * max(players - 3, 0))


def _spread_out(column: np.ndarray, players: list[int], nodes: int) -> np.ndarray:
    """Return numbers of players as numbers of all nodes: others add nothing, whatever the group."""
    every = np.zeros(nodes)
    every[players] = column
    return every


def _check_result(result: Any) -> None:
    if isinstance(result, Result):
        return
    model = getattr(result, "model", None)
    if isinstance(model, Result):
        raise InputError(
            "contributions are of a result: give the model of the advice, advice.model"
        )
    raise InputError(
        f"contributions are of a result of fedkin.fit, which comes first: got {type(result).__name__}"
    )


def _check_data(result: Result, nodes: Any, validation: Any) -> CheckedArrays:
    """Check that the data are such as the result was learned from."""
    arrays = check_arrays(
        nodes,
        validation,
        None,
        task="regression" if result.classes is None else "classification",
        classes=None if result.classes is None else result.classes.tolist(),
    )
    check_several_nodes(len(arrays.names))
    if result.weights is not None and set(result.weights) != set(arrays.names):
        odd = sorted(set(result.weights) ^ set(arrays.names))
        raise InputError(
            f"the result has weights for the nodes {listing(list(result.weights))}, and the data are those "
            f"of {listing(arrays.names)}: give the nodes that it was learned from (see {odd[0]!r})"
        )
    arrays = _in_order(arrays, result)
    shape, dtype = arrays.validation.inputs.shape[1:], arrays.validation.inputs.dtype
    if shape != result.point_shape:
        raise InputError(
            f"the result's model takes points of shape {result.point_shape}, and these have shape {shape}: "
            "give the data that it was learned from"
        )
    if (dtype == np.uint8) != (result.objective.point_dtype == "uint8"):
        raise InputError(
            f"the result's model was trained on inputs of type {result.objective.point_dtype}, "
            f"these are {dtype}"
        )
    return arrays


def _in_order(arrays: CheckedArrays, result: Result) -> CheckedArrays:
    """Return data frames' columns in the order that the model knows."""
    if arrays.columns is None or result.columns is None or arrays.columns == result.columns:
        return arrays
    missing = [name for name in result.columns if name not in arrays.columns]
    if missing or len(arrays.columns) != len(result.columns):
        raise InputError(
            f"the model was trained on the columns {listing(result.columns)}, and the data have "
            f"{listing(arrays.columns)}: give the same ones"
        )
    places = [arrays.columns.index(name) for name in result.columns]
    return arrays._replace(
        nodes=[Points(points.inputs[:, places], points.labels) for points in arrays.nodes],
        validation=Points(arrays.validation.inputs[:, places], arrays.validation.labels),
        columns=result.columns,
    )


def _shares(result: Result, arrays: CheckedArrays, weights: GroupWeights) -> np.ndarray:
    """Return the weights of all nodes, from which those of a group are taken."""
    if weights == "equal":
        return np.ones(len(arrays.names))
    if weights == "size":
        return np.array([len(points.labels) for points in arrays.nodes], np.float64)
    if result.weights is None:
        raise InputError(
            f"weights='learned' needs learned weights, which {result.method!r} has not: choose 'size' or "
            "'equal'"
        )
    return np.maximum([result.weights[name] for name in arrays.names], 0.0)


def _how(exact: bool | None, orders: int | None, players: int) -> tuple[bool, int]:
    """Return whether all groups are tried, and if not, how many orders are drawn."""
    if exact and orders is not None:
        raise InputError("exact tries all groups and draws no orders: leave orders or exact out")
    if exact and players > MOST_EXACT:
        raise InputError(
            f"exact is for up to {MOST_EXACT} nodes, and there are {players}, with {2**players - 1:,} "
            "groups: leave it out"
        )
    if orders is None:
        return (players <= EXACT_UP_TO if exact is None else exact), ORDERS
    orders = whole_number("orders", orders, least=FEWEST_ORDERS)
    if orders % 2:
        raise InputError(
            f"orders must be even, since each is drawn with its reverse: give {orders + 1}"
        )
    return False, orders


def _training(
    result: Result,
    arrays: CheckedArrays,
    *,
    seed: int,
    batch_size: int,
    rounds: int | None,
    learning_rate: float | None,
    warm_start: bool | None,
) -> GroupTraining:
    """Bind the model to the data."""
    objective = result.objective
    points = dict(zip(arrays.names, arrays.nodes, strict=True))
    federation = simulation(points, batch_size=batch_size, seed=seed)(objective)
    assert isinstance(federation, SimulatedFederation)
    owner = prepare_points(objective.model, arrays.validation)
    center = Center(objective, *owner, batch_size=batch_size, seed=seed)
    settings = None
    if not isinstance(objective.model, LinearModel):
        if learning_rate is not None and not learning_rate > 0:
            raise InputError(f"learning_rate must be positive, not {learning_rate!r}")
        settings = LocalSvrg(
            learning_rate=learning_rate or LEARNING_RATE,
            period=min(federation.batches, LONGEST_PERIOD),
            rounds=ROUNDS if rounds is None else whole_number("rounds", rounds),
        )
    elif rounds is not None or learning_rate is not None:
        given = "rounds" if rounds is not None else "learning_rate"
        raise InputError(
            f"{given} changes nothing for linear models, which are trained to convergence: leave it out"
        )
    start = objective.start(initial_model_key(seed))
    if warm_start or (warm_start is None and settings is None):
        start = jnp.asarray(result.theta)
    return GroupTraining(federation, center, start, jax.random.key(seed), settings)
