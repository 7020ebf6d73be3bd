"""The addresses of the site's pages: one run of `participant join`, or the runs of an agent, each with its button."""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from fedbnsl.errors import SetupError
from fedbnsl.events.security_log import NAME
from fedbnsl.web.exposure import renewed_from
from fedbnsl.web.operators import Operators
from fedbnsl.web.port import WebPort
from fedbnsl.web.publisher import SnapshotPublisher
from fedbnsl.web.stream import StreamedPublisher
from fedbnsl_client.cancellation import Leaving
from fedbnsl_client.observe.site_view import SiteView
from fedbnsl_client.site.roles import LEAVE, ROLES

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
        Holds a token without a name. Without one and without operators nothing is asked for: plaintext, on loopback.
    certificate
        PEM file with a certificate that the site's browsers trust, and its key; needed with tokens. That of the site's
        enrolment would not do: it is one for calling, not for being called.
    folder
        Of the site, with its operators and its security log; None: it has none.
    proposals, federation
        See `ApprovalPage`; None: nothing is approved here.
    """

    def __init__(
        self,
        address: str,
        runs: Callable[[], Mapping[str, ShownRun]],
        *,
        agent: Callable[[], Any] | None = None,
        token_file: Path | None = None,
        certificate: Path | None = None,
        folder: Path | None = None,
        proposals: Callable[[], Mapping[str, tuple[str, str]]] | None = None,
        federation: str | None = None,
    ) -> None:
        secure: Callable[[], ssl.SSLContext] | None = None
        if certificate is not None:
            if token_file is None and not (folder is not None and Operators.are_named_in(folder)):
                raise SetupError("--web-certificate goes with --web-token, or with operators of the site")
            secure = renewed_from(certificate, option="--web-certificate")
        self._runs = runs
        self.port = WebPort(
            address,
            package=_PACKAGE,
            token_file=token_file,
            operators=folder,
            roles=ROLES,
            log=None if folder is None else folder / NAME,
            secure=secure,
            needs="--web-certificate FILE",
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
            ]
        )
        self.port.add_action(LEAVE, f"{at}/leave", self._leave)
        if folder is not None and proposals is not None:
            from fedbnsl_client.observe.approval_page import ApprovalPage  # here: it reads tables

            ApprovalPage(self.port, folder, proposals, federation)

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
        return HTMLResponse(self.port.access.filled(self.port.assets.text("site.html"), request))

    async def _state(self, request: Request) -> Response:
        return Response(self._shown(request).view.publisher.snapshot(), media_type="application/json")

    async def _leave(self, request: Request) -> Response:
        shown = self._shown(request)
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
