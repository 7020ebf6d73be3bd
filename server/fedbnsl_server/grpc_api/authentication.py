"""Who is calling: every call of the federation is held to the certificate that it came with."""

import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import grpc

from fedbnsl.errors import IdentityError, ResultError

if TYPE_CHECKING:
    from fedbnsl.identity.certificates import Name
    from fedbnsl_server.identity.enrolment import Federation

_SERVICE = "/fedbnsl.wire.Federation/"
_SPEAKS_FOR_NOBODY = _SERVICE + "Status"

_log = logging.getLogger(__name__)

caller: ContextVar[str] = ContextVar("caller", default="")
"""The site that the call in progress comes from; empty without TLS, and for the coordinator's own commands."""


class Authentication(grpc.aio.ServerInterceptor):
    """Lets a site act under its own enrolled name only; revocation counts from the next call on.

    The coordinator's own certificate may ask for the status and for nothing else.

    Attributes
    ----------
    on_ended
        Called with a site whose enrolment has ended, at each of its calls, so that no round waits for it.
    """

    def __init__(self, federation: "Federation") -> None:
        self._federation = federation
        self.on_ended: Callable[[str], None] = lambda site: None

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Put the check before every method of the federation, but not before health, which needs only TLS."""
        # Imported here: a coordinator in plaintext needs no cryptography.
        from fedbnsl_server.identity.enrolment import EnrolmentEndedError

        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(_SERVICE):
            return handler

        async def checked(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            try:
                name = self._federation.identify(_certificate(context))
                if handler_call_details.method != _SPEAKS_FOR_NOBODY:
                    _refuse_another(name, request.site)
            except IdentityError as error:
                if isinstance(error, EnrolmentEndedError):
                    self.on_ended(error.site)
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
            except ResultError:  # its text holds paths of this machine
                _log.exception("the enrolment table cannot be used")
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the coordinator cannot read its enrolment table")
            caller.set(name.site)
            return await handler.unary_unary(request, context)

        return grpc.unary_unary_rpc_method_handler(
            checked, request_deserializer=handler.request_deserializer, response_serializer=handler.response_serializer
        )


def _certificate(context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
    (shown,) = context.auth_context()["x509_pem_cert"]  # TLS lets nobody in without one
    return shown


def _refuse_another(name: "Name", site: str) -> None:
    if not name.site or name.site != site:
        who = repr(name.site) if name.site else "the coordinator"
        raise IdentityError(f"the certificate belongs to {who}, the message speaks for {site!r}")
