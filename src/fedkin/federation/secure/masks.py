r"""Words that look like chance alone, and add up to the sum all the same.

Each pair of nodes shares a secret. For a sum, both ends draw the same stream of words from it; the node of
the lower number adds the stream to its words, the other one subtracts it. In the sum over all members the
streams cancel. Without the words of even one member, nothing cancels that this member takes part in.

A stream is ChaCha20 under a key that HKDF derives from the secret of the pair and from everything that
describes the sum: the run, the number of the exchange, the message, the members. So no stream is ever used
for two sums, and members who were told different things have different streams: their sum is noise.
"""

import hashlib
from collections.abc import Collection, Mapping
from functools import lru_cache

import numpy as np

from fedkin.errors import InputError

PUBLIC_BYTES = 32
"""The length of an X25519 key, private or public."""

SECRET_BYTES = 32

MASK_PURPOSE = b"fedkin mask 1"
PAIR_PURPOSE = b"fedkin pair 1"

AT_ONCE = 1 << 20
"""How many bytes of a stream are made at a time."""


def require_cryptography() -> None:
    """Say in one line how to install what masks need."""
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise InputError(
            "secure sums need the package cryptography: pip install 'fedkin[flower]'"
        ) from error


def new_private_key() -> bytes:
    """Return a new X25519 key."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    """Return the public half of an X25519 key."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def is_public_key(public: bytes) -> bool:
    """Tell whether a node can share secrets by a key: a few make every secret the same."""
    private = new_private_key()
    try:
        pair_secret.__wrapped__(private, public_key(private), public, b"")
    except ValueError:
        return False
    return True


@lru_cache(maxsize=1024)
def pair_secret(private: bytes, own: bytes, peer: bytes, context: bytes) -> bytes:
    """Return the secret that two nodes share.

    Args:
        private: This node's X25519 key.
        own: What this node has said of itself, its public key among it, in bytes that begin with that key.
        peer: What the other node has said of itself, likewise.
        context: What the secret is for.

    Raises:
        ValueError: If the other node's key is not one, or of the few that make every secret the same.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    there = X25519PublicKey.from_public_bytes(peer[:PUBLIC_BYTES])
    shared = X25519PrivateKey.from_private_bytes(private).exchange(there)
    both = describe(PAIR_PURPOSE, context, *sorted((own, peer)))
    return HKDF(SHA256(), SECRET_BYTES, salt=None, info=both).derive(shared)


def draw_secrets(nodes: int) -> list[dict[int, bytes]]:
    """Let nodes of one process agree on secrets; return those of each with the others, by number."""
    private = [new_private_key() for _ in range(nodes)]
    public = [public_key(each) for each in private]
    return [
        {
            peer: pair_secret(own, public[node], other, b"simulation")
            for peer, other in enumerate(public)
            if peer != node
        }
        for node, own in enumerate(private)
    ]


def describe(*parts: bytes) -> bytes:
    """Return a digest of some parts, in which none can be shifted into another."""
    made = hashlib.sha256()
    for part in parts:
        made.update(len(part).to_bytes(8))
        made.update(part)
    return made.digest()


def stream(secret: bytes, label: bytes, length: int) -> np.ndarray:
    """Return as many words as asked for that only those can compute who have the secret.

    Args:
        secret: The secret of a pair.
        label: A digest of what the words are for. Another label gives another, unrelated stream.
        length: The number of words.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

    key = HKDFExpand(SHA256(), 32, info=MASK_PURPOSE + label).derive(secret)
    # The key is for this stream only, so that the nonce may be the same for all.
    cipher = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    size = 8 * length
    found = bytearray(size)
    zeros = memoryview(bytes(min(size, AT_ONCE)))
    for begin in range(0, size, AT_ONCE):
        part = zeros[: min(AT_ONCE, size - begin)]
        found[begin : begin + len(part)] = cipher.update(part)
    return np.frombuffer(found, "<u8")


def add_masks(
    words: np.ndarray,
    own: int,
    members: Collection[int],
    secrets: Mapping[int, bytes],
    label: bytes,
) -> np.ndarray:
    """Return a node's words with the streams of all pairs that it is in.

    Args:
        words: What the node adds to the sum.
        own: The number of the node.
        members: The numbers of all nodes in the sum.
        secrets: The secrets that it shares with the others, by their numbers.
        label: A digest of everything that describes the sum.
    """
    masked = words.astype("<u8").ravel()  # a copy
    for peer in members:
        if peer > own:
            masked += stream(secrets[peer], label, masked.size)
        elif peer < own:
            masked -= stream(secrets[peer], label, masked.size)
    return masked.reshape(words.shape)
