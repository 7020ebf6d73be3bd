"""Who is calling: checks every call of the federation against the certificate that it came with."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc

from fedbnsl.errors import IdentityError, ResultError
from fedbnsl_server.grpc_api.refusals import refuse

if TYPE_CHECKING:
    from fedbnsl.identity.certificates import Name
    from fedbnsl_server.identity.enrolment import Federation

_log = logging.getLogger(__name__)


class Authentication:
    """Knows callers by the federation's table of enrolment; revocation counts from the next call on."""

    def __init__(
        self,
        federation: "Federation",
        # Called with a site whose enrolment has ended, at each of its calls, so that no round waits for it.
        on_ended: Callable[[str], None] = lambda site: None,
    ) -> None:
        self._federation, self._on_ended = federation, on_ended

    def shown(self, context: grpc.aio.ServicerContext[Any, Any]) -> dict[str, str]:
        """What the certificate of a call says, whether it is good or not: for the security log."""
        from fedbnsl_server.identity.enrolment import shown_by

        (certificate,) = context.auth_context()["x509_pem_cert"]
        return shown_by(certificate)

    async def identify(self, context: grpc.aio.ServicerContext[Any, Any]) -> "Name":
        """Whose certificate a call came with; the call is ended if it has no valid one."""
        # Imported here: a coordinator in plaintext needs no cryptography.
        from fedbnsl_server.identity.enrolment_table import EnrolmentEndedError

        (shown,) = context.auth_context()["x509_pem_cert"]  # TLS lets nobody in without one
        try:
            return self._federation.identify(shown)
        except IdentityError as error:
            why = "not enrolled"
            if isinstance(error, EnrolmentEndedError):
                why = "revoked or expired"
                self._on_ended(error.site)
            await refuse(context, grpc.StatusCode.UNAUTHENTICATED, why, str(error))
        except ResultError:  # its text holds paths of this machine
            _log.exception("the enrolment table cannot be used")
            text = "the coordinator cannot read its enrolment table"
            await refuse(context, grpc.StatusCode.UNAVAILABLE, "no enrolment table", text)

    async def hold_to(self, name: "Name", site: str, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """End a call whose message speaks for another site than its certificate, or for one with the coordinator's."""
        if not name.site or name.site != site:
            who = repr(name.site) if name.site else "the coordinator"
            text = f"the certificate belongs to {who}, the message speaks for {site!r}"
            await refuse(context, grpc.StatusCode.UNAUTHENTICATED, "speaks for another", text)


def certificate_of(context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
    """The certificate that a call came with, DER; empty in plaintext."""
    shown = [*context.auth_context().get("x509_pem_cert", ())]
    if not shown:
        return b""
    # Imported here: a coordinator in plaintext needs no cryptography.
    from cryptography.hazmat.primitives.serialization import Encoding

    from fedbnsl.identity.certificates import read_certificate

    return read_certificate(shown[0], origin="the certificate of a call").public_bytes(Encoding.DER)
