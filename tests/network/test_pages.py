"""The pages of a coordinator and of a site in Chromium, while real processes run."""

import csv
import json
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from browser import LONG_MS, chromium, hard_to_read, scrolls_sideways
from fedbnsl.plan.plan import Plan
from fedbnsl_client.site import folder as site_folder
from fedbnsl_workbench import localnet
from fedbnsl_workbench.tables.synthetic import synthesise
from forked import forked_network
from free_port import free_port
from private_site import NAMES, make_site, private_plan, rows, units_spent, write_table

HOSTILE = ("<script>alert(1)</script>", 'a"><img src=x onerror=alert(2)>', "c & d", "{{ 7*7 }}", "e'f", "../g")


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


class Watched:
    """A page in a browser, and what must not happen on it."""

    def __init__(self, page: Page, url: str) -> None:
        self.page, self.troubles = page, []
        origin = url.rstrip("/")
        page.set_default_timeout(LONG_MS)
        page.on("console", lambda message: self.troubles.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (self.troubles.append("dialog"), dialog.dismiss()))
        page.on("request", lambda request: self._check(request.url, origin))
        page.goto(url)

    def _check(self, url: str, origin: str) -> None:
        if not url.startswith((origin + "/", "data:,")):
            self.troubles.append(f"asks {url}")

    def text(self, name: str) -> str:
        return self.page.locator(f"#{name}").inner_text()


@contextmanager
def opened(browser, url: str, *, width: int = 1200, scheme: str = "light", **more) -> Iterator[Watched]:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme, **more)
    try:
        yield Watched(page, url)
    finally:
        page.close()


def tables(folder: Path, names=HOSTILE, *, n_sites: int = 3) -> dict[str, Path]:
    folder.mkdir()
    made = {}
    for k, X in enumerate(synthesise(len(names), len(names), n_sites, 200, 7).tables, 1):
        made[f"site-{k}"] = folder / f"site-{k}.csv"
        with made[f"site-{k}"].open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([names, *X.tolist()])
    return made


def join(network, address: str, site: str, table: Path, *more) -> None:
    public = ["--insecure", f"--site={site}", f"--data={table}", "--public-data"]
    network.start(site, ["participant", "join", address, *public, *more])


def state_of(url: str, name: str) -> dict:
    with urllib.request.urlopen(f"{url}runs/{name}/state.json", timeout=20) as reply:
        return json.loads(reply.read())


def test_a_run_is_watched_from_its_first_site_to_its_report(browser, tmp_path):
    found = tables(tmp_path / "data")
    plan = Plan(n_participants=3, rounds=60, variables=HOSTILE, threshold=0.1)
    with forked_network(tmp_path / "logs") as network:
        address = localnet.start_coordinator(network, plan, tmp_path / "run", seeds={}, web="127.0.0.1:0")
        url = localnet.page_of(network)
        with (
            opened(browser, url) as wide,
            opened(browser, url, scheme="dark") as dark,
            opened(browser, url, width=390) as phone,
        ):
            expect(wide.page.locator("#state")).to_have_text("waiting for sites")
            expect(wide.page.locator("#warnings")).to_contain_text("3 of 3 sites have not joined")
            join(network, address, "site-1", found["site-1"])
            join(network, address, "site-2", found["site-2"])
            expect(wide.page.locator("#waiting")).to_contain_text("2 of 3 sites have joined")
            join(network, address, "site-3", found["site-3"])
            for one in (wide, dark, phone):
                expect(one.page.locator("#state")).to_have_text("finished")
                expect(one.page.locator("#link")).to_have_text("the run is over")
            result = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
            assert wide.text("edges").startswith(str(len(result["edges"])))
            assert wide.page.locator("#graph svg path.edge").count() == len(result["edges"])
            assert wide.page.locator("#sites tr").count() == 3
            named = wide.page.locator("#graph svg title").all_text_contents()
            with_edges = {end for edge in result["edges"] for end in (edge["source"], edge["target"])}
            assert named == [name for name in HOSTILE if name in with_edges], "names are texts"
            assert "gone" not in wide.text("report-note"), "nothing is said of what the page cannot know"
            assert wide.page.locator(".chart .line").count() == 3
            assert "round 61" in wide.text("log")
            report = next(frame for frame in wide.page.frames if frame.url.endswith("/report"))
            expect(report.locator("h1")).to_contain_text("finished")
            for one in (wide, dark, phone):
                assert one.troubles == []
                one.page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
                assert not scrolls_sideways(one.page)
                assert hard_to_read(one.page) == []
            light, black = (
                one.page.evaluate("getComputedStyle(document.body).backgroundColor") for one in (wide, dark)
            )
            assert light == "rgb(255, 255, 255)"
            assert black == "rgb(20, 24, 29)"


