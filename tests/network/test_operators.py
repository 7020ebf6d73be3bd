"""Several operators of one coordinator, from a laptop: real processes over TLS, by commands alone."""

import json
import re
import shlex
import signal
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from agents import SITES, Federated, plan_of_three
from browser import LONG_MS, chromium
from command_line import Outcome
from fedbnsl.events.security_log import NAME, lines
from fedbnsl_server.runs.folder import RESULT_FILES
from forked import forked_network
from http_asks import ask

# What a folder of a finished run has beside its result.
_STAYS = {"checkpoint.npz", "checkpoints", "queue.json", "queued-plan.toml", "run.lock"}


class Laptop:
    """A machine with the token of an operator and the authority's certificate, and nothing of the federation."""

    def __init__(self, federated: Federated, folder: Path, fedbnsl: Callable[..., Outcome]) -> None:
        self._federated, self.folder, self._fedbnsl = federated, folder, fedbnsl
        self.ca = federated.federation.folder / "ca.pem"
        self.tokens: dict[str, str] = {}
        self.url = ""
        folder.mkdir()

    def add(self, name: str, role: str) -> None:
        """Add an operator at the coordinator."""
        words = ["coordinator", "operators", "add", self._federated.federation.folder, name, f"--role={role}"]
        self.tokens[name] = self._federated.command(*words).strip()
        (self.folder / name).write_text(self.tokens[name], encoding="utf-8")

    def asks(self, who: str, command: str, *words: str | Path) -> Outcome:
        """What `coordinator runs COMMAND --at` says to an operator."""
        at = [f"--at={self.url}", f"--token-file={self.folder / who}", f"--ca={self.ca}"]
        group = ["coordinator", command] if command == "eject" else ["coordinator", "runs", command]
        return self._fedbnsl(*group, *at, *words)

    def json(self, who: str, command: str, *words: str | Path):
        done = self.asks(who, command, *words, "--json")
        assert done.code == 0, done.err
        return json.loads(done.out)


@pytest.fixture
def federated(tmp_path: Path, fedbnsl: Callable[..., Outcome]) -> Iterator[Federated]:
    with forked_network(tmp_path / "logs") as network:
        yield Federated(tmp_path, network, fedbnsl)


@pytest.fixture
def laptop(federated: Federated, tmp_path: Path, fedbnsl: Callable[..., Outcome]) -> Laptop:
    laptop = Laptop(federated, tmp_path / "laptop", fedbnsl)
    for name, role in (("vera", "view"), ("rosa", "run"), ("ada", "administer")):
        laptop.add(name, role)
    return laptop


def serve(federated: Federated, laptop: Laptop) -> str:
    service = federated.start_service("--web=127.0.0.1:0", "--metrics=127.0.0.1:0", "--at-once=4")
    found = re.search(r"page: (https://127\.0\.0\.1:\d+)/", federated.log(service))
    assert found, federated.log(service)
    laptop.url = found[1]
    return service


