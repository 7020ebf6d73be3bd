"""Compile inner loops with numba."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.core import dispatcher as dispatchers
from numba.core import types

_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])


def compiled(kernel: _Kernel) -> _Kernel:
    """Machine code, cached on disk; without fastmath, so that every run gives the same bits."""
    return cast(_Kernel, _prepared(numba.njit(cache=True, nogil=True)(kernel)))


def exact_sums(kernel: _Kernel) -> _Kernel:
    """Machine code whose sums are added in any order, several at a time.

    Only for sums of whole numbers that stay below 2^53: these are exact in any order.
    """
    return cast(_Kernel, _prepared(numba.njit(cache=True, nogil=True, fastmath={"reassoc"})(kernel)))


def _prepared(dispatcher: Any) -> Any:
    if _is_compiled(dispatcher):  # plain Python under NUMBA_DISABLE_JIT
        _for_any_number(dispatcher)
        _follow_callees(dispatcher)
        _forget_what_is_gone(dispatcher)
    return dispatcher


def _is_compiled(one: Any) -> bool:
    return isinstance(one, cast(Any, dispatchers).Dispatcher)


def _for_any_number(dispatcher: Any) -> None:
    """Keep numba from compiling a kernel again for each literal that another kernel calls it with, such as 0."""
    template, number = dispatcher.get_call_template, cast(Any, types).unliteral

    def get_call_template(args: Any, kws: dict[str, Any]) -> Any:
        return template([number(one) for one in args], {name: number(one) for name, one in kws.items()})

    dispatcher.get_call_template = get_call_template


def _follow_callees(dispatcher: Any) -> None:
    """Compile a kernel again after a change in a file whose kernels it calls; numba looks at its own file alone."""
    known, own = dispatcher.py_func.__globals__.values(), dispatcher.py_func.__module__
    called = [one for one in known if _is_compiled(one) and one.py_func.__module__ != own]
    stamp = _cache_file(dispatcher)._source_stamp
    _cache_file(dispatcher)._source_stamp = (stamp, *dict.fromkeys(_cache_file(one)._source_stamp for one in called))


def _forget_what_is_gone(dispatcher: Any) -> None:
    """Compile a kernel again if what another version has cached names a class that is no more; numba would fail."""
    cached = _cache_file(dispatcher)
    load = cached._load_index

    def load_index() -> dict[Any, Any]:
        try:
            return cast(dict[Any, Any], load())
        except (AttributeError, ImportError):
            return {}

    cached._load_index = load_index


def _cache_file(dispatcher: Any) -> Any:
    return dispatcher._cache._cache_file
