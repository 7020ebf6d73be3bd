"""Agents of three sites and a coordinator with a queue of runs: real processes over TLS, with no hand on them."""

import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from agents import SITES, Federated, plan_of_three, price_units
from command_line import Outcome
from fedbnsl.identity import certificates
from fedbnsl.identity.certificates import Name
from fedbnsl.plan.plan import Plan
from fedbnsl_client.site import folder as site_folder
from fedbnsl_client.site import identity
from fedbnsl_server.identity import authority, enrolment_table
from federation_folder import clock_off
from forked import forked_network
from free_port import free_port
from private_site import DATASET, NAMES, ROWS, edit, units_spent


@pytest.fixture
def federated(tmp_path: Path, fedbnsl: Callable[..., Outcome]) -> Iterator[Federated]:
    with forked_network(tmp_path / "logs") as network:
        yield Federated(tmp_path, network, fedbnsl)


def finished(federated: Federated, *names: str) -> None:
    for name in names:
        federated.await_state(name, "finished")
    for site in SITES:
        federated.await_results(site, *names)


def test_two_runs_at_once_share_each_ledger_and_add_up(federated: Federated) -> None:
    one, other = plan_of_three(rounds=12), plan_of_three(rounds=15)
    for plan in (one, other):
        federated.approve(plan)
    federated.queue(one, "one")
    federated.queue(other, "other")
    for site in SITES:
        federated.start_agent(site)
    federated.start_service()
    finished(federated, "one", "other")
    for site in SITES:
        assert federated.spent(site) == price_units(one, ROWS) + price_units(other, ROWS)
        kept = sorted(path.name.partition("-")[0] for path in (federated.sites[site] / "results").iterdir())
        assert kept == ["one", "other"]
        assert {one["outcome"] for one in federated.results(site).values()} == {"finished"}
    begun = [json.loads((federated.runs / name / "result.json").read_text("utf-8")) for name in ("one", "other")]
    assert all(set(result["sites"]) == set(SITES) for result in begun)


def test_an_agent_takes_part_in_the_very_plan_that_was_approved_alone(federated: Federated) -> None:
    approved = plan_of_three()
    federated.approve(approved)
    dearer = plan_of_three(privacy={"epsilon": 2.0})
    fewer = plan_of_three(n_participants=2, sites=("east", "north"))
    nameless = plan_of_three(sites=())
    federated.start_service("--at-once=4")
    agents = {site: federated.start_agent(site) for site in SITES}
    for name, plan in (("dearer", dearer), ("fewer", fewer), ("nameless", nameless)):
        federated.queue(plan, name)
        for site in SITES if name != "fewer" else ("east", "north"):
            federated.await_text(agents[site], f"{name}: not joined: the plan with digest {plan.digest().hex()} is not")
    assert "fewer" not in federated.log(agents["south"]), "a run of others is none of its business"
    federated.queue(approved, "approved")
    finished(federated, "approved")
    for site in SITES:
        assert federated.spent(site) == price_units(approved, ROWS)
    assert [federated.state(name) for name in ("dearer", "fewer", "nameless")] == ["waiting"] * 3
    federated.queue(approved, "again")
    federated.await_text(agents["south"], "again: not joined: the plan is approved for 1 run(s)")
    said = federated.command("participant", "runs", federated.sites["south"])
    assert "again: waiting for sites, plan 'default', approved, but for no more runs of an agent" in said


def test_an_agent_takes_up_confirmed_peers_by_itself(federated: Federated) -> None:
    """South has confirmed nobody when the run is offered; once it has, nothing is approved again."""
    plan = Plan.load(
        "private-moments",
        [
            "n_participants=3",
            f"sites={json.dumps(SITES)}",
            f"variables={json.dumps(NAMES)}",
            "privacy.secure_aggregation=true",
            "privacy.delta=1e-6",
        ],
        epsilon=2.0,
    )
    keys = {}
    for site, folder in federated.sites.items():
        edit(folder / "policy.toml", "# max_epsilon_against_all = 15.0", "max_epsilon_against_all = 60.0")
        keys[site] = json.loads(federated.command("participant", "peers", folder, "--json"))["fingerprint"]
    for site, folder in federated.sites.items():
        for other in set(SITES) - {site} if site != "south" else ():
            federated.command("participant", "peers", folder, "--confirm", other, keys[other])
    federated.approve(plan)
    federated.queue(plan, "run")
    federated.start_service()
    agents = {site: federated.start_agent(site) for site in SITES}
    federated.await_text(agents["south"], "the coordinator could have invented the rest")
    assert federated.spent("south") == 0
    federated.command("participant", "peers", federated.sites["south"], "--confirm", "east", keys["east"])
    finished(federated, "run")


