"""What operators ask of a coordinator's runs by programs, as JSON: `fedbnsl coordinator runs ... --at https://...`.

    GET  /api/runs                               all runs
    GET  /api/runs/NAME                          one
    GET  /api/runs/NAME/files                    the files of its result, with their SHA-256
    GET  /api/runs/NAME/files/FILE               one of them
    POST /api/runs/NAME/start                    queue a run: {"plan": TOML, "plan_digest": hex, "study": text}
    POST /api/runs/NAME/resume, /pause, /stop    say what is wanted of it
    POST /api/runs/NAME/sites/SITE/eject         {"from_round": number or null}

Each may be repeated. An error is {"error", "remedy", "exit_code"}, as a command would say it. Who may do what is the
table of `fedbnsl_server.identity.roles`.
"""

import asyncio
import json
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fedbnsl.errors import FedbnslError, ProtocolError, SetupError
from fedbnsl.plan.plan import Plan
from fedbnsl.web.access import Endpoint, body_of
from fedbnsl.web.port import WebPort
from fedbnsl_server.identity.roles import EJECT, PAUSE, RESUME, START, STOP

if TYPE_CHECKING:
    from fedbnsl_server.runs.folder import RunsFolder

_MOST_BYTES = 4 * 2**20  # a plan is 1 MiB at most, and JSON may write each byte as several
_NO_QUEUE = SetupError(
    "this coordinator plays one run, and has no queue",
    remedy="A queue is served by `fedbnsl coordinator runs serve`.",
)


class RunRequests:
    """The routes; `runs` is what they are about, None at a coordinator without a queue."""

    def __init__(self, port: WebPort) -> None:
        self.runs: RunsFolder | None = None
        self._starting = threading.Lock()
        one = "/api/runs/{name}"
        port.add_routes(
            [
                Route("/api/runs", self._shows(lambda runs, name, file: runs.all())),
                Route(one, self._shows(lambda runs, name, file: runs.one(name))),
                Route(f"{one}/files", self._shows(lambda runs, name, file: runs.files(name))),
                Route(f"{one}/files/{{file}}", self._shows(lambda runs, name, file: runs.file(name, file))),
            ]
        )
        port.add_action(START, f"{one}/start", self._start)
        for action, wanted in ((RESUME, "run"), (PAUSE, "pause"), (STOP, "stop")):
            port.add_action(action, f"{one}/{action.partition(' ')[0]}", self._wants(wanted))
        port.add_action(EJECT, f"{one}/sites/{{site}}/eject", self._eject)

    def _shows(self, look: "Callable[[RunsFolder, str, str], Any]") -> Endpoint:
        async def shown(request: Request) -> Response:
            name, file = (request.path_params.get(one, "") for one in ("name", "file"))
            return await self._answer(lambda runs: look(runs, name, file))

        return shown

    def _wants(self, wanted: str) -> Endpoint:
        async def said(request: Request) -> Response:
            return await self._answer(lambda runs: runs.want(request.path_params["name"], wanted))

        return said

    async def _start(self, request: Request) -> Response:
        content = await _content(request)

        def start(runs: "RunsFolder") -> Any:
            text, digest, study = (_text(content, key) for key in ("plan", "plan_digest", "study"))
            plan = Plan.from_toml(text, origin="the plan")
            if plan.digest().hex() != digest:
                raise ProtocolError(
                    "the coordinator reads another plan than was meant: its digest differs",
                    remedy="Use the same version of fedbnsl on both machines.",
                )
            with self._starting:  # of two that start the same run at once, one finds it there
                return runs.start(plan, request.path_params["name"], study)

        return await self._answer(start)

    async def _eject(self, request: Request) -> Response:
        name, site = request.path_params["name"], request.path_params["site"]
        from_round = (await _content(request)).get("from_round")

        def eject(runs: "RunsFolder") -> Any:
            if from_round is not None and (not isinstance(from_round, int) or from_round < 1):
                raise SetupError(f"from_round is {from_round!r}; expected the number of a round, or null")
            return {"answer": runs.eject(name, site, from_round)}

        return await self._answer(eject)

    async def _answer(self, ask: "Callable[[RunsFolder], Any]") -> Response:
        try:
            told = await asyncio.to_thread(self._ask, ask)
        except FedbnslError as error:
            told = {"error": str(error), "remedy": error.remedy, "exit_code": error.exit_code}
            return JSONResponse(told, 409)
        return Response(told, media_type="application/octet-stream") if isinstance(told, bytes) else JSONResponse(told)

    def _ask(self, ask: "Callable[[RunsFolder], Any]") -> Any:
        if self.runs is None:
            raise _NO_QUEUE
        return ask(self.runs)


async def _content(request: Request) -> dict[str, Any]:
    try:
        content = json.loads(await body_of(request, _MOST_BYTES) or b"{}")
    except (ValueError, RecursionError):
        return {}
    return cast(dict[str, Any], content) if isinstance(content, dict) else {}


def _text(content: dict[str, Any], key: str) -> str:
    value = content.get(key, "")
    if not isinstance(value, str):
        raise SetupError(f"{key!r} must be a text")
    return value
