"""How an agent decides, without a coordinator."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedbnsl.console.interrupt import interruptible
from fedbnsl.errors import FedbnslError, InterruptedRunError, LeftError, RemoteProtocolError, UnreachableError
from fedbnsl.events.emitter import silent
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import RunOffer
from fedbnsl_client.agent import agent as agent_module
from fedbnsl_client.agent import results
from fedbnsl_client.agent.agent import Agent
from fedbnsl_client.agent.part import Part, Site, is_allowed
from fedbnsl_client.budget.approvals import Approvals, Terms
from fedbnsl_client.cancellation import Leaving
from fedbnsl_client.session import Session
from fedbnsl_client.site import folder as site_folder
from fedbnsl_client.site.identity import Link
from private_site import DATASET, NAMES, ROWS, edit, make_site, private_plan

PLAN = private_plan(sites=("north", "south"), variables=NAMES)


def offer(number: int = 1, plan: Plan = PLAN, *, name: str = "run", state: str = "running") -> RunOffer:
    return RunOffer(number, name, state, plan.digest(), plan.name, plan.sites, 0, 3, 2, 0)


def approve(folder: Path, plan: Plan = PLAN, runs: int = 5) -> None:
    with site_folder.opened(folder) as (_, ledger):
        terms = Terms.of(plan, DATASET, n_samples=ROWS, n_variables=len(NAMES), runs=runs) if runs else None
        ledger.approvals.approve(plan.digest(), plan.name, terms)


class Started:
    """An agent of a site, with what it said and which runs it joined."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        make_site(folder)
        self.folder, self.joined, self.said = folder, list[int](), list[str]()
        self.plans: dict[int, Any] = {}
        monkeypatch.setattr(Part, "start", lambda part: self.joined.append(part.offer.run))
        monkeypatch.setattr(Part, "goes_on", property(lambda part: True))
        monkeypatch.setattr(Session, "plan_of", lambda session, run: self._plan(run))
        link = Link("127.0.0.1:1")
        site = Site(folder, folder / "results", None, lambda: link, lambda run, text: self.said.append(text), silent)
        self.agent = Agent(site, at_once=2)

    def _plan(self, run: int) -> str:
        plan = self.plans.get(run, PLAN)
        if isinstance(plan, FedbnslError):
            raise plan
        return plan.to_toml()

    def look(self, *offers: RunOffer) -> list[int]:
        """What it joins, looking as often as it needs."""
        self.agent._offers = offers
        for _ in offers:
            self.agent._look()
        return self.joined


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    started = Started(tmp_path / "site", monkeypatch)
    yield started
    started.agent._rules.close()


def test_it_begins_one_run_at_a_look_and_at_every_site_in_the_same_order(started: Started) -> None:
    approve(started.folder)
    offers = [offer(number) for number in (9, 3, 7)]
    started.agent._offers = tuple(offers)
    started.agent._look()
    assert started.joined == [3]
    assert started.look(*offers) == [3, 7], "and no more than two at a time"


def test_a_run_that_is_paused_takes_no_place(started: Started) -> None:
    approve(started.folder)
    started.look(offer(1), offer(2))
    assert started.look(offer(1, state="interrupted"), offer(2), offer(3)) == [1, 2, 3]


def test_a_plan_without_the_digest_that_is_listed_is_not_joined(started: Started) -> None:
    approve(started.folder)
    started.plans[1] = private_plan(sites=("north", "west"), variables=NAMES)
    assert started.look(offer(1)) == []
    assert "does not have the digest" in started.said[0]


@pytest.mark.parametrize("error", [UnreachableError("away"), RemoteProtocolError("odd")])
def test_a_coordinator_that_does_not_give_a_plan_ends_nothing(
    started: Started, error: FedbnslError, monkeypatch: pytest.MonkeyPatch
) -> None:
    approve(started.folder)
    started.plans[1] = error
    assert started.look(offer(1), offer(2)) == [2]
    del started.plans[1]
    monkeypatch.setattr(agent_module, "_AGAIN_S", (0.0, 0.0))
    started.agent._decided.clear()
    assert started.look(offer(1)) == [2, 1]


def test_a_policy_that_lists_a_plan_without_its_sites_lets_no_agent_in(started: Started) -> None:
    nameless = private_plan(variables=NAMES)
    edit(started.folder / "policy.toml", "auto_approve = false", f'auto_approve = ["{nameless.digest().hex()}"]')
    assert started.look(offer(1)) == []
    edit(started.folder / "policy.toml", nameless.digest().hex(), PLAN.digest().hex())
    assert started.look(offer(1)) == [1]


