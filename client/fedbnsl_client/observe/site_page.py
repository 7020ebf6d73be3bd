"""The addresses of the site's page, and its button."""

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Self

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from fedbnsl.errors import SetupError
from fedbnsl.web.exposure import RenewedContext
from fedbnsl.web.port import WebPort
from fedbnsl.web.stream import StreamedBoard
from fedbnsl_client.leaving import Leaving
from fedbnsl_client.observe.site_view import SiteView

_PACKAGE = "fedbnsl_client.observe"
_WHY = "asked for on the site's page"


class SitePage:
    """The port of the site's page.

    Parameters
    ----------
    address
        host:port; port 0 takes a free one.
    leaving
        Asked when the button is pressed.
    token_file
        Holds what a viewer must show; None: nothing, in plaintext, on loopback only.
    certificate
        PEM file with a certificate that the site's browsers trust, and its key; needed with a token. That of the site's
        enrolment would not do: it is one for calling, not for being called.

    Raises
    ------
    SetupError
        If it cannot listen there, or would without TLS or a token.
    """

    def __init__(
        self,
        address: str,
        view: SiteView,
        leaving: Leaving,
        *,
        token_file: Path | None = None,
        certificate: Path | None = None,
    ) -> None:
        secure: Callable[[], ssl.SSLContext] | None = None
        if certificate is not None:
            if token_file is None:
                raise SetupError("--web-certificate goes with --web-token")
            secure = RenewedContext(lambda: _content(certificate), lambda: _context(certificate))
        self.view, self._leaving = view, leaving
        self.port = WebPort(
            address, package=_PACKAGE, token_file=token_file, secure=secure, needs="--web-certificate FILE"
        )
        self.port.add_routes(
            [
                Route("/", self._page),
                Route("/events", StreamedBoard(self.port.streams, lambda request: self.view.board)),
                Route("/state.json", self._state),
                Route("/leave", self._leave, methods=["POST"]),
            ]
        )

    def __enter__(self) -> Self:
        self.port.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.port.__exit__(*exception)

    async def _page(self, request: Request) -> Response:
        text = self.port.assets.text("site.html").replace("{{ form_token }}", self.port.access.form_token)
        return HTMLResponse(text)

    async def _state(self, request: Request) -> Response:
        return Response(self.view.board.snapshot(), media_type="application/json")

    async def _leave(self, request: Request) -> Response:
        if not self.port.access.holds_form_token(request):
            return PlainTextResponse("posted from another page, or the process is another one now: load it anew", 403)
        if self.view.is_over:
            return JSONResponse({"leaving": False}, 409)
        self._leaving.ask(_WHY)
        self.view.asked_to_leave()
        return JSONResponse({"leaving": True}, 202)


def _content(certificate: Path) -> bytes:
    try:
        return certificate.read_bytes()
    except OSError as error:
        raise SetupError(f"--web-certificate: {certificate} cannot be read: {error.strerror}") from None


def _context(certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate)
    except (OSError, ssl.SSLError) as error:
        raise SetupError(
            f"--web-certificate: {certificate} must hold a certificate and its key, PEM: {error}"
        ) from None
    return context
