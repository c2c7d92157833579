"""The nodes of a run whose data set is divided by a partition."""

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from fedkin.data.labeled import LabeledData, load_labeled
from fedkin.data.partitions import Natural, NodeSplit, split_nodes
from fedkin.data.sources import DATA_SETS, find
from fedkin.errors import InputError
from fedkin.studies.config import RunConfig


class PartitionedData(NamedTuple):
    """Every node of a run with its data, and what the data are."""

    nodes: list[NodeSplit]
    classes: tuple[str, ...]
    checksum: str | None
    origin: str | None
    """The name of the directory that a known data set was read from; None for all others."""


def draw_nodes(config: RunConfig, data_directory: Path | None = None) -> PartitionedData:
    """Draw the training, validation and test data of every node of a run.

    >>> from fedkin.studies.study_file import check_study
    >>> study = {"dataset": "digits", "partition": "dirichlet", "alpha": 0.1, "nodes": 20}
    >>> drawn = draw_nodes(check_study(study, "study.toml").runs()[0])
    >>> len(drawn.nodes), drawn.nodes[0].name, drawn.nodes[0].train.inputs.shape[1:]
    (20, 'node-1', (8, 8, 1))
    """
    if config.partition is None:
        raise InputError(f"the run on {config.cell} has no partition: draw its problem instead")
    partition = config.partition.partition
    column = partition.column if isinstance(partition, Natural) else None
    data = _labeled(config.dataset, data_directory, column)
    nodes = split_nodes(
        data,
        partition,
        config.seed,
        test_fraction=config.partition.test_fraction,
        validation_fraction=config.partition.validation_fraction,
    )
    path = find(config.dataset, data_directory) if config.dataset in DATA_SETS else None
    return PartitionedData(nodes, data.classes, data.checksum, None if path is None else path.name)


@lru_cache(maxsize=1)
def _labeled(name: str, directory: Path | None, column: str | None) -> LabeledData:
    """Load a data set once for the many runs of a study that use it one after the other."""
    return load_labeled(name, directory, column=column)
