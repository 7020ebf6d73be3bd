"""Matrices of any content that may cross the wire, and what it is to come out of it unchanged."""

from typing import TypeVar

import numpy as np
from google.protobuf.message import Message
from hypothesis import settings
from hypothesis import strategies as st

from fedbnsl.protocol.messages import Membership
from fedbnsl.protocol.sparse import SparseMatrix

M = TypeVar("M", bound=Message)
QUICK = settings(max_examples=80, deadline=None)
ANY_FINITE = st.floats(allow_nan=False, allow_infinity=False)  # signed zeros and subnormals among them
ANY_FINITE_FLOAT32 = st.floats(allow_nan=False, allow_infinity=False, width=32)


def off_diagonal(d: int) -> list[int]:
    return [i * d + j for i in range(d) for j in range(d) if i != j]


@st.composite
def matrices(draw: st.DrawFn, *, value_type: str = "float64", max_variables: int = 400) -> SparseMatrix:
    """Any support: a few drawn indices, or a whole band of rows; any finite values that the type can hold."""
    d = draw(st.integers(2, max_variables))
    index = draw(st.sets(st.integers(0, d * d - 1), max_size=40))
    index |= draw(st.sampled_from([set(), {1}, {d * d - 2}, set(range(d * min(d, 3)))]))
    kept = sorted(k for k in index if k // d != k % d)
    drawn = draw(st.lists(ANY_FINITE_FLOAT32 if value_type == "float32" else ANY_FINITE, min_size=1, max_size=40))
    value = np.array([drawn[k % len(drawn)] for k in range(len(kept))], dtype=np.float64)
    return SparseMatrix(d, np.array(kept, dtype=np.int64), value)


@st.composite
def full_matrices(draw: st.DrawFn, *, value_type: str = "float64", max_variables: int = 30) -> SparseMatrix:
    """All d^2 entries, zeros and the diagonal among them, as a dense message brings them."""
    d = draw(st.integers(2, max_variables))
    drawn = draw(st.lists(ANY_FINITE_FLOAT32 if value_type == "float32" else ANY_FINITE, min_size=1, max_size=40))
    value = np.array([drawn[k % len(drawn)] for k in range(d * d)], dtype=np.float64)
    return SparseMatrix(d, np.arange(d * d), value)


def parsed(kind: type[M], message: Message) -> M:
    """The message as the other side's protobuf sees it."""
    return kind.FromString(message.SerializeToString())


def assert_same_bits(one: SparseMatrix, other: SparseMatrix) -> None:
    assert one.n_variables == other.n_variables
    assert one.index.tolist() == other.index.tolist()
    assert [float(v).hex() for v in one.value] == [float(v).hex() for v in other.value]  # hex tells -0.0 from 0.0
    assert other.index.dtype == np.int64
    assert other.value.dtype == np.float64


MEMBERSHIPS = (
    Membership("east", 100, b"certificate", bytes(range(32)), b"signature"),
    Membership("west", 7, public_key=bytes(range(1, 33))),
)
