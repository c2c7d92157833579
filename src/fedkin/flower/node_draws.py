"""What a node draws: its mini-batches, and which of them a request is computed on.

A center that knew both could ask for sums over rows of its choice, and solve for single rows. So a node draws
from a secret of its own. Its rows are divided once into groups of at least `minimum-batch` rows; mini-batches
of every size are made of whole groups, whatever seed, number or size the center sends. Which mini-batches a
step takes depends on the secret and on everything that the request says: the same request is answered alike,
also after a restart, and nobody can ask for the same unknown mini-batch at another model.
"""

import hashlib
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.errors import InputError
from fedkin.federation.owners import TRAINING
from fedkin.flower.certificates import make_private_directory
from fedkin.flower.guard import CheckedBlock, CheckedRequest
from fedkin.flower.joining import JoinRequest
from fedkin.flower.node_settings import NodeSettings
from fedkin.types import Key

SECRET_FILE = "secret"
"""In the node's `state` directory."""
SECRET_BYTES = 32


@dataclass(frozen=True)
class Draws:
    """How a node's rows are divided, and what a request draws."""

    seed: int
    """Decides the division, with the number."""
    number: int
    group: int
    """The least number of rows of a group; mini-batches are made of whole groups."""
    secret: bytes | None
    """None if the center decides what is drawn, as in a simulation."""

    @classmethod
    def of(cls, settings: NodeSettings, request: JoinRequest) -> "Draws":
        """Return what a node draws in a run."""
        if settings.reproducible:
            return cls(request.seed, request.number, 1, None)
        assert settings.state is not None  # the settings have been checked
        secret = read_secret(settings.state)
        seed = int.from_bytes(_digest(secret, b"division")[:16])
        return cls(seed, 0, settings.minimum_batch, secret)

    def for_request(self, block: CheckedBlock, request: CheckedRequest) -> tuple[Key, np.ndarray]:
        """Return the key of a request, and a number for each of its models: a model draws from both."""
        if self.secret is None:
            # Alone, the node is the only one of its own federation.
            number = self.number if block.part == TRAINING else 0
            return block.key, np.full(len(request.models), number)
        common = [block.part, request.task.name, dict(sorted(request.options.items()))]
        parts = [json.dumps(common).encode(), np.asarray(jax.random.key_data(block.key)).tobytes()]
        rows: list[list[bytes]] = [[] for _ in request.models]
        for name, array in sorted(request.message.items()):
            parts.append(name.encode())
            if array.ndim < 2:
                parts.append(array.tobytes())
                continue
            for own, row in zip(rows, array, strict=True):
                own.append(row.tobytes())
        data = np.frombuffer(_digest(self.secret, *parts)[:8], np.uint32)
        numbers = [int.from_bytes(_digest(self.secret, *own)[:4]) >> 1 for own in rows]
        return jax.random.wrap_key_data(jnp.asarray(data)), np.array(numbers)

    def for_question(self, block: CheckedBlock, request: CheckedRequest) -> list[Key]:
        """Return the key of a question about the rows that the node holds out, for each of its models."""
        key, numbers = self.for_request(block, request)
        if self.secret is None:
            return [key] * len(numbers)
        return [jax.random.fold_in(key, number) for number in numbers]


def _digest(secret: bytes, *parts: bytes) -> bytes:
    """Return what nobody can compute without the secret; parts cannot be shifted into each other."""
    made = hashlib.blake2b(key=secret, digest_size=32)
    for part in parts:
        made.update(len(part).to_bytes(8))
        made.update(part)
    return made.digest()


def read_secret(directory: Path) -> bytes:
    """Return the secret in a node's directory; make one that only its owner can read if there is none.

    Raises:
        InputError: If it cannot be read or written, or others may read it.
    """
    path = directory / SECRET_FILE
    make_private_directory(directory)
    try:
        # Linked into place when it is complete: another process of this node may do the same now.
        if not path.exists():
            partial = directory / f".{SECRET_FILE}-{secrets.token_hex(8)}"
            opened = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(opened, "wb") as file:
                file.write(secrets.token_bytes(SECRET_BYTES))
            try:
                os.link(partial, path)
            except FileExistsError:
                pass
            finally:
                partial.unlink()
        found = path.read_bytes()
        open_to_others = path.stat().st_mode & 0o077
    except OSError as error:
        raise InputError(
            f"cannot read or write the node's secret {path}: {error.strerror}"
        ) from error
    if open_to_others:
        raise InputError(f"others may read the node's secret: run chmod 600 {path}")
    if len(found) != SECRET_BYTES:
        raise InputError(
            f"the node's secret {path} is damaged: put its backup in place; without it, remove the file, and "
            "the node divides its rows again, which once gives the center other sums than before"
        )
    return found