def test_a_coordinator_that_moves_is_followed_by_one_command_at_each_site(federated: Federated) -> None:
    """Nobody is enrolled again; the old certificate is not for the new name, and agents go on by themselves."""
    plan, again = plan_of_three(rounds=2), plan_of_three(rounds=3)
    for one in (plan, again):
        federated.approve(one)
    federated.queue(plan, "before")
    service = federated.start_service()
    agents = {site: federated.start_agent(site) for site in SITES}
    finished(federated, "before")
    federated.kill(service, signal.SIGTERM)
    there = f"--listen=127.0.0.2:{federated.port}"
    service = federated.start_service(there)
    folder, before = federated.sites["east"], (federated.sites["east"] / "policy.toml").read_text("utf-8")
    refused = federated._fedbnsl("participant", "moved", folder, "127.0.0.2")
    assert (refused.code, "for other host names" in refused.err) == (14, True), refused.err
    assert (folder / "policy.toml").read_text("utf-8") == before
    said = federated.command("coordinator", "renew", federated.federation.folder, "--host", "127.0.0.2")
    assert f"participant moved FOLDER 127.0.0.2:{federated.port}" in said
    federated.kill(service, signal.SIGTERM)
    federated.start_service(there)
    for site in SITES:
        federated.command("participant", "moved", federated.sites[site], "127.0.0.2")
    changed = (folder / "policy.toml").read_text("utf-8")
    assert changed == before.replace('"127.0.0.1', '"127.0.0.2')
    federated.queue(again, "after")
    finished(federated, "after")
    assert all("the run is over" in federated.log(name) for name in agents.values())


def test_an_agent_whose_clock_is_behind_waits_and_says_so(federated: Federated) -> None:
    """As seen from a clock that is a day slow, its certificate becomes valid tomorrow."""
    folder, hub = federated.sites["east"], federated.federation
    good = (folder / "identity" / "bundle.toml").read_bytes()
    asked = identity.request(folder, Name("lab", "east"), renew=True)
    with clock_off(enrolment_table, authority, certificates, by=timedelta(days=1)):
        bundle = hub.approve(asked, days=10, renew=True)
        identity.enrol(folder, bundle, expected_fingerprint=hub.fingerprint)
    plan = plan_of_three(rounds=2)
    federated.approve(plan)
    federated.queue(plan, "run")
    federated.start_service()
    agents = {site: federated.start_agent(site) for site in SITES}
    federated.await_text(agents["east"], "is this machine's clock right?; trying again for as long as it takes")
    assert federated.spent("east") == 0
    (folder / "identity" / "bundle.toml").write_bytes(good)  # the clock is right
    federated.await_text(agents["east"], "all is well again")
    finished(federated, "run")


def test_an_approval_of_the_plan_without_the_names_of_its_sites_is_none_for_an_agent(federated: Federated) -> None:
    federated.approve(plan_of_three(sites=()))
    federated.queue(plan_of_three(), "run")
    federated.start_service()
    agent = federated.start_agent("east")
    federated.await_text(agent, "run: not joined: the plan with digest")
    with site_folder.opened(federated.sites["east"]) as (_, ledger):
        assert not units_spent(ledger, "ward-7")


def test_an_approval_can_be_withdrawn_while_the_agent_waits_and_while_a_run_goes_on(federated: Federated) -> None:
    plan, long = plan_of_three(), plan_of_three(rounds=400)
    agents = {site: federated.start_agent(site) for site in SITES}
    federated.start_service()
    for one in (plan, long):
        federated.approve(one)
    federated.command("participant", "withdraw", federated.sites["east"], plan.digest().hex()[:12])
    federated.queue(plan, "short")
    federated.await_text(agents["east"], "short: not joined")
    federated.queue(long, "long")
    federated.await_rounds("long", 2)
    federated.command("participant", "withdraw", federated.sites["east"], long.digest().hex())
    federated.await_text(agents["east"], "long: left the run: its approval was taken back")
    with site_folder.opened(federated.sites["east"]) as (_, ledger):
        paid = {entry.content["round"] for entry in ledger.entries() if entry.kind == "reserve"}
    assert paid, "it took part until then"
    assert max(paid) < 400
    federated.approve(long, "east")
    federated.await_text(agents["east"], "long: joined as east", times=2)


def test_an_approval_is_for_so_many_runs(federated: Federated) -> None:
    plan = plan_of_three()
    federated.approve(plan, runs=2)
    federated.start_service("--at-once=1")
    agents = {site: federated.start_agent(site) for site in SITES}
    for name in ("first", "second", "third"):
        federated.queue(plan, name)
    finished(federated, "first", "second")
    for site in SITES:
        federated.await_text(agents[site], "third: not joined: the plan is approved for 2 run(s) of an agent")
        assert federated.spent(site) == 2 * price_units(plan, ROWS)
    federated.approve(plan)
    finished(federated, "third")


