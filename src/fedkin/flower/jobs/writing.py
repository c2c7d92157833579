"""The file of a job: what a user asked for, and what the federation knows about its data."""

import re
import tomllib
import uuid
from pathlib import Path
from typing import Any

from fedkin.errors import InputError
from fedkin.flower.certificates import make_private_directory
from fedkin.flower.jobs.options import OWN, VALIDATION_FRACTION
from fedkin.flower.layout import FederationFile, Layout

Job = dict[str, Any]


def write_job(
    layout: Layout,
    federation: FederationFile,
    study: Path | None,
    options: Job,
    *,
    plain_sums: bool = False,
) -> Path:
    """Write a study, with what is known about the data, for the program at the center."""
    import tomli_w

    content = {} if study is None else _with_absolute_paths(_read(study), study)
    for name, value in options.items():
        if name in content:
            raise InputError(f"{name} is in {study} and among the options: give it once")
        content[name] = value
    if plain_sums:
        content["federation"] = {**content.get("federation", {}), "plain-sums": True}
    if federation.center or VALIDATION_FRACTION in federation.data:
        content = _for_tables(layout, federation, content)
    else:
        content = _for_images(layout, federation, content)
    # Every run has its own file: the program at the center may read it after another run was started.
    stem = "options" if study is None else re.sub(r"[^A-Za-z0-9._-]+", "-", study.stem)
    path = layout.directory / "jobs" / f"{stem}-{uuid.uuid4().hex[:8]}.toml"
    make_private_directory(path.parent)
    path.write_text(tomli_w.dumps(content), encoding="utf-8")
    return path


def _read(study: Path) -> Job:
    try:
        return tomllib.loads(study.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"there is no file {study}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {study}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{study} is not valid TOML: {error}") from error


def _with_absolute_paths(content: Job, study: Path) -> Job:
    """Return a study with absolute paths of the center's tables, which are relative to its file."""
    named = {name: content[name] for name in ("validation", "test", OWN) if name in content}
    return content | {
        name: str(study.absolute().parent / path)
        for name, path in named.items()
        if isinstance(path, str)
    }


def _for_tables(layout: Layout, federation: FederationFile, content: Job) -> Job:
    """Add the center's own tables if it has any, and how tables are read."""
    if isinstance(content.get("method"), list):
        raise InputError("nodes with tables learn with one method at a time: give one --method")
    known: Job = dict(federation.data)
    known |= {name: str(layout.path(path)) for name, path in federation.center.items()}
    waiting = {"nodes": len(federation.node)} if federation.node else {}
    return {**known, **content, "federation": waiting | content.get("federation", {})}


def _for_images(layout: Layout, federation: FederationFile, content: Job) -> Job:
    """Add how the nodes' images were drawn, and refuse a study that says otherwise."""
    known: Job = {name.replace("-", "_"): value for name, value in federation.data.items()}
    sources = {node.data for node in federation.node}
    if len(sources) == 1:
        known["dataset"] = sources.pop()
    for name, value in known.items():
        if content.get(name, value) not in (value, [value]):
            raise InputError(
                f"{name} is {content[name]} in the study, but the nodes' data were drawn with {value} "
                f"({layout.file}): leave it out, or make a federation for it"
            )
    return known | content
