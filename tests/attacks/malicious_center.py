"""What a malicious center gets out of one node: `PYTHONPATH=tests python tests/attacks/malicious_center.py`.

Each attack is a function that asks a node of 60 patients and returns what it has found, in figures. They need
no network: the node answers in this process. docs/security.md has the figures before and after the defenses.
"""

import argparse
import copy
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import pandas as pd

from attacks.victim import (
    LABEL,
    NUMBERS,
    Center,
    RefusedByNodeError,
    SlopesOnly,
    agreed,
    count_rows,
    make_table,
)
from fedkin.data.batches import divide
from fedkin.flower.wire import write_key
from fedkin.methods.bilevel.node import GRADIENT, HESSIAN_PRODUCT
from fedkin.methods.descent.node import DESCENT_ROUND
from fedkin.nodes.draws import draw_batches

L2 = 1e-6
"""The factor of the penalty on the model, which the center chooses."""


@dataclass
class Found:
    """What an attack has found."""

    rows: int = 0
    """The rows of the table that are known in every column."""
    labels: int = 0
    """The rows whose label is known, too."""
    values: int = 0
    """The cells of one column that are known exactly."""
    extremes: int = 0
    """The columns whose largest value is known to a thousandth of their standard deviation."""
    requests: int = 0
    refusals: frozenset[str] = frozenset()
    """The different wordings of what the node has refused."""


def rows_by_seeds(center: Center, table: pd.DataFrame) -> Found:
    """Join with new seeds, ask for one step on each mini-batch, and solve for the rows.

    With the model zero, the gradient of a row is (1/2 - y)(x, 1), and a step on a mini-batch gives the mean
    of these over rows that the seed and the key decide. Enough means over different rows determine each.
    """
    summary = center.describe()
    preprocessing = agreed(summary)
    points, size = summary["rows"], 10
    which: list[np.ndarray] = []
    means: list[np.ndarray] = []
    refusals = set()
    for seed in range(13):
        parts = divide(points, size, seed, 0)
        try:
            center.join(preprocessing, seed=seed, batch_size=size)
            for batch, key in _keys_of_batches(len(parts)):
                zero = np.zeros(center.size)
                reply = center.ask(DESCENT_ROUND, {"point": zero}, key, learning_rate=1.0)
                which.append(np.isin(np.arange(points), parts[batch]) / len(parts[batch]))
                means.append(-_second_class(reply.vectors["point"]))
        except RefusedByNodeError as refused:
            refusals.add(refused.reason)
    if not means:
        return Found(refusals=frozenset(refusals), requests=center.requests)
    single, *_ = np.linalg.lstsq(np.array(which), np.array(means), rcond=None)
    signs = np.sign(single[:, -1])
    rows = _in_units(2 * single[:, :-1] * signs[:, None], preprocessing)
    return Found(
        rows=count_rows(rows, table),
        labels=_count_labels(rows, signs < 0, preprocessing, table),
        requests=center.requests,
        refusals=frozenset(refusals),
    )


def values_by_categories(center: Center, table: pd.DataFrame) -> Found:
    """Declare a column of numbers categorical, and multiply the Hessian with unit vectors.

    With the model zero, the Hessian is the sum of products of features: the indicator of a value with the
    intercept counts it, and with other columns it gives the rows that have it.
    """
    preprocessing = agreed(center.describe())
    tenths = [f"{number / 10:g}" for number in range(4001)]
    column = {"kind": "categorical", "name": "glucose", "categories": tenths}
    rest = [own for own in preprocessing["columns"] if own["name"] != "glucose"]
    try:
        points = center.join(preprocessing | {"columns": [*rest, column]})["points"]
        counts = _products(center, int(points), -1)[len(rest) : len(rest) + len(tenths)]
        held = np.flatnonzero(np.round(counts) > 0)
        rows = []
        for place in held:
            sums = _products(center, int(points), len(rest) + place) / np.round(counts[place])
            rows.append([*sums[: len(rest)], float(tenths[place])])
    except RefusedByNodeError as refused:
        return Found(requests=center.requests, refusals=frozenset([refused.reason]))
    others = _in_units(np.array(rows)[:, :-1], {"columns": rest})
    named = pd.DataFrame(others, columns=[own["name"] for own in rest])
    named["glucose"] = np.array(rows)[:, -1]
    true = table["glucose"].value_counts()
    exact = [true.get(float(tenths[p]), 0) == round(float(counts[p])) for p in held]
    return Found(
        rows=count_rows(named[list(NUMBERS)].to_numpy(), table),
        values=int(sum(np.round(counts[held])[exact])),
        requests=center.requests,
    )


