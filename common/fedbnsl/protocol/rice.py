"""Whole numbers in few bits: Golomb-Rice codes, for numbers of which small ones are the more frequent.

With r low bits, a number x is x >> r zeros and a one, and its r low bits. The zeros and ones of all numbers come first,
then all low bits, each number's highest first; zeros fill the last byte. The first byte is r. For r = 1:

    2, 0, 5   ->   r=1, 01 1 001, 0 0 1   ->   bytes 00000001 01100100 10000000
"""

import numpy as np
from numpy.typing import NDArray

from fedbnsl.errors import MalformedMessageError

Naturals = NDArray[np.uint64]

END = 2**32
"""All numbers are below."""

_MOST_LOW_BITS = 32
# Bytes that are looked through: eight bytes of memory for each of their bits.
_AT_A_TIME = 2**16


def pack(numbers: Naturals) -> bytes:
    """The code of numbers below END, with the r that makes it shortest; their count is not in it."""
    n_low = _shortest(numbers)
    high = (numbers >> np.uint64(n_low)).astype(np.int64)
    ends = np.cumsum(high + 1) - 1
    unary = np.zeros(int(ends[-1]) + 1 if ends.size else 0, dtype=np.uint8)
    unary[ends] = 1
    low = np.empty((numbers.size, n_low), dtype=np.uint8)
    for k in range(n_low):
        low[:, k] = (numbers >> np.uint64(n_low - 1 - k)) & np.uint64(1)
    return bytes([n_low]) + np.packbits(np.concatenate([unary, low.ravel()])).tobytes()


def _shortest(numbers: Naturals) -> int:
    def n_bits(r: int) -> int:
        return numbers.size * (r + 1) + int((numbers >> np.uint64(r)).sum())

    largest = int(numbers.max()) if numbers.size else 0
    return min(range(largest.bit_length() + 1), key=n_bits)


def unpack(data: bytes, n: int) -> tuple[Naturals, bytes]:
    """The first `n` numbers at the beginning of `data`, and what follows them.

    Raises MalformedMessageError if they do not end within `data`, one is not below END, or the last byte is not filled
    with zeros.
    """
    if not data or data[0] > _MOST_LOW_BITS:
        raise MalformedMessageError("packed numbers without their first byte, or with too many low bits")
    n_low, code = data[0], np.frombuffer(data, dtype=np.uint8, offset=1)
    ends = _ones(code, n)
    n_unary = int(ends[-1]) + 1 if ends.size else 0
    n_bits = n_unary + n * n_low
    n_bytes = -(-n_bits // 8)
    if ends.size < n or n_bytes > code.size:
        raise MalformedMessageError(f"packed numbers that end before the {n} that were announced")
    bits = np.unpackbits(code[n_unary // 8 : n_bytes])[n_unary % 8 :]
    if bits[n * n_low :].any():
        raise MalformedMessageError("packed numbers whose last byte is not filled with zeros")
    high = np.diff(ends, prepend=-1) - 1
    if n and int(high.max()) > (END - 1) >> n_low:
        raise MalformedMessageError(f"a packed number that is not below {END}")
    numbers = high.astype(np.uint64)
    for column in bits[: n * n_low].reshape(n, n_low).T:
        numbers = (numbers << np.uint64(1)) | column
    return numbers, data[1 + n_bytes :]


def _ones(code: NDArray[np.uint8], n: int) -> NDArray[np.int64]:
    """Where the first n ones are, or all: in memory for n, whatever else the code holds."""
    found, n_found = [np.empty(0, dtype=np.int64)], 0
    for first in range(0, code.size, _AT_A_TIME):
        if n_found == n:
            break
        ones = np.flatnonzero(np.unpackbits(code[first : first + _AT_A_TIME]))[: n - n_found]
        found.append(8 * first + ones)
        n_found += ones.size
    return np.concatenate(found)
