"""`coordinator status`, `watch`, `healthcheck` and `--metrics` against real coordinators on loopback."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from http.client import HTTPException
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from fedbnsl import __version__
from fedbnsl.errors import IdentityError, RemoteProtocolError
from fedbnsl.protocol.messages import PROTOCOL_VERSION, JoinRequest, LeaveReason, LedgerHead, LocalUpdate
from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl.rounds import admm as admm_rounds
from fedbnsl_client.session import Session
from fedbnsl_server.identity.enrolment import Federation
from fedbnsl_server.observe.status_client import Observer
from fedbnsl_workbench.localnet import LocalNetwork
from forked import forked_network
from free_port import free_port

LONG_S = 30.0
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
PLAN = 'variables = ["a", "b", "c"]\nname = "seen"\nn_participants = 2\nrounds = 4\nrefit_rounds = 0\n'
STATUS_KEYS = {
    "state", "round", "rounds", "acyclicity", "edges", "undirected", "elapsed_s", "time_left_s", "run",
    "protocol_version", "version", "time_unix_s", "caller", "sites", "reason", "name", "phase",
}  # fmt: skip
SITE_KEYS = {
    "site", "online", "online_s", "last_seen_s", "answered", "left", "last_round", "bytes_up", "bytes_down",
    "spent_zcdp", "why_left",
}  # fmt: skip


@pytest.fixture
def coordinator_command(fedbnsl, monkeypatch):
    """Run `fedbnsl coordinator ...` in this process, on a wide terminal."""
    monkeypatch.setenv("COLUMNS", "110")
    return partial(fedbnsl, "coordinator")


@pytest.fixture
def free_address() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.fixture
def network(tmp_path: Path) -> Iterator[LocalNetwork]:
    with forked_network(tmp_path / "logs") as network:
        yield network


Serve = Callable[..., str]


@pytest.fixture
def serve(network: LocalNetwork, tmp_path: Path) -> Serve:
    """Start `coordinator serve` as a process of its own; its address."""

    def serving(*options: str, plan: str = PLAN, name: str = "coordinator", listen: str = "127.0.0.1:0") -> str:
        plan_file, address = tmp_path / f"{name}.toml", tmp_path / f"{name}.address"
        plan_file.write_text(plan, encoding="utf-8")
        command: list[str | Path] = ["coordinator", "serve", plan_file, f"--listen={listen}"]
        security = [] if any(option.startswith("--federation") for option in options) else ["--insecure"]
        network.start(name, [*command, *security, f"--out={tmp_path / name}", f"--address-file={address}", *options])
        await_that(address.exists)
        return address.read_text(encoding="utf-8")

    return serving


def await_that(holds: Callable[[], object]) -> None:
    until = time.monotonic() + LONG_S
    while not holds():
        assert time.monotonic() < until, "in vain"
        time.sleep(0.05)


@pytest.fixture
def join() -> Iterator[Callable[..., Session]]:
    sessions: list[Session] = []

    def joining(address: str, site: str, *, ledger: LedgerHead | None = None) -> Session:
        session = Session(address, patience_s=LONG_S, notice=lambda text: None)
        sessions.append(session)
        session.join(JoinRequest(site, ("a", "b", "c"), 50, ledger=ledger))
        return session

    yield joining
    for session in sessions:
        session.close()


def answer(site: str, t: int) -> LocalUpdate:
    return LocalUpdate(site, t, admm_rounds.Answer(SparseMatrix(3, np.array([1]), np.array([0.5]))))


# ---- status --------------------------------------------------------------------------------------------------------


def test_status_tells_a_script_all_there_is_under_stable_keys(serve, join, coordinator_command):
    address = serve()
    north = join(address, "north", ledger=LedgerHead(b"i" * 16, b"a" * 16, 3, b"d" * 32, 250_000_000_000))
    first = json.loads(coordinator_command("status", address, "--insecure", "--json").out)
    assert (first["state"], first["round"], first["time_left_s"]) == ("waiting for sites", 0, None)
    south = join(address, "south")
    for session, site in ((north, "north"), (south, "south")):
        session.pull(0)
        session.push(answer(site, 1))
    north.pull(1)
    outcome = coordinator_command("status", address, "--insecure", "--json")
    assert outcome.code == 0
    seen = json.loads(outcome.out)
    assert set(seen) == STATUS_KEYS
    assert (seen["state"], seen["round"], seen["rounds"], seen["edges"]) == ("running", 2, 4, 1)
    assert seen["time_left_s"] == pytest.approx(3 * seen["elapsed_s"])
    assert (seen["protocol_version"], seen["version"], seen["caller"]) == (PROTOCOL_VERSION, __version__, "")
    assert (seen["phase"]["what"], seen["phase"]["share"]) == ("rounds", 0.25)
    assert re.fullmatch("[0-9a-f]{8}", seen["run"])
    assert all(set(site) == SITE_KEYS for site in seen["sites"])
    by_site = {site["site"]: site for site in seen["sites"]}
    assert [by_site[s]["spent_zcdp"] for s in ("north", "south")] == [0.25, None]
    assert [by_site[s]["last_round"] for s in ("north", "south")] == [1, 1]
    assert all(site["online"] and site["online_s"] > 0 and not site["answered"] for site in seen["sites"])


def test_status_tells_a_person_where_the_run_stands(serve, join, coordinator_command):
    address = serve()
    join(address, "north")
    outcome = coordinator_command("status", address, "--insecure")
    assert outcome.code == 0
    assert f"{address}: waiting for sites (run " in outcome.out
    assert "waiting for sites: 1 joined" in outcome.out
    assert re.search(r"^north +joined +\d\d:\d\d:\d\d +\d s ago +- +- ", outcome.out, re.MULTILINE)


def test_6_nobody_answers(free_address, coordinator_command):
    outcome = coordinator_command("status", free_address, "--insecure")
    assert (outcome.code, outcome.out) == (6, "")
    assert f"the coordinator at {free_address} does not answer (" in outcome.err
    outcome = coordinator_command("watch", free_address, "--insecure", "--patience=0.2")
    assert outcome.code == 6
    assert "does not answer and did not come back within 0.2 s" in outcome.err
    outcome = coordinator_command("healthcheck", free_address, "--insecure")
    assert (outcome.code, outcome.err) == (6, "")
    assert outcome.out.startswith(f"{free_address}: no answer: ")
    assert outcome.out.count("\n") == 1


@pytest.mark.parametrize("command", ["status", "watch", "healthcheck"])
def test_2_plaintext_or_tls_must_be_chosen(command, free_address, tmp_path, coordinator_command):
    for choice in ([], ["--insecure", f"--federation={tmp_path}"]):
        outcome = coordinator_command(command, free_address, *choice)
        assert outcome.code == 2
        assert "pass either --federation FOLDER, made by `coordinator init`, or --insecure" in outcome.err


def test_over_tls_the_coordinators_own_certificate_opens_all_three(serve, tmp_path, coordinator_command):
    folder = tmp_path / "federation"
    Federation.create(folder, name="seen", hosts=["coordinator.example"], days=2, ca_days=3)
    address = serve(f"--federation={folder}")
    assert coordinator_command("status", address, f"--federation={folder}", "--json").code == 0
    assert coordinator_command("healthcheck", address, f"--federation={folder}").code == 0
    assert coordinator_command("healthcheck", address, "--insecure").code == 6
    other = tmp_path / "other"
    Federation.create(other, name="other", hosts=["coordinator.example"], days=2, ca_days=3)
    assert coordinator_command("status", address, f"--federation={other}").code == 6


@pytest.mark.parametrize(
    ("code", "error", "text"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, IdentityError, "the coordinator refused: not you"),
        (grpc.StatusCode.UNIMPLEMENTED, RemoteProtocolError, "is not a fedbnsl coordinator"),
    ],
)
def test_a_refusal_is_not_taken_for_silence(code, error, text):
    class Refusing(grpc.RpcError, grpc.Call):
        def code(self):
            return code

        def details(self):
            return "not you"

    Refusing.__abstractmethods__ = frozenset()

    def refuse(*arguments, **options):
        raise Refusing()

    observer = Observer("127.0.0.1:1")
    observer._stub.Status = refuse
    with pytest.raises(error, match=text):
        observer.status()
    observer.close()


# ---- watch ---------------------------------------------------------------------------------------------------------


def a_whole_run(network: LocalNetwork, address: str, tmp_path: Path) -> None:
    """Two participants as processes; the run goes on by itself."""
    rng = np.random.default_rng(0)
    for site in ("north", "south"):
        table = tmp_path / f"{site}.csv"
        rows = rng.normal(size=(40, 3)).tolist()
        table.write_text("a,b,c\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows), encoding="utf-8")
        join = ["participant", "join", address, "--insecure", "--public-data", f"--site={site}", f"--data={table}"]
        network.start(site, [*join, f"--out={tmp_path / (site + '-out')}"])


def test_watch_follows_a_run_to_its_end_and_a_script_reads_every_step(serve, network, tmp_path, coordinator_command):
    address = serve(plan=PLAN.replace("rounds = 4", "rounds = 60"))
    a_whole_run(network, address, tmp_path)
    outcome = coordinator_command("watch", address, "--insecure", "--json")
    assert outcome.code == 0
    seen = [json.loads(line) for line in outcome.out.splitlines()]
    assert all(set(one) == STATUS_KEYS for one in seen)
    assert seen[-1]["state"] == "finished"
    assert [site["site"] for site in seen[-1]["sites"]] == ["north", "south"]
    await_that(lambda: network.ended("coordinator"))
    network.check()


def test_10_a_run_that_fails_is_told_to_whoever_watches(serve, coordinator_command):
    address = serve(plan=PLAN + "join_deadline_s = 2.0\n")
    outcome = coordinator_command("watch", address, "--insecure")
    assert outcome.code == 10
    assert "the run failed in round 0" in outcome.err


class Watching:
    """`coordinator watch` as a process, on a terminal or on a pipe."""

    def __init__(self, *arguments: str, on_terminal: bool) -> None:
        self._end, other = pty.openpty() if on_terminal else os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedbnsl", "coordinator", "watch", *arguments],
            stdout=other,
            stderr=other,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "TERM": "xterm", "COLUMNS": "110", "LINES": "40"},
        )
        os.close(other)
        os.set_blocking(self._end, False)
        self.raw = ""

    @property
    def text(self) -> str:
        with suppress(OSError):  # nothing new; or, from a terminal, the end
            while more := os.read(self._end, 65536):
                self.raw += more.decode(errors="replace")
        return ANSI.sub("", self.raw)

    def await_text(self, pattern: str, *, after: int = 0) -> int:
        """Where the text went on after a pattern was seen."""
        await_that(lambda: re.search(pattern, self.text[after:]))
        return len(self.text)

    def end(self, number: signal.Signals) -> int:
        self._process.send_signal(number)
        code = self._process.wait(LONG_S)
        assert self.text
        os.close(self._end)
        return code


@pytest.mark.parametrize("on_terminal", [True, False], ids=["terminal", "pipe"])
def test_watch_waits_for_a_coordinator_that_is_away_and_ctrl_c_leaves_the_run_alone(
    on_terminal, serve, join, network, free_address, coordinator_command
):
    serve(listen=free_address)
    watching = Watching(free_address, "--insecure", on_terminal=on_terminal)
    watching.await_text("waiting for sites: 0 joined")
    network._processes["coordinator"].kill()
    network._processes.pop("coordinator").wait()
    at = watching.await_text(f"the coordinator at {free_address} does not answer; waiting for it to come back")
    serve(name="again", listen=free_address)
    watching.await_text(r"waiting for sites: \d joined", after=at)
    join(free_address, "north")
    if on_terminal:
        watching.await_text(r"north +joined", after=at)
    assert watching.end(signal.SIGINT) == 130
    assert "The run itself goes on." in ANSI.sub("", watching.raw)
    assert ("\x1b[?25l" in watching.raw) is on_terminal
    seen = json.loads(coordinator_command("status", free_address, "--insecure", "--json").out)
    assert (seen["state"], len(seen["sites"])) == ("waiting for sites", 1)


def test_a_terminal_shows_every_site_with_what_it_did_and_the_run_with_what_is_left(serve, join):
    address = serve()
    sessions = {"north": join(address, "north", ledger=LedgerHead(b"i" * 16, b"a" * 16, 3, b"d" * 32, 25 * 10**10))}
    sessions["south"] = join(address, "south")
    for site, session in sessions.items():
        session.pull(0)
        session.push(answer(site, 1))
    sessions["north"].pull(1)
    sessions["north"].push(answer("north", 2))
    watching = Watching(address, "--insecure", on_terminal=True)
    watching.await_text(r"round 2/4 +answered 1/2 +h\(W\) \S+ +1 edge +\S+ kB +\d+ s, about \d+ s left")
    watching.await_text(r"site +state +online since +last seen +last round +spent zCDP +up +down")
    watching.await_text(r"north +answered +\d\d:\d\d:\d\d +\d+ s ago +2 +0\.25 +0\.\d kB +0\.\d kB")
    watching.await_text(r"south +working +\d\d:\d\d:\d\d +\d+ s ago +1 +- +0\.\d kB +0\.\d kB")
    watching.await_text("as each site's ledger told it last")
    assert "━" in watching.text
    sessions["south"].leave(LeaveReason.OPERATOR)
    watching.await_text(r"waiting for south \(quorum 2 of 2\) +round 2/4 +answered 1/2")
    watching.end(signal.SIGTERM)


# ---- metrics -------------------------------------------------------------------------------------------------------


def scraped(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LONG_S) as reply:
        families = list(text_string_to_metric_families(reply.read().decode()))
    return {
        s.name + "".join(sorted(value for name, value in s.labels.items() if name != "run")): s.value
        for family in families
        for s in family.samples
    }


def test_a_coordinator_serves_its_own_metrics(serve, join, free_address, network):
    port = int(free_address.rpartition(":")[2])
    address = serve(f"--metrics={free_address}")
    assert scraped(port)["fedbnsl_run_statewaiting for sites"] == 1
    join(address, "north")
    got = scraped(port)
    assert (got["fedbnsl_up"], got["fedbnsl_rounds"], got["fedbnsl_site_onlinenorth"]) == (1, 4, 1)
    assert got["fedbnsl_security_events_totaljoined"] == 1
    assert got["fedbnsl_site_bytes_totalnorthup"] == 0


def test_metrics_can_be_scraped_all_through_a_run(serve, network, free_address, tmp_path):
    port = int(free_address.rpartition(":")[2])
    address = serve(f"--metrics={free_address}", plan=PLAN.replace("rounds = 4", "rounds = 80"))
    a_whole_run(network, address, tmp_path)
    rounds = []
    while not network.ended("coordinator"):
        with suppress(OSError, HTTPException):  # it ends, perhaps in the middle of an answer
            rounds.append(scraped(port).get("fedbnsl_round", -1))
    network.check()
    assert rounds[0] == 0
    assert rounds == sorted(rounds) or rounds[-1] == -1
    assert len(set(rounds)) > 5


def test_2_a_metrics_port_in_use_ends_serve_before_anything_is_made(serve, tmp_path, coordinator_command):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        plan = tmp_path / "plan.toml"
        plan.write_text(PLAN, encoding="utf-8")
        out = tmp_path / "run"
        command = ("serve", plan, "--insecure", "--listen=127.0.0.1:0", f"--out={out}", f"--metrics={address}")
        outcome = coordinator_command(*command)
    assert outcome.code == 2
    assert f"--metrics: cannot listen on '{address}'" in outcome.err
    assert not out.exists()


def test_whoever_watches_can_serve_the_metrics_too(serve, join, free_address):
    port = int(free_address.rpartition(":")[2])
    address = serve()
    join(address, "north")
    watching = Watching(address, "--insecure", f"--metrics={free_address}", on_terminal=False)
    watching.await_text("1 joined")
    assert scraped(port)["fedbnsl_site_onlinenorth"] == 1
    watching.end(signal.SIGTERM)


# ---- health --------------------------------------------------------------------------------------------------------


def states_of(address: str) -> set[str]:
    """What is said of the server and of its service."""
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        replies = [
            stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=LONG_S)
            for service in ("", "fedbnsl.wire.Federation")
        ]
    return {health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status) for reply in replies}


def test_a_coordinator_serves_from_the_open_port_until_its_results_are_written(serve, join, coordinator_command):
    address = serve(
        plan='variables = ["a", "b", "c"]\nn_participants = 1\nrounds = 1\nrefit_rounds = 0\nname = "seen"\n'
    )
    assert states_of(address) == {"SERVING"}
    outcome = coordinator_command("healthcheck", address, "--insecure")
    assert (outcome.code, outcome.out) == (0, f"{address}: serving\n")
    north = join(address, "north")
    north.pull(0)
    assert states_of(address) == {"SERVING"}
    north.push(answer("north", 1))
    # It does not hear the end: the coordinator waits some seconds for it.
    await_that(lambda: states_of(address) == {"NOT_SERVING"})
    outcome = coordinator_command("healthcheck", address, "--insecure", "--json")
    assert outcome.code == 6
    assert json.loads(outcome.out) == {
        "address": address, "serving": False, "why_not": "not serving: it is starting or ending",
    }  # fmt: skip
    assert json.loads(coordinator_command("status", address, "--insecure", "--json").out)["state"] == "finished"


def test_a_health_check_loads_no_mathematics(free_address):
    loaded = (
        "import sys\nfrom fedbnsl.cli import main\n"
        f"try:\n    main(['coordinator', 'healthcheck', '{free_address}', '--insecure'])\n"
        "except SystemExit:\n    print(sorted({'numpy', 'scipy', 'numba', 'networkx'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, timeout=LONG_S, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
