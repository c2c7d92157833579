"""Which columns are used where tables differ: what one of them lacks, and what only one of them has.

A column that a table lacks counts as missing there: in all of its rows it is the mean, or the indicator of
missing values. A column that the owner lacks, or that no node has, is not used: it would teach nothing.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from fedkin.errors import InputError
from fedkin.messages import closest_name, join_names, listing, shorten

MOST_LISTED = 5
"""Messages list this many columns."""


class ChosenColumns(NamedTuple):
    """The columns that are used, and what the user has to know about the others."""

    used: tuple[str, ...]
    warnings: tuple[str, ...]


def choose_columns(
    tables: Mapping[str, Collection[str]],
    trained: Collection[str],
    owner: str | None = None,
    *,
    strict: bool = False,
) -> ChosenColumns:
    """Return the columns that the owner has and that are trained on; if all are owners, those of two nodes.

    Args:
        tables: The columns of every table but the label, by what messages call it.
        trained: Which of the tables are trained on.
        owner: The table with the owner's rows; None if every node is an owner.
        strict: Refuse tables that differ.

    >>> tables = {"node 'a'": ["age", "sex"], "node 'b'": ["sex", "ward"], "mine": ["age", "sex"]}
    >>> chosen = choose_columns(tables, ["node 'a'", "node 'b'"], "mine")
    >>> chosen.used
    ('age', 'sex')
    >>> print(*chosen.warnings, sep="\\n")
    node 'b' has no column 'age': it counts as missing there (--strict refuses such tables)
    the column 'ward' is not used: mine does not have it
    """
    columns = {title: set(names) for title, names in tables.items()}
    order = dict.fromkeys(name for names in tables.values() for name in names)
    if strict:
        for name in order:
            _check_everywhere(name, columns)
    fewest = 2 if owner is None and len(trained) > 1 else 1
    used = [
        name
        for name in order
        if (owner is None or name in columns[owner])
        and sum(name in columns[title] for title in trained) >= fewest
    ]
    if not used:
        raise InputError(
            "the tables have no column in common besides the label: check the files, and whether they name "
            "their columns alike"
        )
    for title, own in columns.items():
        _check_spelling(title, own, used, columns)
    return ChosenColumns(
        tuple(used), (*_lacking(columns, used), *_left_out(order, columns, used, owner))
    )


def check_new_table(
    title: str, own: Collection[str], used: Sequence[str], *, strict: bool = False
) -> list[str]:
    """Return warnings about columns of a model that a new table lacks, or refuse the table.

    >>> check_new_table("the new table", ["age"], ["age", "sex"])
    ["the new table has no column 'sex': it counts as missing there (--strict refuses such tables)"]
    """
    lacking = [name for name in used if name not in own]
    if strict and lacking:
        them, count = ("it", "it counts") if len(lacking) == 1 else ("them", "they count")
        raise InputError(
            f"{title} has no column {listing(lacking, MOST_LISTED)}: add {them}, or leave --strict out, and "
            f"{count} as missing"
        )
    _check_spelling(title, set(own), used, {"the model": set(used)})
    return [_as_warning([title], lacking, set(own), used)] if lacking else []


def _check_everywhere(name: str, columns: Mapping[str, set[str]]) -> None:
    """Refuse a column that some tables have and others lack."""
    without = [title for title, own in columns.items() if name not in own]
    if not without:
        return
    holders = [title for title in columns if title not in without]
    if len(holders) < len(without):
        raise InputError(
            f"column '{shorten(name)}' is on {join_names(holders)} only; leave it out "
            f"everywhere (--drop {shorten(name)}), or add it to the other tables"
        )
    near = closest_name(name, columns[without[0]] - columns[holders[0]])
    raise InputError(
        f"column '{shorten(name)}' is missing on {join_names(without)}"
        + (f" (is it called '{shorten(near)}' there?)" if near else "")
        + f"; add it there, or leave it out everywhere (--drop {shorten(name)}), or leave --strict out"
    )


def _check_spelling(
    title: str, own: set[str], used: Sequence[str], columns: Mapping[str, set[str]]
) -> None:
    """Refuse a column whose name differs from the others' in case, spaces and the like only."""
    further = {_letters(name): name for name in sorted(own.difference(used))}
    for name in used:
        if name not in own and (other := further.get(_letters(name))) is not None:
            holders = [each for each in columns if name in columns[each]]
            raise InputError(
                f"{title} has the column '{shorten(other)}', and {join_names(holders)} '{shorten(name)}': "
                f"give both one name, or leave one out (--drop {shorten(other)})"
            )
    if own.isdisjoint(used):
        raise InputError(
            f"{title} has none of the columns that are used ({listing(used, MOST_LISTED)}): check the file, "
            "and how it is written (--separator, --columns)"
        )


def _letters(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.casefold()) or name


def _lacking(columns: Mapping[str, set[str]], used: Sequence[str]) -> list[str]:
    """Say which columns are missing where, once for tables that lack the same ones."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for title, own in columns.items():
        lacking = tuple(name for name in used if name not in own)
        if lacking:
            alike.setdefault(lacking, []).append(title)
    return [
        _as_warning(titles, lacking, columns[titles[0]], used) for lacking, titles in alike.items()
    ]


def _as_warning(
    titles: Sequence[str], lacking: Sequence[str], own: Collection[str], used: Collection[str]
) -> str:
    one, single = len(lacking) == 1, len(titles) == 1
    near = closest_name(lacking[0], set(own).difference(used)) if one else None
    return (
        f"{join_names(titles)} {'has' if single else 'have'} no column {listing(lacking, MOST_LISTED)}: "
        f"{'it counts' if one else 'they count'} as missing there"
        + (f"; is it called '{shorten(near)}' there?" if near else "")
        + " (--strict refuses such tables)"
    )


def _left_out(
    order: Collection[str],
    columns: Mapping[str, set[str]],
    used: Collection[str],
    owner: str | None,
) -> list[str]:
    """Say which columns are not used, and why."""
    rest = [name for name in order if name not in set(used)]
    if owner is None:
        reasons = {"only one node has {}": rest}
    else:
        own = columns[owner]
        reasons = {
            f"{owner} does not have {{}}": [name for name in rest if name not in own],
            "no node has {}": [name for name in rest if name in own],
        }
    return [
        (
            f"the column {listing(names)} is not used: {reason.format('it')}"
            if len(names) == 1
            else f"the columns {listing(names, MOST_LISTED)} are not used: {reason.format('them')}"
        )
        for reason, names in reasons.items()
        if names
    ]
