"""The addresses of a coordinator's page: one run, or a list of the runs of a service."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from fedbnsl.console.interrupt import interruptible
from fedbnsl.errors import InterruptedRunError
from fedbnsl.events.emitter import Event
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.offer_codec import QUEUED
from fedbnsl.web.connections import AT_ONCE
from fedbnsl.web.port import WebPort
from fedbnsl.web.publisher import SnapshotPublisher
from fedbnsl.web.stream import StreamedPublisher
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.identity.roles import ROLES
from fedbnsl_server.observe.page import run_report
from fedbnsl_server.observe.page.live_run import LiveRun
from fedbnsl_server.observe.page.run_requests import RunRequests
from fedbnsl_server.runs.studies import ListedRun, in_studies
from fedbnsl_server.store.history import Past

if TYPE_CHECKING:
    from fedbnsl_server.identity.enrolment import Federation

_PACKAGE = "fedbnsl_server.observe.page"
# A run that is over waits so long for its report, and then for browsers to fetch it.
_MAKING_S = 60.0
_HOLD_S = 10.0
_ITS_TURN = "It starts by itself once a run before it is over; --at-once says how many there may be at a time."


class RunsPage:
    """The port of the page, and what it shows of each run.

    With a token or with operators of the federation, viewers see its server certificate; without both it is plaintext,
    on loopback only. `log` is the file of the security log. Raises SetupError if it cannot listen there.
    """

    most_connections = AT_ONCE

    def __init__(
        self,
        address: str,
        *,
        token_file: Path | None = None,
        federation: "Federation | None" = None,
        log: Path | None = None,
    ) -> None:
        self.port = WebPort(
            address,
            package=_PACKAGE,
            token_file=token_file,
            operators=None if federation is None else federation.folder,
            roles=ROLES,
            log=log,
            secure=None if federation is None else federation.server_tls(),
        )
        self.requests = RunRequests(self.port)
        self._runs: dict[str, LiveRun] = {}
        self._others: Sequence[ListedRun] | None = None  # of a service; None: there is one run
        self._list = SnapshotPublisher()
        self._list.refresh = self._refresh_list
        self._list.show("runs", self._listed)
        self._reports: dict[str, asyncio.Task[str | None]] = {}
        streams = self.port.streams
        self.port.add_routes(
            [
                Route("/", self._start),
                Route("/events", StreamedPublisher(streams, lambda request: self._list)),
                Route("/runs/{name}", self._page),
                Route("/runs/{name}/events", StreamedPublisher(streams, lambda request: self._live(request).publisher)),
                Route("/runs/{name}/state.json", self._state),
                Route("/runs/{name}/report", self._report),
            ]
        )

    def __enter__(self) -> Self:
        self.port.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.port.__exit__(*exception)

    def open(self, plan: Plan, folder: Path, run: int, *, past: Past) -> LiveRun:
        """Show a run from now on."""
        live = LiveRun(plan, folder, run, past=past.rounds)
        if past.state is not None:
            live.show_graph(past.state)
        self._runs = {**self._runs, live.name: live}
        self._list.show("runs", self._listed)
        return live

    def heard(self, event: Event) -> None:
        """Take in an event of any run; listens to `fedbnsl.events.emitter.Events`."""
        live = self._runs.get(event.run)
        if live is not None:
            live.heard(event)

    def show_graph(self, name: str, state: AdmmState) -> None:
        """Show the graph of a run's state from now on."""
        live = self._runs.get(name)
        if live is not None:
            live.show_graph(state)

    def list_runs(self, runs: Sequence[ListedRun]) -> None:
        """Show these in the list, too, whether open or not."""
        self._others = tuple(runs)
        self._list.show("runs", self._listed)

    def over(self, name: str) -> bool:
        """The folder of a run is written: there is a report, unless the run may go on later. Returns whether."""
        live = self._runs.get(name)
        if live is None or live.outcome not in ("finished", "failed"):
            return False
        live.say_report(run_report.can_be_made(), run_report.command(live.folder))
        return True

    def wait_for_viewers(self) -> None:
        """Hold the port until who looks has the report; without viewers not at all."""
        with suppress(InterruptedRunError), interruptible():  # a second signal; a loop that ends unsets all handlers
            self.port.wait_for_viewers(_MAKING_S, or_until=lambda: any(one.done() for one in self._reports.values()))
            self.port.wait_for_viewers(_HOLD_S)

    # ---- what is asked for ------------------------------------------------------------------------------------------

    async def _start(self, request: Request) -> Response:
        if self._others is None and len(self._runs) == 1:
            return RedirectResponse(f"/runs/{next(iter(self._runs))}", 303)
        return self.port.assets.answer(request, "runs.html")

    async def _page(self, request: Request) -> Response:
        self._live(request)
        page = self.port.access.filled(self.port.assets.text("run.html"), request, acts=self.requests.runs is not None)
        return HTMLResponse(page)

    async def _state(self, request: Request) -> Response:
        live = self._live(request)
        if live.publisher.refresh is not None:
            await live.publisher.refresh()
        return Response(live.publisher.snapshot(), media_type="application/json")

    async def _report(self, request: Request) -> Response:
        live = self._live(request)
        if not live.outcome or not run_report.can_be_made():
            return PlainTextResponse("no report yet", 404)
        if live.name not in self._reports:  # one for all viewers
            self._reports[live.name] = asyncio.ensure_future(run_report.made(live.folder))
        page = None
        with suppress(OSError, TimeoutError):
            page = await asyncio.shield(self._reports[live.name])
        if page is None:
            return PlainTextResponse(f"the report could not be made: {run_report.command(live.folder)}", 500)
        return HTMLResponse(page, headers={"Content-Security-Policy": run_report.policy_of(page)})

    def _live(self, request: Request) -> LiveRun:
        try:
            return self._runs[request.path_params["name"]]
        except KeyError:
            raise HTTPException(404, "no such run") from None

    def _listed(self) -> list[dict[str, Any]]:
        """Those that are open first; of each study together, and those without one at the end."""
        studies = {one.name: one.study for one in self._others or ()}
        listed: list[dict[str, Any]] = [
            {
                "name": live.name,
                "study": studies.get(live.name, ""),
                "plan": live.plan.name,
                "state": live.state,
                "progress": live.progress,
                "needs": live.needs,
            }
            for live in self._runs.values()
        ]
        waiting = [one for one in self._others or () if one.name not in self._runs]
        listed += [
            {**one._asdict(), "progress": None, "needs": _ITS_TURN if one.state == QUEUED else ""} for one in waiting
        ]
        return in_studies(listed)

    async def _refresh_list(self) -> None:
        for live in self._runs.values():
            if live.publisher.refresh is not None and not live.outcome:
                await live.publisher.refresh()
        self._list.show("runs", self._listed)
