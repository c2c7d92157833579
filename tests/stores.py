"""Studies with invented histories: what a store looks like, without any training."""

import json

import numpy as np
import pandas as pd

from fedkin.events import RunFailed, StepDone
from fedkin.studies.config import StudyConfig
from fedkin.studies.store import RunDirectory, Store, pack_arrays
from fedkin.studies.study_file import check_study

LEVEL = {"bilevel": 0.82, "fedavg": 0.66, "ditto": 0.74, "pfedme": 0.71, "local": 0.6}
CLASSES = [str(number) for number in range(10)]


def study(**changes) -> StudyConfig:
    content = {
        "dataset": "mnist",
        "setting": [2],
        "method": ["bilevel", "fedavg", "ditto", "pfedme", "local"],
        "seed": [0, 1, 2, 3],
    }
    return check_study(content | changes, "study.toml")


def node_names(config) -> list[str]:
    return [f"minority-{i + 1}" for i in range(config.minority_nodes)] + [
        f"majority-{i + 1}" for i in range(config.majority_nodes)
    ]


def invented_history(config, names, random, steps=20) -> pd.DataFrame:
    """Curves that rise to the method's level; weights that move to the nodes like the owner."""
    step = np.arange(1, steps + 1)
    talks = config.method != "local"
    harder = 0.03 * (int(config.setting) if str(config.setting).isdigit() else 0)
    rise = 1 - np.exp(-step / (4 + random.uniform(0, 2)))
    test = (LEVEL.get(config.method, 0.6) - harder + random.normal(0, 0.01)) * rise
    test += random.normal(0, 0.008, steps)
    history = {
        "step": step,
        "synchronizations": step * 41 * talks,
        "points": np.cumsum(random.integers(3000, 4000, steps)),
        "bytes_up": step * 15 * 1452 * 41 * talks,
        "bytes_down": step * 15 * 1452 * 60 * talks,
        "seconds": np.cumsum(random.uniform(0.5, 1.5, steps)),
        "validation_loss": 2.3 - 1.5 * rise,
        "validation_accuracy": np.clip(test + random.normal(0, 0.02, steps), 0, 1),
        "test_loss": 2.3 - 1.4 * rise,
        "test_accuracy": np.clip(test, 0, 1),
    }
    if config.method in ("bilevel", "fedavg"):
        similar = [name.startswith(config.target) for name in names]
        learned = np.array([5.0 if alike else 0.2 for alike in similar])
        learned *= random.uniform(0.7, 1.3, len(names))
        learned /= learned.sum()
        equal = 1 / len(names)
        for name, weight in zip(names, learned, strict=True):
            moved = rise * (weight - equal) if config.method == "bilevel" else 0 * rise
            history[f"weight {name}"] = equal + moved
    return pd.DataFrame(history)


def invented_owners(config, names, random, groups) -> dict:
    """Every node an owner: those who learn weights learn with their own group."""
    membership = np.arange(len(names)) * groups // len(names)
    same = membership[:, None] == membership
    matrix = None
    if config.method == "bilevel":
        matrix = np.where(
            same, random.uniform(0.2, 1, same.shape), random.uniform(size=same.shape) < 0.02
        )
        matrix = (matrix / matrix.sum(axis=1, keepdims=True)).tolist()
    elif config.method != "local":
        matrix = np.full(same.shape, 1 / len(names)).tolist()
    scores = np.clip(LEVEL.get(config.method, 0.6) + random.normal(0, 0.06, len(names)), 0, 1)
    rows = [
        {
            "name": name,
            "group": f"group {group}",
            "test_points": 100,
            "score": float(score),
            "test_accuracy": float(score),
        }
        for name, group, score in zip(names, membership, scores, strict=True)
    ]
    found = [[names[i] for i in np.flatnonzero(membership == g)] for g in range(groups)]
    return {
        "measure": "accuracy",
        "scored_on": "test",
        "owners": rows,
        "matrix": matrix,
        "found_groups": found,
    }


def invent_run(
    store, config, *, names=None, steps=20, warnings=(), origin=None, groups=None
) -> RunDirectory:
    """Write a finished run; with `groups`, one in which every node is an owner."""
    names = names or node_names(config)
    digest = int(config.directory.rsplit("-", 1)[1], 16)
    random = np.random.default_rng(digest)
    history = invented_history(config, names, random, steps)
    best = int(history.validation_accuracy.argmax())
    kept = history.iloc[best]
    weights = {
        name: float(kept[f"weight {name}"]) for name in names if f"weight {name}" in history
    } or None
    similar = [i < config.minority_nodes for i in range(len(names))]
    if config.target == "majority":
        similar = [not alike for alike in similar]
    data = {
        "names": names,
        "similar": similar,
        "classes": CLASSES,
        "points": [4000] * len(names),
        "class_counts": [random.multinomial(4000, [0.1] * 10).tolist() for _ in names],
        "validation_counts": [50] * 10,
        "test_counts": [500] * 10,
        "origin": origin,
    }
    directory = RunDirectory(store.runs, config)
    directory.create()
    done = StepDone(
        run=config.directory,
        step=steps,
        synchronizations=1,
        seconds=1.0,
        bytes_up=0,
        bytes_down=0,
        validation_loss=0.5,
    )
    directory.record(done)
    columns = ["synchronizations", "points", "bytes_up", "bytes_down", "seconds"]
    outcome = {"step": int(kept.step)} | {name: float(kept[name]) for name in columns}
    outcome |= {
        "validation_accuracy": float(kept.validation_accuracy),
        "test_accuracy": float(kept.test_accuracy),
        "similar_weight": None,
        "stopped": f"stopped: reached the limit of {steps} outer steps",
        "steps": steps,
        "total_seconds": float(history.seconds.iloc[-1]),
        "total_synchronizations": int(history.synchronizations.iloc[-1]),
        "warnings": list(warnings),
    }
    files = {
        "history.parquet": history.to_parquet(index=False),
        "weights.json": json.dumps(weights).encode(),
        "data.json": json.dumps(data).encode(),
        "models.npz": pack_arrays({"best": np.zeros(3)}),
    }
    if groups is not None:
        owners = invented_owners(config, names, random, groups)
        files |= {"owners.json": json.dumps(owners).encode(), "weights.json": b"null"}
        outcome["similar_weight"] = 0.98 if config.method == "bilevel" else None
    directory.finish(outcome, files)
    return directory


def fail_run(directory, reason):
    """Make a finished run one that failed."""
    (directory.path / "finished.json").unlink()
    directory.record(RunFailed(run=directory.path.name, reason=reason))


def invent_study(path, config=None, **options) -> Store:
    """Write a study with all its runs."""
    config = config or study()
    store = Store(path)
    store.open(resume=False)
    store.write_study(config)
    for run in config.runs():
        invent_run(store, run, **options)
    return store


def accuracies_on_disk(path) -> dict[tuple, list[float]]:
    """Test accuracy at the best validation accuracy of each run, from the files alone."""
    found = {}
    for run in (path / "runs").iterdir():
        config = json.loads((run / "config.json").read_text())["config"]
        history = pd.read_parquet(run / "history.parquet").to_dict(orient="records")
        best = max(history, key=lambda row: (row["validation_accuracy"], -row["validation_loss"]))
        key = (config["dataset"], str(config["setting"]), config["target"], config["method"])
        found.setdefault(key, []).append(best["test_accuracy"])
    return found
