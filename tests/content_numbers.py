"""All numbers in a content of a message, but for those of sparse matrices."""

from collections.abc import Iterator
from typing import Any

from fedbnsl.protocol.messages import Covariances
from fedbnsl.protocol.sparse import SparseMatrix


def numbers_in(part: Any) -> Iterator[Any]:
    """Arrays and numbers; of what is absent none."""
    match part:
        case None | bytes() | SparseMatrix():
            return
        case dict():
            yield from (numbers for one in part.values() for numbers in numbers_in(one))
        case tuple():
            yield from (numbers for one in part for numbers in numbers_in(one))
        case Covariances():
            yield from (part.S, part.means)
        case _:
            yield part
