"""What a run is, exactly; and studies, which are many runs, from TOML files."""

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    model_validator,
)

from fedkin.data.bad_nodes import BadNodes
from fedkin.data.federated import Target
from fedkin.data.scenarios import Scenario, load_scenario
from fedkin.errors import InputError
from fedkin.messages import check_printable
from fedkin.methods.base import Keep, Method
from fedkin.methods.registry import PAPER_METHODS, make_method, method_class
from fedkin.methods.settings import LARGEST_SEED
from fedkin.models.named import MODELS
from fedkin.studies.partition_config import (
    SETTING_FIELDS,
    Listed,
    OneOrMore,
    PartitionConfig,
    PartitionFields,
    StudyTarget,
    as_list,
    partitions_of,
)

FORMAT = 1
"""The version of the layout of results; directories of another version are refused."""

DEFAULT_PRESET = "automatic"
"""Where the open parameters of a run come from if its study names no preset."""

FORMER_DEFAULT_PRESET = "paper"
"""The same in version 0.1, whose `study.json` names a preset only where the study's file did."""

SettingNumber = Literal[1, 2, 3, 4]

TARGETS = (*get_args(Target), "all")


def _known_method(name: str) -> str:
    method_class(name)
    return name


def _known_model(name: str) -> str:
    MODELS.get(name)
    return name


Name = Annotated[str, AfterValidator(check_printable)]
MethodName = Annotated[str, AfterValidator(_known_method)]
ModelName = Annotated[str, AfterValidator(_known_model)]
Share = Annotated[float, Field(gt=0, lt=1)]