def labels_by_feature(center: Center, table: pd.DataFrame) -> Found:
    """Use the label as a feature, and each row's age as a category: their products are labels of rows."""
    preprocessing = agreed(center.describe())
    classes = preprocessing["label"]["classes"]
    ages = [str(age) for age in range(20, 95)]
    columns = [
        {"kind": "categorical", "name": "age", "categories": ages},
        {"kind": "categorical", "name": LABEL, "categories": classes},
    ]
    try:
        points = center.join(preprocessing | {"columns": columns})["points"]
        known = 0
        for place, name in enumerate(classes):
            counts = _products(center, int(points), len(ages) + 1 + place)[: len(ages)]
            for age, count in zip(ages, np.round(counts), strict=True):
                own = table.loc[table["age"] == float(age), LABEL]
                known += int(count) if (own == name).sum() == count else 0
    except RefusedByNodeError as refused:
        return Found(requests=center.requests, refusals=frozenset([refused.reason]))
    return Found(labels=known, requests=center.requests)


def extremes_by_refusals(center: Center, table: pd.DataFrame) -> Found:
    """Scale a column until a value would be too far from the mean, and see whether the node refuses."""
    preprocessing = agreed(center.describe())
    first = preprocessing["columns"][0]
    known, refusals = 0, set()
    low, high = -12.0, 12.0
    for _ in range(24):
        middle = (low + high) / 2
        scaled = first | {"mean": 0.0, "standard_deviation": 10.0**middle}
        columns = [scaled, *preprocessing["columns"][1:]]
        try:
            center.join(preprocessing | {"columns": columns})
            high = middle
        except RefusedByNodeError as refused:
            refusals.add(refused.reason)
            low = middle
    largest = 1e6 * 10.0 ** ((low + high) / 2)
    column = table[first["name"]]
    known += abs(largest - column.max()) < 1e-3 * column.std()
    return Found(extremes=int(known), requests=center.requests, refusals=frozenset(refusals))


def rows_by_missing_codes(center: Center, table: pd.DataFrame) -> Found:
    """Call one value of a column missing: the sums then change by just the rows that have it."""
    summary = center.describe()
    preprocessing = agreed(summary)
    rows, values, refusals = [], 0, set()

    def sums(codes: dict) -> np.ndarray:
        points = int(center.join(preprocessing | {"missing_codes": codes})["points"])
        return _products(center, points, 0)  # with the column that has codes

    first = preprocessing["columns"][0]
    before = None
    for value in range(20, 95):
        try:
            before = sums({}) if before is None else before
            change = before - sums({first["name"]: float(value)})
        except RefusedByNodeError as refused:
            refusals.add(refused.reason)
            break
        standard = (value - first["mean"]) / first["standard_deviation"]
        count = round(float(change[-1] / standard)) if abs(standard) > 1e-9 else 0
        values += count if (table[first["name"]] == value).sum() == count else 0
        if count:
            rows.append(change[: len(NUMBERS)] / standard / count)
    found = _in_units(np.array(rows), preprocessing) if rows else np.zeros((0, len(NUMBERS)))
    return Found(
        rows=count_rows(found, table),
        values=values,
        requests=center.requests,
        refusals=frozenset(refusals),
    )


def rows_by_chosen_models(center: Center, table: pd.DataFrame) -> Found:
    """Ask for gradients of the whole table at models that tell the rows beyond a plane from the others.

    A large model (t v, -t c) gives all rows with v x > c the probability one, and the others zero: between
    two c the gradient changes by the sum of the rows between, and by their number. Halve until it is one.
    The larger t, the sharper the plane. Where models may not be large, columns are scaled up, and moved so
    that the plane is near zero.
    """
    summary = center.describe()
    best = Found()
    for scale, norm in ((1.0, 20_000.0), (1.0, 99.0), (0.2, 99.0), (0.2, 10.0)):
        before = center.requests
        try:
            rows = divide_by_planes(center, summary, norm, scale)
        except RefusedByNodeError:
            continue
        if rows and (count := count_rows(np.array(rows), table)) > best.rows:
            best = Found(rows=count, requests=center.requests - before)
    best.requests = best.requests or center.requests
    return best


