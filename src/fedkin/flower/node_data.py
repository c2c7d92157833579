"""A node's own data: read from where its owner says, and transformed."""

from fedkin.data.preprocessing import Preprocessing, transform, transform_label
from fedkin.data.scenarios import paper_scenario, sample_federation
from fedkin.data.sources import load_images
from fedkin.data.tables import Table
from fedkin.errors import InputError
from fedkin.flower.node_settings import NodeSettings
from fedkin.types import Points


def read_own_table(settings: NodeSettings) -> Table:
    """Read the owner's table."""
    return settings.read(settings.data, f"node '{settings.name}'")


LARGEST_MATRIX = 200_000_000
"""The largest number of entries of a transformed table, 0.8 GB. A request must not exhaust the node."""


def own_points(settings: NodeSettings, preprocessing: Preprocessing | None) -> Points:
    """Return the node's points; a table is transformed as all nodes agreed."""
    if not settings.is_table:
        return own_images(settings)
    if preprocessing is None:
        raise InputError("a table cannot be used before the nodes have agreed on its columns")
    if preprocessing.label.name != settings.label:
        raise InputError(
            f"the label is {settings.label!r} here, but {preprocessing.label.name!r} elsewhere"
        )
    table = read_own_table(settings)
    features = len(preprocessing.feature_names)
    if table.rows * features > LARGEST_MATRIX:
        raise InputError(
            f"the center asks for {features:,} features of each of {table.rows:,} rows, more than "
            f"{LARGEST_MATRIX:,} numbers in all: is a column of names or dates among the categories?"
        )
    return Points(transform(table, preprocessing), transform_label(table, preprocessing))


def own_images(settings: NodeSettings) -> Points:
    """Draw the images of one node of a trial, as a simulation draws them."""
    member = settings.member or settings.name
    federation = sample_federation(
        load_images(settings.data),
        paper_scenario(settings.data, settings.setting),
        settings.target,
        settings.seed,
        minority_nodes=settings.minority_nodes,
        majority_nodes=settings.majority_nodes,
        train_size=settings.train_size,
    )
    if member not in federation.names:
        raise InputError(
            f"there is no node {member!r} in this federation; there are {', '.join(federation.names)}"
        )
    return Points(*federation.nodes[federation.names.index(member)])