def test_a_page_goes_on_after_its_coordinator_was_paused_and_continued(browser, tmp_path):
    found = tables(tmp_path / "data", ("a", "b", "c", "d"), n_sites=2)
    plan = Plan(n_participants=2, rounds=500, variables=("a", "b", "c", "d"))
    (tmp_path / "plan.toml").write_text(plan.to_toml(), encoding="utf-8")
    port, web = free_port(), free_port()
    url, where = f"http://127.0.0.1:{web}/", ["--insecure", f"--listen=127.0.0.1:{port}", f"--web=127.0.0.1:{web}"]
    with forked_network(tmp_path / "logs") as network:
        network.start("first", ["coordinator", "serve", tmp_path / "plan.toml", *where, f"--out={tmp_path / 'run'}"])
        until_listening(network, "first")
        page = browser.new_page()
        page.set_default_timeout(LONG_MS)
        page.goto(url)
        # Rounds begin once the page is there, and it keeps each word: the run may be faster than whoever looks.
        page.evaluate(
            "seen = []; new MutationObserver(() => seen.push(document.getElementById('link').textContent))"
            ".observe(document.getElementById('link'), {childList: true, characterData: true, subtree: true})"
        )
        for site, table in found.items():
            join(network, f"127.0.0.1:{port}", site, table)
        until(network, lambda: (state_of(url, "run")["now"]["round"] or 0) > 0)
        network._processes["first"].send_signal(signal.SIGTERM)
        until(network, lambda: page.evaluate("seen.includes('no connection, trying again')"))
        network.start("second", ["coordinator", "serve", tmp_path / "run", *where])
        until(network, lambda: page.evaluate("seen.lastIndexOf('live') > seen.indexOf('no connection, trying again')"))
        expect(page.locator("#state")).to_have_text("finished")
        page.locator("#rounds tr").first.wait_for(state="attached")
        assert len(page.locator("#chart-edges path").get_attribute("d")) > 100, "with the rounds before"
        page.close()


def until(network, reached: Callable[[], bool]) -> None:
    while not reached():
        network.check()  # that all its processes are well
        time.sleep(0.05)


def until_listening(network, name: str) -> None:
    until(network, lambda: any(line.startswith("listening") for line in network.said(name)))


