"""Partitions: who holds which rows of a data set, and each node's training, validation and test data.

split_nodes(load_labeled("fashion-mnist"), Dirichlet(alpha=0.1, nodes=20), seed=0)
"""

from fedkin.data.partitions.base import NodeRows, Partition
from fedkin.data.partitions.dirichlet import Dirichlet
from fedkin.data.partitions.groups import Group, Groups, groups_of_scenario
from fedkin.data.partitions.named import (
    choose_partition,
    describe_partition,
    load_groups,
    partition_title,
    read_partition,
)
from fedkin.data.partitions.natural import Natural
from fedkin.data.partitions.pathological import Pathological
from fedkin.data.partitions.split import NodeSplit, SplitRows, one_class_nodes, split_nodes

__all__ = [
    "Dirichlet",
    "Group",
    "Groups",
    "Natural",
    "NodeRows",
    "NodeSplit",
    "Partition",
    "Pathological",
    "SplitRows",
    "choose_partition",
    "describe_partition",
    "groups_of_scenario",
    "load_groups",
    "one_class_nodes",
    "partition_title",
    "read_partition",
    "split_nodes",
]
