"""One run of a study in which every node is an owner: all their questions, answered in shared exchanges."""

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedkin.data.partitions import one_class_nodes
from fedkin.errors import FedkinError
from fedkin.events import Event, OnEvent, RunFinished, RunStarted, StepDone, Warned
from fedkin.federation.base import Cost
from fedkin.numerics.communities import find_groups
from fedkin.studies.cell import with_config
from fedkin.studies.config import RunConfig
from fedkin.studies.partitioned import PartitionedData, draw_nodes
from fedkin.studies.store import OWNERS_FILE, RunDirectory, pack_arrays
from fedkin.training.collaboration import summarize_scores
from fedkin.training.joint import JointProblem, JointRun, OwnerData
from fedkin.training.problem import TrainedRun
from fedkin.training.runner import Budget, Evaluation, RunState


def do_run_for_all(
    config: RunConfig,
    parent: Path,
    *,
    data_directory: Path | None = None,
    on_event: OnEvent | None = None,
) -> dict[str, Any]:
    """Do what the config says for every owner, or continue from checkpoints; return the outcome.

    Args:
        config: The run, with a partition.
        parent: The directory that holds the run's own.
        data_directory: Where data sets are; by default `FEDKIN_DATA`.
        on_event: Called with the run's events, which are also appended to its file of events.
    """
    directory = RunDirectory(parent, config)
    directory.create()
    data = draw_nodes(config, data_directory)
    owners = {
        node.name: OwnerData(validation=node.validation, own=node.train, test=node.test)
        for node in data.nodes
    }
    problem = JointProblem.build(
        {node.name: node.train for node in data.nodes},
        owners,
        model=config.model,
        classes=np.arange(len(data.classes)),
        batch_size=config.batch_size,
        seed=config.seed,
    )

    def record(event: Event) -> None:
        event = with_config(event, config)
        directory.record(event)
        if on_event is not None:
            on_event(event)

    progress = _Progress(config, tuple(owners), record)
    checkpoints = {
        name: directory.path / f"checkpoint-{number}.npz" for number, name in enumerate(owners)
    }
    joint = problem.train(
        config.chosen_method,
        budget=Budget(config.steps, config.synchronizations, config.points),
        keep=config.keep or "best",
        ask_all=config.ask_all is None,
        checkpoints=checkpoints,
        on_event=progress.event,
        after_step=progress.step,
    )
    if progress.has_news:
        progress.report()
    finished = {name: run for name, run in joint.runs.items() if isinstance(run, TrainedRun)}
    if not finished:
        raise next(run for run in joint.runs.values() if isinstance(run, FedkinError))
    outcome = _outcome(config, data, joint, finished)
    directory.finish(outcome, _files(config, data, joint, finished))
    for checkpoint in checkpoints.values():
        checkpoint.unlink(missing_ok=True)
    record(RunFinished(run=config.directory, stopped=outcome["stopped"]))
    return outcome


