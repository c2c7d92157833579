"""One table that holds the rows of several sites: a column says whose a row is."""

from typing import Any

import numpy as np
import pandas as pd

from fedkin.data.columns import as_text, missing_cells
from fedkin.data.tables import Table
from fedkin.errors import InputError
from fedkin.messages import check_printable, did_you_mean, join_names, shorten


def split_table(table: Table, site: str) -> dict[str, Table]:
    """Return each site's rows as a table of its own, without the column that names the site.

    >>> from fedkin.data.columns import column_from_text
    >>> columns = {"age": column_from_text(["20", "40"]), "clinic": column_from_text(["b", "a"])}
    >>> sites = split_table(Table("the table", columns, np.array([2, 3]), "line"), "clinic")
    >>> list(sites), sites["b"].owner, sites["b"].columns["age"].tolist()
    (['b', 'a'], "node 'b'", [20.0])
    """
    values = table.column(site)
    missing = missing_cells(values)
    if missing.any():
        first = int(np.flatnonzero(missing)[0])
        raise InputError(
            f"{table.owner}: {int(missing.sum())} of {table.rows} rows have no value in the site column "
            f"'{shorten(site)}' (first: {table.where(first)}): fill it in, or leave these rows out"
        )
    names = np.asarray(as_text(values))
    sites = list(dict.fromkeys(names.tolist()))
    _check_sites(sites, site, table.owner)
    rest = {name: column for name, column in table.columns.items() if name != site}
    without = Table(table.owner, rest, table.positions, table.unit, table.dropped)
    return {name: without.take(np.flatnonzero(names == name), f"node '{name}'") for name in sites}


def split_frame(
    frame: pd.DataFrame, *, site: str, label: str
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return (X, y) of each site of a DataFrame, for `fedkin.fit` and `fedkin.fit_all`.

    Args:
        frame: One row per point. All columns but the two named must be numbers.
        site: The column that says whose a row is.
        label: The column to predict.

    >>> frame = pd.DataFrame({"x": [1.0, 2, 3], "ill": [0, 1, 1], "clinic": ["b", "a", "b"]})
    >>> nodes = split_frame(frame, site="clinic", label="ill")
    >>> {name: (x.tolist(), y.tolist()) for name, (x, y) in nodes.items()}
    {'b': ([[1.0], [3.0]], [0, 1]), 'a': ([[2.0]], [1])}
    """
    for what, name in (("site", site), ("label", label)):
        if name not in frame.columns:
            known = [str(each) for each in frame.columns]
            raise InputError(
                f"the table has no {what} column {name!r}{did_you_mean(str(name), known)}"
            )
    if site == label:
        raise InputError(f"{site!r} cannot be both the site and the label")
    missing = frame[site].isna().to_numpy()
    if missing.any():
        raise InputError(
            f"{int(missing.sum())} of {len(frame)} rows have no value in the site column {site!r} (first: "
            f"row {int(np.flatnonzero(missing)[0])}): fill it in, or leave these rows out"
        )
    features = frame.drop(columns=[site, label])
    texts = [
        str(name) for name in features.columns if not pd.api.types.is_numeric_dtype(features[name])
    ]
    if texts:
        raise InputError(
            f"the columns {join_names(texts)} are not numbers: encode them first, or use the command "
            "`fedkin map`, which does that"
        )
    if features.shape[1] == 0:
        raise InputError("the table has no column besides the site and the label")
    names = frame[site].astype(str).to_numpy()
    sites = list(dict.fromkeys(names.tolist()))
    _check_sites(sites, site, "the table")
    inputs, labels = features.to_numpy(float), frame[label].to_numpy()
    return {name: (inputs[names == name], labels[names == name]) for name in sites}


def as_nodes(nodes: Any, site: str | None, label: str | None) -> Any:
    """Return nodes as they are, or those of a DataFrame with a site column."""
    if isinstance(nodes, pd.DataFrame):
        if site is None or label is None:
            raise InputError(
                "nodes is one table: say which column names the site (site=…) and which one to predict "
                "(label=…)"
            )
        return split_frame(nodes, site=site, label=label)
    for name, value in (("site", site), ("label", label)):
        if value is not None:
            raise InputError(f"{name} names a column of one table (a DataFrame): leave it out")
    return nodes


def _check_sites(sites: list[str], site: str, owner: str) -> None:
    for name in sites:
        check_printable(name, f"{owner}: a site in the column '{shorten(site)}'")
    if len(sites) == 1:
        raise InputError(
            f"{owner}: all rows have the site '{shorten(sites[0])}' in the column '{shorten(site)}': one "
            "site has nobody to learn with; is it the right column?"
        )
