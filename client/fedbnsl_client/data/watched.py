"""How far a site is with its own long work, for whoever watches at its keyboard; none of it leaves the site."""

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from fedbnsl.console.time_left import TimeLeft
from fedbnsl.protocol.messages import Phase

Show = Callable[[Phase | None], None]

_Block = TypeVar("_Block")

_show: ContextVar[Show | None] = ContextVar("show", default=None)


@contextmanager
def watched(show: Show) -> Generator[None]:
    """Tell `show`, while this lasts, what takes time and how far it is; None once it is over."""
    before = _show.set(show)
    try:
        yield
    finally:
        _show.reset(before)
        show(None)


def followed(what: str, blocks: Iterable[_Block], share: Callable[[], float | None]) -> Iterator[_Block]:
    """The blocks one after the other; whoever watches is told before each how far that is.

    Parameters
    ----------
    what
        Is done with them, in words.
    share
        Of them that is done, 0 to 1; None: not known.
    """
    show = _show.get()
    if show is None:
        yield from blocks
        return
    time_left = TimeLeft(what, time.monotonic())
    try:
        for block in blocks:
            show(time_left.phase(share(), time.monotonic()))
            yield block
    finally:
        show(None)
