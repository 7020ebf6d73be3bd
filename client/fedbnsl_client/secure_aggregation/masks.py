"""Masks that cancel in the sum over all sites: integers modulo 2^64 from the key that two sites share.

For every pair of sites, X25519 gives a secret, HKDF-SHA256 a key for ChaCha20, and its key stream the mask; the site
whose name comes first adds it, the other takes it off. The key depends on the run, the round, the task and all keys of
the run, so that it is never used for anything else, and the masks of two tasks do not cancel.
"""

from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fedbnsl.errors import PeerRefusedError
from fedbnsl.protocol.messages import Membership

Words = NDArray[np.uint64]
"""Integers modulo 2^64."""

_WORD_BYTES = 8
_CHACHA20_NONCE = bytes(16)  # each key is used for one stream


def check_key(membership: Membership, private_key: bytes) -> None:
    """Refuse a site's public key that is of no use. Raises PeerRefusedError if no secret can be shared with it."""
    _shared(X25519PrivateKey.from_private_bytes(private_key), membership)


def masked(
    numbers: Sequence[int], *, site: str, private_key: bytes, memberships: Sequence[Membership], context: bytes
) -> Words:
    """Numbers of a site, of any size and sign, modulo 2^64, with the masks that it shares with each other site.

    `memberships` are those of all sites, with their public keys; `context` is what the sum is for: no two sums of the
    same keys may have the same. Raises PeerRefusedError if a key is one with which no secret can be shared.
    """
    total = np.array([number % 2**64 for number in numbers], dtype=np.uint64)
    own = X25519PrivateKey.from_private_bytes(private_key)
    mine = own.public_key().public_bytes_raw()
    for membership in memberships:
        if membership.site == site:
            continue
        shared = _shared(own, membership)
        first, last = (mine, membership.public_key) if site < membership.site else (membership.public_key, mine)
        mask = _stream(shared, context + first + last, len(total))
        with np.errstate(over="ignore"):
            total = total + mask if site < membership.site else total - mask
    return total


def _shared(own: X25519PrivateKey, membership: Membership) -> bytes:
    try:
        return own.exchange(X25519PublicKey.from_public_bytes(membership.public_key))
    except ValueError:
        raise PeerRefusedError(f"the key of site {membership.site!r} shares no secret with any other") from None


def _stream(shared: bytes, info: bytes, n: int) -> Words:
    """As many integers that nobody without the secret can tell from random ones."""
    key = HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(shared)
    stream = Cipher(algorithms.ChaCha20(key, _CHACHA20_NONCE), mode=None).encryptor().update(bytes(_WORD_BYTES * n))
    return np.frombuffer(stream, dtype="<u8").astype(np.uint64)
