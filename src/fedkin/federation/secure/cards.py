"""What nodes say of themselves so that others can share secrets with them, signed with their registered keys.

A card has a node's X25519 key for one run, and the public key that the node is registered with. The center
passes cards on. It could put cards of its own in their place, unless nodes know each other's fingerprints:
those of the registered keys, as `ssh-keygen -lf` shows them.
"""

import base64
import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from fedkin.errors import InputError
from fedkin.federation.secure.masks import PUBLIC_BYTES, describe, new_private_key, public_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

PURPOSE = b"fedkin card 1"

LONGEST_CARD = 2_000
"""The largest number of characters of a card."""

KEY_KIND = "ecdsa-sha2-nistp384"
"""The kind of the keys that nodes are registered with, in OpenSSH's words."""


class CardError(Exception):
    """A card that cannot be read, or is not signed as it says."""


@dataclass(frozen=True)
class KeyCard:
    """What a node says of itself."""

    name: str
    number: int
    """Its number in the run."""
    public: bytes
    """Its X25519 key for this run."""
    identity: bytes = b""
    """The public key that it is registered with, as OpenSSH encodes it; empty where there are no keys."""
    signature: bytes = b""

    def write(self) -> str:
        """Return the card as a text."""
        content = {
            "name": self.name,
            "number": self.number,
            "public": self.public.hex(),
            "identity": self.identity.hex(),
            "signature": self.signature.hex(),
        }
        return json.dumps(content)

    @classmethod
    def read(cls, written: object, run: str) -> "KeyCard":
        """Read a card, which anybody may have written, and check its signature.

        Args:
            written: The text.
            run: What the card has to be for.

        Raises:
            CardError: If it is not a card, or not signed with the key that it names.
        """
        if not isinstance(written, str) or len(written) > LONGEST_CARD:
            raise CardError("it is not a text of moderate length")
        return _read(written, run)

    @classmethod
    def _of_text(cls, written: str, run: str) -> "KeyCard":
        try:
            content = json.loads(written)
            parts = [bytes.fromhex(content[name]) for name in ("public", "identity", "signature")]
            card = cls(str(content["name"]), int(content["number"]), *parts)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise CardError("it cannot be read") from None
        if len(card.public) != PUBLIC_BYTES or card.write() != written:
            raise CardError("it cannot be read")
        if card.identity:
            _verify(card, run)
        elif card.signature:
            raise CardError("it is signed, and does not say with which key")
        return card

    def statement(self, run: str) -> bytes:
        """Return what a node signs, and what the secrets that it shares depend on."""
        return self.public + describe(
            PURPOSE, run.encode(), self.name.encode(), self.number.to_bytes(8), self.identity
        )

    @property
    def fingerprint(self) -> str | None:
        """The fingerprint of the registered key; None where there is none."""
        return fingerprint_of(self.identity) if self.identity else None


@lru_cache(maxsize=4096)
def _read(written: str, run: str) -> KeyCard:
    """Read a card; the same ones come with every message, and checking a signature takes a millisecond."""
    return KeyCard._of_text(written, run)


def make_card(name: str, number: int, run: str, key: Path | None) -> tuple[KeyCard, bytes]:
    """Return a node's card for a run, and the private key that belongs to it.

    Args:
        name: The name of the node.
        number: Its number in the run.
        run: What tells this run from all others.
        key: The file with the private key that the node is registered with; None without keys.
    """
    private = new_private_key()
    card = KeyCard(name, number, public_key(private))
    if key is None:
        return card, private
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA384

    registered = _read_private_key(key)
    identity = _ssh_blob(registered.public_key())
    card = KeyCard(name, number, card.public, identity)
    signature = registered.sign(card.statement(run), ec.ECDSA(SHA384()))
    return KeyCard(name, number, card.public, identity, signature), private


def fingerprint_of(identity: bytes) -> str:
    """Return the fingerprint of a public key in OpenSSH's encoding."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(identity).digest()).decode().rstrip("=")


def read_identity(path: Path) -> bytes:
    """Read a public key (`node.key.pub`) as a card has it."""
    try:
        kind, blob = path.read_text(encoding="ascii").split()[:2]
        found = base64.b64decode(blob, validate=True)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, UnicodeDecodeError):
        kind, found = "", b""
    if kind != KEY_KIND:
        raise InputError(
            f"{path} is not a node's public key: give the file ending in .pub that fedkin federation key made"
        )
    return found


def identity_of_pem(registered: bytes) -> bytes:
    """Return a public key, as the SuperLink keeps it, in the form that a card has."""
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    return _ssh_blob(load_pem_public_key(registered))


def _read_private_key(path: Path) -> "ec.EllipticCurvePrivateKey":
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        found = load_ssh_private_key(path.read_bytes(), None)
    except OSError as error:
        raise InputError(f"cannot read the node's key {path}: {error.strerror}") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InputError(f"{path} is not a node's private key (key)") from error
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise InputError(f"{path} is not a key of an elliptic curve (key)")
    return found


def _ssh_blob(public: "PublicKeyTypes") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    written = public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return base64.b64decode(written.split()[1])


def _verify(card: KeyCard, run: str) -> None:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA384
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    written = f"{KEY_KIND} {base64.b64encode(card.identity).decode()}".encode()
    try:
        key = load_ssh_public_key(written)
        assert isinstance(key, ec.EllipticCurvePublicKey)
        key.verify(card.signature, card.statement(run), ec.ECDSA(SHA384()))
    except (InvalidSignature, ValueError, UnsupportedAlgorithm, AssertionError):
        raise CardError("it is not signed with the key that it names") from None
