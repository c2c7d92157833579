"""What all jobs have in common: the table `[federation]`."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError

from fedkin.errors import InputError
from fedkin.federation.secure.orders import FEWEST_SUMMED
from fedkin.messages import in_plain_words

VALIDATION_FRACTION = "validation-fraction"
"""The key that makes a job everyone's question."""

OWN = "own"
"""The key that makes a job the question whether to join: the owner's rows, all of them."""


class FederationOptions(BaseModel):
    """The table `[federation]` of a job."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    nodes: PositiveInt | None = None
    """How many nodes to wait for; a study has its own number."""
    wait: PositiveFloat = 300.0
    """Seconds to wait for them."""
    patience: PositiveFloat = 120.0
    """Seconds to wait for an answer."""
    interval: PositiveFloat = Field(0.1, le=60)
    """Seconds between two requests for replies."""
    plain_sums: bool = Field(False, alias="plain-sums")
    """Whether the center adds up the nodes' vectors itself, and sees every single one (docs/security.md)."""

    def secure_sums(self, nodes: int) -> bool:
        """Tell whether nodes mask their part of every sum: too few nodes cannot."""
        return not self.plain_sums and nodes >= FEWEST_SUMMED


def refuse_secure_owners(options: FederationOptions, nodes: int, path: Path) -> None:
    """Refuse secure sums for questions that several owners ask at once.

    Each owner has weights of its own, and they all begin with the same model: from sums with different
    weights, single nodes' vectors could be computed.
    """
    if options.secure_sums(nodes):
        raise InputError(
            f"{path}: several owners ask about the same models with weights of their own, and secure sums "
            "would not hide single nodes' vectors from that: choose plain sums (--plain-sums here, and "
            "plain-sums = true in the settings of every node), which show the center every node's vectors"
        )


def federation_options(content: Any, source: str) -> FederationOptions:
    """Check the table `[federation]`."""
    try:
        return FederationOptions.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(["federation", *(str(part) for part in first["loc"])])
        raise InputError(f"{source}: {place}: {in_plain_words(first['msg'])}") from error