@pytest.mark.parametrize("victim", ["service", "east"])
def test_a_process_that_is_killed_or_stopped_loses_neither_runs_nor_results(federated: Federated, victim: str) -> None:
    plans = {"one": plan_of_three(rounds=25), "other": plan_of_three(rounds=30)}
    for name, plan in plans.items():
        federated.approve(plan)
        federated.queue(plan, name)
    processes = {site: federated.start_agent(site) for site in SITES}
    processes["service"] = federated.start_service()
    for rounds, number in ((2, signal.SIGKILL), (8, signal.SIGTERM), (15, signal.SIGKILL)):
        federated.await_rounds("one", rounds)
        federated.kill(processes[victim], number)
        start = federated.start_service if victim == "service" else lambda: federated.start_agent("east")
        processes[victim] = start()
    finished(federated, *plans)
    for site in SITES:
        spent, price = federated.spent(site), sum(price_units(plan, ROWS) for plan in plans.values())
        assert spent == price if site != victim else price <= spent <= 1.5 * price, "a kill wastes a payment at most"


def test_a_site_that_missed_the_end_fetches_it_from_a_service_that_was_started_again(federated: Federated) -> None:
    plan = plan_of_three(rounds=8, quorum=2, site_grace_s=1.0, round_deadline_s=5.0)
    federated.approve(plan)
    federated.queue(plan, "run")
    service = federated.start_service()
    processes = {site: federated.start_agent(site) for site in SITES}
    federated.await_rounds("run", 2)
    federated.kill(processes["east"], signal.SIGTERM)
    federated.await_state("run", "finished")
    time.sleep(1.0)  # agents ask for news of runs again
    federated.kill(service, signal.SIGTERM)
    assert "Traceback" not in federated.log(service), "agents wait for news of runs"
    federated.start_service()
    assert "run" not in {name for name, one in federated.results("east").items() if one["outcome"] == "finished"}
    federated.start_agent("east")
    federated.await_results("east", "run")


def test_a_run_can_be_paused_started_again_stopped_and_removed(federated: Federated) -> None:
    plan = plan_of_three(rounds=300)
    federated.approve(plan)
    place = federated.queue(plan, "run")
    federated.start_service()
    for site in SITES:
        federated.start_agent(site)
    federated.await_rounds("run", 2)
    assert "run: paused" in federated.command("coordinator", "runs", "pause", federated.runs, "run")
    assert "paused" in federated.command("coordinator", "runs", "list", federated.runs)
    reached = federated.rounds_of("run")
    federated.command("coordinator", "runs", "resume", federated.runs, place.name)
    federated.await_rounds("run", reached + 3)
    federated.command("coordinator", "runs", "stop", federated.runs, "run")
    assert federated.state("run") == "stopped"
    assert "nothing to remove" in federated.command(
        "coordinator", "runs", "remove", federated.runs, "--older-than=1", "--yes"
    )
    said = federated.command("coordinator", "runs", "remove", federated.runs, "--older-than=0", "--yes")
    assert not place.exists(), said


def asked(url: str, *, post: str = "") -> tuple[int, str]:
    """What a page answers; a POST comes from the page itself."""
    headers = {"Origin": url.rpartition("/runs/")[0], "X-Form-Token": post} if post else {}
    request = urllib.request.Request(url, method="POST" if post else "GET", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def test_an_agent_shows_its_runs_tells_its_budget_and_leaves_a_run_for_good_at_a_press_of_the_button(
    federated: Federated,
) -> None:
    plan = plan_of_three(rounds=400)
    federated.approve(plan)
    place = federated.queue(plan, "run")
    federated.start_service()
    page, metrics = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}/metrics"
    watched = (f"--web={page[7:]}", f"--metrics={metrics[7:-8]}")
    agents = {site: federated.start_agent(site, *(watched if site == "east" else ())) for site in SITES}
    federated.await_rounds("run", 3)
    told = asked(metrics)[1]
    assert 'fedbnsl_agent_runs{state="taking part"} 1.0' in told
    assert f'fedbnsl_agent_budget_epsilon{{dataset="{DATASET}"}} 20.0' in told
    assert float(told.partition(f'fedbnsl_agent_spent_epsilon{{dataset="{DATASET}"}} ')[2].split()[0]) > 0
    assert asked(f"{page}/")[0] == 200
    [number] = [path.name.rpartition("-")[2] for path in (federated.sites["east"] / "results").iterdir()]
    shown = f"{page}/runs/{number}"
    code, text = asked(shown)
    token = text.partition('name="form-token" content="')[2].partition('"')[0]
    assert (code, asked(f"{shown}/leave")[0], asked(f"{shown}/leave", post="x" * len(token))[0]) == (200, 405, 403)
    state = json.loads(asked(f"{shown}/state.json")[1])
    assert state["now"]["round"] >= 3
    assert not set(SITES[1:]) & set(json.dumps(state).split('"')), "nothing of other sites"
    assert asked(f"{shown}/leave", post=token)[0] == 202
    federated.await_text(agents["east"], "run: left the run: asked for on the site's page")
    federated.kill(agents["east"], signal.SIGTERM)
    again = federated.start_agent("east")
    federated.command("coordinator", "runs", "pause", federated.runs, "run")
    federated.command("coordinator", "runs", "resume", federated.runs, place.name)
    federated.approve(plan, "north")  # of another site: no reason to come back
    assert "joined as east" not in federated.log(again)
    federated.approve(plan, "east")
    federated.await_text(again, "run: joined as east")
