"""Federations in which some nodes are bad: flipped or random labels, random images, dishonest updates.

A study's key `bad` and `fedkin data show --bad` describe them. Labels and images are changed here, updates in
`federation.bad_updates`. Validation and test data stay as they are: they are the owner's.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedkin.data.federated import FederatedData
from fedkin.errors import InputError
from fedkin.messages import suggestion
from fedkin.types import Points

BadKind = Literal[
    "flipped-labels",
    "noise-labels",
    "noise-inputs",
    "scaled-updates",
    "sign-flipped-updates",
    "absent",
]

OF_DATA = ("flipped-labels", "noise-labels", "noise-inputs")
"""What changes rows, and so may change a share of them only."""

STREAM = 5
"""The random stream of bad rows, after those of `scenarios`."""


class BadNodes(BaseModel):
    """Which nodes are bad, and what is wrong with them.

    - `flipped-labels`: a row of class c is labeled c + 1, one of the last class 0.
    - `noise-labels`: a row is labeled with a class drawn uniformly, which may be its own.
    - `noise-inputs`: an image consists of uniformly random pixels.
    - `scaled-updates`: a node sends θ + f (x − θ) for the model x that it has made of θ, and f times any
      other vector.
    - `sign-flipped-updates`: the same with f = −1.
    - `absent`: the nodes are not there, to compare with.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: BadKind
    nodes: Annotated[tuple[str, ...], Field(min_length=1)]
    """Their names."""
    share: Annotated[float, Field(gt=0, le=1)] | None = None
    """The share of their rows that is changed; all if open."""
    factor: float | None = None
    """The factor f of scaled updates; 10 if open."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.share is not None and self.kind not in OF_DATA:
            raise ValueError(f"share is of no use with the kind {self.kind}: leave it out")
        if self.factor is not None and self.kind != "scaled-updates":
            raise ValueError(f"factor is of no use with the kind {self.kind}: leave it out")
        if len(set(self.nodes)) < len(self.nodes):
            raise ValueError("nodes names one node twice")
        return self

    @property
    def changed_share(self) -> float:
        """The share of a bad node's rows that is changed."""
        return 1.0 if self.share is None else self.share

    @property
    def update_factor(self) -> float | None:
        """What bad nodes multiply their updates by; None if they send them as they are."""
        if self.kind == "sign-flipped-updates":
            return -1.0
        if self.kind != "scaled-updates":
            return None
        return 10.0 if self.factor is None else self.factor

    @property
    def title(self) -> str:
        """What is wrong with how many nodes, for tables.

        >>> BadNodes(kind="flipped-labels", nodes=("minority-1", "minority-2"), share=0.5).title
        '2 nodes with flipped labels (50%)'
        """
        count = f"{len(self.nodes)} node{'s' * (len(self.nodes) > 1)}"
        if self.kind == "absent":
            return f"{count} absent"
        detail = ""
        if self.kind in OF_DATA:
            detail = f" ({self.changed_share:.0%})"
        if self.kind == "scaled-updates":
            detail = f" ({self.update_factor:g} times)"
        what = self.kind
        for noun in ("updates", "labels", "inputs"):
            what = what.replace(f"-{noun}", f" {noun}")
        return f"{count} with {what}{detail}"

    def check(self, names: Sequence[str]) -> None:
        """Refuse nodes that the federation does not have, and a federation of nobody else."""
        for name in self.nodes:
            if name not in names:
                raise InputError(f"bad: there is no node {name!r}{suggestion(name, names)}")
        if self.kind == "absent" and len(self.nodes) == len(names):
            raise InputError("bad: all nodes would be absent: name fewer")


def with_bad_nodes(data: FederatedData, bad: BadNodes, seed: int) -> FederatedData:
    """Return the federation with bad nodes, which do not count as similar to the owner any more.

    The result depends on the arguments only. The rows that a smaller share changes are among those of a
    larger one.

    >>> from fedkin.data.scenarios import paper_scenario, sample_federation
    >>> from fedkin.data.sources import load_images
    >>> data = sample_federation(load_images("digits"), paper_scenario("digits", 1), "minority", 0)
    >>> worse = with_bad_nodes(data, BadNodes(kind="flipped-labels", nodes=("minority-1",)), 0)
    >>> bool((worse.nodes[0].labels == (data.nodes[0].labels + 1) % 10).all()), sum(worse.similar)
    (True, 4)
    """
    bad.check(data.names)
    chosen = [name in bad.nodes for name in data.names]
    if bad.kind == "absent":
        kept = [place for place, gone in enumerate(chosen) if not gone]
        return replace(
            data,
            names=tuple(data.names[place] for place in kept),
            nodes=tuple(data.nodes[place] for place in kept),
            similar=tuple(data.similar[place] for place in kept),
        )
    nodes = [
        _changed(points, bad, len(data.classes), _generator(seed, place)) if is_bad else points
        for place, (points, is_bad) in enumerate(zip(data.nodes, chosen, strict=True))
    ]
    similar = [alike and not is_bad for alike, is_bad in zip(data.similar, chosen, strict=True)]
    return replace(data, nodes=tuple(nodes), similar=tuple(similar))


def _generator(seed: int, place: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(STREAM, place)))


def _changed(points: Points, bad: BadNodes, classes: int, generator: np.random.Generator) -> Points:
    """Return a node's rows as its kind of badness has them."""
    count = len(points.labels)
    order = generator.permutation(count)
    changed = np.zeros(count, bool)
    changed[order[: round(bad.changed_share * count)]] = True
    inputs, labels = points
    if bad.kind == "flipped-labels":
        labels = np.where(changed, (labels + 1) % classes, labels).astype(labels.dtype)
    elif bad.kind == "noise-labels":
        drawn = generator.integers(0, classes, count)
        labels = np.where(changed, drawn, labels).astype(labels.dtype)
    elif bad.kind == "noise-inputs":
        noise = generator.integers(0, 256, inputs.shape, dtype=np.uint8)
        inputs = np.where(changed.reshape(-1, *[1] * (inputs.ndim - 1)), noise, inputs)
    return Points(inputs, labels)
