"""Results on disk: one directory per run, an index of the study, and one table to read them all.

DIR/study.json              the format, and the study as it was requested
DIR/index.csv               one row per finished run, rewritten from the runs
DIR/runs/NAME/config.json   the frozen config, versions of fedkin and its libraries
              history.parquet, weights.json, data.json, models.npz
              events.jsonl      what the run reported, as it happened
              owners.json       for a run of all nodes' questions: every owner's weights and scores
              checkpoint*.npz   while the run is under way
              finished.json     written last: outcome, a checksum of every other file, and one of itself
DIR/tuning/NAME/…           the short runs that chose parameters
DIR/former/NAME/…           runs that belonged to the study before it was changed
"""

import fcntl
import hashlib
import io
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import pandas as pd
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from fedkin.errors import InputError
from fedkin.events import EVENTS_FILE, Event, append_event
from fedkin.files import write_atomically
from fedkin.messages import check_printable
from fedkin.studies.config import FORMAT, RunConfig, StudyConfig, refused
from fedkin.training.checkpoint import versions

CHECKED_FILES = ("config.json", "history.parquet", "weights.json", "data.json", "models.npz")
OWNERS_FILE = "owners.json"
"""Only runs in which every node is an owner have it."""
KEY_COLUMNS = ["dataset", "setting", "target", "method", "seed", "parameters", "run"]


class RunDirectory:
    """The directory of one run."""

    def __init__(self, parent: Path, config: RunConfig) -> None:
        self.path = parent / config.directory
        self.config = config

    @property
    def checkpoint(self) -> Path:
        """The checkpoint of a run under way."""
        return self.path / "checkpoint.npz"

    @property
    def events(self) -> Path:
        """The file of the run's events."""
        return self.path / EVENTS_FILE

    def create(self) -> None:
        """Make the directory and write the config; an edited config is refused."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make {self.path}: {error.strerror}") from error
        file = self.path / "config.json"
        if file.exists():
            read_config(self.path)
        else:
            content = {"format": FORMAT, "config": self.config.model_dump(mode="json")}
            _write_json(file, content | {"versions": versions()})

    def is_finished(self) -> bool:
        """Tell whether the run is finished and whole; a damaged one counts as not finished."""
        return read_finished(self.path) is not None

    def finish(self, outcome: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
        """Write all results, the outcome last; then the checkpoint is no longer needed."""
        for name, content in files.items():
            write_atomically(self.path / name, content)
        names = dict.fromkeys((*CHECKED_FILES, *files))
        checksums = {name: _checksum(self.path / name) for name in names}
        content = json.loads(json.dumps({**outcome, "files": checksums}))  # as it will be read
        _write_json(self.path / "finished.json", content | {"checksum": _own_checksum(content)})
        self.checkpoint.unlink(missing_ok=True)

    def record(self, event: Event) -> None:
        """Add an event to the run's file of events."""
        append_event(self.events, event)


def read_config(path: Path) -> RunConfig:
    """Read a run's config, and refuse one that was edited or is of another version."""
    try:
        content = json.loads((path / "config.json").read_text(encoding="utf-8"))
        if content.get("format") != FORMAT:
            raise InputError(
                f"{path} was written by a version of fedkin with format {content.get('format')}, "
                f"this one has {FORMAT}: read it with that version, or choose another directory"
            )
        config = RunConfig.model_validate(content["config"])
    except (OSError, ValueError, KeyError, AttributeError, ValidationError) as error:
        if isinstance(error, InputError):
            raise
        reason = refused(error) if isinstance(error, ValidationError) else None
        if reason is not None:
            raise InputError(f"{path / 'config.json'}: {reason}") from error
        raise InputError(
            f"{path / 'config.json'} is damaged or was edited: delete the directory {path.name} "
            "to run it again"
        ) from error
    if config.directory != path.name:
        raise InputError(
            f"{path / 'config.json'} was edited, or written by an earlier version of fedkin: its "
            "content does not belong to the directory's name. Put it back, read it with that "
            "version, or delete the directory to run it again"
        )
    return config


