"""One run of a study, from its config to its directory; it can be killed at any moment."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedkin.data.bad_nodes import with_bad_nodes
from fedkin.data.federated import FederatedData
from fedkin.data.images import ImageSource
from fedkin.data.labels import shuffle_by_class
from fedkin.data.partitions.base import random_stream
from fedkin.data.scenarios import paper_scenario, sample_federation
from fedkin.data.sources import DATA_SETS, find, load_images
from fedkin.errors import InputError
from fedkin.events import Event, OnEvent, RunStarted
from fedkin.federation.bad_updates import BadUpdates
from fedkin.studies.config import RunConfig
from fedkin.studies.store import RunDirectory, pack_arrays
from fedkin.training.history import to_row
from fedkin.training.problem import Engine, Problem, TrainedRun, simulation
from fedkin.training.runner import Budget
from fedkin.types import Points

RunEngine = Callable[[RunConfig, FederatedData], Engine]
"""Chooses the engine of a run: of the data that were drawn for it, or of nodes that hold them."""


@dataclass(frozen=True)
class DrawnProblem:
    """The problem of a run, and the data that were drawn for it."""

    data: FederatedData
    problem: Problem
    origin: str | None
    """The name of the directory that a known data set was read from; None for all others."""


def simulate(config: RunConfig, data: FederatedData) -> Engine:
    """Let this process be all the nodes."""
    nodes = dict(zip(data.names, data.nodes, strict=True))
    engine = simulation(nodes, batch_size=config.batch_size, seed=config.seed)
    bad = config.bad
    if bad is None or bad.update_factor is None:
        return engine
    factor = bad.update_factor
    return lambda objective: BadUpdates(engine(objective), bad.nodes, factor)


@lru_cache(maxsize=1)
def _source(name: str, directory: Path | None) -> ImageSource:
    """Load a data set once for the many runs of a study that use it one after the other."""
    return load_images(name, directory)


def draw_problem(
    config: RunConfig, data_directory: Path | None = None, engine: RunEngine = simulate
) -> DrawnProblem:
    """Draw the federation of a run and give it a model."""
    if config.target == "all":
        raise InputError(
            f"a problem is the question of one owner, and {config.cell} asks those of all nodes: choose a "
            "setting and the target minority or majority"
        )
    if config.bad is not None and engine is not simulate:
        raise InputError(
            f"bad nodes exist in simulations only, and {config.cell} has some: leave bad out, or run the "
            "study without a federation"
        )
    source = _source(config.dataset, data_directory)
    setting = config.declared
    if setting is None:
        setting = paper_scenario(config.dataset, int(config.setting))
    data = sample_federation(
        source,
        setting,
        config.target,
        config.seed,
        minority_nodes=config.minority_nodes,
        majority_nodes=config.majority_nodes,
        train_size=config.train_size,
        validation_size=config.validation_size,
        test_size=config.test_size,
    )
    if config.bad is not None:
        data = with_bad_nodes(data, config.bad, config.seed)
    own, validation = None, data.validation
    if config.held_out is not None:
        own, validation = _hold_out(data.validation, config.held_out, config.seed)
    problem = Problem.build(
        engine(config, data),
        validation,
        model=config.model,
        classes=np.arange(len(data.classes)),
        own=own,
        test=data.test,
        batch_size=config.batch_size,
        seed=config.seed,
    )
    path = find(config.dataset, data_directory) if config.dataset in DATA_SETS else None
    return DrawnProblem(data, problem, None if path is None else path.name)


def _hold_out(points: Points, share: float, seed: int) -> tuple[Points, Points]:
    """Divide the owner's points into those it trains on alone and those it judges by, class by class."""
    rows = len(points.labels)
    count = int(np.clip(round(share * rows), 1, rows - 1))
    order = shuffle_by_class(points.labels, random_stream(seed))
    judges, trains = np.sort(order[:count]), np.sort(order[count:])
    return (
        Points(points.inputs[trains], points.labels[trains]),
        Points(points.inputs[judges], points.labels[judges]),
    )


