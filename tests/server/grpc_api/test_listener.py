"""Which run a call is for, and who is told of which run."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import JoinRequest, run_tag
from fedbnsl.protocol.offer_codec import decode_offers
from fedbnsl.wire import federation_pb2 as federation
from fedbnsl_server.grpc_api import listener as listener_module
from fedbnsl_server.grpc_api.incoming import caller
from fedbnsl_server.grpc_api.listener import Listener
from fedbnsl_server.grpc_api.servicer import Servicer
from fedbnsl_server.sites.mailbox import Mailbox
from fedbnsl_server.sites.roster import Roster
from fedbnsl_server.store.site_ledgers import SiteLedgers

pytestmark = pytest.mark.anyio

VARIABLES = ("a", "b", "c")


class RefusedError(Exception):
    """What a context raises when a call is ended."""


class Context:
    """As much of a call as the door needs."""

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> None:
        raise RefusedError(code, details)


def servicer(run: int, name: str, *sites: str) -> Servicer:
    plan = Plan(n_participants=max(len(sites), 2), variables=VARIABLES, sites=sites, name=f"plan of {name}")
    roster, mailbox = Roster(plan), Mailbox(plan, asyncio.get_running_loop())
    return Servicer(plan, run, roster, mailbox, SiteLedgers(Path("never-saved.json")), name=name)


async def offers_for(door: Listener, site: str, **asked: int) -> dict[str, Any]:
    caller.set(site)
    _, found = decode_offers(await door.Runs(federation.RunsRequest(**asked), Context()))
    return {one.name: one for one in found}


async def test_a_site_is_told_of_its_own_runs_alone() -> None:
    door = Listener()
    door.open(servicer(1, "ours", "east", "north"))
    door.open(servicer(2, "theirs", "south", "west"))
    door.open(servicer(3, "anybody's"))
    assert set(await offers_for(door, "east")) == {"ours", "anybody's"}
    assert set(await offers_for(door, "south")) == {"theirs", "anybody's"}
    assert set(await offers_for(door, "")) == {"ours", "theirs", "anybody's"}
    assert await offers_for(door, "south", run=1) == {}, "nor of the plan of another's run"


async def test_the_plan_comes_with_one_run_alone() -> None:
    door = Listener()
    one = servicer(2**40 + 7, "one", "east", "north")
    door.open(one)
    assert (await offers_for(door, "east"))["one"].plan_toml == ""
    offer = (await offers_for(door, "east", run=2**40 + 7))["one"]
    assert Plan.from_toml(offer.plan_toml, origin="the offer") == one.plan
    assert (offer.run, offer.plan_digest) == (one.run, one.plan.digest())


async def test_a_list_that_was_seen_is_waited_for_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    door = Listener()
    one = servicer(1, "one", "east", "north")
    door.open(one)
    caller.set("east")
    first = await door.Runs(federation.RunsRequest(), Context())
    waiting = asyncio.ensure_future(door.Runs(federation.RunsRequest(seen=first.version), Context()))
    await asyncio.sleep(0.5)
    assert not waiting.done()
    one.progress.state = "running"
    second = await waiting
    assert (second.version != first.version, second.run[0].state) == (True, "running")
    monkeypatch.setattr(listener_module, "LONG_POLL_S", 0.0)
    assert (await door.Runs(federation.RunsRequest(seen=second.version), Context())).version == second.version


async def test_a_call_without_a_run_is_for_the_only_one_that_its_site_can_mean() -> None:
    door = Listener()
    ours, theirs = servicer(1, "ours", "east", "north"), servicer(2, "theirs", "south", "west")
    for one in (ours, theirs):
        door.open(one)
    for site, run in (("east", ours), ("west", theirs)):
        assert await door._of(0, Context(), site=site) is run
    third = servicer(3, "third", "east", "west")
    door.open(third)
    with pytest.raises(RefusedError, match=r"several runs are open: name one \(ours, third\)"):
        await door._of(0, Context(), site="east")
    ours.progress.state = "finished"
    assert await door._of(0, Context(), site="east") is third
    assert await door._of(run_tag(1), Context(), site="east") is ours


async def test_a_stranger_is_not_told_which_runs_there_are() -> None:
    door = Listener()
    for number, name in ((1, "secret-1"), (2, "secret-2")):
        door.open(servicer(number, name, "east", "north"))
    request = federation.JoinRequest(
        protocol_version=JoinRequest("x", VARIABLES, 5).protocol_version,
        site="stranger",
        variable=VARIABLES,
        n_samples=5,
    )
    with pytest.raises(RefusedError) as refused:
        await door.Join(request, Context())
    assert "secret" not in str(refused.value)


async def test_a_run_that_is_paused_is_like_a_coordinator_that_is_away_and_an_unknown_one_is_refused() -> None:
    door = Listener()
    one, other = servicer(1, "one", "east", "north"), servicer(2, "other", "east", "north")
    door.open(one)
    door.open(other)
    offers = (await offers_for(door, "east")).values()
    door.others = lambda: tuple(offers)
    door.close(one)
    with pytest.raises(RefusedError) as refused:
        await door.PullTask(federation.PullRequest(run=1, site="east"), Context())
    assert refused.value.args[0] is grpc.StatusCode.UNAVAILABLE
    door.open(servicer(3, "third", "east", "north"))
    with pytest.raises(RefusedError) as refused:
        await door.PullTask(federation.PullRequest(run=9, site="east"), Context())
    assert refused.value.args[0] is grpc.StatusCode.NOT_FOUND


async def test_runs_that_are_over_stay_open_for_late_sites_but_not_all_of_them() -> None:
    door = Listener()
    for number in range(1, 40):
        one = servicer(number, f"run-{number}", "east", "north")
        one.progress.state = "finished"
        door.open(one)
    going_on = servicer(99, "going on", "east", "north")
    door.open(going_on)
    assert len(door.statuses()) == 16 + 1
    assert {"going on", "run-39"} <= set(door.statuses())
    assert "run-1" not in door.statuses()


async def test_without_any_run_the_coordinator_says_that_it_waits() -> None:
    door = Listener()
    status = await door.Status(federation.StatusRequest(), Context())
    assert (status.state, status.rounds) == ("waiting for sites", 0)


async def test_a_site_whose_enrolment_ends_is_turned_out_of_all_runs() -> None:
    door = Listener()
    turned_out: list[str] = []
    for number in (1, 2):
        door.open(SimpleNamespace(run=number, progress=SimpleNamespace(state="running"),
                                  turn_out=turned_out.append))  # fmt: skip
    door.turn_out("east")
    assert turned_out == ["east", "east"]