def read_finished(path: Path) -> dict[str, Any] | None:
    """Return the outcome of a finished run; None if it is not finished, or a file is damaged or edited.

    Runs of earlier versions have no checksum of the outcome itself.
    """
    try:
        outcome = json.loads((path / "finished.json").read_text(encoding="utf-8"))
        if outcome.pop("checksum", None) not in (None, _own_checksum(outcome)):
            return None
        checksums = Finished.model_validate(outcome).files
        names = {*CHECKED_FILES, *checksums}
        whole = all(_checksum(path / name) == checksums[name] for name in names)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return outcome if whole else None


class Finished(BaseModel):
    """The types of what `finished.json` says; readers rely on them."""

    model_config = ConfigDict(strict=True)

    files: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$")], str]
    """The checksum of each file of the run's directory, and of no other."""
    step: float
    synchronizations: float = 0
    points: float = 0
    bytes_up: float = 0
    bytes_down: float = 0
    seconds: float = 0.0
    validation_accuracy: float | None = None
    test_accuracy: float | None = None
    similar_weight: float | None = None
    stopped: Annotated[str, AfterValidator(check_printable)] | None = None


def _own_checksum(outcome: Mapping[str, Any]) -> str:
    """Return the checksum of an outcome itself."""
    return hashlib.sha256(json.dumps(outcome, sort_keys=True).encode()).hexdigest()


def count_finished(directory: Path) -> int:
    """Return how many runs of a study are finished."""
    return sum(1 for _ in Store(directory).runs.glob("*/finished.json"))


class Store:
    """The results of a study."""

    def __init__(self, directory: str | Path) -> None:
        self.path = Path(directory)

    @property
    def runs(self) -> Path:
        """Where the study's own runs are."""
        return self.path / "runs"

    @property
    def tuning(self) -> Path:
        """Where the short runs are that chose parameters."""
        return self.path / "tuning"

    def check(self, *, resume: bool) -> None:
        """Refuse a directory that cannot take a study, or in which none can be continued."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file: choose a new or empty directory")
        if (self.path / "study.json").exists():
            self.check_format()
            if not resume:
                raise InputError(
                    f"{self.path} already has a study: add --resume to continue it (finished runs "
                    "are kept), or choose another directory"
                )
        elif (
            self.path.exists()
            and any(self.path.iterdir())
            and not (resume and self.runs.is_dir())  # a study whose damaged study.json was deleted
        ):
            raise InputError(f"{self.path} has other files: choose a new or empty directory")

    def open(self, *, resume: bool) -> None:
        """Make the directory, after `check`."""
        self.check(resume=resume)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.runs.mkdir(exist_ok=True)
            self.tuning.mkdir(exist_ok=True)
        except OSError as error:
            raise InputError(
                f"cannot write to {self.path}: {error.strerror}; choose another directory"
            ) from error

    def write_study(self, study: StudyConfig) -> None:
        """Write the study as it was requested; the caller must have the lock."""
        content = {"format": FORMAT, "study": study.to_record(), "versions": versions()}
        _write_json(self.path / "study.json", content)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from working here; the lock ends with this process, however it ends."""
        with (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InputError(
                    f"another process is working on {self.path}: wait for it, or end it"
                ) from error
            yield

    def select(self, runs: Iterable[RunConfig]) -> None:
        """Make these the study's runs: others are set aside, and return when requested again."""
        former, wanted = self.path / "former", {run.directory for run in runs}
        for path in list(self.runs.iterdir()):
            if path.name not in wanted:
                former.mkdir(exist_ok=True)
                path.rename(former / path.name)
        for name in wanted:
            if (former / name).exists() and not (self.runs / name).exists():
                (former / name).rename(self.runs / name)

    def finished(self) -> list[tuple[RunConfig, dict[str, Any], Path]]:
        """Return every finished run of the study: its config, its outcome, its directory."""
        self.check_format()
        found = []
        for path in sorted(self.runs.iterdir()) if self.runs.is_dir() else []:
            outcome = read_finished(path) if path.is_dir() else None
            if outcome is not None:
                found.append((read_config(path), outcome, path))
        return found

    def write_index(self) -> None:
        """Write one row per finished run."""
        rows = [
            _keys(config, path) | {name: outcome.get(name) for name in OUTCOME_COLUMNS}
            for config, outcome, path in self.finished()
        ]
        table = pd.DataFrame(rows, columns=[*KEY_COLUMNS, *OUTCOME_COLUMNS])
        write_atomically(self.path / "index.csv", table.to_csv(index=False).encode())

    def check_format(self) -> None:
        """Refuse a directory without a study, or with one of another version."""
        file = self.path / "study.json"
        if not self.path.is_dir():
            raise InputError(f"there is no directory {self.path}: give the --out of fedkin run")
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            found = content["format"]
        except FileNotFoundError as error:
            raise InputError(f"{self.path} has no study: there is no study.json in it") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{file} is damaged: delete it and run the study again with the same --out and --resume; "
                "finished runs are kept"
            ) from error
        if found != FORMAT:
            raise InputError(
                f"{self.path} was written by a version of fedkin with format {found}, this one has "
                f"{FORMAT}: read it with that version, or choose another directory"
            )


