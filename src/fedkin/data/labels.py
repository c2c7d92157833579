"""The label column before preprocessing: missing labels, binary outcomes and splits."""

import operator
import re
from collections.abc import Mapping, Sequence

import numpy as np

from fedkin.data.columns import as_text, is_numeric, missing_cells
from fedkin.data.tables import Table
from fedkin.errors import InputError
from fedkin.messages import shorten
from fedkin.types import LearningTask

COMPARISONS = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


def prepare_label(
    table: Table,
    label: str,
    task: LearningTask,
    positive: str | None,
    missing_codes: Mapping[str, float],
) -> Table:
    """Replace missing codes, leave out rows without a label, and turn the label into yes or no if asked.

    Every table of a federation goes through this: those of `fedkin fit`, and those of nodes elsewhere.
    """
    if positive is not None and task == "regression":
        raise InputError("--positive makes classes of the label: leave it out for regression")
    labeled = keep_labeled(table.with_missing_codes(missing_codes), label)
    return labeled if positive is None else binary_label(labeled, label, positive)


def keep_labeled(table: Table, label: str) -> Table:
    """Leave out rows without a label: neither training nor evaluation can use them."""
    labeled = np.flatnonzero(~missing_cells(table.column(label)))
    if labeled.size == 0:
        raise InputError(
            f"{table.owner}: no row has a value in the label column '{shorten(label)}': fill it in, "
            "name another label, or leave the table out"
        )
    return table.take(labeled)


def binary_label(table: Table, label: str, positive: str) -> Table:
    """Turn the label into `yes` or `no`. `positive` is a comparison such as `>0`, or a class."""
    values = table.column(label)
    missing = missing_cells(values)
    comparison = re.fullmatch(r"\s*(>=|<=|>|<)\s*(.*?)\s*", positive)
    if comparison is None:
        wanted = positive.strip()
        texts = as_text(values)
        if wanted not in set(texts):
            wanted = next(iter(as_text(np.array([wanted], dtype=object))))
        answers = texts == wanted
    else:
        try:
            bound = float(comparison[2])
        except ValueError:
            raise InputError(
                f"'{positive}' does not say which labels are positive; write, for example, '>0'"
            ) from None
        if not is_numeric(values):
            raise InputError(
                f"{table.owner}: the label '{shorten(label)}' contains text, so it cannot be "
                f"{comparison[1]} {comparison[2]}; name the positive class instead"
            )
        answers = COMPARISONS[comparison[1]](values, bound)
    named = np.where(answers, "yes", "no").astype(object)
    named[missing] = None
    return table.with_column(label, named)


def shuffle_by_class(classes: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return the rows in a random order that can be cut anywhere: every piece has its share of each class.

    >>> order = shuffle_by_class(np.array(list("aaaaaabbb")), np.random.default_rng(0))
    >>> sorted("aaaaaabbb"[row] for row in order[:3])
    ['a', 'a', 'b']
    """
    shuffled = random.permutation(len(classes))
    of_rows = classes[shuffled]
    # The i-th of n rows of a class gets the place (i + u) / n, so that cutting the order at a fraction
    # cuts every class at that fraction.
    place = np.empty(len(classes))
    for name in sorted(set(of_rows)):
        members = np.flatnonzero(of_rows == name)
        place[members] = (np.arange(members.size) + random.uniform()) / members.size
    return shuffled[np.argsort(place, kind="stable")]


def split_rows(
    table: Table, label: str, fractions: Sequence[float], seed: int, stratify: bool
) -> list[Table]:
    """Split a table at random into parts of these fractions, followed by the rest.

    With `stratify`, every class is split separately, so that every part gets its share of it. The
    split depends on the seed and the table only.
    """
    if any(not 0 < fraction < 1 for fraction in fractions) or sum(fractions) >= 1:
        written = " and ".join(f"{fraction:g}" for fraction in fractions)
        raise InputError(
            f"the fractions to hold out ({written}) must lie between 0 and 1 and leave rows for "
            "training"
        )
    random = np.random.default_rng(seed)
    if stratify:
        shuffled = shuffle_by_class(as_text(table.column(label)), random)
    else:
        shuffled = random.permutation(table.rows)
    cuts = np.round(np.cumsum(fractions) * table.rows).astype(int)
    parts = [table.take(np.sort(indices)) for indices in np.split(shuffled, cuts)]
    if any(part.rows == 0 for part in parts):
        raise InputError(
            f"{table.owner} has {table.rows} {'row' if table.rows == 1 else 'rows'}: too few to hold out "
            f"{' and '.join(f'{fraction:g}' for fraction in fractions)} of them"
        )
    return parts
