"""Who gets a membership in a run, and what the others are told."""

import asyncio
import time
from dataclasses import replace

import pytest

from fedbnsl.errors import (
    FedbnslError,
    MembershipRefusedError,
    PlanMismatchError,
    QuorumLostError,
    RemoteProtocolError,
    ResultError,
    SchemaMismatchError,
)
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.channel import AWAY_S
from fedbnsl.protocol.messages import PROTOCOL_VERSION, JoinRequest
from fedbnsl_server.sites.roster import Member, Roster

pytestmark = pytest.mark.anyio

NAMES = ("age", "dose", "mass")
PLAN = Plan(variables=NAMES)
LONG_S = 20.0


def request(site: str, variables: tuple[str, ...] = NAMES, n_samples: int = 50) -> JoinRequest:
    return JoinRequest(site, variables, n_samples)


def refusal(roster: Roster, request: JoinRequest, kind: type[FedbnslError]) -> str:
    """The text of the refusal; who sits where must be as before."""
    before = dict(roster.members), roster.variables
    with pytest.raises(kind) as caught:
        roster.join(request)
    assert type(caught.value) is kind
    assert (dict(roster.members), roster.variables) == before
    return str(caught.value)


# ---- memberships
# ---------------------------------------------------------------------------------------------------------


def test_every_site_gets_a_membership_until_all_are_taken() -> None:
    roster = Roster(Plan(variables=NAMES, n_participants=2))
    roster.join(request("north", n_samples=10))
    roster.join(request("south", n_samples=20))
    assert {site: member.n_samples for site, member in roster.members.items()} == {"north": 10, "south": 20}
    assert refusal(roster, request("east"), MembershipRefusedError) == "all 2 memberships of this run are taken"


def test_a_site_that_says_it_has_more_rows_than_the_plan_allows_is_refused() -> None:
    roster = Roster(Plan(variables=NAMES, n_participants=2, max_rows=500))
    roster.join(request("north", n_samples=500))
    text = refusal(roster, request("south", n_samples=2**63 - 1), MembershipRefusedError)
    assert text == ("site 'south' says that it has 9223372036854775807 rows; the plan allows 500 at most (max_rows)")
    assert "10000000 at most" in refusal(Roster(PLAN), request("south", n_samples=10_000_001), MembershipRefusedError)


def test_a_refused_site_takes_no_membership() -> None:
    roster = Roster(Plan(variables=NAMES, n_participants=2))
    roster.join(request("north"))
    refusal(roster, request("south", ("age", "dose")), SchemaMismatchError)
    roster.join(request("east"))
    assert sorted(roster.members) == ["east", "north"]


def test_only_the_sites_that_the_plan_names_get_a_membership() -> None:
    roster = Roster(PLAN.with_settings(n_participants=2, sites=["north", "south"]))
    text = refusal(roster, request("east"), MembershipRefusedError)
    assert text == "site 'east' is not among the sites that may take part in this run"
    roster.join(request("south"))
    roster.join(request("north"))
    assert roster.is_complete


def test_a_site_that_comes_back_keeps_its_membership_even_if_all_are_taken() -> None:
    roster = Roster(Plan(variables=NAMES, n_participants=2))
    roster.join(request("north"))
    roster.join(request("south"))
    roster.members["north"].last_seen = 0.0
    roster.join(request("north"))
    assert sorted(roster.members) == ["north", "south"]
    assert roster.members["north"].last_seen > 0.0


@pytest.mark.parametrize(
    "other",
    [request("north", n_samples=51), request("north", ("age", "mass", "dose")), request("north", ("age", "dose"))],
    ids=["other rows", "other order", "other columns"],
)
def test_a_site_that_comes_back_with_another_table_is_refused(other: JoinRequest) -> None:
    roster = Roster(PLAN)
    roster.join(request("north"))
    assert refusal(roster, other, MembershipRefusedError) == "site 'north' has already joined, with another table"


# ---- variables -----------------------------------------------------------------------------------------------------


def test_the_plan_settles_the_variables_and_their_order() -> None:
    roster = Roster(PLAN)
    roster.join(request("north", ("mass", "age", "dose")))
    assert roster.variables == NAMES


def test_another_order_of_the_same_variables_is_welcome() -> None:
    roster = Roster(PLAN)
    roster.join(request("north"))
    roster.join(request("south", ("mass", "dose", "age")))
    assert roster.variables == NAMES
    assert roster.members["south"].variables == ("mass", "dose", "age")


@pytest.mark.parametrize(
    ("got", "difference"),
    [
        (("age", "mass"), "missing: dose"),
        (("age", "dose", "mass", "sex"), "not in the run: sex"),
        (("sex", "age", "Dose", "mass"), "missing: dose; not in the run: sex, Dose"),
        (("größe", "IL 6"), "missing: age, dose, mass; not in the run: größe, IL 6"),
    ],
)
def test_a_site_with_other_variables_is_told_which_are_missing_and_which_are_too_many(
    got: tuple[str, ...], difference: str
) -> None:
    roster = Roster(PLAN)
    text = refusal(roster, request("south", got), SchemaMismatchError)
    assert text == f"the site's variables are not those of the run ({difference})"


