"""What the security logs of both sides hold after real calls over TLS: each refusal with its class and its caller."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from coordinator_thread import RUN, start
from fedbnsl.errors import FedbnslError, NotApprovedError
from fedbnsl.events import security_log
from fedbnsl.events.security_log import SecurityLog, lines, verify
from fedbnsl.identity.certificates import Credentials, fingerprint
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol import channel, codec
from fedbnsl.protocol.messages import JoinRequest, LedgerHead, run_tag
from fedbnsl.wire import federation_pb2 as federation
from fedbnsl.wire import federation_pb2_grpc as federation_grpc
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.join_run import Told, take_part
from fedbnsl_client.site import folder as site_folder
from fedbnsl_client.site import identity
from fedbnsl_client.site.admission import GuardedTable
from fedbnsl_server.identity.enrolment import Federation
from fedbnsl_server.run.serve import serve
from fedbnsl_server.run.settings import ServerSettings
from federation_folder import enrol, make_federation
from private_site import DATASET, NAMES, make_site, private_plan, rows, units_spent, write_table

__all__ = ["start"]  # a fixture

LONG_S = 30.0
TAG = run_tag(RUN)


@pytest.fixture
def members(tmp_path: Path) -> Federation:
    return make_federation(tmp_path / "federation")


class Caller:
    """Raw calls with a site's certificate."""

    def __init__(self, address: str, credentials: Credentials) -> None:
        secure = grpc.ssl_channel_credentials(credentials.ca, credentials.key, credentials.certificate)
        own = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.secure_channel(address, secure, own)
        self.stub = federation_grpc.FederationStub(self.channel)

    def raw(self, call: str, *messages: bytes) -> None:
        self.channel.stream_unary(f"/fedbnsl.wire.Federation/{call}")(iter(messages), timeout=LONG_S)

    def join(self, site: str = "north", names: tuple[str, ...] = NAMES, ledger: LedgerHead | None = None) -> None:
        self.stub.Join(codec.encode_join(JoinRequest(site, names, 50, ledger=ledger)), timeout=LONG_S)


def refused(call: Callable[[], object]) -> None:
    with pytest.raises(grpc.RpcError):
        call()


def pull(caller: Caller, run: int = TAG, site: str = "north") -> None:
    caller.stub.PullTask(federation.PullRequest(run=run, site=site), timeout=LONG_S)


def push(caller: Caller) -> None:
    update = federation.Update(run=TAG, site="north", round=1)
    update.refit.SetInParent()
    update.refit.weights.SetInParent()
    caller.stub.PushUpdate(update, timeout=LONG_S)


def nothing_at_all(caller: Caller) -> None:
    caller.raw("Join")


REFUSED: list[tuple[str, str, Callable[[Caller], object]]] = [
    ("malformed", "Join", lambda caller: caller.raw("Join", b"\xff\xff\xff")),
    ("malformed", "Join", nothing_at_all),
    ("malformed", "Leave", lambda caller: caller.raw("Leave", bytes(2000))),
    ("malformed", "Join", lambda caller: caller.raw("Join", bytes(channel.MAX_MESSAGE_BYTES + 1))),
    ("malformed", "Join", lambda caller: caller.join(names=("only",))),
    ("unknown call", "", lambda caller: caller.raw("Surprise", b"")),
    ("speaks for another", "Join", lambda caller: caller.join("south")),
    ("speaks for another", "PullTask", lambda caller: pull(caller, site="south")),
    ("other run", "PullTask", lambda caller: pull(caller, run=TAG + 1)),
    ("not joined", "PullTask", pull),
    ("malformed", "PushUpdate", lambda caller: (caller.join(), push(caller))),
    ("no membership", "Join", lambda caller: (caller.join(), caller.join(names=("a", "b")))),
]  # fmt: skip


@pytest.mark.parametrize(("why", "call", "act"), REFUSED)
def test_every_class_of_refusal_is_noted_with_its_caller(why, call, act, members, start, tmp_path) -> None:
    coordinator = start(members)
    site = enrol(members, tmp_path / "north")
    caller = Caller(coordinator.address, site.credentials())
    refused(lambda: act(caller))
    caller.channel.close()
    (noted,) = [entry for entry in coordinator.noted if entry["event"] == "refused"]
    assert (noted["why"], noted["call"]) == (why, call)
    assert (noted["site"], noted["address"]) == ("north", "127.0.0.1")
    assert noted["certificate"] == fingerprint(site.certificate)
    assert noted["said"]


