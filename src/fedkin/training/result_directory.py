"""The directory of a result learned from tables: written completely or not at all."""

import json
import os
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from fedkin.errors import InputError

MODEL = "model.fedkin"
PREPROCESSING = "preprocessing.json"
WEIGHTS = "weights.json"
WEIGHTS_TABLE = "weights.csv"
METRICS = "metrics.json"
HISTORY = "history.csv"
REPORT = "report.html"
ADVICE = "advice.json"
CANDIDATES = "candidates.csv"
CONTRIBUTIONS = "contributions.json"
OF_ALL = frozenset({MODEL, PREPROCESSING, WEIGHTS, WEIGHTS_TABLE, CONTRIBUTIONS, REPORT})
FILES = OF_ALL | {METRICS, HISTORY}
ADVICE_FILES = OF_ALL | {ADVICE, CANDIDATES}
REPORT_FILES = "report"
"""The directory that `fedkin report` adds."""


def check_writable(
    out: Path, force: bool, files: Collection[str] = FILES, command: str = "fedkin fit"
) -> None:
    """Refuse before a long computation, not after it, if its result could not be written.

    Args:
        out: The directory.
        force: Whether an earlier result may be replaced.
        files: What an earlier result consists of.
        command: What wrote it.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; give --out the name of a directory")
    present = sorted(entry.name for entry in out.iterdir()) if out.is_dir() else []
    if present and not force:
        raise InputError(f"{out} is not empty; choose another --out, or replace it with --force")
    foreign = [name for name in present if name not in {*files, REPORT_FILES}]
    if foreign:
        raise InputError(
            f"{out} holds files that {command} did not write, such as {foreign[0]}; "
            "choose another --out"
        )
    parent = out.absolute().parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise InputError(
            f"{out} would be in a file, not in a directory: choose another --out"
        ) from None
    except OSError as error:
        raise InputError(
            f"{parent} cannot be made ({error.strerror}): choose another --out"
        ) from None
    if not os.access(parent, os.W_OK):
        raise InputError(f"nothing can be written in {parent}; choose another --out")


def write_directory(out: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write into a temporary directory, then replace `out` by it."""
    out = out.absolute()
    try:
        with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as scratch:
            fresh = Path(scratch) / "new"
            fresh.mkdir()
            fill(fresh)
            if out.exists():
                out.rename(Path(scratch) / "old")
            fresh.rename(out)
    except OSError as error:
        raise InputError(
            f"{out} cannot be written: {error.strerror or error}; make room, or choose another --out, and "
            "give the same command again"
        ) from None


def write_json(path: Path, content: Any) -> None:
    """Write JSON that every reader accepts: NaN is an error."""
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def check_result(directory: Path) -> None:
    """Refuse a directory that is not a result of `fedkin fit`."""
    if directory.is_file():
        raise InputError(
            f"{directory} is a file: name the directory that was the --out of fedkin fit"
        )
    if not directory.is_dir():
        raise InputError(f"there is no directory {directory}; make it with fedkin fit --out")
    for name in (PREPROCESSING, MODEL):
        if not (directory / name).is_file():
            raise InputError(f"{directory} has no {name}: it is not a result of fedkin fit")