def test_a_run_is_queued_waited_for_stopped_and_fetched_by_those_who_may(federated: Federated, laptop: Laptop) -> None:
    plan, endless = plan_of_three(rounds=4), plan_of_three(rounds=20_000, privacy={"epsilon": 0.5})
    for one in (plan, endless):
        federated.approve(one)
    for name, one in (("plan", plan), ("endless", endless)):
        (laptop.folder / f"{name}.toml").write_text(one.to_toml(), encoding="utf-8")
    service = serve(federated, laptop)

    start = ["start", laptop.folder / "plan.toml", "--name=first", "--study=heart"]
    refused = laptop.asks("vera", *start)
    assert (refused.code, "vera may not start a run: the role is view, it takes run" in refused.err) == (14, True)
    assert laptop.json("vera", "list") == []
    first = laptop.json("rosa", *start)
    assert laptop.json("rosa", *start)["run"] == first["run"], "once, however often it is asked for"
    assert first["plan_digest"] == plan.digest().hex()
    laptop.json("rosa", "start", laptop.folder / "endless.toml", "--name=second")
    assert [(one["name"], one["study"]) for one in laptop.json("vera", "list")] == [("first", "heart"), ("second", "")]
    listed = laptop.asks("vera", "list").out
    assert re.match(r"study heart:\nfirst .*\nno study:\nsecond ", listed), listed

    for site in SITES:
        federated.start_agent(site)
    over = laptop.asks("vera", "wait", "first")
    assert (over.code, over.out.startswith("run first is over: finished; fetch its result")) == (0, True), over
    kept = laptop.folder / "first"
    _, _, command = over.out.strip().partition("fetch its result: fedbnsl ")
    federated.command(*shlex.split(command.replace("DIR", shlex.quote(str(kept)))))
    for _ in range(2):
        assert laptop.json("vera", "fetch", "first", "--out", kept)["run"] == first["run"]
    there = federated.runs / "first"
    assert {path.name for path in kept.iterdir()} == {path.name for path in there.iterdir()} - _STAYS
    assert {path.name for path in kept.iterdir()} <= RESULT_FILES
    assert all(path.read_bytes() == (there / path.name).read_bytes() for path in kept.iterdir())
    assert json.loads((kept / "result.json").read_text(encoding="utf-8"))["manifest"]["study"] == "heart"
    federated.command("report", kept, "--out", laptop.folder / "report.html")
    assert "· study heart</p>" in (laptop.folder / "report.html").read_text(encoding="utf-8")
    mixed = laptop.asks("vera", "fetch", "second", "--out", kept)
    assert mixed.code == 2, mixed.err

    federated.await_rounds("second", 1)
    refused = laptop.asks("rosa", "stop", "second")
    assert (refused.code, "rosa may not stop a run: the role is run" in refused.err) == (14, True)
    assert laptop.json("rosa", "pause", "second")["state"] == "paused"
    assert laptop.asks("rosa", "resume", "second").code == 0
    for _ in range(2):
        assert laptop.json("ada", "stop", "second")["state"] == "stopped"
    over = laptop.asks("vera", "wait", "second")
    assert (over.code, "run second is over: stopped" in over.err) == (10, True)
    command = re.search(r"Its reason: fedbnsl (.*)\. Go on", over.err)
    assert command, over.err
    assert "second" in federated.command(*shlex.split(command[1]))

    (laptop.folder / "wrong").write_text(laptop.tokens["ada"][:-1] + "-", encoding="utf-8")
    refused = laptop.asks("wrong", "stop", "second")
    assert (refused.code, "this token is not known here" in refused.err) == (14, True)
    measured = re.search(r"metrics on port (\d+)", federated.log(service))
    assert measured
    counted = ask(int(measured[1]), "/metrics").body.decode()
    assert 'fedbnsl_refused_calls_total{why="wrong token"} 1.0' in counted
    assert 'fedbnsl_refused_calls_total{why="role"} 2.0' in counted
    federated.command("coordinator", "operators", "remove", federated.federation.folder, "ada")
    assert laptop.asks("ada", "list").code == 14, "from the next request on"

    federated.kill(service, signal.SIGTERM)
    entries = [line.entry for line in lines(federated.federation.folder / NAME)]
    done = [(one["operator"], one["action"], one["name"]) for one in entries if one["event"] == "operator"]
    assert done == [
        *[("rosa", "start a run", "first")] * 2,
        ("rosa", "start a run", "second"),
        ("rosa", "pause a run", "second"),
        ("rosa", "resume a run", "second"),
        *[("ada", "stop a run", "second")] * 2,
    ]
    refused_of = [(one["why"], one.get("operator"), one.get("action")) for one in entries if one["event"] == "refused"]
    assert ("role", "vera", "start a run") in refused_of
    assert ("role", "rosa", "stop a run") in refused_of
    assert ("wrong token", None, None) in refused_of
    federated.command("coordinator", "audit-log", federated.federation.folder, "--verify")
    everything = [*(federated.folder / "logs").glob("*"), *federated.federation.folder.glob("*")]
    written = b"".join(path.read_bytes() for path in everything if path.is_file())
    for token in laptop.tokens.values():
        assert token.encode() not in written