@pytest.mark.parametrize(("why", "state"), [("revoked or expired", "revoked"), ("not enrolled", "unknown")])
def test_calls_of_a_certificate_that_is_good_no_more_are_noted(why, state, members, start, tmp_path) -> None:
    coordinator = start(members)
    site = enrol(members, tmp_path / "north")
    caller = Caller(coordinator.address, site.credentials())
    caller.join()
    if state == "revoked":
        members.revoke("north")
    else:
        (members.folder / "enrolment.json").write_text("{}", encoding="utf-8")
    refused(caller.join)
    caller.channel.close()
    events = [(entry["event"], entry.get("why")) for entry in coordinator.noted]
    assert events[0] == ("joined", "")
    assert events[-1] == ("refused", why)
    assert {entry["certificate"] for entry in coordinator.noted} == {fingerprint(site.certificate)}
    assert {entry["site"] for entry in coordinator.noted} == {"north"}


def test_calls_beyond_what_a_site_may_have_at_once_are_noted(members, start, tmp_path) -> None:
    coordinator = start(members)
    credentials = enrol(members, tmp_path / "north").credentials()
    callers = [Caller(coordinator.address, credentials) for _ in range(channel.CALLS_AT_ONCE + 1)]
    release = threading.Event()

    def never() -> Iterator[bytes]:
        release.wait(LONG_S)
        yield from ()

    waiting = [
        caller.channel.stream_unary("/fedbnsl.wire.Federation/Join").future(never(), timeout=LONG_S)
        for caller in callers
    ]
    refused(lambda: next(call for call in _until_one_is_done(waiting)).result())
    release.set()
    for caller in callers:
        caller.channel.close()
    assert next(entry["why"] for entry in coordinator.noted) == "too many calls"


def _until_one_is_done(waiting: list[Any]) -> Iterator[Any]:
    done = threading.Event()
    for call in waiting:
        call.add_done_callback(lambda _: done.set())
    assert done.wait(LONG_S)
    yield from (call for call in waiting if call.done())


# ---- both logs of a whole run ------------------------------------------------------------------------------------

SITES = {"north": 1, "south": 2}


def entries(path: Path) -> list[dict[str, Any]]:
    return [line.entry for line in lines(path)]


@pytest.fixture
def plan() -> Plan:
    return private_plan(join_deadline_s=LONG_S, run_deadline_s=2 * LONG_S, variables=NAMES)


def make_private_site(members: Federation, folder: Path, name: str, plan: Plan) -> None:
    make_site(folder, site=name, table=write_table(folder / "table.csv", rows(SITES[name])))
    enrol(members, folder, name)
    with site_folder.opened(folder) as (_, ledger):
        ledger.approvals.approve(plan.digest(), plan.name)


def live(folder: Path, address: str) -> FedbnslError | None:
    link = identity.link(folder, address, insecure=False)
    record = site_folder.security_log(folder).enter
    try:
        with site_folder.opened(folder) as (policy, ledger):
            table = GuardedTable(folder, policy, ledger, None, authority=link.authority, record=record)
            take_part(table, link, patience_s=LONG_S, told=Told(record=record))
    except FedbnslError as error:
        return error
    return None


def test_both_sides_keep_a_record_of_a_private_run_without_a_value_of_a_table(members, plan, tmp_path) -> None:
    for name in SITES:
        make_private_site(members, tmp_path / name, name, plan)
    threads: list[threading.Thread] = []
    raw: list[str] = []

    def listening(address: str) -> None:
        caller = Caller(address, Federation.open(members.folder).credentials())
        for _ in range(300):
            refused(lambda: caller.raw("Join", b"\xff"))
        caller.channel.close()
        raw.append(address)
        for name in SITES:
            threads.append(threading.Thread(target=live, args=(tmp_path / name, address)))
            threads[-1].start()

    result = serve(plan, tmp_path / "run", ServerSettings("127.0.0.1:0", lambda address: (
        threads.append(threading.Thread(target=listening, args=(address,))), threads[-1].start()
    ), federation=members))  # fmt: skip
    for thread in threads:
        thread.join(LONG_S)
    kept = entries(members.folder / security_log.NAME)
    verify(members.folder / security_log.NAME)
    events = [entry["event"] for entry in kept]
    assert events[:3] == ["coordinator certified", "approved", "approved"]
    assert sorted(entry["site"] for entry in kept if entry["event"] == "joined") == sorted(SITES)
    assert events[-1] == "run ended"
    assert kept[-1]["outcome"] == result["state"] == "finished"
    malformed = [entry for entry in kept if entry["event"] == "refused" and entry["why"] == "malformed"]
    assert sum(entry.get("times", 1) for entry in malformed) == 300
    assert len(malformed) == 2, "a flood is counted, not listed"
    assert {entry["site"] for entry in malformed} == {"(coordinator)"}

    for name in SITES:
        own = entries(tmp_path / name / security_log.NAME)
        verify(tmp_path / name / security_log.NAME)
        events = [entry["event"] for entry in own]
        assert events[:3] == ["registered", "policy", "enrolled"]
        assert events[-1] == "run ended"
        joined = next(entry for entry in own if entry["event"] == "joined")
        assert joined["run"] == result["manifest"]["run"]
        assert joined["plan_digest"] == plan.digest().hex()
        released = [entry for entry in own if entry["event"] == "released"]
        assert [entry["round"] for entry in released] == list(range(plan.rounds + 1))
        with Ledger.open(tmp_path / name / "ledger.db") as ledger:
            spent = units_spent(ledger, DATASET)
        assert sum(entry["zcdp"] for entry in released) == pytest.approx(spent * 1e-12)
        known = {"n", "time", "event", "previous", "dataset", "run", "round", "attempt", "zcdp", "sha256"}
        assert all(set(entry) <= known for entry in released)
        assert own[-1]["outcome"] == "finished"


