"""Studies as they are written in TOML files: read and checked, with messages in the words of the file."""

import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedkin.errors import InputError
from fedkin.messages import in_plain_words, suggestion
from fedkin.methods.registry import METHODS
from fedkin.studies.config import GRID_FIELDS, TARGETS, StudyConfig
from fedkin.studies.partition_config import PartitionFields, refuse_useless_fields
from fedkin.studies.setting_checks import check_common_setting, check_settings, setting_names


def load_study(path: Path) -> StudyConfig:
    """Read a study from a TOML file; an unknown key is an error that suggests the right one."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}") from error
    except IsADirectoryError as error:
        raise InputError(f"{path} is a directory; name a study's TOML file in it") from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"cannot read {path}: it is not UTF-8 text") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not valid TOML: {error}") from error
    return check_study(content, str(path))


def check_study(content: dict[str, Any], source: str) -> StudyConfig:
    """Make a study of a mapping, with messages that name the key and its place."""
    try:
        study = StudyConfig(**content)
    except ValidationError as error:
        problems = "; ".join(_problem(each) for each in error.errors())
        raise InputError(f"{source}: {problems}") from error
    for name, value in study.settings.items():
        if isinstance(value, dict):
            if name not in study.method and name not in METHODS.names():
                known = [*METHODS.names(), *setting_names(METHODS.names())]
                raise InputError(f"{source}: unknown key settings.{name}{suggestion(name, known)}")
            check_settings(source, f"settings.{name}", value, name)
        else:
            check_common_setting(study.method, source, name)
    for method, lists in study.tune.items():
        check_settings(source, f"tune.{method}", lists, method)
    _refuse_useless(study, source)
    # Every combination is checked before any work.
    try:
        for run in study.runs():
            for each in [run, *study.candidates(run)]:
                if each.bad is not None:
                    each.bad.check(each.node_names)
                if each.node_count is not None:
                    each.chosen_method.check(each.node_count)
    except InputError as error:
        raise InputError(f"{source}: {error}") from error
    return study


def _refuse_useless(study: StudyConfig, source: str) -> None:
    """Refuse keys that would change nothing."""
    refuse_useless_fields(study, study.target, source)
    if study.bad is not None and study.partition is not None:
        raise InputError(
            f"{source}: bad is of no use with a partition: bad nodes are those of a setting, with one owner"
        )
    for name in (*GRID_FIELDS, "bad", *PartitionFields.model_fields):
        values = getattr(study, name)
        if not isinstance(values, list):
            continue
        if not values:
            raise InputError(f"{source}: {name} is an empty list: there is nothing to run")
        if len(set(values)) < len(values):
            raise InputError(f"{source}: {name} lists the same value twice")
    if study.minority_nodes + study.majority_nodes == 0:
        raise InputError(
            f"{source}: minority_nodes and majority_nodes are both 0: at least one node is needed"
        )
    tables = {name for name, value in study.settings.items() if isinstance(value, dict)}
    for place, methods in (("settings", tables), ("tune", set(study.tune))):
        for method in sorted(methods - set(study.method)):
            raise InputError(
                f"{source}: {place}.{method} is of no use: {method} is not among the methods"
            )
    of_tuning = ("tune_steps", "tune_synchronizations", "tune_seed", "tune_once")
    given = [name for name in of_tuning if name in study.model_fields_set]
    if given and not study.tune:
        raise InputError(f"{source}: {given[0]} is of no use without a [tune] table")
    lengths = [name for name in given if name in ("tune_steps", "tune_synchronizations")]
    if len(lengths) > 1:
        raise InputError(f"{source}: {' and '.join(lengths)} exclude each other: give one")
    if study.follow_bilevel and "bilevel" not in study.tune:
        raise InputError(f"{source}: follow_bilevel is of no use where Bi-level is not tuned")


def _problem(error: Any) -> str:
    """Say what is wrong with a key in the words of the file."""
    key, *within = (str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"unknown key {key}{suggestion(key, StudyConfig.model_fields)}"
    given = error["input"]
    if key == "setting":
        return f"setting: {given!r} is neither 1, 2, 3 or 4 nor the path of a TOML file"
    if key == "tune" and within[-1:] == ["[key]"]:
        return f"unknown method tune.{given}{suggestion(given, METHODS.names())}"
    if key == "target" and error["type"] == "literal_error" and isinstance(given, str):
        return f"target: {given!r} is unknown{suggestion(given, TARGETS)}"
    return f"{key}: {in_plain_words(error['msg'])}"