def test_a_site_sees_what_leaves_it_and_leaves_by_a_button(browser, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    plan = private_plan(rounds=20_000, variables=NAMES, privacy={"epsilon": 4.0})
    for k, site in enumerate(("north", "south")):
        table = write_table(tmp_path / site / "table.csv", rows(k))
        make_site(tmp_path / site, table=table, site=site, dataset_id=f"ward-{k}")
        with site_folder.opened(tmp_path / site) as (_, ledger):
            ledger.approvals.approve(plan.digest(), plan.name)
    with forked_network(tmp_path / "logs") as network:
        address = localnet.start_coordinator(network, plan, tmp_path / "run", seeds={}, web="127.0.0.1:0")
        pages = {site: f"http://127.0.0.1:{free_port()}/" for site in ("north", "south")}
        for site, url in pages.items():
            web = f"--web={url.removeprefix('http://').rstrip('/')}"
            network.start(site, ["participant", "join", address, "--insecure", f"--policy={tmp_path / site}", web])
        for site in pages:
            until(network, lambda site=site: any(line.startswith("page: ") for line in network.said(site)))
        with (
            opened(browser, pages["north"], scheme="dark") as north,
            opened(browser, pages["south"], width=390) as south,
        ):
            for one in (north, south):
                expect(one.page.locator("#releases tr")).not_to_have_count(0)
                assert not scrolls_sideways(one.page)
                assert hard_to_read(one.page) == []
            expect(north.page.locator("#price")).to_contain_text("epsilon 4 at delta")
            table = south.page.locator(".wide").first
            assert "gradient" in table.evaluate("one => getComputedStyle(one).backgroundImage"), "shows that it scrolls"
            expect(north.page.locator("#spent")).to_contain_text("of 5")
            north.page.locator("#leave").click()
            expect(north.page.locator("#state")).to_have_text("left")
            expect(north.page.locator("#link")).to_have_text("the run is over here")
            sent, paid = int(north.text("releases-n")), float(north.text("zcdp"))
            shown = {name: north.page.locator("html").inner_html() for name in ("north",)}
            expect(south.page.locator("#state")).not_to_have_text("over")
            assert "south" not in shown["north"]
            assert "ward-1" not in shown["north"]
            assert north.troubles == south.troubles == []
        assert network._processes["north"].wait(60) == 0
        assert "left the run: asked for on the site's page" in " ".join(network.said("north"))
        now = state_of(localnet.page_of(network), "run")["now"]
        assert {one["site"]: one["state"] for one in now["sites"]}["north"] == "left"
        assert any("coordinator eject" in to_do for _, to_do in now["warnings"])
    with site_folder.opened(tmp_path / "north") as (_, ledger):
        kept = [entry for entry in ledger.entries() if entry.kind == "store"]
        answers = [entry for entry in kept if entry.content["round"] > 0]
        assert len(answers) == sent, "what the page has counted is what was released"
        assert units_spent(ledger, "ward-0") == pytest.approx(paid * 1e12, rel=1e-3)


def test_a_coordinator_of_several_runs_lists_them_all_and_an_agent_those_that_it_does_not_join(browser, tmp_path):
    plan = Plan(name="<i>mine</i>", n_participants=2, rounds=5, variables=("a", "b"), sites=("north", "south"))
    (tmp_path / "plan.toml").write_text(plan.to_toml(), encoding="utf-8")
    with forked_network(tmp_path / "logs") as network:
        for name in ("first", "second"):
            arguments = ["coordinator", "runs", "start", tmp_path / "runs", tmp_path / "plan.toml", f"--name={name}"]
            network.start(name, arguments)
            assert network._processes[name].wait(60) == 0
        serve = ["coordinator", "runs", "serve", tmp_path / "runs", "--at-once=1", "--insecure"]
        network.start("coordinator", [*serve, "--listen=127.0.0.1:0", "--web=127.0.0.1:0"])
        until_listening(network, "coordinator")
        with opened(browser, localnet.page_of(network), width=390, scheme="dark") as watched:
            page = watched.page
            expect(page.locator("#runs tr")).to_have_count(2)
            expect(page.locator("#runs a")).to_have_count(1)  # the other one waits for its turn
            expect(page.locator("#runs")).to_contain_text("<i>mine</i>")
            expect(page.locator("#runs")).to_contain_text("2 of 2 sites have not joined")
            expect(page.locator("#runs")).to_contain_text("starts by itself once a run before it is over")
            assert not scrolls_sideways(page)
            assert hard_to_read(page) == []
            page.locator("#runs a").click()
            expect(page.locator("#name")).to_have_text("first")
            expect(page.locator("#warnings")).to_contain_text("have not joined: north, south")
            assert watched.troubles == []
        make_site(tmp_path / "north")
        address = next(line for line in network.said("coordinator") if line.startswith("listening")).split()[2]
        own = f"127.0.0.1:{free_port()}"
        agent = ["participant", "agent", tmp_path / "north", f"--coordinator={address.strip(';')}", "--insecure"]
        network.start("agent", [*agent, f"--web={own}"])
        until(network, lambda: any(line.startswith("page: ") for line in network.said("agent")))
        with opened(browser, f"http://{own}/", width=390, scheme="dark") as watched:
            expect(watched.page.locator("#waiting")).to_contain_text("is not approved here")
            assert not scrolls_sideways(watched.page)
            assert hard_to_read(watched.page) == []
            assert watched.troubles == []
