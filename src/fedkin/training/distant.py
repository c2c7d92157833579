"""Owners whose rows stay at their nodes: everyone's question in a real federation."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fedkin.federation.attendance import AttendedFederation
from fedkin.federation.distant_center import DistantCenter
from fedkin.federation.owners import ALONE, VALIDATION
from fedkin.federation.together import Meeting
from fedkin.training.joint import JointProblem
from fedkin.training.problem import Problem


class HeldOutRows(NamedTuple):
    """How many rows a node has held out for its own question."""

    validation: int
    test: int = 0


@dataclass(frozen=True, eq=False)
class DistantProblem(JointProblem):
    """The problem of `JointProblem` where every node is an owner, and only the model is here."""

    @classmethod
    def of_nodes(
        cls,
        federation: AttendedFederation,
        held_out: Mapping[str, HeldOutRows],
        *,
        seed: int,
        classes: np.ndarray | None,
        point_shape: tuple[int, ...],
    ) -> "DistantProblem":
        """Make every node of a federation an owner.

        Args:
            federation: The nodes, which answer questions about the rows that they hold out.
            held_out: How many rows each of them has held out.
            seed: Decides everything random, for every owner alike.
            classes: The label of each class; None for regression.
            point_shape: The shape of one raw input point.
        """
        tested = all(rows.test for rows in held_out.values())
        problems = {}
        for name in federation.names:
            rows = held_out[name]
            center = DistantCenter(federation.objective, rows.validation, rows.test * tested)
            problems[name] = Problem(
                federation=federation,
                center=center,
                test=center.test,
                seed=seed,
                classes=classes,
                point_shape=point_shape,
            )
        return cls(federation, federation, problems, dict.fromkeys(problems))

    def connect(self, meeting: Meeting, name: str) -> Problem:
        """Return an owner's problem, with its views of all nodes and of the node that it is."""
        engine, problem = self.federation, self.problems[name]
        assert isinstance(engine, AttendedFederation)
        assert isinstance(problem.center, DistantCenter)
        own = [engine.names.index(name)]
        alone, node = (
            meeting.view_of(engine, engine.add_owner(own, part)) for part in (ALONE, VALIDATION)
        )
        view = meeting.view_of(engine, engine.add_owner())
        center = problem.center.connected(alone, node).with_own_node(own[0])
        return replace(problem, federation=view, center=center)
