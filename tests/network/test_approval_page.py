"""A plan is approved in a browser: what is shown is what the command shows, and the agent then joins by itself."""

import json
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from agents import SITES, Federated, plan_of_three, price_units
from browser import chromium
from command_line import Outcome
from fedbnsl.events.security_log import NAME, lines
from fedbnsl.plan.plan import Plan
from fedbnsl.web.operators import Operators
from fedbnsl_client.budget.payments import Payment, Request
from fedbnsl_client.observe.site_page import SitePage
from fedbnsl_client.site import folder as site_folder
from fedbnsl_client.site.roles import ROLES
from federation_folder import make_federation
from forked import forked_network
from free_port import free_port
from http_asks import Reply, ask
from network.test_pages import opened
from private_site import DATASET, NAMES, ROWS, make_site, private_plan, rows, write_table

PLAN = private_plan(variables=NAMES, sites=["north", "south"], privacy={"epsilon": 1.0})


class Page:
    """The page of an agent that is offered one run, with an operator of each role."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder = folder / "north"
        make_site(self.folder)
        federation = make_federation(folder / "lab")
        operators = Operators(ROLES, folder=self.folder)
        self._tokens = {role: operators.add(f"the-{role}", role) for role in ROLES.names}
        self._context = ssl.create_default_context(cafile=federation.folder / "ca.pem")
        certificate = federation.folder / "server.pem"
        self.page = SitePage(
            "127.0.0.1:0",
            dict,
            agent=dict,
            certificate=certificate,
            folder=self.folder,
            proposals=lambda: {"7": ("heart-7", plan.to_toml())},
        )

    def ask(self, path: str, role: str = "approve", **more: Any) -> Reply:
        bearer = f"Bearer {self._tokens[role]}"
        return ask(self.page.port.port, path, context=self._context, Authorization=bearer, **more)

    def state(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.ask("/approve/7/state.json").body)
        return told

    def post(self, *, role: str = "approve", **asked: Any) -> Reply:
        return self.ask("/approve/7", role, method="POST", body=json.dumps(asked))

    def approvals(self) -> dict[str, Any]:
        with site_folder.opened(self.folder) as (_, ledger):
            return dict(ledger.approvals.current())


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = Page(tmp_path, PLAN)
    with made.page:
        yield made


def test_what_is_shown_is_what_the_command_shows_and_what_is_approved(
    page: Page, fedbnsl: Callable[..., Outcome], tmp_path: Path
) -> None:
    told = page.state()
    (tmp_path / "plan.toml").write_text(PLAN.to_toml(), encoding="utf-8")
    other = tmp_path / "other"
    make_site(other)
    said = fedbnsl("participant", "approve", tmp_path / "plan.toml", other, "--yes", "--all").out
    assert told["lines"] == said.splitlines()[: len(told["lines"])]
    assert "This run costs epsilon 1 at delta" in told["lines"][0]
    assert [told[one] for one in ("run", "plan", "digest", "federation", "site", "dataset")] == [
        *("heart-7", PLAN.name, PLAN.digest().hex(), "", "north", DATASET)
    ]
    assert json.loads(page.post(site=" north ", shown=told["shown"], runs=3).body)["approved"] is True
    ((approval,),) = page.approvals().values()
    assert (approval.digest, approval.terms.runs) == (PLAN.digest().hex(), 3)
    entries = [line.entry for line in lines(page.folder / NAME)]
    (approved,) = [one for one in entries if one["event"] == "approved"]
    assert (approved["by"], approved["plan_digest"]) == ("the-approve", PLAN.digest().hex())


def test_nothing_is_approved_by_a_wrong_name_a_wrong_role_or_after_a_change(page: Page, tmp_path: Path) -> None:
    told = page.state()
    right = {"site": "north", "shown": told["shown"], "runs": 1}
    for wrong, status, why in (
        ({"site": "south"}, 409, "type the name of this site, north"),
        ({"shown": ""}, 409, "look at this page again"),
        ({"runs": 0}, 400, "runs: from 1"),
        ({"runs": "many"}, 400, "expected site, shown and runs"),
    ):
        reply = page.post(**{**right, **wrong})
        assert (reply.status, why in reply.body.decode()) == (status, True), reply.body
    assert page.post(role="view", **right).status == 403
    assert page.ask("/approve/7/state.json", "view").status == 403, "it tells of the table"
    assert page.ask("/approve/8/state.json").status == 404
    with site_folder.opened(page.folder) as (policy, ledger):  # another run is paid for meanwhile
        ledger.payments.reserve(Request(DATASET, 9, 1, "north"), Payment(10**10, {}), policy.dataset(DATASET).cap)
    assert "have changed: look at this page again" in page.post(**right).body.decode()
    assert page.approvals() == {}
    right["shown"] = page.state()["shown"]
    write_table(page.folder / "table.csv", rows(9))
    reply = page.post(**right)
    assert reply.status == 409
    assert page.state()["refused"]
    assert page.approvals() == {}


def test_who_shows_no_token_approves_nothing_and_sees_nothing_of_the_table(tmp_path: Path) -> None:
    """Others may use the machine of a site, and its folder is none of theirs."""
    make_site(tmp_path / "north")
    runs = {"7": ("heart-7", PLAN.to_toml())}
    page = SitePage("127.0.0.1:0", dict, agent=dict, folder=tmp_path / "north", proposals=lambda: runs)
    with page:
        port, origin = page.port.port, page.port.url[:-1]
        assert ask(port, "/approve/7/state.json").status == 403
        form = {"Origin": origin, "Host": origin.removeprefix("http://"), "X_Form_Token": page.port.access.form_token}
        body = json.dumps({"site": "north", "shown": "", "runs": 1})
        foreign = ask(port, "/approve/7", method="POST", body=body, **{**form, "X_Form_Token": ""})
        assert (foreign.status, b"posted from another page" in foreign.body) == (403, True)
        refused = ask(port, "/approve/7", method="POST", body=body, **form)
        assert (refused.status, b"may not approve a plan: it takes a token" in refused.body) == (403, True)


def test_a_person_approves_in_a_browser_and_the_agent_joins(tmp_path: Path, fedbnsl: Callable[..., Outcome]) -> None:
    plan = plan_of_three()
    with chromium() as browser, forked_network(tmp_path / "logs") as network:
        federated = Federated(tmp_path, network, fedbnsl)
        federated.approve(plan, *SITES[1:])
        federated.queue(plan, "heart")
        port, certificate = free_port(), federated.federation.folder / "server.pem"
        token = Operators(ROLES, folder=federated.sites[SITES[0]]).add("anna", "approve")
        for site in SITES:
            web = [f"--web=127.0.0.1:{port}", f"--web-certificate={certificate}"] if site == SITES[0] else []
            federated.start_agent(site, *web)
        federated.start_service()
        _approved_by_hand(browser, f"https://127.0.0.1:{port}/", token, plan)
        federated.await_state("heart", "finished")
        federated.await_results(SITES[0], "heart")
        assert federated.spent(SITES[0]) == price_units(plan, ROWS)


def _approved_by_hand(browser: Browser, url: str, token: str, plan: Plan) -> None:
    shown = {"ignore_https_errors": True, "extra_http_headers": {"Authorization": f"Bearer {token}"}}
    with opened(browser, url, width=390, scheme="dark", **shown) as watched:
        page = watched.page
        expect(page.locator("#waiting")).to_contain_text("is not approved here")
        page.locator("#waiting a").click()
        expect(page.locator("#cost")).to_contain_text("This run costs epsilon")
        about = f"Plan {plan.name}, digest {plan.digest().hex()[:12]}…, for run heart of federation lab; for dataset "
        expect(page.locator("#about")).to_have_text(f"{about}{DATASET} of site {SITES[0]}")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "scrolls sideways"
        expect(page.locator("#approve")).to_be_disabled()
        page.locator("#typed").fill("north")
        expect(page.locator("#approve")).to_be_disabled()
        page.locator("#typed").fill(SITES[0])
        page.locator("summary").click()
        expect(page.locator("#more")).to_contain_text("local_steps = 4")
        page.locator("#approve").click()
        expect(page.locator("#state")).to_have_text("approved")
        assert watched.troubles == []
