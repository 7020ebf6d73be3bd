"""The addresses of a coordinator's page: one run, or a list of the runs of a service."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

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
from fedbnsl_server.runs.queue import OVER, result_stamp
from fedbnsl_server.runs.studies import ListedRun, in_studies
from fedbnsl_server.store.history import Past
from fedbnsl_server.store.run_id import RunIdentity

if TYPE_CHECKING:
    from fedbnsl_server.identity.enrolment import Federation

_PACKAGE = "fedbnsl_server.observe.page"
# A run that is over waits so long for its report, and then for browsers to fetch it.
_MAKING_S = 60.0
_HOLD_S = 10.0
_MOST_REPORTS = 16  # that are kept
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
        self._others: Mapping[str, ListedRun] | None = None  # of a service, by name; None: there is one run
        self._list = SnapshotPublisher()
        self._list.refresh = self._refresh_list
        self._list.show("runs", self._listed)
        self._reports: dict[str, tuple[tuple[int, int], asyncio.Task[str | None]]] = {}  # with what the results were
        self._making = asyncio.Lock()
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

    def open(self, plan: Plan, folder: Path, identity: RunIdentity, *, past: Past) -> LiveRun:
        """Show a run from now on."""
        live = LiveRun(plan, folder, identity, past=past.rounds)
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
        self._others = {one.name: one for one in runs}
        self._list.show("runs", self._listed)

    def forget(self, is_gone: Callable[[str], bool]) -> None:
        """Show no more of some runs than the list does, by their names."""
        self._runs = {name: live for name, live in self._runs.items() if not is_gone(name)}

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
            self.port.wait_for_viewers(_MAKING_S, or_until=lambda: any(one.done() for _, one in self._reports.values()))
            self.port.wait_for_viewers(_HOLD_S)

    # ---- what is asked for ------------------------------------------------------------------------------------------

    async def _start(self, request: Request) -> Response:
        if self._others is None and len(self._runs) == 1:
            return RedirectResponse(f"/runs/{next(iter(self._runs))}", 303)
        return self.port.assets.answer(request, "runs.html")

    async def _page(self, request: Request) -> Response:
        if (name := request.path_params["name"]) not in self._runs and self._result(name) is not None:
            return RedirectResponse(f"/runs/{quote(name)}/report", 303)
        self._live(request)
        page = self.port.access.filled(self.port.assets.text("run.html"), request, acts=self.requests.runs is not None)
        return HTMLResponse(page)

    async def _state(self, request: Request) -> Response:
        live = self._live(request)
        if live.publisher.refresh is not None:
            await live.publisher.refresh()
        return Response(live.publisher.snapshot(), media_type="application/json")

    async def _report(self, request: Request) -> Response:
        name = request.path_params["name"]
        folder = self._result(name)
        if folder is None:
            self._live(request)
            return PlainTextResponse("no report yet", 404)
        stamp = result_stamp(folder)
        if name not in self._reports or self._reports[name][0] != stamp:  # one for all viewers
            self._reports[name] = stamp, asyncio.ensure_future(self._made(folder))
            if len(self._reports) > _MOST_REPORTS:
                del self._reports[next(iter(self._reports))]
        page = None
        with suppress(OSError, TimeoutError):
            page = await asyncio.shield(self._reports[name][1])
        if page is None:
            return PlainTextResponse(f"the report could not be made: {run_report.command(folder)}", 500)
        return HTMLResponse(page, headers={"Content-Security-Policy": run_report.policy_of(page)})

    async def _made(self, folder: Path) -> str | None:
        async with self._making:  # whoever looks at many takes no more of the processor
            return await run_report.made(folder)

    def _result(self, name: str) -> Path | None:
        """The folder of a run whose report can be made here: one that is over; None: there is none."""
        if not run_report.can_be_made():
            return None
        if (live := self._runs.get(name)) is not None:
            return live.folder if live.outcome else None
        listed = (self._others or {}).get(name)
        return listed.folder if listed is not None and listed.state in OVER else None

    def _live(self, request: Request) -> LiveRun:
        try:
            return self._runs[request.path_params["name"]]
        except KeyError:
            raise HTTPException(404, "no such run") from None

    def _listed(self) -> list[dict[str, Any]]:
        """Those that are open first; of each study together, and those without one at the end."""
        others = self._others or {}
        listed: list[dict[str, Any]] = [
            {
                "name": live.name,
                "study": live.study,
                "plan": live.plan.name,
                "state": live.state,
                "progress": live.progress,
                "needs": live.needs,
                "page": True,
            }
            for live in self._runs.values()
        ]
        waiting = [one for one in others.values() if one.name not in self._runs]
        listed += [
            {
                "name": one.name,
                "study": one.study,
                "plan": one.plan,
                "state": one.state,
                "progress": None,
                "needs": _ITS_TURN if one.state == QUEUED else "",
                "page": self._result(one.name) is not None,
            }
            for one in waiting
        ]
        return in_studies(listed)

    async def _refresh_list(self) -> None:
        for live in self._runs.values():
            if live.publisher.refresh is not None and not live.outcome:
                await live.publisher.refresh()
        self._list.show("runs", self._listed)
