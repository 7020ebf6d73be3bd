"""The end of a call that is refused: its reason and its caller are noted in one place."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NoReturn

import grpc

Context = grpc.aio.ServicerContext[Any, Any]


def _nobody(why: str, text: str) -> None:
    """Before a call is looked at, nobody listens."""


note_refusal: ContextVar[Callable[[str, str], None]] = ContextVar("note_refusal", default=_nobody)
"""Takes down that the call in progress is refused: a class of reasons, and the text that the caller is sent."""


async def refuse(context: Context, status: grpc.StatusCode, why: str, text: str) -> NoReturn:
    """End a call with a status and a text; `why` is one of a few constant words."""
    note_refusal.get()(why, text)
    await context.abort(status, text)
