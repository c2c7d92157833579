"""The partition that the data come with: by writer, hospital or site."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedkin.data.columns import (
    as_text,
    categories_in_order,
    column_from_text,
    missing_cells,
    text_column,
)
from fedkin.data.labeled import LabeledData
from fedkin.data.partitions.base import NodeRows, check_whole, random_stream
from fedkin.errors import InputError
from fedkin.messages import shorten


@dataclass(frozen=True)
class Natural:
    """Every value of a column is a node: a writer, a hospital, a site.

    Every row is on exactly one node, unless sites are left out by `nodes` or `minimum`. The seed matters
    only if `nodes` is given.

    What the literature leaves open is what to do with many or tiny sites. LEAF (Caldas et al., 2018,
    arXiv:1812.01097) draws a part of the writers and leaves out those with few rows. Here all are kept unless
    you say otherwise.

    >>> data = LabeledData(
    ...     np.zeros((5, 1)), np.array([0, 1, 0, 1, 1]), ("no", "yes"),
    ...     {"hospital": np.array(["va", "zurich", "va", "zurich", "va"])},
    ... )
    >>> [(node.name, node.rows.tolist()) for node in Natural("hospital").draw(data, seed=0)]
    [('va', [0, 2, 4]), ('zurich', [1, 3])]
    """

    column: str
    nodes: int | None = None
    """How many sites to draw at random; None for all."""
    minimum: int = 1
    """Sites with fewer rows are left out."""

    kind: ClassVar[str] = "natural"
    shares_rows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.column, str) or not self.column:
            raise InputError("column must be the name of the column that says whose a row is")
        if self.nodes is not None:
            check_whole("nodes", self.nodes, least=2)
        check_whole("minimum", self.minimum, least=1)

    @property
    def node_count(self) -> int | None:
        """How many nodes there are; None if the data decide."""
        return self.nodes

    def draw(self, data: LabeledData, seed: int) -> list[NodeRows]:
        """Return the rows of every node."""
        sites = site_names(data.column(self.column), f"column '{self.column}' of {data.name}")
        known = categories_in_order(set(sites))
        if len(known) == 1:
            raise InputError(
                f"column '{self.column}' of {data.name} has a single value, '{shorten(known[0])}': a "
                "federation needs at least two sites"
            )
        rows_of_sites = {name: np.flatnonzero(sites == name) for name in known}
        kept = [name for name, rows in rows_of_sites.items() if len(rows) >= self.minimum]
        wanted = 2 if self.nodes is None else self.nodes
        if len(kept) < wanted:
            raise InputError(
                f"column '{self.column}' of {data.name} has {len(kept)} sites with at least "
                f"{self.minimum} rows (and {len(known) - len(kept)} with fewer), but {wanted} are needed: "
                "lower nodes or minimum"
            )
        if self.nodes is not None:
            chosen = random_stream(seed, 0).choice(len(kept), self.nodes, replace=False)
            kept = [kept[place] for place in sorted(chosen)]
        return [NodeRows(name, rows_of_sites[name]) for name in kept]


def site_names(values: np.ndarray, origin: str) -> np.ndarray:
    """Return the site of every row as text, and refuse rows without one.

    >>> site_names(np.array([2.0, 10.0]), "column 'site'").tolist()
    ['2', '10']
    """
    values = np.asarray(values)
    if values.dtype.kind in "iub":
        return text_column([str(value) for value in values.tolist()])
    if values.dtype.kind != "f":
        cells = [None if value is None or value != value else str(value) for value in values]
        column = column_from_text(cells)
        missing = missing_cells(column)
        # Texts are compared as they are written; "007" and "7" are two writers.
        names = text_column([None if cell is None else cell.strip() for cell in cells])
    else:
        missing = np.isnan(values)
        names = as_text(values.astype(np.float64))
    if missing.any():
        raise InputError(
            f"{origin} is empty in {int(missing.sum())} of {len(missing)} rows (first: row "
            f"{int(missing.argmax()) + 1}): fill it in, or leave these rows out"
        )
    return names
