"""What happens to a call before its handler: who calls, how many calls at once, how large, and only then what it says.

gRPC reads and parses the message of a unary call before anybody is asked. Here calls are therefore taken as streams of
one message, which are the same bytes on the wire: nothing is read for a caller who is refused.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from fedbnsl.events.security_log import Record, unrecorded
from fedbnsl.protocol.channel import CALLS_AT_ONCE
from fedbnsl_server.grpc_api.authentication import Authentication
from fedbnsl_server.grpc_api.connections import split_peer
from fedbnsl_server.grpc_api.refusals import note_refusal, refuse

Context = grpc.aio.ServicerContext[Any, Any]
Handler = Any  # grpc.RpcMethodHandler, whose attributes no stub knows, or None

_SERVICE = "/fedbnsl.wire.Federation/"
_LARGE = (_SERVICE + "Join", _SERVICE + "PushUpdate")
_SPEAKS_FOR_NOBODY = (_SERVICE + "Status", _SERVICE + "Runs")

_SMALL_BYTES = 1024
_READ_S = 60.0
_UNPARSABLE = "the request cannot be parsed; install the same version of fedbnsl at both ends"

caller: ContextVar[str] = ContextVar("caller", default="")
"""The site that the call in progress comes from; empty without TLS, and for the coordinator's own commands."""

identity: ContextVar[Mapping[str, str]] = ContextVar("identity", default={})  # noqa: B039  # nobody changes it
"""Of the caller, for the security log: its address, and under TLS the site and the fingerprint of its certificate."""


class IncomingCalls(grpc.aio.ServerInterceptor):
    """Identifies, limits and reads every call."""

    def __init__(
        self,
        # None: anybody may call, in plaintext. Calls are then counted by connection instead of by site.
        authentication: Authentication | None,
        *,
        # Called with the peer of each call (as gRPC writes addresses) once its sender is known, and with the site;
        # empty: the coordinator's own certificate; None: in plaintext.
        on_admitted: Callable[[str, str | None], None] = lambda peer, site: None,
        record: Record = unrecorded,  # told of each call that was refused, at whatever point: why, which call, whose
        runs_at_once: int = 1,  # runs that a site may take part in at the same time
    ) -> None:
        self._at_once = CALLS_AT_ONCE * runs_at_once
        self._authentication = authentication
        self._on_admitted = on_admitted
        self._record = record
        self._in_flight: Counter[str] = Counter()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Put the checks before a call's own handler.

        Streams (`Health.Watch` alone) have no handler: each would hold a call open for as long as it likes.
        """
        method = handler_call_details.method
        found = await continuation(handler_call_details)
        handler = None if found is None or found.unary_unary is None else found

        async def noted(_: Any, context: Context) -> Any:
            address, _port = split_peer(context.peer()) or (context.peer(), 0)
            shown = {} if self._authentication is None else self._authentication.shown(context)
            who = {**shown, "address": address}
            call = "" if handler is None else method.rpartition("/")[2]  # what is no call may be called anything
            identity.set(who)
            note_refusal.set(lambda why, text: self._record("refused", why=why, call=call, **who, said=text))
            return await taken(context)

        async def taken(context: Context) -> Any:
            name = None
            if self._authentication is not None:
                name = await self._authentication.identify(context)
            self._on_admitted(context.peer(), None if name is None else name.site)
            if handler is None:
                await refuse(context, grpc.StatusCode.UNIMPLEMENTED, "unknown call", "no such call, or a stream")
            with self._counted((name and name.site) or context.peer()) as in_flight:
                if in_flight > self._at_once:
                    text = f"more than {self._at_once} calls at once"
                    await refuse(context, grpc.StatusCode.UNAVAILABLE, "too many calls", text)
                request = await _read(context, handler.request_deserializer, small=method not in _LARGE)
                if self._authentication is not None and name is not None and method.startswith(_SERVICE):
                    if method not in _SPEAKS_FOR_NOBODY:
                        await self._authentication.hold_to(name, request.site, context)
                    caller.set(name.site)
                return await handler.unary_unary(request, context)

        return grpc.stream_unary_rpc_method_handler(noted, _unread, handler and handler.response_serializer)

    @contextmanager
    def _counted(self, who: str) -> Generator[int]:
        self._in_flight[who] += 1
        try:
            yield self._in_flight[who]
        finally:
            self._in_flight[who] -= 1
            if not self._in_flight[who]:
                del self._in_flight[who]


def _unread(data: bytes) -> bytes:
    return data


async def _read(context: Context, parse: Callable[[bytes], Any], *, small: bool) -> Any:
    """The one message of a call. gRPC itself refuses one that is larger than any that a site of the run sends."""
    try:
        async with asyncio.timeout(_READ_S):
            data = await context.read()
    except TimeoutError:
        await _malformed(context, f"no message within {_READ_S:g} s")
    if not isinstance(data, bytes):
        await _malformed(context, "a call without a message")
    if small and len(data) > _SMALL_BYTES:
        await _malformed(context, f"{len(data)} bytes; a message of this call has at most {_SMALL_BYTES}")
    try:
        return parse(data)
    except DecodeError:  # left to itself, gRPC would send the parser's text
        await _malformed(context, _UNPARSABLE)


async def _malformed(context: Context, text: str) -> NoReturn:
    await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "malformed", text)
