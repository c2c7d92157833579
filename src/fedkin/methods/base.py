"""What a method is: settings, a title, tasks for the nodes, and `init` and `step` for the center."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar

from fedkin.errors import InputError
from fedkin.federation.base import Cost, Federation
from fedkin.federation.center import Center
from fedkin.federation.task import Task
from fedkin.messages import suggestion
from fedkin.methods.settings import Settings, choice, count, positive
from fedkin.models.base import LinearModel
from fedkin.models.objective import Objective
from fedkin.types import Array, Key, Vector

State = TypeVar("State")

PresetName = Literal["automatic", "paper"]

Keep = Literal["best", "last", "random"]
"""Which iterate is the result: the best on the validation data, the last, or a uniformly random one."""


@dataclass(frozen=True)
class Info:
    """What a step reports: the model to evaluate, what it cost, and diagnostics."""

    theta: Vector
    """The model after this step."""
    node_weights: Array | None
    """The weights that the model was trained with; None where nodes have no weights."""
    cost: Cost
    diagnostics: dict[str, float] = field(default_factory=dict)
    """Numbers worth a column in the history."""
    warnings: tuple[str, ...] = ()
    """What went wrong and was mended, in sentences."""
    stop: str | None = None
    """Why no further step is worth taking, or None."""
    silent_rounds: int = 0
    """Rounds of training that sent nothing, but count against a budget of synchronizations, so that
    methods without communication train as long as the others."""


class Algorithm(Protocol[State]):
    """A method whose settings are all chosen. It is a frozen dataclass; its state is a NamedTuple."""

    def init(self, theta: Vector, nodes: int) -> State:
        """Return the state before the first step, given the initial model and the number of nodes."""
        ...

    def step(
        self, state: State, key: Key, federation: Federation, center: Center
    ) -> tuple[State, Info]:
        """Take one outer step."""
        ...


@dataclass(frozen=True, kw_only=True)
class Method(Settings):
    """A way of learning, with its settings as fields. Derive from it to write your own.

    A method either has `init` and `step` itself, or `prepare` returns an algorithm that has them.
    docs/extend.md has a complete example.

    >>> from fedkin.methods.fedavg import FedAvg
    >>> FedAvg.name, FedAvg.setting_names()[:3], [task.name for task in FedAvg.tasks]
    ('fedavg', ('preset', 'learning_rate', 'period'), ['inner_svrg_round', 'smoothness'])
    """

    name: ClassVar[str]
    """What it is called in files and on the command line."""
    title: ClassVar[str]
    """What it is called in tables and figures."""
    color: ClassVar[str]
    """Its color in figures, as #rrggbb; dark enough for thin lines on white."""
    dark_color: ClassVar[str | None] = None
    """The same for dark backgrounds; None if one color serves both."""
    marker: ClassVar[str] = "v"
    """Its marker in figures, by Matplotlib's letter."""
    dashes: ClassVar[tuple[float, ...]] = (9, 3)
    """Its dashes in figures: lengths of lines and gaps; none for a solid line."""
    tasks: ClassVar[tuple[Task, ...]] = ()
    """All that its nodes may be asked to do."""
    weighs_nodes: ClassVar[bool] = False
    """Whether it learns a weight for every node."""
    reveals_models: ClassVar[bool] = False
    """Whether it asks for single nodes' models (`Revealed`), so that sums cannot be secure."""
    tuning_grid: ClassVar[Mapping[str, Sequence[Any]]] = {}
    """The values that its settings are tuned over."""

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Make the method that some settings describe; an unknown setting is an error."""
        for name in settings:
            if name not in cls.setting_names():
                raise InputError(
                    f"{name} is not a setting of the method {cls.name!r}"
                    f"{suggestion(name, cls.setting_names())}"
                )
        return super().from_settings(settings)

    def check(self, nodes: int) -> None:
        """Refuse settings that do not suit a federation of this many nodes, before any work."""

    def largest_share(self, nodes: int) -> float:
        """Return the largest share that a node has in a weighted sum over all of this many nodes."""
        return 1.0

    def prepare(
        self, federation: Federation, center: Center, key: Key
    ) -> tuple[Algorithm[Any], Cost]:
        """Choose what is open, asking the nodes if need be.

        Returns:
            The algorithm, and what asking has cost.
        """
        return self, Cost()  # pyright: ignore[reportReturnType] - init and step are the subclass's

    def for_budget(self, *, limited: bool) -> "Method":
        """Return the method as it suits a run that has a budget, or none."""
        return self

    def resumed(self, parameters: Mapping[str, Any]) -> "Method":
        """Return the method with what an interrupted run had chosen.

        Args:
            parameters: The parameters of the interrupted run's algorithm, as its checkpoint has them.
        """
        return self

    @property
    def asks_all(self) -> bool:
        """Whether nodes of weight zero are asked too by default."""
        return False

    @property
    def default_steps(self) -> int | None:
        """The largest number of outer steps where nothing else limits a run; None for no limit."""
        return 50

    def steps_for(self, objective: Objective) -> int | None:
        """Return that number for a model, where it makes a difference."""
        return self.default_steps

    def default_keep(self, objective: Objective) -> Keep:
        """Return which iterate is the result by default."""
        return "best"


@dataclass(frozen=True, kw_only=True)
class TrainedMethod(Method):
    """What fedkin's own methods have in common: training in rounds of local steps, and presets.

    Args:
        preset: Where open settings come from: `automatic` (from the data), or `paper` (the fixed values
            of the paper's experiments).
        learning_rate: The step size γ of training.
        period: The number τ of local steps between two synchronizations.
        rounds: The synchronizations of one training run within an outer step.
    """

    learning_rate_place: ClassVar[tuple[str, ...]] = ()
    """Where the step size stands among the parameters of the algorithm."""

    preset: PresetName = choice("automatic", "automatic", "paper")
    learning_rate: float | None = positive()
    period: int | None = count()
    rounds: int | None = count()

    @classmethod
    def paper(cls, **settings: Any) -> Self:
        """Return the method with the values of the paper's experiments, but for some settings."""
        return cls.from_settings({"preset": "paper", **settings})

    @classmethod
    def automatic(cls, **settings: Any) -> Self:
        """Return the method with values chosen from the data, but for some settings."""
        return cls.from_settings({"preset": "automatic", **settings})

    def resumed(self, parameters: Mapping[str, Any]) -> "TrainedMethod":
        """Continue with the same step size: nodes asked again might lead to another."""
        if self.learning_rate is not None:
            return self
        found: Any = parameters
        try:
            for name in (*self.learning_rate_place, "learning_rate"):
                found = found[name]
            return replace(self, learning_rate=float(found))
        except (KeyError, TypeError, ValueError):
            return self

    @property
    def asks_all(self) -> bool:
        """With the paper's preset, as the paper counts."""
        return self.preset == "paper"

    @property
    def default_steps(self) -> int:
        """20 with the paper's preset, else 50."""
        return 20 if self.preset == "paper" else 50

    def default_keep(self, objective: Objective) -> Keep:
        """The last where steps end at convergence, else the best, as in the paper."""
        return "last" if self.is_convex(objective) else "best"

    def is_convex(self, objective: Objective) -> bool:
        """Whether training is convex, with settings chosen from the data."""
        return self.preset == "automatic" and isinstance(objective.model, LinearModel)

    def chosen_period(self, objective: Objective) -> int:
        """Return the local steps between two synchronizations."""
        return self.period or (10 if self.is_convex(objective) else 20)

    def chosen_rounds(self, objective: Objective) -> int:
        """Return the synchronizations of one training run, where the paper does not decide them."""
        return self.rounds or (40 if self.is_convex(objective) else 20)

    @property
    def usual_learning_rate(self) -> float:
        """The step size for models whose curvature is not known."""
        return 0.02 if self.preset == "paper" else 0.05