def test_a_run_that_the_policy_refuses_leaves_its_class_at_the_site(members, plan, tmp_path) -> None:
    make_private_site(members, tmp_path / "north", "north", plan)
    other = plan.with_settings(name="another", join_deadline_s=3.0)
    ends: list[FedbnslError | None] = []
    threads: list[threading.Thread] = []

    def listening(address: str) -> None:
        threads.append(threading.Thread(target=lambda: ends.append(live(tmp_path / "north", address))))
        threads[-1].start()

    with pytest.raises(FedbnslError):
        serve(other, tmp_path / "run", ServerSettings("127.0.0.1:0", listening, federation=members))
    threads[0].join(LONG_S)
    assert isinstance(ends[0], NotApprovedError)
    own = entries(tmp_path / "north" / security_log.NAME)
    assert [entry["event"] for entry in own[-4:]] == ["calls", "joined", "run refused", "run ended"]
    assert own[-2]["why"] == "NotApprovedError"
    assert str(ends[0]) not in json.dumps(own)
    kept = entries(members.folder / security_log.NAME)
    assert [(entry["event"], entry.get("why")) for entry in kept[-3:]] == [
        ("joined", None), ("left", "not approved"), ("run ended", None)
    ]  # fmt: skip
    assert kept[-1]["outcome"] == "QuorumLostError"


def test_a_log_that_cannot_be_written_ends_no_run(members, plan, tmp_path, caplog) -> None:
    for name in SITES:
        make_private_site(members, tmp_path / name, name, plan)
    threads: list[threading.Thread] = []

    def listening(address: str) -> None:
        for name in SITES:
            threads.append(threading.Thread(target=live, args=(tmp_path / name, address)))
            threads[-1].start()

    nowhere = tmp_path / "missing" / "log.jsonl"
    result = serve(
        plan, tmp_path / "run", ServerSettings("127.0.0.1:0", listening, federation=members, security_log=nowhere)
    )
    for thread in threads:
        thread.join(LONG_S)
    assert result["state"] == "finished"
    assert caplog.text.count("cannot be written") == 1


# ---- what the operator's and the site's own commands leave -----------------------------------------------------------


def test_a_policy_that_was_edited_and_a_backup_that_was_accepted_are_noted(tmp_path) -> None:
    make_site(tmp_path)
    path = tmp_path / security_log.NAME
    for _ in range(2):
        with site_folder.opened(tmp_path):
            pass
    assert [entry["event"] for entry in entries(path)] == ["registered", "policy"]
    with (tmp_path / "policy.toml").open("a", encoding="utf-8") as file:
        file.write("# a word\n")
    with site_folder.opened(tmp_path, accept_backup=True):
        pass
    assert [entry["event"] for entry in entries(path)][2:] == ["policy changed", "backup accepted"]


def test_revocations_and_renewals_are_noted_with_fingerprints(members, tmp_path) -> None:
    site = enrol(members, tmp_path / "north")
    members.revoke("north")
    members.renew(days=3)
    kept = entries(members.folder / security_log.NAME)
    assert [entry["event"] for entry in kept] == [
        "coordinator certified", "approved", "revoked", "coordinator certified"
    ]  # fmt: skip
    assert kept[1]["certificate"] == kept[2]["certificate"] == fingerprint(site.certificate)


def test_what_is_asked_again_and_again_is_noted_once(tmp_path) -> None:
    log = SecurityLog(tmp_path / security_log.NAME)
    record = security_log.once_each(log.enter)
    for _ in range(50):
        record("released again", round=3)
    record("released again", round=4)
    assert [entry["round"] for entry in entries(log.path)] == [3, 4]
    assert os.listdir(tmp_path)
