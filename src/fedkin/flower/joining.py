"""The request to join a run: what the center writes and a node reads and checks, declared once."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fedkin.data.preprocessing import Preprocessing
from fedkin.flower.wire import JOIN, MOST_NODES, Parcel, Refusal, RefusedError, Value
from fedkin.messages import in_plain_words
from fedkin.methods.settings import LARGEST_SEED
from fedkin.types import LearningTask

LARGEST_L2 = 1e6
"""The largest factor of ½‖θ‖² in the loss that a node accepts."""


class RunDescription(BaseModel):
    """What every node must know to take part in a run."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    run: str
    """The name of the run, which is the same when it is resumed."""
    seed: int = Field(ge=0, le=LARGEST_SEED)
    batch_size: int = Field(ge=1, le=1_000_000)
    model: str
    task: LearningTask
    classes: int = Field(ge=1, le=100_000)
    preprocessing: Preprocessing | None
    """How rows of a table become what the model takes; None for images."""

    @field_validator("preprocessing", mode="before")
    @classmethod
    def _read_preprocessing(cls, value: Any) -> Any:
        """Read it from its text in a message, which is empty if there is none."""
        if not isinstance(value, str):
            return value
        try:
            return Preprocessing.model_validate_json(value) if value else None
        except ValidationError:
            raise ValueError("it cannot be read") from None


class JoinRequest(RunDescription):
    """The request to one node to join a run."""

    attempt: str
    """Distinguishes this attempt at the run from earlier ones."""
    number: int = Field(ge=0, lt=MOST_NODES)
    """The number of the node."""
    largest_share: float = Field(1.0, gt=0, le=1)
    """The largest share of a node in a sum: the cap of the run."""
    l2: float | None = Field(None, ge=0, le=LARGEST_L2, allow_inf_nan=False)
    """The factor of ½‖θ‖² in the loss; None, and not in the message, if the model has no such setting."""

    def write(self) -> Parcel:
        """Return the request as a message; names have dashes there."""
        return Parcel({"kind": JOIN, **self.values()})

    def values(self) -> dict[str, Value]:
        """Return the values of the message, in addition to its kind."""
        agreed = self.preprocessing
        content = self.model_dump(exclude={"preprocessing"}, exclude_none=True)
        content["preprocessing"] = "" if agreed is None else agreed.model_dump_json()
        return {name.replace("_", "-"): value for name, value in content.items()}

    @classmethod
    def read(cls, values: Mapping[str, Value]) -> "JoinRequest":
        """Read the values of a message, which anybody may have written.

        Raises:
            RefusedError: If they are not those of a request to join.
        """
        names = {name.replace("_", "-"): name for name in cls.model_fields}
        if unknown := set(values) - set(names):
            raise RefusedError(
                Refusal.INVALID, f"a request to join has no {min(unknown)[:50]!r}: {sorted(names)}"
            )
        try:
            return cls.model_validate({names[name]: value for name, value in values.items()})
        except ValidationError as error:
            first = error.errors()[0]
            place = str(first["loc"][0]).replace("_", "-")
            reason = in_plain_words(first["msg"])
            raise RefusedError(Refusal.INVALID, f"{place} in a request to join: {reason}") from None