class _Progress:
    """Reports on all owners together, one step after the other."""

    def __init__(self, config: RunConfig, owners: tuple[str, ...], report: OnEvent) -> None:
        self._config = config
        self._owners = owners
        self._report = report
        self._latest: dict[str, Evaluation] = {}
        self._reported = 0
        self._guard = threading.Lock()

    def event(self, event: Event) -> None:
        """Pass on warnings with the name of the owner, and the first start."""
        if isinstance(event, Warned):
            message = f"{event.run}: {event.message}"
            self._report(Warned(run=self._config.directory, message=message))
        elif isinstance(event, RunStarted) and event.run == self._owners[0]:
            self._report(replace(event, run=self._config.directory))

    def step(self, owner: str, state: RunState) -> None:
        """Take in the step of an owner; the first that takes one tells that all have taken the last."""
        with self._guard:
            if len(state.history) > self._reported + 1 and self._latest:
                self.report()
            self._latest[owner] = state.history[-1]

    @property
    def has_news(self) -> bool:
        """Whether steps were taken that are not reported yet."""
        return any(each.step > self._reported for each in self._latest.values())

    def report(self) -> None:
        """Report the mean over all owners."""
        last = list(self._latest.values())
        cost = _sum_costs([each.cost for each in last])
        self._reported = max(each.step for each in last)
        self._report(
            StepDone(
                run=self._config.directory,
                step=self._reported,
                synchronizations=cost.synchronizations,
                seconds=max(each.seconds for each in last),
                bytes_up=cost.bytes_up,
                bytes_down=cost.bytes_down,
                validation_loss=float(np.mean([each.validation.loss for each in last])),
                validation_accuracy=_mean([each.validation.accuracy for each in last]),
                test_accuracy=_mean([each.test.accuracy for each in last if each.test]),
            )
        )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _sum_costs(costs: Sequence[Cost]) -> Cost:
    """Return what owners cost together if nothing is asked for alike: exchanges are shared."""
    total = sum(costs, Cost())
    most = max((cost.synchronizations for cost in costs), default=0)
    return Cost(most, total.bytes_up, total.bytes_down, total.node_points, total.nodes_asked)


def _outcome(
    config: RunConfig, data: PartitionedData, joint: JointRun, finished: Mapping[str, TrainedRun]
) -> dict[str, Any]:
    """Summarize the run: means over owners, and the worst of them."""
    kept = {name: _kept(run) for name, run in finished.items()}
    scores = pd.DataFrame(
        {
            "points": [len(node.test.labels) for node in data.nodes if node.name in kept],
            "test": [_test_accuracy(each) for each in kept.values()],
        }
    )
    summary = summarize_scores(scores, "accuracy").loc["test"]
    states = [run.state for run in finished.values()]
    warnings = [
        f"{name}: {warning}"
        for name, run in finished.items()
        for each in run.state.history
        for warning in each.warnings
    ]
    warnings += [
        f"{name} failed: {error}"
        for name, error in joint.runs.items()
        if isinstance(error, FedkinError)
    ]
    warnings += [f"{name} has points of one class only" for name in one_class_nodes(data.nodes)]
    return {
        "step": max(each.step for each in kept.values()),
        "synchronizations": joint.cost.synchronizations,
        "points": joint.cost.points,
        "bytes_up": joint.cost.bytes_up,
        "bytes_down": joint.cost.bytes_down,
        "seconds": max(state.seconds for state in states),
        "validation_accuracy": _mean([each.validation.accuracy for each in kept.values()]),
        "test_accuracy": float(summary["mean"]),
        "worst_accuracy": float(summary["worst"]),
        "tenth_percentile": float(summary["tenth_percentile"]),
        "weighted_accuracy": float(summary["weighted_mean"]),
        "accuracy_deviation": float(summary["std"]),
        "similar_weight": _weight_within_groups(data, kept),
        "stopped": f"{len(finished)} of {len(joint.runs)} owners finished",
        "steps": max(len(state.history) for state in states),
        "total_seconds": max(state.seconds for state in states),
        "total_synchronizations": joint.cost.synchronizations,
        "warnings": warnings,
        "parameters": next(iter(finished.values())).parameters,
        "owners": len(joint.runs),
    }


def _kept(run: TrainedRun) -> Evaluation:
    assert run.state.kept is not None
    return run.state.kept


def _test_accuracy(evaluation: Evaluation) -> float:
    assert evaluation.test is not None
    return evaluation.test.loss if evaluation.test.accuracy is None else evaluation.test.accuracy


def _weight_within_groups(data: PartitionedData, kept: Mapping[str, Evaluation]) -> float | None:
    """Return the mean share of an owner's weight on nodes of its own group; None without groups."""
    groups = {node.name: node.group for node in data.nodes}
    if any(group is None for group in groups.values()):
        return None
    shares = [
        float(each.node_weights[[groups[node.name] == groups[name] for node in data.nodes]].sum())
        for name, each in kept.items()
        if each.node_weights is not None
    ]
    return float(np.mean(shares)) if shares else None