def test_a_service_ends_without_a_traceback_while_something_is_asked_of_it(
    federated: Federated, laptop: Laptop
) -> None:
    """Agents wait for runs and for a site, a browser looks on, and a request has not arrived whole."""
    plan = plan_of_three()
    federated.approve(plan, "east", "north")
    federated.queue(plan, "run")
    service = serve(federated, laptop)
    for site in SITES:
        federated.start_agent(site)
    federated.await_text(service, "run: north joined")
    context = ssl.create_default_context(cafile=laptop.ca)
    port = int(laptop.url.rpartition(":")[2])

    def under_way(head: str, expected: bytes) -> ssl.SSLSocket:
        asking = context.wrap_socket(socket.create_connection(("127.0.0.1", port), 20), server_hostname="127.0.0.1")
        token = f"Host: 127.0.0.1:{port}\r\nAuthorization: Bearer {laptop.tokens['rosa']}\r\n\r\n"
        asking.sendall(f"{head}\r\n{token}".encode())
        seen = b""
        while expected not in seen:
            seen += (more := asking.recv(4096))
            assert more, seen
        return asking

    start = "POST /api/runs/other/start HTTP/1.1\r\nContent-Length: 9\r\nExpect: 100-continue"
    with (
        under_way("GET /events HTTP/1.1", b"event: runs"),
        under_way(start, b"100 Continue"),
    ):
        federated.kill(service, signal.SIGTERM)
    said = federated.log(service)
    assert "Traceback" not in said, said
    assert "run: interrupted" in said
    assert "ASGI" not in said, said


def test_a_site_is_ejected_from_afar_by_who_administers(federated: Federated, laptop: Laptop) -> None:
    plan = plan_of_three(rounds=20_000, quorum=2)
    federated.approve(plan)
    federated.queue(plan, "run")
    serve(federated, laptop)
    for site in SITES:
        federated.start_agent(site)
    federated.await_rounds("run", 1)
    refused = laptop.asks("rosa", "eject", "run", "south")
    assert (refused.code, "rosa may not eject a site" in refused.err) == (14, True), refused.err
    done = laptop.asks("ada", "eject", "run", "south")
    assert (done.code, "south" in done.out) == (0, True), done.err
    again = laptop.asks("ada", "eject", "run", "south")
    assert again.code == 2, again
    assert laptop.json("ada", "stop", "run")["state"] == "stopped"
    entries = [line.entry for line in lines(federated.federation.folder / NAME)]
    assert ("ada", "south") in [(one["operator"], one.get("site")) for one in entries if one["event"] == "operator"]


def test_the_page_asks_for_the_token_of_an_operator(federated: Federated, laptop: Laptop) -> None:
    serve(federated, laptop)
    context = ssl.create_default_context(cafile=laptop.ca)
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{laptop.url}/", context=context, timeout=20)
    asked = urllib.request.Request(f"{laptop.url}/", headers={"Authorization": f"Bearer {laptop.tokens['vera']}"})
    with urllib.request.urlopen(asked, context=context, timeout=20) as reply:
        assert b"<h1>Runs</h1>" in reply.read()


def test_a_browser_offers_what_the_role_allows(federated: Federated, laptop: Laptop) -> None:
    federated.queue(plan_of_three(), "run")
    serve(federated, laptop)

    def logged_in(who: str) -> Page:
        page = browser.new_context(ignore_https_errors=True).new_page()
        page.set_default_timeout(LONG_MS)
        page.goto(laptop.url)
        page.locator("input").fill(laptop.tokens[who])
        page.locator("button").click()
        page.locator("#runs a").click()
        expect(page.locator("#state")).to_have_text("waiting for sites")
        return page

    with chromium() as browser:
        expect(logged_in("vera").locator("#actions")).to_be_hidden()
        rosa = logged_in("rosa")
        assert rosa.locator("#buttons button").all_text_contents() == ["Pause", "Go on"]
        rosa.locator("#pause").click()
        federated.await_state("run", "paused")
        rosa.locator("#resume").click()
        federated.await_state("run", "waiting")
        ada = logged_in("ada")
        ada.on("dialog", lambda dialog: dialog.accept())
        ada.locator("#stop").click()
        federated.await_state("run", "stopped")
        expect(ada.locator("#action-note")).to_contain_text("Asked for")
    entries = [line.entry for line in lines(federated.federation.folder / NAME)]
    assert [(one["operator"], one["action"]) for one in entries if one["event"] == "operator"] == [
        ("rosa", "pause a run"),
        ("rosa", "resume a run"),
        ("ada", "stop a run"),
    ]
