"""Algorithms 2 and 3 with the parameters that the paper's theory asks for, iteration by iteration."""

from dataclasses import dataclass, replace
from functools import cached_property

from fedkin.federation.base import Federation
from fedkin.federation.center import Center
from fedkin.methods.base import Info
from fedkin.methods.bilevel.hypergradient import SvrgSolver
from fedkin.methods.bilevel.outer import AcceleratedBilevel, BilevelState, ProximalBilevel
from fedkin.methods.local_svrg.center import LocalSvrg
from fedkin.theory.schedules import Schedule
from fedkin.types import Key, Vector


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
        return algorithm(
            cap=schedule.cap,
            inner=inner,
            solve=SvrgSolver(inner),
            warm_start=False,
            outer_learning_rate=schedule.outer_learning_rate,
        )
