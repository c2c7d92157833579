"""What privacy a node's owner grants, and the record of what is spent, which outlives runs and restarts."""

import fcntl
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from fedkin.errors import InputError
from fedkin.federation.privacy import Budget, Privacy
from fedkin.flower.certificates import make_private_directory

BUDGET_FILE = "privacy.json"
"""In the node's `state` directory."""


class OwnerPrivacy(BaseModel):
    """Differential privacy for a node's rows, off unless `epsilon` is given; in files, names have dashes."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=lambda name: name.replace("_", "-"),
        populate_by_name=True,
    )

    epsilon: float | None = Field(None, gt=0, allow_inf_nan=False)
    """The largest ε that all answers to exchanges, of all runs together, may reach."""
    delta: float = Field(1e-5, gt=0, lt=1)
    """The δ that goes with it; below one over the number of rows."""
    clip: float = Field(1.0, gt=0, allow_inf_nan=False)
    """The largest norm of a single row's gradient."""
    private_steps: PositiveInt = 100
    """How many gradients the budget is divided over: the more, the noisier each is."""

    @property
    def privacy(self) -> Privacy | None:
        """What the owner grants, if rows are protected."""
        if self.epsilon is None:
            return None
        return Privacy(self.epsilon, self.delta, self.clip, self.private_steps)

    def unused_privacy_options(self) -> list[str]:
        """Return the options that were given but change nothing."""
        given = {"delta", "clip", "private_steps"} & self.model_fields_set
        return sorted(name.replace("_", "-") for name in given) if self.epsilon is None else []


class KeptBudget(Budget):
    """A budget whose spending is written down before anything is released for it.

    It belongs to the directory, not to a run or to the settings: whoever grants a larger ε later has what was
    spent before counted in. Without the file, the count begins at zero.

    Args:
        privacy: What is granted.
        directory: The node's `state` directory.
    """

    def __init__(self, privacy: Privacy, directory: Path) -> None:
        super().__init__(privacy)
        self._directory = directory
        self._path = directory / BUDGET_FILE
        self._read()  # a damaged file is reported when the node joins, not in the middle of a run

    @property
    def spent(self) -> float:
        """The sum of 1/z² over everything that was released, ever."""
        return self._read()

    def spend(self, steps: int) -> None:
        """Pay for some gradients before they are computed. See `Budget.spend`."""
        make_private_directory(self._directory)
        with self._locked():
            self._write(self.total_with(self._read(), steps))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Let no other process of this node count at the same time."""
        try:
            opened = os.open(
                self._path.with_name(f".{BUDGET_FILE}.lock"), os.O_RDWR | os.O_CREAT, 0o600
            )
        except OSError as error:
            raise InputError(f"cannot write {self._path}: {error.strerror}") from error
        try:
            fcntl.flock(opened, fcntl.LOCK_EX)
            yield
        finally:
            os.close(opened)

    def _read(self) -> float:
        try:
            spent = json.loads(self._path.read_text(encoding="utf-8"))["spent"]
            if type(spent) is not float or not 0 <= spent < math.inf:
                raise ValueError
        except FileNotFoundError:
            return 0.0
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{self._path} cannot be read, and says what privacy this node has spent: put its backup "
                "in place; without the file, the whole budget could be spent again"
            ) from error
        return spent

    def _write(self, spent: float) -> None:
        partial = self._path.with_name(f".{BUDGET_FILE}.new")
        content = {"spent": spent, "epsilon": self.privacy.epsilon_of(spent)}
        try:
            opened = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(opened, "w", encoding="utf-8") as file:
                json.dump(content | {"delta": self.privacy.delta}, file)
                file.flush()
                os.fsync(opened)
            partial.replace(self._path)
            self._keep_name()
        except OSError as error:
            raise InputError(f"cannot write {self._path}: {error.strerror}") from error

    def _keep_name(self) -> None:
        """Write the directory to the disk: a power cut must not bring back an earlier count."""
        opened = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
