"""The entries of a ledger as a chain: each one's link is a hash of its content and of all that came before."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from fedbnsl.errors import LedgerError

_DOMAIN = b"fedbnsl.ledger/1\0"
_PRIVATE = ("fingerprint", "column_fingerprints")


@dataclass(frozen=True)
class Entry:
    """One entry, for display."""

    number: int  # counted from 1
    time: datetime  # when it was written, by the site's clock, UTC
    # kind: `register`, `approve`, `withdraw`, `agent`, `unprotected`, `reserve`, `store`; `restored` and `lost` after a
    # backup was accepted; `seal` as the last one
    kind: str
    content: Mapping[str, Any]  # the rest of it, without fingerprints

    @classmethod
    def read(cls, number: int, text: bytes) -> Self:
        """The entry of a canonical text."""
        content = json.loads(text)
        for name in _PRIVATE:
            content.pop(name, None)
        return cls(number, datetime.fromisoformat(content.pop("time")), content.pop("kind"), content)


def canonical(content: Mapping[str, object]) -> str:
    """JSON with sorted keys and no blanks between its tokens, so that equal contents have the same text.

    Raises LedgerError if the content is not made of plain values (finite numbers, texts, lists, mappings by text).
    """
    try:
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        text.encode()  # a lone surrogate has no UTF-8 form
    except (TypeError, ValueError) as error:
        raise LedgerError(f"the ledger takes plain values only: {error}") from None
    return text


def first_link(ledger_id: bytes, key: bytes, seed: bytes) -> bytes:
    """The link before the first entry. Its random seed ensures that no link reveals anything about the data."""
    return hashlib.sha256(_DOMAIN + ledger_id + key + seed).digest()


def next_link(link: bytes, number: int, text: bytes) -> bytes:
    """The link of entry `number`, which follows the given one."""
    return hashlib.sha256(link + number.to_bytes(8, "little") + text).digest()