def test_a_run_waits_for_an_approval_until_it_is_joined(started: Started) -> None:
    assert started.look(offer(1)) == []
    assert "is not approved here" in started.agent.waiting["run"]
    approve(started.folder)
    assert started.look(offer(1)) == [1]
    assert started.agent.waiting == {}


def test_a_run_is_left_once_neither_policy_nor_approval_allow_it(started: Started) -> None:
    approve(started.folder)
    with site_folder.opened(started.folder) as (_, ledger):
        assert is_allowed(started.folder, ledger, offer(), "")
        approve(started.folder, runs=0)
        assert not is_allowed(started.folder, ledger, offer(), ""), "a person may join, no agent"
        approve(started.folder)
        ledger.approvals.withdraw(PLAN.digest())
        assert not is_allowed(started.folder, ledger, offer(), "")


def test_why_a_run_must_be_left_is_asked_before_each_answer() -> None:
    why = [""]
    leaving = Leaving(lambda: why[0])
    leaving.leave_if_asked()
    why[0] = "its approval was taken back"
    with pytest.raises(LeftError, match="left the run: its approval was taken back"):
        leaving.leave_if_asked()
    assert not leaving.comes_back


def test_a_run_that_was_left_for_good_is_not_joined_after_a_restart(started: Started) -> None:
    approve(started.folder)
    with site_folder.opened(started.folder) as (_, ledger):
        number = ledger.approvals.current()[PLAN.digest().hex()][0].number
    place = results.folder_of(started.folder / "results", offer())
    results.keep_outcome(place, offer(), "LeftError", "left", left_under=number)
    assert (place / "outcome.json").stat().st_mode & 0o777 == 0o600
    assert started.look(offer()) == []
    approve(started.folder)
    assert started.look(offer()) == [1]


def test_a_name_of_the_coordinator_is_no_path_and_not_too_long_for_a_file(tmp_path: Path) -> None:
    for name in ("../../etc/passwd", "計" * 200, "a/b", "..", ""):
        place = results.folder_of(tmp_path, offer(name=name))
        assert place.parent == tmp_path
        place.mkdir()
        place.rmdir()


def test_a_run_keeps_its_folder_whatever_it_is_called_later(tmp_path: Path) -> None:
    first = results.folder_of(tmp_path, offer(name="one"))
    first.mkdir()
    (first / "edges.csv").write_text("", encoding="utf-8")
    assert results.is_kept(results.folder_of(tmp_path, offer(name="another")))
    assert not results.is_kept(results.folder_of(tmp_path, offer(2, name="one")))


def asked_once_to_end() -> Callable[..., None]:
    """Sends SIGTERM to this process when it is called; called again, the agent has swallowed the signal."""
    calls: list[int] = []

    def ask(*_: object) -> None:
        calls.append(1)
        if len(calls) > 1:
            pytest.fail("the agent goes on after a signal")
        os.kill(os.getpid(), signal.SIGTERM)

    return ask


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Session, "offers"),
        (site_folder, "opened"),  # by `_look`, of policy and ledger
        (Approvals, "current"),  # by `_look`
        (Session, "plan_of"),  # by `_consider`
        (agent_module, "approved_terms"),  # by `_consider`, of the ledger
    ],
    ids=["asking for runs", "opening the folder", "reading the ledger", "fetching a plan", "reading an approval"],
)
def test_a_signal_ends_the_agent_wherever_it_arrives(
    owner: object, name: str, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    approve(started.folder)
    monkeypatch.setattr(agent_module, "warm_up", lambda: None)
    monkeypatch.setattr(Session, "offers", lambda session, seen: (seen, (offer(),)))
    monkeypatch.setattr(owner, name, asked_once_to_end())
    with pytest.raises(InterruptedRunError, match="interrupted by SIGTERM"), interruptible():
        started.agent.run()
    assert started.joined == []


def test_what_a_run_has_learned_is_counted_as_it_is_shown(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("source,target,weight,directed\na,b,1.0,1\n", encoding="utf-8")
    assert results.learned(tmp_path) == "1 edge"
    (tmp_path / "edges.csv").write_text("source,target,weight,directed\na,b,1.0,1\nc,d,1.0,0\n", encoding="utf-8")
    assert results.learned(tmp_path) == "1 directed edge, 1 undirected"