def _files(
    config: RunConfig, data: PartitionedData, joint: JointRun, finished: Mapping[str, TrainedRun]
) -> dict[str, bytes]:
    names = [node.name for node in data.nodes]
    classes = len(data.classes)
    held = {
        "checksum": data.checksum,
        "names": names,
        "similar": [],
        "classes": data.classes,
        "points": [len(node.train.labels) for node in data.nodes],
        "class_counts": [
            np.bincount(node.train.labels, minlength=classes).tolist() for node in data.nodes
        ],
        "origin": data.origin,
    }
    models = {f"best {name}": run.state.kept_theta for name, run in finished.items()}
    return {
        "history.parquet": _history(joint, finished).to_parquet(index=False),
        "weights.json": json.dumps(None).encode(),
        "data.json": json.dumps(held).encode(),
        "models.npz": pack_arrays(models),
        OWNERS_FILE: json.dumps(_owners(data, joint, finished)).encode(),
    }


def _owners(
    data: PartitionedData, joint: JointRun, finished: Mapping[str, TrainedRun]
) -> dict[str, Any]:
    """Return what every owner has got, as plain JSON values."""
    names = [node.name for node in data.nodes]
    matrix = [
        None
        if name not in finished or (weights := _kept(finished[name]).node_weights) is None
        else weights.tolist()
        for name in names
    ]
    weighed = any(row is not None for row in matrix)
    blank = [0.0] * len(names)
    groups = find_groups(np.array([row or blank for row in matrix])) if weighed else []
    rows = []
    for node in data.nodes:
        run = joint.runs[node.name]
        row: dict[str, Any] = {
            "name": node.name,
            "group": node.group,
            "test_points": len(node.test.labels),
        }
        if isinstance(run, FedkinError):
            rows.append(row | {"failed": str(run)})
            continue
        kept = _kept(run)
        assert kept.test is not None
        row |= {
            "validation_accuracy": kept.validation.accuracy,
            "test_accuracy": kept.test.accuracy,
            "test_loss": kept.test.loss,
            "score": kept.test.accuracy,
            "step": kept.step,
            "synchronizations": run.state.cost.synchronizations,
            "stopped": run.state.stopped,
        }
        rows.append(row)
    return {
        "measure": "accuracy",
        "scored_on": "test",
        "owners": rows,
        "matrix": matrix if weighed else None,
        "found_groups": [[names[place] for place in group] for group in groups],
    }


def _history(joint: JointRun, finished: Mapping[str, TrainedRun]) -> pd.DataFrame:
    """Return one row per step: means over owners, of whom those that have stopped stay as they are."""
    histories = [run.state.history for run in finished.values()]
    whole = _sum_costs([history[-1].cost for history in histories])
    once = joint.cost.bytes_up / whole.bytes_up if whole.bytes_up else 1.0
    rows = []
    for step in range(max(len(history) for history in histories)):
        now = [history[min(step, len(history) - 1)] for history in histories]
        cost = _sum_costs([each.cost for each in now])
        rows.append(
            {
                "step": step + 1,
                "synchronizations": cost.synchronizations,
                "rounds": max(each.rounds for each in now),
                "points": round(once * cost.points),
                "bytes_up": round(once * cost.bytes_up),
                "bytes_down": round(once * cost.bytes_down),
                "nodes_asked": round(once * cost.nodes_asked),
                "seconds": max(each.seconds for each in now),
                "validation_loss": float(np.mean([each.validation.loss for each in now])),
                "validation_accuracy": _mean([each.validation.accuracy for each in now]),
                "test_loss": float(np.mean([each.test.loss for each in now if each.test])),
                "test_accuracy": _mean([each.test.accuracy for each in now if each.test]),
                "worst_test_accuracy": min(_test_accuracy(each) for each in now),
            }
        )
    return pd.DataFrame(rows)