def do_run(
    config: RunConfig,
    parent: Path,
    *,
    data_directory: Path | None = None,
    engine: RunEngine = simulate,
    on_event: OnEvent | None = None,
) -> dict[str, Any]:
    """Do what the config says, or continue from its checkpoint; return the outcome.

    Args:
        config: The run.
        parent: The directory that holds the run's own.
        data_directory: Where data sets are; by default `FEDKIN_DATA`.
        engine: Chooses the engine; by default a simulation.
        on_event: Called with the run's events, which are also appended to its file of events.
    """
    directory = RunDirectory(parent, config)
    directory.create()
    drawn = draw_problem(config, data_directory, engine)

    def record(event: Event) -> None:
        event = with_config(event, config)
        directory.record(event)
        if on_event is not None:
            on_event(event)

    trained = drawn.problem.train(
        config.chosen_method,
        budget=Budget(config.steps, config.synchronizations, config.points),
        keep=config.keep or "best",  # the rule of the paper's table
        ask_all=config.ask_all is None,
        checkpoint=directory.checkpoint,
        on_event=record,
        run_name=config.directory,
    )
    outcome = _outcome(trained, drawn.data)
    directory.finish(outcome, _files(trained, drawn))
    return outcome


def _validation_counts(drawn: DrawnProblem) -> list[int]:
    """Return how many of the points that judge carry each label."""
    rows = drawn.problem.center.rows
    labels = drawn.data.validation.labels if rows is None else rows.labels
    return np.bincount(labels, minlength=len(drawn.data.classes)).tolist()


def with_config(event: Event, config: RunConfig) -> Event:
    """Let the start of a run tell what the study asked for, next to what the method runs with."""
    if not isinstance(event, RunStarted):
        return event
    asked = {
        "dataset": config.dataset,
        "setting": config.setting_title,
        "target": config.target,
        "seed": config.seed,
        "model": config.model,
    }
    return replace(event, parameters={**asked, **event.parameters})


def _outcome(trained: TrainedRun, data: FederatedData) -> dict[str, Any]:
    """Summarize a run: the row of its best model, and what a reader should know."""
    state = trained.state
    kept = state.kept
    assert kept is not None
    row = to_row(kept, data.names)
    similar = None
    if kept.node_weights is not None:
        similar = float(kept.node_weights[np.array(data.similar)].sum())
    names = ("step", "synchronizations", "points", "bytes_up", "bytes_down", "seconds")
    return {name: row[name] for name in names} | {
        "validation_accuracy": kept.validation.accuracy,
        "test_accuracy": None if kept.test is None else kept.test.accuracy,
        "similar_weight": similar,
        "stopped": state.stopped,
        "steps": len(state.history),
        "total_seconds": state.seconds,
        "total_synchronizations": state.cost.synchronizations,
        "warnings": [warning for each in state.history for warning in each.warnings],
        "parameters": trained.parameters,
    }


def _files(trained: TrainedRun, drawn: DrawnProblem) -> dict[str, bytes]:
    data, state = drawn.data, trained.state
    history = pd.DataFrame([to_row(evaluation, data.names) for evaluation in state.history])
    weights = None
    if state.kept is not None and state.kept.node_weights is not None:
        weights = dict(zip(data.names, state.kept.node_weights.tolist(), strict=True))
    held = {
        "checksum": data.description.checksum,
        "names": data.names,
        "similar": data.similar,
        "classes": data.classes,
        "points": [len(labels) for _, labels in data.nodes],
        "class_counts": [
            np.bincount(labels, minlength=len(data.classes)).tolist() for _, labels in data.nodes
        ],
        "validation_counts": _validation_counts(drawn),
        "test_counts": np.bincount(data.test[1], minlength=len(data.classes)).tolist(),
        "origin": drawn.origin,
    }
    return {
        "history.parquet": history.to_parquet(index=False),
        "weights.json": json.dumps(weights, indent=2).encode(),
        "data.json": json.dumps(held).encode(),
        "models.npz": pack_arrays({"best": state.kept_theta, "last": state.last_theta}),
    }
