"""Golomb-Rice codes: every list of numbers comes back, in as few bits as promised, and damaged ones are refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbnsl.errors import MalformedMessageError
from fedbnsl.protocol import rice

QUICK = settings(max_examples=200, deadline=None)
NUMBERS = st.lists(st.integers(0, 40) | st.integers(0, rice.END - 1), max_size=60)


def naturals(numbers: list[int]) -> rice.Naturals:
    return np.array(numbers, dtype=np.uint64)


def in_text(numbers: list[int], r: int) -> str:
    """The code by its definition, one number after the other, as text."""
    return "".join("0" * (x >> r) + "1" for x in numbers) + "".join(f"{x % 2**r:0{r}b}" * (r > 0) for x in numbers)


@QUICK
@given(NUMBERS, st.binary(max_size=5))
def test_numbers_come_back_and_so_does_what_follows_them(numbers: list[int], rest: bytes) -> None:
    found, left = rice.unpack(rice.pack(naturals(numbers)) + rest, len(numbers))
    assert (found.tolist(), left) == (numbers, rest)


@QUICK
@given(NUMBERS)
def test_the_code_is_the_defined_one_with_the_best_number_of_low_bits(numbers: list[int]) -> None:
    # A quotient of 2^32 zeros is not written out: the lengths are compared first.
    lengths = {r: len(numbers) * (r + 1) + sum(x >> r for x in numbers) for r in range(33)}
    data = rice.pack(naturals(numbers))
    assert lengths[data[0]] == min(lengths.values())
    bits = "".join(f"{byte:08b}" for byte in data[1:])
    text = in_text(numbers, data[0])
    assert bits == text + "0" * (-len(text) % 8)


def test_the_example_of_the_docstring() -> None:
    assert rice.unpack(bytes([1, 0b01100100, 0b10000000]), 3)[0].tolist() == [2, 0, 5]


@pytest.mark.parametrize(
    ("data", "n", "reason"),
    [
        (b"", 1, "without their first byte"),
        (bytes([33, 0x80]), 1, "too many low bits"),
        (bytes([0]), 1, "end before the 1"),
        (bytes([0, 0x00]), 1, "end before the 1"),
        (bytes([0, 0x80]), 2, "end before the 2"),
        (bytes([8, 0x80]), 1, "end before the 1"),
        (bytes([0, 0x81]), 1, "not filled with zeros"),
        (bytes([32, 0x40, 0, 0, 0, 0]), 1, "not below"),
        (bytes([0, 0x80]), 2**32 - 1, "end before"),
    ],
)
def test_damaged_numbers_are_refused(data: bytes, n: int, reason: str) -> None:
    with pytest.raises(MalformedMessageError, match=reason):
        rice.unpack(data, n)


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=40), st.integers(0, 50))
def test_arbitrary_bytes_are_refused_or_are_numbers(data: bytes, n: int) -> None:
    try:
        numbers, rest = rice.unpack(data, n)
    except MalformedMessageError:
        return
    assert numbers.size == n
    assert (numbers < rice.END).all()
    assert data.endswith(rest)
