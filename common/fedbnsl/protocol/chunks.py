"""Messages too large for one call: cut into chunks, each in its own call, and joined by the other side.

A message of up to `CHUNK_BYTES` crosses the wire as it is. Of a larger one each call carries a chunk of its serialised
bytes, with length and SHA-256 of the whole. Chunks are taken in their order alone, and the receiver says, or asks by,
how many bytes it holds: a call can be repeated, and after a restart of the receiver the first chunk comes again.
What a message of the run has at most follows from its number of variables (`codec.largest_update_bytes`,
`codec.largest_reply_bytes`): nobody holds more.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from fedbnsl.errors import MalformedMessageError
from fedbnsl.protocol.channel import MAX_MESSAGE_BYTES
from fedbnsl.wire import federation_pb2 as federation

CHUNK_BYTES = MAX_MESSAGE_BYTES - 1024  # what is around a chunk fits into the rest

MOST_BYTES = 2**31 - 1
"""Of any message: protobuf promises no larger ones."""

_Message = TypeVar("_Message", bound=Message)


@dataclass(frozen=True)
class CutMessage:
    """The bytes of a message that is too large for one call, and their SHA-256."""

    data: bytes
    digest: bytes

    def chunk(self, start: int) -> federation.Chunk:
        """The chunk that begins at a byte; without bytes from the end of the message on."""
        data = self.data[start : start + CHUNK_BYTES]
        return federation.Chunk(digest=self.digest, n_bytes=len(self.data), start=start, data=data)

    def chunks(self) -> Iterator[federation.Chunk]:
        """All chunks."""
        return map(self.chunk, range(0, len(self.data), CHUNK_BYTES))


def cut(data: bytes, *, most_bytes: int = MOST_BYTES) -> CutMessage | None:
    """A serialised message in chunks; None: one call is enough for it.

    Raises MalformedMessageError if the other side would not take so large a one.
    """
    if len(data) <= CHUNK_BYTES:
        return None
    if len(data) > min(most_bytes, MOST_BYTES):
        raise MalformedMessageError(f"a message larger than max ({len(data)} vs. {min(most_bytes, MOST_BYTES)})")
    return CutMessage(data, hashlib.sha256(data).digest())


def is_last(chunk: federation.Chunk) -> bool:
    """Whether no other chunk follows."""
    return chunk.start + len(chunk.data) >= chunk.n_bytes


def wire_bytes(message: Message, wrap: Callable[[federation.Chunk], Message]) -> int:
    """Serialised bytes that bring a message to the other side. `wrap`: gives the message that carries a chunk."""
    data = message.SerializeToString()
    whole = cut(data)
    return len(data) if whole is None else sum(wrap(chunk).ByteSize() for chunk in whole.chunks())


class JoinedMessage:
    """The bytes of a message, as far as its chunks have come; any of them gives length and SHA-256 of the whole.

    Raises MalformedMessageError if the message has more than `most_bytes`.
    """

    def __init__(self, chunk: federation.Chunk, *, most_bytes: int) -> None:
        most_bytes = min(most_bytes, MOST_BYTES)
        if not 0 < chunk.n_bytes <= most_bytes:
            raise MalformedMessageError(
                f"a message of {chunk.n_bytes} bytes in chunks; in this run it has at most {most_bytes}"
            )
        self._digest, self._n_bytes = chunk.digest, chunk.n_bytes
        self._data = bytearray()

    @property
    def n_held(self) -> int:
        """Bytes that are here, from the first on."""
        return len(self._data)

    @property
    def is_whole(self) -> bool:
        """Whether all are."""
        return self.n_held == self._n_bytes

    def is_of(self, chunk: federation.Chunk) -> bool:
        """Whether a chunk belongs to this message."""
        return (chunk.digest, chunk.n_bytes) == (self._digest, self._n_bytes)

    def add(self, chunk: federation.Chunk) -> None:
        """Take the next chunk.

        Raises MalformedMessageError if it is another one, has no bytes, or goes beyond the end.
        """
        if not self.is_of(chunk):
            raise MalformedMessageError("a chunk of another message than the one before it")
        if chunk.start != self.n_held:
            raise MalformedMessageError(f"a chunk that begins at byte {chunk.start}; expected {self.n_held}")
        if not 0 < len(chunk.data) <= self._n_bytes - self.n_held:
            left = self._n_bytes - self.n_held
            raise MalformedMessageError(f"a chunk of {len(chunk.data)} bytes where 1 to {left} are left")
        self._data += chunk.data

    def parsed(self, kind: type[_Message]) -> _Message:
        """The whole message.

        Raises MalformedMessageError if its bytes are not those that were announced, or no such message.
        """
        if hashlib.sha256(self._data).digest() != self._digest:
            raise MalformedMessageError("the chunks of a message do not have its SHA-256 together")
        try:
            return kind.FromString(bytes(self._data))
        except DecodeError:
            raise MalformedMessageError("the chunks of a message make none that can be parsed") from None
