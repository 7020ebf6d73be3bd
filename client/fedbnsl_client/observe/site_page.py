"""The addresses of the site's pages: one run of `participant join`, or the runs of an agent, each with its button."""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from fedbnsl.errors import SetupError
from fedbnsl.web.exposure import renewed_from
from fedbnsl.web.port import WebPort
from fedbnsl.web.publisher import SnapshotPublisher
from fedbnsl.web.stream import StreamedPublisher
from fedbnsl_client.cancellation import Leaving
from fedbnsl_client.observe.site_view import SiteView

_PACKAGE = "fedbnsl_client.observe"
_WHY = "asked for on the site's page"


@dataclass(frozen=True)
class ShownRun:
    """A run as a page shows it, and what its button asks."""

    view: SiteView
    leaving: Leaving


class SitePage:
    """The port of the site's pages. Raises SetupError if it cannot listen there, or would without TLS or a token.

    Parameters
    ----------
    address
        host:port; port 0 takes a free one.
    runs
        The runs to show, by what stands for them in an address; of one run alone the empty text.
    agent
        What the first page shows of an agent, with a link to each run; None: the one run is the first page.
    token_file
        Holds what a viewer must show; None: nothing, in plaintext, on loopback only.
    certificate
        PEM file with a certificate that the site's browsers trust, and its key; needed with a token. That of the site's
        enrolment would not do: it is one for calling, not for being called.
    """

    def __init__(
        self,
        address: str,
        runs: Callable[[], Mapping[str, ShownRun]],
        *,
        agent: Callable[[], Any] | None = None,
        token_file: Path | None = None,
        certificate: Path | None = None,
    ) -> None:
        secure: Callable[[], ssl.SSLContext] | None = None
        if certificate is not None:
            if token_file is None:
                raise SetupError("--web-certificate goes with --web-token")
            secure = renewed_from(certificate, option="--web-certificate")
        self._runs = runs
        self.port = WebPort(
            address, package=_PACKAGE, token_file=token_file, secure=secure, needs="--web-certificate FILE"
        )
        streams = self.port.streams
        if agent is None:
            at = ""
        else:
            self._agent, at = SnapshotPublisher(), "/runs/{run}"
            self._agent.refresh = self._refresh
            self._agent.show("agent", agent)
            self._about = agent
            self.port.add_routes(
                [
                    Route("/", self._first_page),
                    Route("/events", StreamedPublisher(streams, lambda request: self._agent)),
                ]
            )
        self.port.add_routes(
            [
                Route(at or "/", self._page),
                Route(f"{at}/events", StreamedPublisher(streams, lambda request: self._shown(request).view.publisher)),
                Route(f"{at}/state.json", self._state),
                Route(f"{at}/leave", self._leave, methods=["POST"]),
            ]
        )

    def __enter__(self) -> Self:
        self.port.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.port.__exit__(*exception)

    async def _refresh(self) -> None:
        self._agent.show("agent", self._about)

    async def _first_page(self, request: Request) -> Response:
        return self.port.assets.answer(request, "agent.html")

    async def _page(self, request: Request) -> Response:
        self._shown(request)
        text = self.port.assets.text("site.html").replace("{{ form_token }}", self.port.access.form_token)
        return HTMLResponse(text)

    async def _state(self, request: Request) -> Response:
        return Response(self._shown(request).view.publisher.snapshot(), media_type="application/json")

    async def _leave(self, request: Request) -> Response:
        shown = self._shown(request)
        if not self.port.access.holds_form_token(request):
            return PlainTextResponse("posted from another page, or the process is another one now: load it again", 403)
        if shown.view.is_over:
            return JSONResponse({"leaving": False}, 409)
        shown.leaving.ask(_WHY)
        shown.view.asked_to_leave()
        return JSONResponse({"leaving": True}, 202)

    def _shown(self, request: Request) -> ShownRun:
        try:
            return self._runs()[request.path_params.get("run", "")]
        except KeyError:
            raise HTTPException(404, "no such run") from None
