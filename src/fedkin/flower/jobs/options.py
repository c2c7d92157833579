"""What all jobs have in common: the table `[federation]`."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError

from fedkin.errors import InputError
from fedkin.messages import in_plain_words

VALIDATION_FRACTION = "validation-fraction"
"""The key that makes a job everyone's question."""

OWN = "own"
"""The key that makes a job the question whether to join: the owner's rows, all of them."""


class FederationOptions(BaseModel):
    """The table `[federation]` of a job."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    nodes: PositiveInt | None = None
    """How many nodes to wait for; a study has its own number."""
    wait: PositiveFloat = 300.0
    """Seconds to wait for them."""
    patience: PositiveFloat = 120.0
    """Seconds to wait for an answer."""
    interval: PositiveFloat = Field(0.1, le=60)
    """Seconds between two requests for replies."""


def federation_options(content: Any, source: str) -> FederationOptions:
    """Check the table `[federation]`."""
    try:
        return FederationOptions.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(["federation", *(str(part) for part in first["loc"])])
        raise InputError(f"{source}: {place}: {in_plain_words(first['msg'])}") from error