def test_of_very_many_wrong_variables_only_the_first_few_are_named_and_the_others_counted() -> None:
    roster = Roster(Plan(variables=tuple(f"gene{k}" for k in range(500))))
    text = refusal(roster, request("north", tuple(f"probe{k}" for k in range(300))), SchemaMismatchError)
    assert "missing: gene0, gene1, gene2, gene3, gene4, gene5, gene6, gene7 and 492 more; " in text
    assert "not in the run: probe0, probe1, probe2, probe3, probe4, probe5, probe6, probe7 and 292 more" in text


# ---- versions and names --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1])
def test_a_site_of_another_protocol_version_is_told_both_versions(version: int) -> None:
    text = refusal(Roster(PLAN), replace(request("north"), protocol_version=version), RemoteProtocolError)
    assert text.startswith(f"the site speaks protocol {version}, the coordinator {PROTOCOL_VERSION}; ")
    assert "install the same version" in text


@pytest.mark.parametrize("name", ["north", "site-1", "a.b_c", "Krankenhaus_München", "_", "9", "x" * 64])
def test_a_site_name_that_can_name_a_file_is_accepted(name: str) -> None:
    roster = Roster(PLAN)
    roster.join(request(name))
    assert list(roster.members) == [name]


@pytest.mark.parametrize(
    "name",
    ["", " ", "a b", "a/b", "../a", "..", ".", ".hidden", "-rf", "a\\b", "a\n", "a\0b", "site:1", "a'b", "x" * 65],
)
def test_a_site_name_that_cannot_name_a_file_is_refused(name: str) -> None:
    text = refusal(Roster(PLAN), request(name), MembershipRefusedError)
    assert text.startswith(f"site name {name!r}: use 1 to 64 letters, digits, ")


# ---- presence ------------------------------------------------------------------------------------------------------


def test_a_call_of_a_site_is_noted() -> None:
    roster = Roster(PLAN)
    roster.join(request("north"))
    roster.members["north"].last_seen = 0.0
    roster.heard("north")
    assert roster.members["north"].last_seen > 0.0


def test_a_site_that_is_silent_for_long_is_away_until_it_calls() -> None:
    roster = Roster(PLAN)
    roster.join(request("north"))
    assert not roster.is_away("north")
    member = roster.members["north"]
    member.last_seen = member.online_since = time.monotonic() - AWAY_S - 1.0
    assert roster.is_away("north")
    roster.heard("north")
    assert not roster.is_away("north")
    assert member.online_since == member.last_seen


def test_a_membership_that_cannot_be_written_down_is_neither_taken_nor_freed() -> None:
    full = False

    def keep(site: str, member: Member | None) -> None:
        if full:
            raise ResultError("no space left")

    roster = Roster(Plan(variables=NAMES, n_participants=2), on_change=keep)
    roster.join(request("north"))
    full = True
    refusal(roster, request("south"), ResultError)
    assert not roster.is_complete
    with pytest.raises(ResultError):
        roster.leave("north")
    assert set(roster.members) == {"north"}
    full = False
    roster.leave("north")
    assert not roster.members


def test_a_call_of_a_site_that_has_not_joined_is_refused() -> None:
    roster = Roster(PLAN)
    roster.join(request("north"))
    with pytest.raises(PlanMismatchError, match="site 'south' has not joined this run"):
        roster.heard("south")


async def test_waiting_ends_when_the_last_membership_is_taken() -> None:
    roster = Roster(Plan(variables=NAMES, n_participants=2, join_deadline_s=LONG_S))
    waiting = asyncio.create_task(roster.wait_until_complete())
    roster.join(request("north"))
    roster.join(request("north"))
    _, pending = await asyncio.wait({waiting}, timeout=0.05)
    assert pending, "one site that comes twice is one site"
    roster.join(request("south"))
    await asyncio.wait_for(waiting, LONG_S)


@pytest.mark.parametrize(("present", "named"), [((), "none"), (("south", "north"), "north, south")])
async def test_at_the_join_deadline_the_run_ends_and_names_who_is_there(present: tuple[str, ...], named: str) -> None:
    roster = Roster(Plan(variables=NAMES, n_participants=3, join_deadline_s=0.05))
    for site in present:
        roster.join(request(site))
    with pytest.raises(QuorumLostError) as caught:
        await roster.wait_until_complete()
    assert str(caught.value) == (f"{len(present)} of 3 sites joined within join_deadline_s = 0.05 s ({named})")


def test_a_site_that_leaves_before_the_run_may_come_back_with_another_table() -> None:
    roster = Roster(Plan(variables=("x", "y"), n_participants=2))
    roster.join(JoinRequest("a", ("x", "y"), 50))
    roster.leave("a")
    roster.join(JoinRequest("b", ("x", "y"), 50))
    roster.join(JoinRequest("a", ("y", "x"), 60))
    roster.leave("a")
    assert set(roster.members) == {"a", "b"}, "once the run has begun a membership stays taken"
