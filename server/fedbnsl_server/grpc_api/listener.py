"""One port for several runs: every call goes on to the servicer of its run."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any

import grpc

from fedbnsl.console.shown import shown
from fedbnsl.errors import FedbnslError
from fedbnsl.protocol import codec
from fedbnsl.protocol.channel import LONG_POLL_S
from fedbnsl.protocol.messages import ENDED_STATES, RunOffer, RunStatus, run_tag
from fedbnsl.protocol.offer_codec import encode_offers
from fedbnsl.rounds.kinds import n_rounds
from fedbnsl.wire import federation_pb2 as federation
from fedbnsl.wire import federation_pb2_grpc as federation_grpc
from fedbnsl_server.grpc_api.incoming import caller
from fedbnsl_server.grpc_api.refusals import refuse
from fedbnsl_server.grpc_api.servicer import Servicer, refusals

Context = grpc.aio.ServicerContext[Any, Any]

_log = logging.getLogger(__name__)

_LOOK_S = 0.2
_LONGEST_NAME = 200
_KEPT_OVER = 16


class Listener(federation_grpc.FederationServicer):
    """The calls of all runs; used on one event loop.

    A call that names no run is for the only one that its caller can mean. A run that is known and not open now, such as
    one that is paused, is answered as a coordinator that is away: its sites try again.
    """

    def __init__(self) -> None:
        self._open: dict[int, Servicer] = {}
        self.others: Callable[[], Iterable[RunOffer]] = tuple  # all runs of the coordinator, open or not
        # Gives the servicer of a run that is over, by its tag, to sites that have missed its end; None if it has none.
        self.reopen: Callable[[int], Awaitable[Servicer | None]] = _never
        self._version = time.time_ns()  # not one that a coordinator before this one has given
        self._listed: tuple[RunOffer, ...] = ()
        self.closing = False  # whether calls that wait are answered at once
        self._looked = 0.0

    def open(self, servicer: Servicer) -> None:
        """Take the calls of a run; of runs that are over, the last ones alone stay open."""
        self._open.pop(run_tag(servicer.run), None)
        self._open[run_tag(servicer.run)] = servicer
        self._looked = 0.0
        over = [tag for tag, one in self._open.items() if one.progress.state in ENDED_STATES]
        for tag in over[:-_KEPT_OVER]:
            del self._open[tag]

    def close(self, servicer: Servicer) -> None:
        """Take no more calls of a run."""
        self._looked = 0.0
        self._open.pop(run_tag(servicer.run), None)

    def forget(self, is_gone: Callable[[str], bool]) -> None:
        """Take no more calls of runs whose folders are gone, by their names."""
        for servicer in [one for one in self._open.values() if is_gone(one.name)]:
            self.close(servicer)

    def statuses(self) -> dict[str, RunStatus]:
        """Where the open runs stand, by name."""
        return {one.name: one.status() for one in self._open.values()}

    def turn_out(self, site: str) -> None:
        """Remove a site whose enrolment has ended from all runs."""
        for servicer in [*self._open.values()]:
            servicer.turn_out(site)

    # ---- calls -----------------------------------------------------------------------------------------------------

    async def Join(self, request: federation.JoinRequest, context: Context) -> federation.JoinReply:  # noqa: N802
        """See `Servicer`; so are the others."""
        servicer = await self._of(request.run, context, site=request.site)
        return await servicer.Join(request, context)

    async def PullTask(self, request: federation.PullRequest, context: Context) -> federation.PullReply:  # noqa: N802
        """The next task."""
        return await (await self._of(request.run, context)).PullTask(request, context)

    async def PushUpdate(self, request: federation.Update, context: Context) -> federation.PushReply:  # noqa: N802
        """An answer."""
        return await (await self._of(request.run, context)).PushUpdate(request, context)

    async def Alive(self, request: federation.AliveRequest, context: Context) -> federation.AliveReply:  # noqa: N802
        """A sign of life."""
        return await (await self._of(request.run, context)).Alive(request, context)

    async def Leave(self, request: federation.LeaveRequest, context: Context) -> federation.LeaveReply:  # noqa: N802
        """A site leaves."""
        return await (await self._of(request.run, context)).Leave(request, context)

    async def Status(self, request: federation.StatusRequest, context: Context) -> federation.StatusReply:  # noqa: N802
        """Where a run stands; without any, that the coordinator waits."""
        site = caller.get()
        found = [one for one in self._open.values() if not site or not one.plan.sites or site in one.plan.sites]
        if request.run:
            found = [one for one in found if run_tag(one.run) == request.run]
        going_on = [one for one in found if one.progress.state not in ENDED_STATES] or found[-1:]
        if going_on:
            return await going_on[0].Status(request, context)
        if request.run:
            await refuse(context, grpc.StatusCode.NOT_FOUND, "other run", "the coordinator has no such run")
        return codec.encode_status(replace(_NO_RUN, site=site, time_unix_s=time.time()))

    async def Runs(self, request: federation.RunsRequest, context: Context) -> federation.RunsReply:  # noqa: N802
        """The runs that concern the caller; a list that was seen already is waited for to change."""
        async with refusals(context):
            if request.run:
                return encode_offers(self._version, self._with_plan(request.run))
            until = asyncio.get_running_loop().time() + LONG_POLL_S
            while True:
                self._look()
                if request.seen != self._version or self.closing or asyncio.get_running_loop().time() >= until:
                    return encode_offers(self._version, [one for one in self._listed if _concerns(one, caller.get())])
                await asyncio.sleep(_LOOK_S)

    # ---- which run -------------------------------------------------------------------------------------------------

    async def _of(self, tag: int, context: Context, *, site: str = "") -> Servicer:
        if tag:
            if (servicer := self._open.get(tag)) is not None:
                return servicer
            if (over := await self._reopened(tag, site or caller.get())) is not None:
                return over
            if any(run_tag(one.run) == tag for one in self.others()):
                text = "the run is not open now: it is queued, paused or over"
                await context.abort(grpc.StatusCode.UNAVAILABLE, text)
        if not self._open:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no run is open now")
        if tag and len(self._open) > 1:
            await refuse(context, grpc.StatusCode.NOT_FOUND, "other run", "the coordinator has no such run")
        found = [one for one in self._open.values() if not site or _has_membership(one, site)]
        going_on = [one for one in found if one.progress.state not in ENDED_STATES] or found[-1:]
        if site and len(going_on) > 1:
            text = f"several runs are open: name one ({', '.join(sorted(one.name for one in going_on))})"
            await refuse(context, grpc.StatusCode.ALREADY_EXISTS, "no membership", text)
        return (going_on or [*self._open.values()])[0]  # which refuses what is not for it

    async def _reopened(self, tag: int, site: str) -> Servicer | None:
        """A run that is over, for one of its sites."""
        if not any(run_tag(one.run) == tag and _concerns(one, site) for one in self.others()):
            return None
        try:
            over = await self.reopen(tag)
        except FedbnslError:  # its text may hold a path
            _log.exception("a run that is over cannot be opened again")
            return None
        if over is not None:
            self.open(over)
        return over

    def _with_plan(self, run: int) -> list[RunOffer]:
        plans = {one.run: one.plan.to_toml() for one in self._open.values()}
        return [
            replace(one, plan_toml=one.plan_toml or plans.get(run, ""))
            for one in self._offers()
            if one.run == run and _concerns(one, caller.get())
        ]

    def _look(self) -> None:
        """Give the list of runs another number if it has changed; rounds that go by are no change.

        Many wait for that at once: the runs are looked at for all of them together.
        """
        if time.monotonic() - self._looked < _LOOK_S / 2:
            return
        self._looked = time.monotonic()
        now = tuple(replace(one, plan_toml="") for one in self._offers())
        if _without_progress(now) != _without_progress(self._listed):
            self._version += 1
        self._listed = now

    def _offers(self) -> list[RunOffer]:
        offers = [_offer(one) for one in self._open.values()]
        return offers + [one for one in self.others() if run_tag(one.run) not in self._open]


_NO_RUN = RunStatus(state="waiting for sites", round=0, rounds=0, acyclicity=0.0, edges=0, elapsed_s=0.0, sites=())


async def _never(tag: int) -> Servicer | None:
    return None


def _offer(servicer: Servicer) -> RunOffer:
    status, plan = servicer.status(), servicer.plan
    return RunOffer(
        run=servicer.run,
        name=servicer.name,
        state=status.state,
        plan_digest=servicer.plan_digest,
        plan_name=shown(plan.name, _LONGEST_NAME),
        sites=plan.sites,
        round=status.round,
        rounds=n_rounds(plan),
        memberships=servicer.roster.memberships,
        joined=len(servicer.roster.members),
    )


def _concerns(offer: RunOffer, site: str) -> bool:
    """Whether a caller may know of a run: its sites may, and the coordinator's own commands, which are no site."""
    return not site or not offer.sites or site in offer.sites


def _has_membership(servicer: Servicer, site: str) -> bool:
    roster = servicer.roster
    if site in roster.members:
        return True
    return site in servicer.plan.sites if servicer.plan.sites else not roster.is_complete


def _without_progress(offers: Iterable[RunOffer]) -> list[RunOffer]:
    return [replace(one, round=0, joined=0) for one in offers]