OUTCOME_COLUMNS = [
    "step",
    "synchronizations",
    "points",
    "bytes_up",
    "bytes_down",
    "seconds",
    "validation_accuracy",
    "test_accuracy",
    "similar_weight",
    "stopped",
]


def results(directory: str | Path, *, best: bool = False) -> pd.DataFrame:
    """Read a study's results as one table.

    Args:
        directory: The study's directory.
        best: One row per run, at its best validation accuracy; otherwise one row per evaluation.

    Returns:
        Columns `dataset`, `setting`, `target`, `method`, `seed`, `parameters`, `run`, then the costs,
        losses and accuracies, the weight of each node and diagnostics. Settings are text, since a
        user's own have names: `"1"` is the paper's first.

    >>> import tempfile
    >>> from fedkin.studies.cell import do_run
    >>> from fedkin.studies.config import RunConfig
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     Store(directory).open(resume=False)
    ...     Store(directory).write_study(StudyConfig(dataset=["digits"]))
    ...     run = RunConfig(dataset="digits", setting=2, method="local", model="logistic", steps=1)
    ...     outcome = do_run(run, Store(directory).runs)
    ...     table = results(directory)
    >>> table[["dataset", "setting", "method", "step"]].to_dict("records")
    [{'dataset': 'digits', 'setting': '2', 'method': 'local', 'step': 1}]
    """
    tables = []
    store = Store(directory)
    finished = store.finished()
    damaged = sum((path / "finished.json").exists() for path in store.runs.glob("*")) - len(
        finished
    )
    if damaged:
        warnings.warn(
            f"{damaged} runs in {directory} have a damaged file and are left out: run the study again "
            "with --resume",
            stacklevel=2,
        )
    for config, outcome, path in finished:
        history = pd.read_parquet(path / "history.parquet")
        if best:
            history = history[history.step == outcome["step"]]
        for place, (name, value) in enumerate(_keys(config, path).items()):
            history.insert(place, name, value)
        tables.append(history)
    if not tables:
        raise InputError(f"{directory} has no finished run yet")
    return pd.concat(tables, ignore_index=True)


def pack_arrays(arrays: Mapping[str, Any]) -> bytes:
    """Return named arrays as the bytes of an `.npz` file."""
    buffer = io.BytesIO()
    np.savez(buffer, **jax.tree.map(np.asarray, dict(arrays)))
    return buffer.getvalue()


def _keys(config: RunConfig, path: Path) -> dict[str, Any]:
    given = config.settings
    return {
        "dataset": config.dataset,
        "setting": config.setting_title,
        "target": config.target,
        "method": config.method,
        "seed": config.seed,
        "parameters": " ".join(f"{name}={value}" for name, value in given.items()),
        "run": path.name,
    }


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
