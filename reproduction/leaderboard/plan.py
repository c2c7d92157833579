"""What the leaderboard runs: the same methods in every study, one budget, equal effort of tuning.

All of it was decided before any result was seen. A study's file in `studies/` has the federation; what every
study has in common is here.
"""

import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedkin.methods.registry import METHODS, method_class
from fedkin.studies.config import RunConfig, StudyConfig
from fedkin.studies.study_file import check_study

DIRECTORY = Path(__file__).parent
STUDIES = DIRECTORY / "studies"
RESULTS = DIRECTORY / "results"

BLOCKS = {
    "a": "the paper's settings, one owner",
    "b": "20 clients, all owners",
    "c": "digits in three groups, all owners",
    "d": "four hospitals, all owners",
    "e": "half of the nodes bad, one owner",
}

ORDER = (
    "c-digits",
    "d-hospitals",
    "a-fashion-mnist",
    "a-mnist",
    "e-digits",
    "e-fashion-mnist",
    "b-fashion-mnist",
    "b-cifar10-jpeg",
)
"""The order of the studies: those that take long come last."""

SYNCHRONIZATIONS = 60
"""The budget of a run."""
TUNING_SYNCHRONIZATIONS = 20
"""The budget of a run that chooses parameters."""
SEEDS = (10, 11, 12)
TUNING_SEED = 7

NETWORK_RATES = (0.4, 0.2, 0.1, 0.05, 0.02, 0.01)
"""Step sizes for networks. `Method.tuning_grid` has 0.05, 0.02 and 0.01, for the many more synchronizations
of the paper; Bi-level chooses about 0.1. Methods with a setting of their own get the second to the fourth."""
LINEAR_RATES = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02)
"""The same for logistic regression: curvature suggests 0.08 for digits and 0.25 for hospitals."""

OWN_SETTINGS: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "finetune": {"personal_steps": (50, 200)},
    "tawt": {"outer_learning_rate": (0.1, 1.0)},
    "ifca": {"clusters": (2, 4)},
    "fedamp": {"attraction": (0.5, 1.0)},
    "pfedgraph": {"fidelity": (0.1, 0.8, 2.0)},
    "apfl": {"mixing": (0.25, 0.5, 0.75)},
    "fedala": {"mixing_rate": (0.1, 1.0, 10.0)},
    "apple": {"proximal": (0.01, 0.1, 1.0)},
    "cobo": {"attraction": (0.3, 1.0)},
    "trimmed-mean": {"trimmed_share": (0.2, 0.4)},
    "krum": {"bad_share": (0.2, 0.4)},
    "ditto": {"proximal": (0.05, 0.1, 0.2)},
    "pfedme": {"proximal": (5.0, 10.0, 15.0)},
}
"""What is chosen besides the step size: values of `Method.tuning_grid`, six or nine combinations in all."""

PULLED_RATES = (0.05, 0.02)
"""pFedMe's step sizes: γλ has to be below 1."""
PULLED_PERIOD = 20
"""Its local rounds, each of up to 20 steps."""

OWN_CAPS = (0.34, 1.0)
"""Bi-level's choice where every node is an owner: how much of its weight its own node may have, about as
much as another one or all. With one owner nothing is chosen: the automatic preset does it."""
OWN_CAPS_OF_FEW = (0.5, 1.0)
"""The same with four nodes, whose cap is a half."""

LONG_STEPS = {"finetune": 5, "tawt": 5}
"""Synchronizations of a step that begins or ends with something else than training; all others have 1."""


NUMBERS = "numbers"
SEES: Mapping[str, str] = {"bilevel": NUMBERS, "tawt": NUMBERS, "ifca": NUMBERS, "local": "–"}
"""What a method sees of single nodes, if it is neither their models (`Method.reveals_models`) nor nothing."""


def seen_by(method: str) -> str:
    """Return what a method sees of single nodes."""
    return "models" if method_class(method).reveals_models else SEES.get(method, "nothing")


def method_names() -> list[str]:
    """Return all methods of the package, in the order of tables."""
    return [name for name in METHODS.names() if ":" not in name]


def settings_of(method: str, period: int) -> dict[str, Any]:
    """Return what is fixed for a method."""
    if method == "bilevel":
        return {}
    found: dict[str, Any] = {"period": period, "rounds": LONG_STEPS.get(method, 1)}
    if method == "pfedme":
        found["period"] = PULLED_PERIOD
    if method == "ditto":
        found["personal_steps"] = period
    return found


def choices_of(
    method: str, model: str, *, owner_caps: Sequence[float] = ()
) -> dict[str, list[Any]]:
    """Return what is chosen for a method, with the values to choose from."""
    if method == "bilevel":
        return {"own_cap": list(owner_caps)} if owner_caps else {}
    rates = LINEAR_RATES if model == "logistic" else NETWORK_RATES
    own = OWN_SETTINGS.get(method, {})
    if own:
        rates = PULLED_RATES if method == "pfedme" else rates[1:4]
    return {"learning_rate": list(rates)} | {name: list(values) for name, values in own.items()}


def combinations(choices: Mapping[str, Sequence[Any]]) -> int:
    """Return how many combinations there are to choose from."""
    return math.prod(len(values) for values in choices.values())


def read_study(name: str, methods: Sequence[str] | None = None) -> StudyConfig:
    """Read a study, for all methods or some."""
    content, period = _read_file(name)
    chosen = [each for each in method_names() if methods is None or each in methods]
    for each in methods or ():
        method_class(each)  # with a message of its own
    caps = OWN_CAPS if "partition" in content else ()
    tuned = {each: choices_of(each, content["model"], owner_caps=caps) for each in chosen}
    common = {
        "method": chosen,
        "seed": list(SEEDS),
        "synchronizations": SYNCHRONIZATIONS,
        "tune_seed": TUNING_SEED,
        "tune_once": True,
        "tune_synchronizations": TUNING_SYNCHRONIZATIONS,
        "settings": {each: settings_of(each, period) for each in chosen},
        "tune": {each: choices for each, choices in tuned.items() if choices},
    }
    if not common["tune"]:
        common = {key: value for key, value in common.items() if not key.startswith("tune")}
    return check_study(content | common, name)


def cells_of(name: str) -> list[RunConfig]:
    """Return a run for each cell of a study."""
    content, _ = _read_file(name)
    return check_study(content | {"method": "local", "seed": SEEDS[0]}, name).runs()


def _read_file(name: str) -> tuple[dict[str, Any], int]:
    """Return the federations of a study, and the local steps per synchronization."""
    content = tomllib.loads((STUDIES / f"{name}.toml").read_text(encoding="utf-8"))
    return content, content.pop("leaderboard")["period"]
