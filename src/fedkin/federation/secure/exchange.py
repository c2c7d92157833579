"""One owner's part of an exchange whose weighted sums are secure.

A sum is complete when all of its members have answered. If one has not, what the others have sent is of no
use: they are all asked again, under a new number and without the one that is missing. If too few would be
left, the same nodes are asked again, until all of them answer or one is dropped.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from fedkin.errors import DivergedError, FedkinError
from fedkin.federation.aggregate import combine
from fedkin.federation.attended_exchange import (
    FEWEST_NODES,
    Answer,
    Assignment,
    AttendedExchange,
    Block,
    cost_of,
)
from fedkin.federation.base import Reply, Request, WeightedSum
from fedkin.federation.owners import Ask
from fedkin.federation.secure.book import SumBook
from fedkin.federation.secure.checks import adds_up
from fedkin.federation.secure.orders import (
    FEWEST_SUMMED,
    WORDS,
    SumOrder,
    SumRow,
    choose_exponents,
    fits,
    is_useful,
    read_sum,
    weighted_norms,
)
from fedkin.federation.secure.refusals import refuse_revealed, too_few_in_sum
from fedkin.types import Array

MOST_NOISE = 2
"""How often the words of all nodes may not add up before an owner gives up."""


class LostSumError(FedkinError):
    """Too few nodes are there for a sum; the run's checkpoint is there to resume from."""


class _Asked(NamedTuple):
    """What was asked for in the present round, for one sum."""

    request: WeightedSum
    members: np.ndarray
    """Bools of shape (models, nodes)."""
    orders: dict[int, SumOrder]