class RunConfig(BaseModel):
    """One run: a method on a federation with a seed. The same config always gives the same result."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataset: Name
    setting: SettingNumber | Name
    """Setting 1-4 of the paper, the name of the declared one, or the title of the partition."""
    declared: Scenario | None = None
    """A setting that is not one of the paper's, in full, so that an edited file is another run."""
    partition: PartitionConfig | None = None
    """How the data set is divided among nodes who all are owners; None for a setting."""
    bad: BadNodes | None = None
    """Which nodes are bad, and what is wrong with them; None if none is."""
    target: StudyTarget = "minority"
    method: MethodName = "bilevel"
    seed: Annotated[int, Field(ge=0, le=LARGEST_SEED)] = 0
    model: ModelName = "cnn"
    synchronizations: PositiveInt | None = 800
    """The budget; no outer step begins that would probably exceed it."""
    points: PositiveInt | None = None
    """The same for points processed by the busiest node."""
    steps: PositiveInt | None = None
    """The largest number of outer steps."""
    keep: Keep | None = None
    """Which iterate is the result; by default the one of the best validation accuracy, as in the paper."""
    ask_all: bool | None = None
    """Whether nodes of weight zero are asked too; by default only with the paper's preset. None and True
    are the same run, as earlier versions asked all."""
    batch_size: PositiveInt = 50
    minority_nodes: NonNegativeInt = 5
    majority_nodes: NonNegativeInt = 10
    train_size: PositiveInt | None = None
    """Points per node; None for the setting's own number. Likewise for the next two."""
    validation_size: PositiveInt | None = None
    test_size: PositiveInt | None = None
    held_out: Share | None = None
    """The share of the owner's points by which it judges, if it trains alone on the others only; by default
    all of them do both, as in the paper."""
    settings: dict[str, Any] = {}
    """The parameters of the method that are not left open."""

    @model_validator(mode="after")
    def _settings_in_their_types(self) -> "RunConfig":
        names = method_class(self.method).setting_names()
        given = {name: value for name, value in self.settings.items() if value is not None}
        if "preset" in names:
            given = {"preset": DEFAULT_PRESET, **given}
        # In one order, and an integer that stands for a real number as one: a run has one description.
        ordered = {name: given[name] for name in [*names, *given] if name in given}
        typed = make_method(self.method, ordered).typed_settings(ordered)
        object.__setattr__(self, "settings", typed)
        asks_all = self.chosen_method.asks_all if self.ask_all is None else self.ask_all
        object.__setattr__(self, "ask_all", None if asks_all else False)
        return self

    @property
    def chosen_method(self) -> Method:
        """The method with its parameters."""
        return make_method(self.method, self.settings)

    @property
    def setting_title(self) -> str:
        """The setting with its bad nodes, if there are any: what distinguishes cells of a data set."""
        if self.bad is None:
            return str(self.setting)
        number = str(self.setting).isdigit()
        return f"{'setting ' if number else ''}{self.setting}, {self.bad.title}"

    @property
    def cell(self) -> str:
        """The cell of the paper's table that the run belongs to."""
        kind = "setting " if self.partition is None and self.bad is None else ""
        return f"{self.dataset} {kind}{self.setting_title} {self.target}"

    @property
    def node_names(self) -> tuple[str, ...]:
        """The names of the nodes of a setting, before some of them are absent."""
        counts = {"minority": self.minority_nodes, "majority": self.majority_nodes}
        return tuple(
            f"{group}-{number}" for group, count in counts.items() for number in range(1, count + 1)
        )

    @property
    def node_count(self) -> int | None:
        """How many nodes the run has; None if its data decide."""
        if self.partition is None:
            absent = (
                len(self.bad.nodes) if self.bad is not None and self.bad.kind == "absent" else 0
            )
            return len(self.node_names) - absent
        return self.partition.partition.node_count

    @property
    def directory(self) -> str:
        """The name of the run's directory: readable, and unique for the config.

        What is left open does not count, so that a field added to a later version, open by default,
        leaves the names of earlier runs alone.
        """
        text = json.dumps(self.model_dump(mode="json", exclude_none=True), sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        dataset = Path(self.dataset).name
        if self.partition is None:
            setting = Path(str(self.setting)).stem
        else:
            setting = re.sub(r"[^A-Za-z0-9_.]+", "-", str(self.setting))
        method = re.sub(r"[^A-Za-z0-9_.]+", "-", self.method)
        return f"{dataset}-{setting}-{self.target}-{method}-{self.seed}-{digest}"


def refused(error: ValidationError) -> InputError | None:
    """Return the reason if a config names something that is not known here, such as a package's method."""
    for each in error.errors():
        cause = each.get("ctx", {}).get("error")
        if isinstance(cause, InputError):
            return cause
    return None


class StudyConfig(PartitionFields, BaseModel):
    """Many runs: every combination of the listed values, every method with its own parameters."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataset: Annotated[list[Name], OneOrMore]
    setting: Annotated[list[SettingNumber | Name], OneOrMore] = [1, 2, 3, 4]
    bad: Annotated[list[BadNodes] | None, Listed] = None
    """Tables `[[bad]]`: one run for each, with these bad nodes."""
    target: Annotated[list[StudyTarget], OneOrMore] = ["minority"]
    method: Annotated[list[MethodName], OneOrMore] = list(PAPER_METHODS)
    seed: Annotated[list[Annotated[int, Field(ge=0, le=LARGEST_SEED)]], OneOrMore] = [0]
    model: ModelName = "cnn"
    synchronizations: PositiveInt | None = 800
    points: PositiveInt | None = None
    steps: PositiveInt | None = None
    keep: Keep | None = None
    ask_all: bool | None = None
    batch_size: PositiveInt = 50
    minority_nodes: NonNegativeInt = 5
    """The number of nodes in a group may be 0, for a federation of the other group alone."""
    majority_nodes: NonNegativeInt = 10
    train_size: PositiveInt | None = None
    validation_size: PositiveInt | None = None
    test_size: PositiveInt | None = None
    held_out: Share | None = None
    settings: dict[str, Any] = {}
    """Parameters of all methods that know them; `settings.METHOD` holds those of one method. A list
    is a grid: one run for each value. `settings.preset` says where open parameters come from."""
    tune: dict[MethodName, dict[str, list[Any]]] = {}
    """For each method, lists of values to choose from by short runs on the first seed."""
    tune_seed: Annotated[int, Field(ge=0, le=LARGEST_SEED)] | None = None
    """The seed of these runs, if not the study's first."""
    tune_once: bool = False
    """Whether they are done in the study's first cell only, for all cells."""
    tune_steps: PositiveInt = 5
    """The outer steps of such a run."""
    tune_synchronizations: PositiveInt | None = None
    """The synchronizations of such a run, in place of steps: for parameters that decide how many an outer
    step takes."""
    follow_bilevel: bool = False
    """Whether the other methods take the γ and τ that tuning chose for Bi-level in the same cell."""

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "StudyConfig":
        """Make the study that `study.json` describes."""
        settings = {"preset": FORMER_DEFAULT_PRESET, **record.get("settings", {})}
        return cls.model_validate({**record, "settings": settings})

    def to_record(self) -> dict[str, Any]:
        """Describe the study for `study.json`, with its preset, so that other defaults do not change it."""
        record = self.model_dump(mode="json")
        return record | {"settings": {"preset": DEFAULT_PRESET, **self.settings}}

    def runs(self) -> list[RunConfig]:
        """Return every run of the study, once; parameters to be tuned are left open."""
        return list({run.directory: run for run in self._combinations()}.values())

    def _combinations(self) -> Iterator[RunConfig]:
        for dataset in self.dataset:
            for division, target, method in itertools.product(
                self._divisions(dataset), self.target, self.method
            ):
                for parameters, seed in itertools.product(self._grid(method), self.seed):
                    make_method(method, parameters)  # with a message of its own
                    yield RunConfig(
                        dataset=dataset,
                        target=target,
                        method=method,
                        seed=seed,
                        settings=parameters,
                        **division,
                    )

    def _divisions(self, dataset: str) -> Iterator[dict[str, Any]]:
        """Yield, for each way of dividing a data set among nodes, what its runs have in common."""
        own = {*GRID_FIELDS, "settings", "declared", "partition", "bad"}
        common = self.model_dump(include=set(RunConfig.model_fields) - own)
        for partition in partitions_of(self, dataset):
            # How many nodes the two groups have is part of the partition.
            shared = {name: common[name] for name in common if name not in SETTING_FIELDS}
            yield shared | {"setting": partition.title, "partition": partition}
        for setting in self.setting if self.partition is None else ():
            declared = load_scenario(Path(setting)) if isinstance(setting, str) else None
            name = setting if declared is None else declared.name
            for bad in self.bad or (None,):
                yield common | {"setting": name, "declared": declared, "bad": bad}

    def choices(self, method: str) -> dict[str, list[Any]]:
        """Return what tuning decides for a method: its own parameters, and those taken from Bi-level."""
        found = dict(self.tune.get(method, {}))
        if self.follow_bilevel and method != "bilevel":
            leaders = [run.settings for run in self.runs() if run.method == "bilevel"]
            fixed = {name: [run[name] for run in leaders if name in run] for name in FOLLOWED}
            tuned = self.tune["bilevel"]
            found |= {name: tuned.get(name, fixed[name]) for name in FOLLOWED}
        return {name: values for name, values in found.items() if values}

    def asked_for(self, done: Iterable[RunConfig]) -> list[RunConfig]:
        """Return the runs that are the study's, whatever of its choices tuning has made for them."""
        asked: dict[tuple[str, str, int], list[RunConfig]] = {}
        for run in self.runs():
            asked.setdefault((run.cell, run.method, run.seed), []).append(run)
        choices = {method: self.choices(method) for method in self.method}
        return [
            run
            for run in done
            if any(
                with_same_choices(run, each, choices[run.method]) == run
                for each in asked.get((run.cell, run.method, run.seed), [])
            )
        ]

    def candidates(self, run: RunConfig) -> list[RunConfig]:
        """Return the short runs that decide the open parameters of a run, on one seed."""
        lists = self.tune.get(run.method, {})
        if not lists:
            return []
        seed = self.seed[0] if self.tune_seed is None else self.tune_seed
        if self.tune_once:
            first = next(self._combinations())
            run = run.model_copy(update={name: getattr(first, name) for name in CELL_FIELDS})
        steps = self.tune_steps if self.tune_synchronizations is None else None
        budget = {"steps": steps, "synchronizations": self.tune_synchronizations}
        return [
            with_settings(run, dict(zip(lists, values, strict=True))).model_copy(
                update={"seed": seed, **budget}
            )
            for values in itertools.product(*lists.values())
        ]

    def _grid(self, method: str) -> Iterator[dict[str, Any]]:
        """Yield each combination of a method's parameters."""
        known = method_class(method).setting_names()
        parameters = {name: value for name, value in self.settings.items() if name in known}
        parameters |= self.settings.get(method, {})
        names = list(parameters)
        for values in itertools.product(*(as_list(parameters[name]) for name in names)):
            yield dict(zip(names, values, strict=True))


FOLLOWED = ("learning_rate", "period")
"""The parameters that the other methods take from Bi-level: γ and τ."""

GRID_FIELDS = ("dataset", "setting", "target", "method", "seed")

CELL_FIELDS = ("dataset", "setting", "declared", "partition", "bad", "target")
"""What distinguishes the cells of a study; methods are compared within a cell."""


def with_settings(run: RunConfig, chosen: Mapping[str, Any]) -> RunConfig:
    """Return the run with some parameters of its method replaced."""
    settings = {**run.settings, **chosen}
    make_method(run.method, settings)  # with a message of its own
    return RunConfig(**{**dict(run), "settings": settings})


def with_same_choices(
    other: RunConfig, run: RunConfig, choices: Mapping[str, list[Any]]
) -> RunConfig | None:
    """Return a run with the parameters that another has; None if they are not among the choices."""
    given = other.settings
    if all(given.get(name) in values for name, values in choices.items()):
        return with_settings(run, {name: given[name] for name in choices})
    return None
