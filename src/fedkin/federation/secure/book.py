"""What the center keeps about its secure sums: how long vectors were, and who was missing in which sum.

A run that was killed within a step begins that step again, and asks about the same models. If a node was
missing in a sum then and took part in it now, the difference of the two sums would be that node's vector; the
others would refuse, too. So the center writes down who is missing before it asks the others, and a step that
is begun again leaves out the same nodes of the same sums.
"""

import json
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from fedkin.errors import InputError
from fedkin.files import write_atomically

Norms = dict[tuple[int, str], dict[str, float]]
"""The largest weighted norms of the last time, by the owner's trail and the request."""

BEFORE_THE_STEPS = -1
"""The number of the step for what is asked before the first one."""


class _Missing(BaseModel):
    """The file: who was missing in the sums of one step."""

    model_config = ConfigDict(strict=True, extra="forbid")

    step: int = BEFORE_THE_STEPS
    nodes: dict[str, list[list[int]]] = {}
    """By the number of the exchange in the step and the request: for each model, the nodes' numbers."""


class SumBook:
    """The record of one run's secure sums.

    Exchanges are counted within a step. A step that is begun again has the same exchanges.
    """

    def __init__(self) -> None:
        self.norms: Norms = {}
        self._path: Path | None = None
        self._former: _Missing | None = None
        """What an earlier process of this run has written, until the first step begins."""
        self._now = _Missing()
        self._exchanges = 0

    def keep(self, path: Path) -> None:
        """Write to a file from now on who is missing, and continue with what is in it.

        Args:
            path: The file; it is made when somebody is missing.
        """
        self._path = path
        try:
            self._former = _Missing.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValidationError) as error:
            raise InputError(
                f"{path} cannot be read, and says which nodes were missing when this run was stopped. If all "
                "were there, remove it and continue; else start the run over"
            ) from error
        if self._former.step == BEFORE_THE_STEPS:
            self._now = self._former

    def begin_step(self, step: int) -> None:
        """Count exchanges from here on."""
        same = self._former is not None and self._former.step == step
        self._now = self._former if same and self._former is not None else _Missing(step=step)
        self._former = None
        self._exchanges = 0

    def start_over(self) -> None:
        """Forget who was missing: another run begins, with other models."""
        self.forget()
        self._former = None
        self.begin_step(BEFORE_THE_STEPS)

    def next_exchange(self) -> int:
        """Return the number of a new exchange."""
        self._exchanges += 1
        return self._exchanges

    def missing(self, exchange: int, request: str, shape: tuple[int, int]) -> np.ndarray:
        """Return who is to be left out of a sum.

        Args:
            exchange: The number of the exchange.
            request: The name of the request.
            shape: The numbers of models and of nodes.
        """
        found = np.zeros(shape, bool)
        noted = self._now.nodes.get(_name(exchange, request), [])
        for model, nodes in enumerate(noted[: shape[0]]):
            found[model, [node for node in nodes if 0 <= node < shape[1]]] = True
        return found

    def note(self, exchange: int, request: str, missing: np.ndarray) -> None:
        """Write down who is missing in a sum, before the others are asked for it.

        Args:
            exchange: The number of the exchange.
            request: The name of the request.
            missing: Bools of shape (models, nodes).
        """
        name, nodes = _name(exchange, request), [np.flatnonzero(row).tolist() for row in missing]
        if not missing.any() or self._now.nodes.get(name) == nodes:
            return
        self._now.nodes[name] = nodes
        if self._path is not None:
            write_atomically(self._path, self._now.model_dump_json().encode())

    def forget(self) -> None:
        """Remove the file: the run has ended."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def _name(exchange: int, request: str) -> str:
    return json.dumps([exchange, request])