class SecureExchange(AttendedExchange):
    """What an owner asks for, and what has been answered so far. See `AttendedExchange`.

    Args:
        ask: What the owner asks for.
        present: Returns which of its nodes take part.
        size: The number d of the model's parameters.
        names: The names of the owner's nodes.
        book: The record of the run's sums.
    """

    def __init__(
        self,
        ask: Ask,
        present: Callable[[], np.ndarray],
        size: int,
        names: np.ndarray,
        book: SumBook,
    ) -> None:
        for request in ask.requests.values():
            refuse_revealed(request)
        super().__init__(ask, present, size)
        self._names, self._book = names, book
        self._number = book.next_exchange()
        self._left_out: set[int] = set()
        self._asked_sums: dict[str, _Asked] = {}
        self._sums: dict[str, dict[str, Array]] = {}
        self._numbers: dict[str, dict[int, Mapping[str, np.ndarray]]] = {}
        self._begun: dict[str, list[tuple[int, int]]] = {}  # models and nodes, by slot
        self._too_long: dict[str, set[int]] = {}
        """Nodes whose numbers did not fit, by the request: the next scale is chosen by what they said."""
        self._noise: dict[str, int] = {}
        """How often the words of all nodes did not add up, by the request."""

    def blocks(self) -> dict[int, Block]:
        """Return what is to be asked, by the nodes' places in the engine."""
        owner = self.ask.owner
        if any(times >= MOST_NOISE for times in self._noise.values()):
            raise LostSumError(
                "the words of the nodes do not add up to anything that is as long as they say: one of them "
                "sends wrong words, and masks hide which. Ask the owners, and continue without that node, or "
                "with plain sums (--plain-sums)"
            )
        self._requests = {
            name: each if name in self._sums else self._for_those_present(each)
            for name, each in self._requests.items()
        }
        assignments: dict[int, dict[str, Assignment]] = {}
        self._asked_sums = {}
        for name, request in self._requests.items():
            if isinstance(request, WeightedSum):
                found = {} if name in self._sums else self._assign_sum(name, request)
            else:
                found = self._assign_numbers(name, request)
            for node, own in found.items():
                assignments.setdefault(node, {})[name] = own
        self._assignments = assignments
        self.complete = not assignments
        return {
            int(owner.nodes[node]): Block(owner.trail, owner.part, self.ask.key, own)
            for node, own in sorted(assignments.items())
        }

    def take(self, answers: Mapping[int, Answer], good: set[int]) -> None:
        """Take in what nodes have answered. See `AttendedExchange.take`."""
        places = {int(node): place for place, node in enumerate(self.ask.owner.nodes)}
        self._cost += cost_of({places[node]: [own] for node, own in answers.items()}, self._nodes)
        arrived: dict[int, Mapping[str, Mapping[str, np.ndarray]]] = {
            places[node]: answer.replies
            for node, answer in answers.items()
            if node in good and answer.replies is not None
        }
        for node, replies in arrived.items():
            for name, own in self._assignments[node].items():
                for slot in own.request.task.slots:
                    self._begun_in(slot.name).extend((model, node) for model in own.models)
                if name not in self._asked_sums:
                    self._numbers.setdefault(name, {})[node] = replies[name]
        missing: set[int] = set()
        for name, asked in self._asked_sums.items():
            missing |= self._take_sum(name, asked, arrived)
        if arrived and self._enough_without(missing):
            self._left_out |= missing
        nobody = not arrived and len(self._assignments) >= FEWEST_NODES
        summed = all(
            name in self._sums
            for name, each in self._requests.items()
            if isinstance(each, WeightedSum)
        )
        self.complete = summed and not nobody

    def reply(self) -> Reply | None:
        """Return what the owner gets."""
        for request in self._requests.values():
            for slot in request.task.slots:
                if items := self._begun_in(slot.name):
                    self._series.mark(slot, items)
        replies = {
            name: self._sums[name] if name in self._sums else self._combine_numbers(name, each)
            for name, each in self._requests.items()
        }
        return Reply(replies, self._cost)

    def _begun_in(self, slot: str) -> list[tuple[int, int]]:
        return self._begun.setdefault(slot, [])

    def _here(self, request: Request) -> np.ndarray:
        """Return who is asked for which models: those present, except for those that were left out."""
        asked = self._asked(request)
        asked[:, list(self._left_out)] = False
        return asked

    def _assign_numbers(self, name: str, request: Request) -> dict[int, Assignment]:
        asked = self._here(request)
        answered = self._numbers.get(name, {})
        return {
            node: self._assignment(request, np.flatnonzero(asked[:, node]), node, None)
            for node in np.flatnonzero(asked.any(axis=0)).tolist()
            if node not in answered
        }

    def _assign_sum(self, name: str, request: WeightedSum) -> dict[int, Assignment]:
        weights = np.atleast_2d(np.asarray(request.weights, np.float64))
        if not np.isfinite(weights).all():
            raise DivergedError("training diverged: the weights are not finite")
        here = self._here(request)
        members = here & ~self._book.missing(self._number, name, here.shape)
        self._check_members(weights, members)
        wanted = request.asked(self._nodes, ask_all=self.ask.owner.ask_all)
        self._book.note(self._number, name, wanted & ~members)
        seen = self._book.norms.setdefault((self.ask.owner.trail.number, name), {})
        largest = float(np.abs(weights).max())
        exponents = choose_exponents(request.task, seen, len(weights[0]), largest)
        orders = write_orders(weights, members, exponents, self.ask.owner.nodes)
        self._asked_sums[name] = _Asked(request, members, orders)
        return {
            node: self._assignment(request, np.flatnonzero(members[:, node]), node, order)
            for node, order in orders.items()
        }

    def _assignment(
        self, request: Request, models: np.ndarray, node: int, order: SumOrder | None
    ) -> Assignment:
        own = tuple(models.tolist())
        begins = self._series.beginnings(request, [(model, node) for model in own])
        return Assignment(request, own, begins, order)

    def _check_members(self, weights: np.ndarray, members: np.ndarray) -> None:
        """Refuse a sum in which fewer nodes than three count."""
        for row, counted in zip(weights != 0, members & (weights != 0), strict=True):
            if counted.sum() >= FEWEST_SUMMED:
                continue
            if row.sum() < FEWEST_SUMMED:
                raise too_few_in_sum(self._names[row], len(row))
            raise LostSumError(
                f"only {', '.join(self._names[counted]) or 'nobody'} of the nodes that count are left, and "
                f"secure sums need {FEWEST_SUMMED}: bring the others back and continue with --resume"
            )

    def _enough_without(self, missing: set[int]) -> bool:
        for asked in self._asked_sums.values():
            counted = asked.members & (np.atleast_2d(np.asarray(asked.request.weights)) != 0)
            counted[:, list(missing)] = False
            if (counted.sum(axis=1) < FEWEST_SUMMED).any():
                return False
        return True

    def _take_sum(
        self,
        name: str,
        asked: _Asked,
        arrived: Mapping[int, Mapping[str, Mapping[str, np.ndarray]]],
    ) -> set[int]:
        """Add up what has arrived, if nothing is missing; return who is missing."""
        missing = {node for node in asked.orders if node not in arrived}
        sent = {node: arrived[node][name] for node in asked.orders if node not in missing}
        task = asked.request.task
        too_long = {
            node
            for node, own in sent.items()
            for row in range(len(own[WORDS]))
            if is_useful(own, row) and not fits(asked.orders[node], task, own, row)
        }
        # A node that masks the same replies again says the same of their lengths.
        missing |= too_long & self._too_long.setdefault(name, set())
        self._too_long[name] |= too_long
        if believed := {node: own for node, own in sent.items() if node not in missing}:
            seen = self._book.norms[self.ask.owner.trail.number, name]
            seen.update(weighted_norms(task, asked.orders, believed))
        if not missing and not too_long:
            found = self._add_up(asked, sent)
            if found is None:
                self._noise[name] = self._noise.get(name, 0) + 1
            else:
                self._sums[name] = found
        return missing

    def _add_up(
        self, asked: _Asked, sent: Mapping[int, Mapping[str, np.ndarray]]
    ) -> dict[str, Array] | None:
        """Return the sums, in which the others make up for nodes that are missing (`combine`).

        None if words do not add up.
        """
        request, members = asked.request, asked.members
        weights = np.atleast_2d(np.asarray(request.weights, np.float64))
        wanted = request.asked(self._nodes, ask_all=self.ask.owner.ask_all)
        rows = []
        for model, own in enumerate(members):
            places = {
                node: int(members[:model, node].sum()) for node in np.flatnonzero(own).tolist()
            }
            exponents = next(iter(asked.orders.values())).exponents
            words = [sent[node][WORDS][row] for node, row in places.items()]
            found = read_sum(words, request.task, self._size, exponents)
            summands = [
                (asked.orders[node].rows[row].weight, sent[node], row)
                for node, row in places.items()
            ]
            scale = 1.0
            if not all(is_useful(sent[node], row) for node, row in places.items()):
                scale = float("nan")
            elif not adds_up(found, exponents, summands):
                return None
            elif (wanted[model] & ~own).any():
                scale = weights[model].sum() / weights[model][own].sum()
            rows.append({part: array * scale for part, array in found.items()})
        dtype = jnp.result_type(float)
        return {
            part: jnp.asarray(
                np.stack([row[part] for row in rows])
                if request.models is not None
                else rows[0][part],
                dtype,
            )
            for part in rows[0]
        }

    def _combine_numbers(self, name: str, request: Request) -> dict[str, Array]:
        wanted = request.asked(self._nodes, ask_all=self.ask.owner.ask_all)
        answered = self._numbers.get(name, {})
        here = wanted[:, list(answered)]
        items = [
            (model, node)
            for place, node in enumerate(answered)
            for model in np.flatnonzero(here[:, place]).tolist()
        ]
        nothing = np.zeros(0, jnp.result_type(float))
        replies = {
            part: np.concatenate([nothing, *(own[part] for own in answered.values())])
            for part in request.task.number_replies
        }
        return combine(request, wanted, items, replies)


def write_orders(
    weights: np.ndarray,
    members: np.ndarray,
    exponents: Mapping[str, int],
    numbers: np.ndarray | None = None,
) -> dict[int, SumOrder]:
    """Return what each node is told of the sums that it is in.

    Args:
        weights: A row of weights per model.
        members: Which nodes are in which sum, likewise.
        exponents: How finely replies are written.
        numbers: The numbers by which nodes know each other; by default their places.
    """
    numbers = np.arange(members.shape[1]) if numbers is None else numbers
    told = [tuple(sorted(numbers[row].tolist())) for row in members]
    totals = np.abs(weights).sum(axis=1)
    return {
        node: SumOrder(
            tuple(
                SumRow(told[model], float(weights[model, node]), float(totals[model]))
                for model in np.flatnonzero(members[:, node]).tolist()
            ),
            exponents,
        )
        for node in np.flatnonzero(members.any(axis=0)).tolist()
    }
