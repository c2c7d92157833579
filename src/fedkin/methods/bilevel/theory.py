"""Algorithms 2 and 3 with the parameters that the paper's theory asks for, iteration by iteration."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

from fedkin.errors import InputError
from fedkin.federation.base import Cost, Federation, PerNode
from fedkin.federation.center import Center
from fedkin.methods.base import Info, Keep, Method
from fedkin.methods.bilevel.method import Bilevel, default_cap
from fedkin.methods.bilevel.node import CONSTANTS
from fedkin.methods.bilevel.outer import (
    AcceleratedBilevel,
    BilevelState,
    Differentiation,
    ProximalBilevel,
)
from fedkin.methods.bilevel.solvers import LocalSvrgSolver
from fedkin.methods.local_svrg.center import LocalSvrg
from fedkin.methods.settings import choice, count, flag, positive, share
from fedkin.models.linear import Logistic, Ridge
from fedkin.models.objective import Objective
from fedkin.numerics.simplex import check_cap
from fedkin.theory.constants import NodeSummary, constants
from fedkin.theory.schedules import Schedule
from fedkin.types import Key, Vector

MOST_SYNCHRONIZATIONS = 1_000_000
"""A plan beyond this is refused unless the user limits it: its worst-case constants ask for weeks."""


@dataclass(frozen=True, kw_only=True)
class TheoryBilevel(Method):
    """Bi-level with all step sizes and numbers of steps from the paper's theory (ridge and logistic only).

    It is slow: the constants are those of the worst case (docs/theory.md).

    Args:
        epsilon: How near to its minimum the validation loss (with its regularizer) shall come in
            expectation, if it is convex in the weights; for Algorithm 3, how small the stationarity
            measure shall be.
        outer: Algorithm 2 (`accelerated`), which keeps its promise only where the validation loss is a
            convex function of the weights, or Algorithm 3 (`proximal`).
        cap: The largest weight b of a node.
        period: The number τ of local steps between two synchronizations.
        refresh_probability: The probability q of renewing a reference point in a step.
        limited: Whether the run has a budget, so that a plan of more than a million synchronizations
            may begin.

    >>> TheoryBilevel(epsilon=0.1).outer
    'accelerated'
    """

    name: ClassVar[str] = "bilevel"
    title: ClassVar[str] = "Bi-level"
    color: ClassVar[str] = Bilevel.color
    tasks = (*Bilevel.tasks, CONSTANTS)
    weighs_nodes: ClassVar[bool] = True

    epsilon: float = positive()
    outer: Literal["accelerated", "proximal"] = choice("accelerated", "accelerated", "proximal")
    cap: float | None = share()
    period: int = count(1)
    refresh_probability: float = share(0.1)
    limited: bool = flag(False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epsilon is None:
            raise InputError(
                "TheoryBilevel needs epsilon: how close to its minimum the validation loss must get"
            )

    @property
    def asks_all(self) -> bool:
        """As the analysis counts."""
        return True

    @property
    def default_steps(self) -> None:
        """No limit: the schedule ends by itself."""
        return

    def default_keep(self, objective: Objective) -> Keep:
        """The iterate that the theorem is about."""
        return "random" if self.outer == "proximal" else "last"

    def for_budget(self, *, limited: bool) -> "TheoryBilevel":
        """Begin a long plan only if the run has a budget."""
        return replace(self, limited=self.limited or limited)

    def check(self, nodes: int) -> None:
        """Refuse a cap that does not suit the number of nodes."""
        if self.cap is not None:
            check_cap(self.cap, nodes)

    def prepare(
        self, federation: Federation, center: Center, key: Key
    ) -> tuple["ScheduledBilevel", Cost]:
        """Ask the nodes for their constants and make the schedule."""
        nodes = len(federation.names)
        self.check(nodes)
        if not isinstance(federation.objective.model, (Ridge, Logistic)):
            raise InputError(
                "schedule='theory' needs constants that only the models ridge and logistic have"
            )
        names = NodeSummary._fields
        reply = federation.exchange(theory=PerNode(CONSTANTS), key=key)
        own = center.alone.exchange(theory=PerNode(CONSTANTS), key=key)
        schedule = Schedule(
            constants(
                NodeSummary(**{name: reply.theory[name] for name in names}),
                NodeSummary(**{name: own.theory[name][0] for name in names}),
            ),
            nodes,
            cap=self.cap if self.cap is not None else default_cap(nodes),
            outer_problem="non-convex" if self.outer == "proximal" else "convex",
            period=self.period,
            refresh_probability=self.refresh_probability,
        )
        algorithm = ScheduledBilevel(schedule, self.epsilon)
        if algorithm.rounds > MOST_SYNCHRONIZATIONS and not self.limited:
            found = schedule.constants
            raise InputError(
                f"for epsilon={self.epsilon:g} the theory asks for {algorithm.iterations:,} outer steps "
                f"and about {algorithm.rounds:.1e} synchronizations (ℓ_0 = {found.lipschitz:.3g}, "
                f"ℓ_1 = {found.smoothness:.3g}, μ = {found.strong_convexity:.3g}): take a larger epsilon "
                "or l2, scale the data down, or begin such a run with steps=… or synchronizations=…"
            )
        return algorithm, reply.cost


@dataclass(frozen=True)
class ScheduledBilevel:
    """Algorithm 2 (convex F) or 3 (non-convex F) that ends when ε is promised.

    Local-SVRG starts from zero and returns the average of its iterates, for θ and for h alike, as the
    analysis has it; γ and the number of its steps follow the schedule.

    Args:
        schedule: γ, T_s and η.
        epsilon: The accuracy to reach, in expectation.
    """

    schedule: Schedule
    epsilon: float

    @cached_property
    def iterations(self) -> int:
        """The number S of outer iterations after which ε is promised."""
        return self.schedule.iterations(self.epsilon)

    @property
    def rounds(self) -> float:
        """How many synchronizations that takes, in all."""
        solves = 3 if self.schedule.outer_problem == "convex" else 2
        return solves / 2 * self.schedule.rounds(self.iterations) + self.iterations

    def init(self, theta: Vector, nodes: int) -> BilevelState:
        """Begin with equal weights."""
        return self._at(0).init(theta, nodes)

    def step(
        self, state: BilevelState, key: Key, federation: Federation, center: Center
    ) -> tuple[BilevelState, Info]:
        """Take one outer iteration, with its own γ and number of steps."""
        done = state.iteration + 1
        state, info = self._at(state.iteration).step(state, key, federation, center)
        promised = self.schedule.promised(done)
        stop = None
        if done >= self.iterations:
            what = (
                "(for convex F) a validation loss at most this much above its minimum"
                if self.schedule.outer_problem == "convex"
                else "a stationarity measure of at most this"
            )
            stop = (
                f"finished: after {done} outer steps the theory promises {what}, in expectation: "
                f"{promised:.3g} (epsilon={self.epsilon:g})"
            )
        info = replace(info, diagnostics=info.diagnostics | {"promised": promised}, stop=stop)
        return state, info

    def _at(self, iteration: int) -> AcceleratedBilevel | ProximalBilevel:
        schedule = self.schedule
        plan = schedule.inner(iteration)
        inner = LocalSvrg(
            learning_rate=plan.learning_rate,
            period=schedule.period,
            rounds=plan.rounds,
            refresh_probability=schedule.refresh_probability,
            strong_convexity=schedule.constants.strong_convexity,
            result="average",
        )
        algorithm = AcceleratedBilevel if schedule.outer_problem == "convex" else ProximalBilevel
        solver = LocalSvrgSolver(training=inner)
        differentiation = Differentiation(schedule.cap, inner, solver, warm_start=False)
        return algorithm(differentiation, schedule.outer_learning_rate)
