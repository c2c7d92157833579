"""One run of a study, from its config to its directory; it can be killed at any moment."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd

from fedkin.data.federated import FederatedData
from fedkin.data.images import ImageSource
from fedkin.data.scenarios import paper_scenario, sample_federation
from fedkin.data.sources import DATA_SETS, find, load_images
from fedkin.federation.base import Federation
from fedkin.federation.center import Center
from fedkin.federation.simulation import SimulatedFederation
from fedkin.models.base import Model
from fedkin.models.named import named_model
from fedkin.models.objective import Objective
from fedkin.studies.config import RunConfig
from fedkin.studies.store import RunDirectory, pack_arrays, versions
from fedkin.training import method_settings as methods
from fedkin.training.checkpoint import chosen_learning_rate, load_checkpoint, save_checkpoint
from fedkin.training.history import to_row
from fedkin.training.runner import Budget, RunState, begin, run
from fedkin.types import Points


@dataclass(frozen=True)
class Scene:
    """Everything that a run plays with."""

    data: FederatedData
    objective: Objective
    federation: Federation
    center: Center
    test: Points
    origin: str | None
    """The name of the directory that a known data set was read from; None for all others."""


Engine = Callable[[RunConfig, FederatedData, Objective], Federation]
"""Makes the federation of a run: of the data that were drawn for it, or of nodes that hold them."""


def simulate(config: RunConfig, data: FederatedData, objective: Objective) -> SimulatedFederation:
    """Let this process be all the nodes."""
    return SimulatedFederation(
        objective,
        [_prepare(objective.model, points) for points in data.nodes],
        names=data.names,
        batch_size=config.batch_size,
        seed=config.seed,
    )


@lru_cache(maxsize=1)
def _source(name: str, directory: Path | None) -> ImageSource:
    """Load a data set once for the many runs of a study that use it one after the other."""
    return load_images(name, directory)


def set_up(
    config: RunConfig, data_directory: Path | None = None, engine: Engine = simulate
) -> Scene:
    """Draw the federation of a run and give it a model."""
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
    shape = data.validation[0].shape[1:]
    model = named_model(config.model, "classification", len(data.classes), shape)
    validation = _prepare(model, data.validation)
    objective = Objective.create(model, jnp.asarray(validation[0][:2]))
    federation = engine(config, data, objective)
    center = Center(objective, *validation, batch_size=config.batch_size, seed=config.seed)
    path = find(config.dataset, data_directory) if config.dataset in DATA_SETS else None
    origin = None if path is None else path.name
    return Scene(data, objective, federation, center, _prepare(model, data.test), origin)


def _prepare(model: Model, points: Points) -> Points:
    return Points(np.asarray(model.prepare(jnp.asarray(points.inputs))), points.labels)


def run_cell(
    config: RunConfig,
    parent: Path,
    *,
    data_directory: Path | None = None,
    engine: Engine = simulate,
    after_step: Callable[[RunState], None] | None = None,
) -> dict[str, Any]:
    """Run what the config says, or go on from its checkpoint; return the outcome.

    Args:
        config: The run.
        parent: The directory that holds the run's own.
        data_directory: Where data sets are; by default `FEDKIN_DATA`.
        engine: Makes the federation; by default a simulation.
        after_step: Called after each outer step, for progress.
    """
    directory = RunDirectory(parent, config)
    directory.create()
    scene = set_up(config, data_directory, engine)
    key = methods.training_key(config.seed)
    settings = config.settings
    if settings.learning_rate is None:
        settings = replace(settings, learning_rate=chosen_learning_rate(directory.checkpoint))
    algorithm, cost = methods.build(
        config.method,
        settings,
        scene.federation,
        scene.center,
        methods.building_key(config.seed),
    )
    theta = scene.objective.init(methods.initial_model_key(config.seed))
    state = begin(algorithm, scene.federation, theta, cost)
    made_with = {"parameters": methods.parameters(algorithm), "versions": versions()}
    if directory.checkpoint.exists():
        load_checkpoint(directory.checkpoint, state, scene.federation, scene.center, made_with)
        directory.log(f"resumed after step {len(state.history)}")

    def record(state: RunState) -> None:
        save_checkpoint(directory.checkpoint, state, scene.federation, scene.center, made_with)
        directory.log(_log_line(state))
        if after_step is not None:
            after_step(state)

    run(
        algorithm,
        scene.federation,
        scene.center,
        state,
        key,
        budget=Budget(config.steps, config.synchronizations, config.points),
        test=scene.test,
        after_step=record,
    )
    outcome = _outcome(state, scene) | {"parameters": methods.parameters(algorithm)}
    directory.finish(outcome, _files(state, scene))
    return outcome


def _log_line(state: RunState) -> str:
    last = state.history[-1]
    test = math.nan if last.test is None else last.test.accuracy
    line = (
        f"step {last.step}: {last.cost.synchronizations} synchronizations, {last.seconds:.1f} s, "
        f"validation {last.validation.accuracy:.4f}, test {test:.4f}"
    )
    return "\n".join([line, *(f"warning: {warning}" for warning in last.warnings)])


def _outcome(state: RunState, scene: Scene) -> dict[str, Any]:
    """Summarize a run: the row of its best model, and what a reader should know."""
    kept = state.kept
    assert kept is not None
    row = to_row(kept, scene.data.names)
    similar = None
    if kept.node_weights is not None:
        similar = float(kept.node_weights[np.array(scene.data.similar)].sum())
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
    }


def _files(state: RunState, scene: Scene) -> dict[str, bytes]:
    data = scene.data
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
        "validation_counts": np.bincount(data.validation[1], minlength=len(data.classes)).tolist(),
        "test_counts": np.bincount(data.test[1], minlength=len(data.classes)).tolist(),
        "origin": scene.origin,
    }
    return {
        "history.parquet": history.to_parquet(index=False),
        "weights.json": json.dumps(weights, indent=2).encode(),
        "data.json": json.dumps(held).encode(),
        "models.npz": pack_arrays({"best": state.kept_theta, "last": state.last_theta}),
    }
