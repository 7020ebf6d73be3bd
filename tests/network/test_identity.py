"""Who may call over TLS, under which name, and what everybody else meets; all over real gRPC on loopback."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from coordinator_thread import RUN, start
from fedbnsl.errors import FedbnslError, IdentityError, MembershipRefusedError, UnreachableError
from fedbnsl.identity import certificates
from fedbnsl.identity.certificates import Credentials, Name
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol import channel, codec
from fedbnsl.protocol.messages import JoinRequest, LeaveReason, run_tag
from fedbnsl.wire import federation_pb2 as federation
from fedbnsl.wire import federation_pb2_grpc as federation_grpc
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.join_run import take_part
from fedbnsl_client.session import Session
from fedbnsl_client.site.admission import PublicTable
from fedbnsl_client.site.identity import Link
from fedbnsl_server.identity import authority, enrolment_table
from fedbnsl_server.identity.enrolment import Federation
from fedbnsl_server.run.serve import serve
from fedbnsl_server.run.settings import Follower, ServerSettings
from fedbnsl_server.sites.why_left import WHY_LEFT
from fedbnsl_workbench.tables.synthetic import synthesise
from federation_folder import clock_off, enrol, enrol_at, make_federation

LONG_S = 30.0
ENDLESS_S = 1e6  # patience that is not spent on what waiting cannot mend, or a test never ends
__all__ = ["start"]  # a fixture

SITES = ("a", "b", "c")
NAMES = ("age", "dose", "mass")
PLAN = Plan(
    variables=synthesise(6, 7, len(SITES), 100, 5, weight_variance=0.05).variables,
    rounds=8,
    refit_rounds=1,
    l1_weight=0.05,
    join_deadline_s=LONG_S,
    run_deadline_s=2 * LONG_S,
)
GRAPH_FILES = ("weights.csv", "edges.csv", "graph.graphml", "lgbn.json")


@pytest.fixture
def members(tmp_path: Path) -> Federation:
    return make_federation(tmp_path / "federation")


@pytest.fixture
def connect() -> Iterator[Callable[..., Session]]:
    sessions: list[Session] = []

    def connecting(address: str, credentials: Credentials | None, *, patience_s: float = ENDLESS_S) -> Session:
        sessions.append(Session(address, credentials, patience_s=patience_s, notice=lambda text: None))
        return sessions[-1]

    yield connecting
    for session in sessions:
        session.close()


def request(site: str) -> JoinRequest:
    return JoinRequest(site, NAMES, 50)


def refused(error: type[FedbnslError], call: Callable[[], object], match: str) -> FedbnslError:
    with pytest.raises(error, match=match) as caught:
        call()
    return caught.value


# ---- whole runs --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tables() -> dict[str, Dataset]:
    drawn = synthesise(6, 7, len(SITES), 100, 5, weight_variance=0.05)
    return {site: Dataset(drawn.variables, X) for site, X in zip(SITES, drawn.tables, strict=True)}


def play(
    plan: Plan,
    tables: Mapping[str, Dataset],
    out: Path,
    *,
    members: Federation | None = None,
    credentials: Mapping[str, Credentials] | None = None,
    after_round: Callable[[int], None] = lambda t: None,
) -> tuple[dict[str, Any], dict[str, FedbnslError | None]]:
    """One whole run; how it ended at each site."""
    ends: dict[str, FedbnslError | None] = {}

    def live(site: str, address: str) -> None:
        ends[site] = None
        try:
            take_part(
                PublicTable(site, tables[site]),
                Link(address, credentials[site] if credentials else None),
                patience_s=LONG_S,
            )
        except FedbnslError as error:
            ends[site] = error

    with ThreadPoolExecutor(len(SITES)) as threads:
        result = serve(
            plan,
            out,
            ServerSettings(
                "127.0.0.1:0",
                lambda address: [threads.submit(live, site, address) for site in tables] and None,
                federation=members,
            ),
            Follower(on_round=lambda state, record: after_round(record.round)),
        )
    return result, ends


def test_a_run_over_tls_gives_the_same_bits_as_in_plaintext(tables, members, tmp_path) -> None:
    credentials = {site: enrol(members, tmp_path / site, site).credentials() for site in SITES}
    secured, ends = play(PLAN, tables, tmp_path / "tls", members=members, credentials=credentials)
    plain, _ = play(PLAN, tables, tmp_path / "plain")
    assert ends == dict.fromkeys(SITES)
    for name in GRAPH_FILES:
        assert (tmp_path / "tls" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes(), name
    assert len(secured["rounds"]) == len(plain["rounds"]) == PLAN.rounds + PLAN.refit_rounds
    for there, here in zip(secured["rounds"], plain["rounds"], strict=True):
        for key in ("round", "kind", "contributed", "acyclicity", "edges", "bytes"):
            assert there[key] == here[key], (there["round"], key)


def test_a_site_that_is_revoked_during_a_run_is_out_at_its_next_call_and_the_others_go_on(
    tables, members, tmp_path
) -> None:
    credentials = {site: enrol(members, tmp_path / site, site).credentials() for site in SITES}

    def after_round(t: int) -> None:
        if t == 2:
            members.revoke("b")

    plan = PLAN.with_settings(quorum=2, round_deadline_s=600.0, rounds=5)  # nobody waits so long for a site that is out
    result, ends = play(
        plan, tables, tmp_path / "run", members=members, credentials=credentials, after_round=after_round
    )
    assert (ends["a"], ends["c"]) == (None, None)
    assert isinstance(ends["b"], IdentityError)
    assert "the certificate of site 'b' is revoked" in str(ends["b"])
    assert ends["b"].exit_code == 14
    contributed = {entry["round"]: "".join(entry["contributed"]) for entry in result["rounds"]}
    assert contributed == {1: "abc", 2: "abc", 3: "ac", 4: "ac", 5: "ac", 6: "ac"}
    assert result["state"] == "finished"
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    said = [event["text"] for event in events if event["event"] == "notice" and event["text"].startswith("b left")]
    assert said == [
        f"b left the run: {WHY_LEFT[LeaveReason.CERTIFICATE].text}. {WHY_LEFT[LeaveReason.CERTIFICATE].to_do}"
    ]
    assert "b lost its enrolment after round 2: what it had contributed stays in the result" in result["warnings"]


def test_serve_refuses_a_coordinator_without_a_good_certificate_before_it_opens_a_port(members, tmp_path) -> None:
    (members.folder / "server.pem").unlink()
    with pytest.raises(IdentityError, match=r"server\.pem cannot be read"):
        serve(PLAN, tmp_path / "run", ServerSettings("127.0.0.1:0", pytest.fail, federation=members))
    assert not (tmp_path / "run").exists()


# ---- who is not let in by TLS ------------------------------------------------------------------------------------


def test_a_caller_without_a_certificate_reaches_no_call(members, start) -> None:
    coordinator = start(members)
    trusting = grpc.ssl_channel_credentials(members.credentials().ca)
    with grpc.secure_channel(coordinator.address, trusting, options=channel.client_options()) as outsider:
        stub = federation_grpc.FederationStub(outsider)
        for call in (lambda: stub.Status(federation.StatusRequest(), timeout=10), lambda: stub.Join(
            federation.JoinRequest(site="north"), timeout=10
        )):  # fmt: skip
            with pytest.raises(grpc.RpcError) as caught:
                call()
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert not coordinator.roster.members


def test_a_certificate_of_a_namesake_federation_is_worth_nothing_on_either_side(
    members, start, connect, tmp_path
) -> None:
    own = enrol(members, tmp_path / "own").credentials()
    foreign = enrol(make_federation(tmp_path / "namesake"), tmp_path / "foreign").credentials()
    coordinator = start(members)
    refused(
        IdentityError,
        lambda: connect(coordinator.address, foreign).join(request("north")),
        "not of this site's federation",
    )
    sly = connect(coordinator.address, replace(foreign, ca=own.ca), patience_s=0.0)  # trusts us, cannot prove itself
    with pytest.raises(UnreachableError):
        sly.join(request("north"))
    with pytest.raises(UnreachableError):
        sly.look()
    assert not coordinator.roster.members
    assert connect(coordinator.address, own).join(request("north")).run == RUN


def test_another_federations_coordinator_is_refused_at_once(members, start, connect, tmp_path) -> None:
    other = make_federation(tmp_path / "other", name="other")
    stranger = enrol(other, tmp_path / "stranger").credentials()
    coordinator = start(members)
    refused(IdentityError, lambda: connect(coordinator.address, stranger).look(), "not of this site's federation")


def test_a_site_whose_certificate_expires_on_its_way_is_not_let_in(members, start, connect, tmp_path) -> None:
    by = timedelta(days=-20)
    site = enrol_at(members, tmp_path / "site", days=10, by=by)
    with pytest.raises(IdentityError, match="it expired on"):
        site.credentials()
    with clock_off(certificates, by=by):
        credentials = site.credentials()
    coordinator = start(members)
    with pytest.raises(UnreachableError):
        connect(coordinator.address, credentials, patience_s=0.0).join(request("north"))
    assert not coordinator.roster.members


def test_plaintext_and_tls_do_not_meet(members, start, connect, tmp_path) -> None:
    credentials = enrol(members, tmp_path / "site").credentials()
    secured, plain = start(members), start(None)
    refused(IdentityError, lambda: connect(plain.address, credentials).join(request("north")), "not speak TLS")
    with pytest.raises(UnreachableError):
        connect(secured.address, None, patience_s=0.0).join(request("north"))
    assert not secured.roster.members
    assert not plain.roster.members


def test_a_sites_certificate_makes_no_coordinator(members, start, connect, tmp_path) -> None:
    credentials = enrol(members, tmp_path / "site").credentials()
    impostor = start(members, load=enrol(members, tmp_path / "impostor", "impostor").credentials)
    refused(IdentityError, lambda: connect(impostor.address, credentials).join(request("north")), "not of this site's")
    assert not impostor.roster.members


def test_a_coordinator_under_another_host_name_is_refused_at_once(members, start, connect, tmp_path) -> None:
    elsewhere = make_federation(tmp_path / "elsewhere", hosts=("coordinator.example.org",))
    site = enrol(elsewhere, tmp_path / "site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(authority, "_LOCAL_NAMES", ())
        elsewhere.renew(days=10)
    coordinator = start(elsewhere)
    refused(IdentityError, lambda: connect(coordinator.address, site.credentials()).look(), "for other host names")


@pytest.mark.parametrize(("by_days", "words"), [(-20, "has expired"), (+20, "not valid yet")])
def test_a_coordinator_whose_certificate_is_not_valid_now_is_refused_at_once(
    by_days, words, members, start, connect, tmp_path
) -> None:
    credentials = enrol(members, tmp_path / "site").credentials()
    by = timedelta(days=by_days)
    with clock_off(enrolment_table, authority, certificates, by=by):
        members.renew(days=10)
        outdated = members.credentials()
    coordinator = start(members, load=lambda: outdated)
    refused(IdentityError, lambda: connect(coordinator.address, credentials).look(), words)


# ---- under which name --------------------------------------------------------------------------------------------


def calls_as(site: str, stub: federation_grpc.FederationStub) -> dict[str, Callable[[], object]]:
    tag = run_tag(RUN)
    return {
        "Join": lambda: stub.Join(codec.encode_join(request(site)), timeout=10),
        "PullTask": lambda: stub.PullTask(federation.PullRequest(run=tag, site=site), timeout=10),
        "PushUpdate": lambda: stub.PushUpdate(federation.Update(run=tag, site=site, round=1), timeout=10),
        "Leave": lambda: stub.Leave(federation.LeaveRequest(run=tag, site=site), timeout=10),
    }


@pytest.mark.parametrize("call", ["Join", "PullTask", "PushUpdate", "Leave"])
@pytest.mark.parametrize("named", ["south", "", "North", "north "])
def test_a_site_cannot_speak_for_another(call, named, members, start, connect, tmp_path) -> None:
    coordinator = start(members)
    north, south = (enrol(members, tmp_path / site, site).credentials() for site in ("north", "south"))
    connect(coordinator.address, south).join(request("south"))
    before = dict(coordinator.roster.members)
    with channel.open_channel(coordinator.address, north) as wire, pytest.raises(grpc.RpcError) as caught:
        calls_as(named, federation_grpc.FederationStub(wire))[call]()
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert caught.value.details() == f"the certificate belongs to 'north', the message speaks for {named!r}"
    assert coordinator.roster.members == before


def test_a_site_that_says_another_name_learns_it_as_an_identity_error(members, start, connect, tmp_path) -> None:
    coordinator = start(members)
    north = connect(coordinator.address, enrol(members, tmp_path / "north").credentials())
    error = refused(IdentityError, lambda: north.join(request("south")), "the message speaks for 'south'")
    assert error.exit_code == 14
    assert north.join(request("north")).run == RUN


@pytest.mark.parametrize("call", ["Join", "PullTask", "PushUpdate", "Leave"])
def test_the_coordinators_own_certificate_is_no_sites(call, members, start) -> None:
    coordinator = start(members)
    with channel.open_channel(coordinator.address, members.credentials()) as wire:
        stub = federation_grpc.FederationStub(wire)
        for named in ("north", "", "lab"):
            with pytest.raises(grpc.RpcError) as caught:
                calls_as(named, stub)[call]()
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert "belongs to the coordinator" in caught.value.details()
    assert not coordinator.roster.members


def test_status_tells_each_caller_its_own_name_and_the_others_too(members, start, connect, tmp_path) -> None:
    coordinator = start(members)
    sessions = {}
    for site in ("north", "south"):
        sessions[site] = connect(coordinator.address, enrol(members, tmp_path / site, site).credentials())
        sessions[site].join(request(site))
    for site, session in sessions.items():
        status = session.look()
        assert status.site == site
        assert [one.site for one in status.sites] == ["north", "south"]
    assert connect(coordinator.address, members.credentials()).look().site == ""


@pytest.mark.parametrize("state", ["revoked", "never enrolled", "expired"])
def test_whoever_is_not_enrolled_gets_no_answer_to_any_call(state, members, start, connect, tmp_path) -> None:
    coordinator = start(members)
    credentials = enrol(members, tmp_path / "north").credentials()
    session = connect(coordinator.address, credentials)
    session.join(request("north"))
    off = timedelta(0)
    if state == "revoked":
        members.revoke("north")
    elif state == "never enrolled":
        (members.folder / "enrolment.json").write_text("{}", encoding="utf-8")
    else:
        off = timedelta(days=200)
    words = {"never enrolled": "is not enrolled with this certificate"}.get(state, f"is {state}")
    with clock_off(enrolment_table, authority, by=off):
        for call in (session.look, lambda: session.pull(0), lambda: session.join(request("north"))):
            error = refused(IdentityError, call, words)
            assert error.exit_code == 14
        with channel.open_channel(coordinator.address, credentials) as again, pytest.raises(grpc.RpcError) as caught:
            calls_as("north", federation_grpc.FederationStub(again))["Leave"]()
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert "north" in coordinator.roster.members


def test_a_renewed_site_goes_on_with_either_certificate_until_the_old_one_is_revoked(
    members, start, connect, tmp_path
) -> None:
    from fedbnsl_client.site import identity

    coordinator = start(members)
    old = enrol(members, tmp_path / "site")
    asked = identity.request(tmp_path / "site", Name("lab", "north"), renew=True)
    bundle = members.approve(asked, days=10, renew=True)
    new = identity.enrol(tmp_path / "site", bundle, expected_fingerprint=members.fingerprint)
    before, after = (connect(coordinator.address, one.credentials()) for one in (old, new))
    assert before.look().site == after.look().site == "north"
    members.revoke("north", keep_newest=True)
    refused(IdentityError, before.look, "is revoked")
    assert after.look().site == "north"


def test_a_table_that_cannot_be_read_lets_nobody_in_and_no_path_out(members, start, connect, tmp_path, caplog) -> None:
    coordinator = start(members)
    session = connect(coordinator.address, enrol(members, tmp_path / "site").credentials(), patience_s=0.0)
    table = members.folder / "enrolment.json"
    whole = table.read_bytes()
    table.write_bytes(b"{")
    with pytest.raises(UnreachableError, match="the coordinator cannot read its enrolment table") as caught:
        session.look()
    assert str(tmp_path) not in str(caught.value)
    assert "the enrolment table cannot be used" in caplog.text
    table.write_bytes(whole)
    assert session.look().site == "north"


# ---- renewal of the coordinator ----------------------------------------------------------------------------------


def test_a_renewed_coordinators_certificate_is_taken_up_while_old_connections_live_on(
    members, start, connect, tmp_path
) -> None:
    import socket
    import ssl

    coordinator = start(members)
    site = enrol(members, tmp_path / "site")
    host, port = channel.split_address(coordinator.address)
    context = ssl.create_default_context(cadata=certificates.pem(members.ca).decode())
    chain = tmp_path / "chain.pem"
    chain.write_bytes(site.credentials().key + site.credentials().certificate)
    context.load_cert_chain(chain)

    def shown() -> bytes | None:
        plain = socket.create_connection((host, port), timeout=10)
        with context.wrap_socket(plain, server_hostname=host) as secure:
            return secure.getpeercert(binary_form=True)

    session = connect(coordinator.address, site.credentials())
    session.join(request("north"))
    before = shown()
    assert before == shown()
    members.renew(days=10)
    assert shown() != before
    assert session.look().site == "north"
    (members.folder / "server.pem").write_bytes(b"")
    renewed = shown()
    assert renewed not in (None, before), "a file that cannot be used leaves the last certificate in use"
    assert connect(coordinator.address, site.credentials()).look().site == "north"


# ---- before and after first contact ------------------------------------------------------------------------------


def test_what_looks_misconfigured_after_first_contact_is_an_outage_that_patience_bridges(
    members, start, connect, tmp_path
) -> None:
    """The coordinator's operator can mend it while the run waits: a site must not give up its membership."""
    credentials = enrol(members, tmp_path / "site").credentials()
    coordinator = start(members)
    session = connect(coordinator.address, credentials, patience_s=LONG_S)
    session.join(request("north"))
    with clock_off(enrolment_table, authority, certificates, by=timedelta(days=-20)):
        members.renew(days=10)
        outdated = members.credentials()
    members.renew(days=10)
    expired = start(members, load=lambda: outdated)
    fresh = connect(expired.address, credentials)
    refused(IdentityError, lambda: fresh.join(request("north")), "has expired")
    fresh._run = run_tag(RUN)  # as after a join
    fresh._back_off.patience_s = 0.3
    began = time.monotonic()
    with pytest.raises(UnreachableError, match=r"did not answer for 0\.3 s"):
        fresh.pull(0)
    assert time.monotonic() - began >= 0.3


def test_a_configuration_error_is_not_retried_even_with_endless_patience(members, start, connect, tmp_path) -> None:
    plain = start(None)
    credentials = enrol(members, tmp_path / "site").credentials()
    session = connect(plain.address, credentials, patience_s=float("inf"))
    refused(IdentityError, lambda: session.join(request("north")), "does not speak TLS")


def test_a_membership_is_refused_over_tls_with_the_same_words_as_in_plaintext(
    members, start, connect, tmp_path
) -> None:
    coordinator = start(members)
    for site in ("north", "south"):
        connect(coordinator.address, enrol(members, tmp_path / site, site).credentials()).join(request(site))
    third = connect(coordinator.address, enrol(members, tmp_path / "west", "west").credentials())
    with pytest.raises(MembershipRefusedError, match="all 2 memberships of this run are taken"):
        third.join(request("west"))