def divide_by_planes(center: Center, summary: dict, norm: float, scale: float) -> list[np.ndarray]:
    """Return the rows that are alone between two planes, in the units of the table.

    Args:
        center: The center.
        summary: The summary of the node's table.
        norm: The norm of the models.
        scale: What the standard deviations of columns are multiplied with.
    """
    honest = agreed(summary)
    direction = np.random.default_rng(1).normal(size=len(NUMBERS))
    direction /= np.linalg.norm(direction)
    farthest = 1.6 / np.abs(direction).max()
    rows: list[np.ndarray] = []

    def above(threshold: float) -> np.ndarray:
        """Return the sum of (x, 1) over the rows beyond a plane, and a constant."""
        moved = float(np.clip(threshold, -farthest, farthest)) if scale < 1 else 0.0
        preprocessing = copy.deepcopy(honest)
        for column, step in zip(preprocessing["columns"], moved * direction, strict=True):
            column["mean"] += step * column["standard_deviation"]
            column["standard_deviation"] *= scale
        if scale < 1 or not center.size:
            center.join(preprocessing)
        plane = np.append(direction, -(threshold - moved) / scale)
        theta = _model(norm * plane / np.linalg.norm(plane))
        gradient = center.ask(GRADIENT, {"theta": theta}).vectors["gradient"]
        sums = summary["rows"] * _second_class(gradient - L2 * theta)
        return np.append(scale * sums[:-1] + moved * direction * sums[-1], sums[-1])

    def search(low: float, high: float, at_low: np.ndarray, at_high: np.ndarray) -> None:
        between = at_low - at_high
        count = round(float(between[-1]))
        if count <= 0 or high - low < 3e-3:
            return
        if count == 1:
            rows.append(_in_units(between[:-1], honest))
            return
        middle = (low + high) / 2
        at_middle = above(middle)
        search(low, middle, at_low, at_middle)
        search(middle, high, at_middle, at_high)

    center.size = 0
    search(-6.0, 6.0, above(-6.0), above(6.0))
    return rows


ATTACKS: dict[str, Callable[[Center, pd.DataFrame], Found]] = {
    attack.__name__: attack
    for attack in (
        rows_by_seeds,
        values_by_categories,
        labels_by_feature,
        extremes_by_refusals,
        rows_by_missing_codes,
        rows_by_chosen_models,
    )
}


def _keys_of_batches(count: int) -> Iterator[tuple[int, str]]:
    """Yield, for each mini-batch, a key with which a node of number 0 draws it in its first step."""
    wanted, number = set(range(count)), 0
    while wanted:
        key = jax.random.key(number)
        number += 1
        (drawn,) = np.asarray(draw_batches(jax.random.fold_in(key, 0), 1, count)).tolist()
        if drawn in wanted:
            wanted.remove(drawn)
            yield drawn, write_key(key)


def _second_class(vector: np.ndarray) -> np.ndarray:
    """Return what a model of two classes has for the second: the columns, then the intercept."""
    second = np.asarray(vector, np.float64).reshape(-1, 2)[:, 1]  # the intercept comes first
    return np.append(second[1:], second[0])


def _model(second: np.ndarray) -> np.ndarray:
    """Return a model of two classes that is zero for the first."""
    both = np.zeros((len(second), 2))
    both[:, 1] = np.append(second[-1:], second[:-1])
    return both.ravel()


def _products(center: Center, points: int, column: int) -> np.ndarray:
    """Return the sum of x_column (x, 1) over the rows: a Hessian product at the model zero.

    Args:
        center: The center, whose node has joined a run.
        points: The number of rows.
        column: The place of the column; -1 for the intercept, which is one in every row.
    """
    zero = np.zeros(center.size)
    unit = np.zeros(center.size // 2)
    unit[column] = 1.0
    asked = {"vector": _model(unit), "theta": zero}
    product = _second_class(center.ask(HESSIAN_PRODUCT, asked).vectors["product"])
    return 4 * points * (product - L2 * unit)


def _in_units(standard: np.ndarray, preprocessing: dict) -> np.ndarray:
    """Return rows in the units of the table."""
    means = np.array([own["mean"] for own in preprocessing["columns"]])
    deviations = np.array([own["standard_deviation"] for own in preprocessing["columns"]])
    return means + deviations * standard


def _count_labels(
    rows: np.ndarray, second: np.ndarray, preprocessing: dict, table: pd.DataFrame
) -> int:
    """Count the rows that are known together with their label."""
    classes = preprocessing["label"]["classes"]
    return sum(
        count_rows(rows[second == (place == 1)], table[table[LABEL] == name])
        for place, name in enumerate(classes)
    )


def run(name: str, directory: Path, center: Callable[[dict], Center] = Center, **settings) -> Found:
    """Run an attack on a new node with a new table."""
    path = directory / f"{name}.csv"
    table = make_table(path)
    # With masked sums, the center would get none of the vectors that it computes rows from.
    shown = {"plain-sums": True}
    node = {"name": "hospital", "data": str(path), "label": LABEL, **shown, **settings}
    return ATTACKS[name](center(node), table)


def main() -> None:
    """Run attacks, and print what they find."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("attack", nargs="*", default=list(ATTACKS), metavar="ATTACK")
    parser.add_argument(
        "--masked",
        action="store_true",
        help="the node shows no vectors; gradients are put together from slopes, which are numbers",
    )
    chosen = parser.parse_args()
    how = {"center": SlopesOnly, "plain-sums": False} if chosen.masked else {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        for name in chosen.attack:
            found = run(name, Path(directory), state=f"{directory}/{name}", **how)
            print(f"{name}: {found}")  # noqa: T201


if __name__ == "__main__":
    main()
