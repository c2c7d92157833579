"""The nodes of a job on tables: what they say about their tables, at the beginning and later."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from fedkin.data.summaries import TableSummary
from fedkin.errors import InputError
from fedkin.federation.attended_exchange import FEWEST_NODES
from fedkin.flower.discovery import ConnectedNode, describe_nodes
from fedkin.flower.engine import FlowerFederation
from fedkin.flower.jobs.options import FederationOptions
from fedkin.flower.joining import RunDescription
from fedkin.flower.messenger import Messenger
from fedkin.models.objective import Objective

Summaries = dict[str, TableSummary]
"""The summaries of the nodes' tables, by name and in order."""


def as_json(summaries: Summaries) -> dict[str, Any]:
    """Return summaries as JSON has them."""
    return {name: summary.model_dump(mode="json") for name, summary in summaries.items()}


def summary_of(node: ConnectedNode) -> TableSummary:
    """Return the summary of a node's table."""
    try:
        return TableSummary.model_validate_json(node.summary)
    except ValidationError:
        raise InputError(
            f"{node.name} has no table: give it one (data = …), or leave it out"
        ) from None


def all_nodes(messenger: Messenger, options: FederationOptions) -> list[ConnectedNode]:
    """Let all nodes describe their tables."""
    assert options.nodes is not None
    return describe_nodes(messenger, options.nodes, options.wait)


def known_nodes(
    messenger: Messenger, options: FederationOptions, summaries: Summaries
) -> list[ConnectedNode]:
    """Find the nodes with which a job began, or at least two of them."""
    enough = min(FEWEST_NODES, len(summaries))
    nodes = describe_nodes(messenger, len(summaries), options.wait, enough)
    for node in nodes:
        if node.name not in summaries:
            raise InputError(
                f"{node.name} is not among the nodes with which the job began "
                f"({', '.join(summaries)}): stop it, or start again with another --out"
            )
        if summary_of(node) != summaries[node.name]:
            raise InputError(
                f"the table of {node.name} has changed since the job began: start again with another "
                "--out"
            )
    return nodes


def connect(
    objective: Objective,
    run: RunDescription,
    messenger: Messenger,
    nodes: Sequence[ConnectedNode],
    summaries: Mapping[str, TableSummary],
    wait_for_owners: float = 0.0,
    *,
    secure: bool = False,
    largest_share: float = 1.0,
) -> FlowerFederation:
    """Return the engine that lets the nodes train on their own tables. See `FlowerFederation`."""
    return FlowerFederation(
        messenger,
        objective,
        list(summaries),
        nodes,
        run,
        # Includes nodes that are missing when the run is resumed.
        batches=max(math.ceil(each.rows / run.batch_size) for each in summaries.values()),
        summaries={name: each.model_dump_json() for name, each in summaries.items()},
        wait_for_owners=wait_for_owners,
        secure=secure,
        largest_share=largest_share,
    )
