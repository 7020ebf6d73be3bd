"""The page on which a person approves the plan of a run that is offered: what it costs here, and the site's word.

What is shown is what `fedbnsl participant approve --all` shows, and stays at the site. An approval is for what was
shown: if budget, table or plan have changed since, nothing is recorded, and the page is to be looked at again.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from fedbnsl.console.shown import shown
from fedbnsl.errors import FedbnslError
from fedbnsl.plan.plan import Plan
from fedbnsl.web.access import body_of
from fedbnsl.web.port import WebPort
from fedbnsl_client.site.approving import proposed
from fedbnsl_client.site.identity import federations
from fedbnsl_client.site.roles import APPROVE

_MOST_BYTES = 4096
_MOST_RUNS = 100


class ApprovalPage:
    """Adds its addresses to a port: /approve/RUN.

    Parameters
    ----------
    proposals
        The runs whose plans may be approved, by what stands for them in an address: name, and plan as TOML.
    federation
        Whose runs they are; None: the folder is of one federation.
    """

    def __init__(
        self,
        port: WebPort,
        folder: Path,
        proposals: Callable[[], Mapping[str, tuple[str, str]]],
        federation: str | None,
    ) -> None:
        self._port, self._folder, self._proposals, self._federation = port, folder, proposals, federation
        self._one_at_a_time = asyncio.Lock()  # each reads the whole table
        port.add_routes([Route("/approve/{run}", self._page), Route("/approve/{run}/state.json", self._state)])
        port.add_action(APPROVE, "/approve/{run}", self._approve)

    async def _page(self, request: Request) -> Response:
        self._proposal(request)
        return HTMLResponse(self._port.access.filled(self._port.assets.text("approve.html"), request))

    async def _state(self, request: Request) -> Response:
        if not self._port.access.allows(request, APPROVE):  # what is shown tells of the table
            raise HTTPException(
                403, "shown to those alone who may approve, by their token: fedbnsl participant operators add"
            )
        proposal = self._proposal(request)
        async with self._one_at_a_time:
            return JSONResponse(await asyncio.to_thread(self._looked_at, *proposal))

    async def _approve(self, request: Request) -> Response:
        proposal = self._proposal(request)
        try:
            asked = json.loads(await body_of(request, _MOST_BYTES))
            site, seen, n_runs = str(asked["site"]), str(asked["shown"]), int(asked["runs"])
        except (ValueError, KeyError, TypeError):
            return _refused("expected site, shown and runs", 400)
        if not 1 <= n_runs <= _MOST_RUNS:
            return _refused(f"runs: from 1 to {_MOST_RUNS}", 400)
        who = self._port.access.operator(request).name
        async with self._one_at_a_time:
            told = await asyncio.to_thread(self._looked_at, *proposal, site, seen, n_runs, who)
        return JSONResponse(told) if told.get("approved") else _refused(told["refused"], 409)

    def _proposal(self, request: Request) -> tuple[str, Plan]:
        """Name of the run, as its coordinator calls it, and its plan."""
        try:
            name, text = self._proposals()[request.path_params["run"]]
        except KeyError:
            raise HTTPException(404, "no such run waits for an approval") from None
        return name, Plan.from_toml(text, origin="the plan of the run")

    def _looked_at(
        self, run: str, plan: Plan, site: str | None = None, seen: str = "", n_runs: int = 0, who: str = ""
    ) -> dict[str, Any]:
        """What a person is to see; with the site's name, as it was typed, approved if that is what was shown."""
        lines: list[str] = []
        told: dict[str, Any] = {
            "run": shown(run),
            "plan": shown(plan.name),
            "digest": plan.digest().hex(),
            "federation": self._federation or next(iter(federations(self._folder)), ""),
            "lines": lines,
            "refused": "",
        }
        try:
            with proposed(plan, self._folder, lines.append, every=True, federation=self._federation) as proposal:
                now = hashlib.sha256("\n".join([told["digest"], *lines]).encode()).hexdigest()
                told |= {"site": proposal.site, "dataset": proposal.dataset, "shown": now}
                if site is None:
                    return told
                if site.strip() != proposal.site:
                    return told | {"refused": f"type the name of this site, {proposal.site}: nothing was approved"}
                if seen != now:
                    return told | {"refused": "budget, table or plan have changed: look at this page again"}
                proposal.approve(n_runs, by=who or "(no name)")
                return told | {"approved": True}
        except FedbnslError as error:
            return told | {"refused": f"{error}", "remedy": error.remedy}


def _refused(why: str, status: int) -> Response:
    return JSONResponse({"error": why}, status)
