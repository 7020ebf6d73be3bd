"""Compile inner loops with numba."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])


def compiled(kernel: _Kernel) -> _Kernel:
    """Machine code, cached on disk; without fastmath, so that every run gives the same bits."""
    return cast(_Kernel, numba.njit(cache=True, nogil=True)(kernel))


def exact_sums(kernel: _Kernel) -> _Kernel:
    """Like `compiled`, but sums may be reordered to use vector instructions.

    Only for sums of whole numbers that stay below 2^53: these are exact in any order.
    """
    return cast(_Kernel, numba.njit(cache=True, nogil=True, fastmath={"reassoc"})(kernel))
