"""The commands of identity as a person or a script meets them: pipes, questions, exit codes."""

import io
import json
import subprocess
import sys
import time
import tomllib
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from coordinator_thread import VARIABLES, start
from fedbnsl.identity.passphrase import Passphrases
from fedbnsl.identity.roster_sheet import RosterSheet
from fedbnsl.protocol.messages import JoinRequest
from fedbnsl_client.secure_aggregation import peers
from fedbnsl_client.session import Session
from fedbnsl_client.site import identity
from fedbnsl_client.site.identity import Identity
from fedbnsl_server.identity.enrolment import Federation
from federation_folder import enrol, enrol_at, make_federation
from private_site import make_site

__all__ = ["start"]  # a fixture


@pytest.fixture
def fedbnsl(fedbnsl, monkeypatch, tmp_path):
    """Run a command line in a folder of its own, with a text on standard input."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def run(*arguments, stdin=""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8"))
        return fedbnsl(*arguments)

    return run


@pytest.fixture
def lab(fedbnsl, tmp_path):
    folder = tmp_path / "lab"
    assert fedbnsl("coordinator", "init", folder, "--name", "lab", "--host", "127.0.0.1").code == 0
    return folder


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ---- the whole way -----------------------------------------------------------------------------------------------


def test_a_site_is_enrolled_through_files(fedbnsl, lab, tmp_path) -> None:
    told = Federation.open(lab).fingerprint
    site, here = tmp_path / "site", tmp_path / "here"
    asked = fedbnsl("participant", "request", site, "--federation", "lab", "--site", "north")
    assert (asked.code, asked.err) == (0, "")
    assert "send north.request.pem to the coordinator's operator" in asked.out
    approved = fedbnsl("coordinator", "approve", lab, "north.request.pem", stdin="y\n")
    assert approved.code == 0
    assert "enrolled north: send north.bundle.toml to the site" in approved.out
    assert "spiffe://fedbnsl/lab/north asks for a certificate for 365 days" in approved.err
    assert told in approved.err
    key = next(line.strip() for line in asked.out.splitlines() if line.count(":") == 31)
    assert f"  {key}\n" in approved.err, "both ends show the fingerprint of the same key, to be compared"
    enrolled = fedbnsl("participant", "enrol", site, "north.bundle.toml", stdin="y\n")
    assert enrolled.code == 0
    assert told in enrolled.out
    assert "enrolled as north in lab, until 2" in enrolled.out
    assert f"participant check {site}" in enrolled.out
    assert Identity.open(site).name.site == "north"
    for path, content in contents(here).items():
        assert b"PRIVATE KEY" not in content, path


def test_a_site_is_enrolled_through_pipes(fedbnsl, lab, tmp_path) -> None:
    site, told = tmp_path / "site", Federation.open(lab).fingerprint
    asked = fedbnsl("participant", "request", site, "--federation", "lab", "--site", "north", "--out", "-")
    assert asked.out.startswith("-----BEGIN CERTIFICATE REQUEST-----\n")
    assert asked.out.endswith("-----END CERTIFICATE REQUEST-----\n")
    approved = fedbnsl("coordinator", "approve", lab, "-", "--out", "-", "--yes", stdin=asked.out)
    assert approved.code == 0
    assert tomllib.loads(approved.out)["site"] == "north"
    assert approved.out.startswith("# A site's place in a federation.")
    enrolled = fedbnsl("participant", "enrol", site, "-", "--fingerprint", told, stdin=approved.out)
    assert (enrolled.code, enrolled.err) == (0, "")
    assert Identity.open(site).credentials()
    assert contents(tmp_path / "here") == {}


def test_what_is_told_about_the_federation_is_enough_to_call_and_to_compare(fedbnsl, tmp_path) -> None:
    arguments = ("--name", "lab", "--host", "coordinator.example.org", "--host", "10.0.0.1", "--port", "7")
    made = fedbnsl("coordinator", "init", tmp_path / "lab", *arguments)
    assert (made.code, made.err) == (0, "")
    assert "sites will call coordinator.example.org:7" in made.out
    assert Federation.open(tmp_path / "lab").fingerprint in made.out


def test_keys_with_a_passphrase_go_the_whole_way_over_tls_and_never_lie_open_on_disk(fedbnsl, start, tmp_path) -> None:
    folder, site = tmp_path / "lab", tmp_path / "site"
    for name in ("ours", "theirs", "wrong"):
        (tmp_path / name).write_text(f"the passphrase {name}\n", encoding="utf-8")
    ours, theirs, wrong = (("--passphrase-file", tmp_path / name) for name in ("ours", "theirs", "wrong"))
    assert fedbnsl("coordinator", "init", folder, "--name", "lab", "--host", "127.0.0.1", *ours).code == 0
    assert fedbnsl("participant", "request", site, "--federation", "lab", "--site", "north", *theirs).code == 0
    approve = ("coordinator", "approve", folder, "north.request.pem", "--yes")
    enrol_it = ("participant", "enrol", site, "north.bundle.toml", "--fingerprint", Federation.open(folder).fingerprint)
    check = ("participant", "check", site, start(Federation.open(folder, passphrases=Passphrases(ours[1]))).address)
    for command, right in ((approve, ours), (enrol_it, theirs), (check, theirs)):
        for given, said in (((), "nobody here to ask"), (wrong, "does not open")):
            refused = fedbnsl(*command, *given)
            assert refused.code == 14, command
            assert said in refused.err + refused.out
            assert "--passphrase-file" in refused.err + refused.out
        assert fedbnsl(*command, *right).code == 0, command
    keys = [content for content in contents(tmp_path).values() if b"PRIVATE KEY" in content]
    assert len(keys) == 3
    assert all(b"BEGIN ENCRYPTED PRIVATE KEY" in key for key in keys)


# ---- questions ---------------------------------------------------------------------------------------------------


def test_a_request_that_is_answered_no_is_not_signed(fedbnsl, lab, tmp_path) -> None:
    fedbnsl("participant", "request", tmp_path / "site", "--federation", "lab", "--site", "north")
    before = contents(lab)
    answer = fedbnsl("coordinator", "approve", lab, "north.request.pem", stdin="n\n")
    assert answer.code == 14
    assert "not approved; nothing was signed" in answer.err
    assert contents(lab) == before
    assert not (tmp_path / "here" / "north.bundle.toml").exists()


def test_a_fingerprint_that_is_answered_no_imports_nothing(fedbnsl, lab, tmp_path) -> None:
    site = tmp_path / "site"
    fedbnsl("participant", "request", site, "--federation", "lab", "--site", "north")
    fedbnsl("coordinator", "approve", lab, "north.request.pem", "--yes")
    before = contents(site)
    answer = fedbnsl("participant", "enrol", site, "north.bundle.toml", stdin="n\n")
    assert answer.code == 14
    assert "not enrolled; nothing was imported" in answer.err
    wrong = fedbnsl("participant", "enrol", site, "north.bundle.toml", "--fingerprint", "AB:CD")
    assert wrong.code == 14
    assert "; expected " in wrong.err
    assert "by telephone" in wrong.err
    assert contents(site) == before


def test_no_question_is_asked_where_standard_input_holds_the_document(fedbnsl, lab, tmp_path) -> None:
    site = tmp_path / "site"
    asked = fedbnsl("participant", "request", site, "--federation", "lab", "--site", "north", "--out", "-")
    refused = fedbnsl("coordinator", "approve", lab, "-", stdin=asked.out)
    assert refused.code == 2
    assert "--yes is needed with a request from standard input" in refused.err
    assert Federation.open(lab).enrolled() == {}
    approved = fedbnsl("coordinator", "approve", lab, "-", "--out", "-", "--yes", stdin=asked.out)
    unsure = fedbnsl("participant", "enrol", site, "-", stdin=approved.out)
    assert unsure.code == 2
    assert "--fingerprint is needed" in unsure.err
    assert not (site / "identity" / "bundle.toml").exists()


def test_an_input_that_ends_at_the_question_is_an_interruption(fedbnsl, lab, tmp_path) -> None:
    fedbnsl("participant", "request", tmp_path / "site", "--federation", "lab", "--site", "north")
    assert fedbnsl("coordinator", "approve", lab, "north.request.pem", stdin="").code == 130
    assert Federation.open(lab).enrolled() == {}


# ---- one command at a time ---------------------------------------------------------------------------------------


def test_init_never_overwrites(fedbnsl, lab) -> None:
    before = contents(lab)
    again = fedbnsl("coordinator", "init", lab, "--name", "lab", "--host", "127.0.0.1")
    assert again.code == 14
    assert "holds a federation already" in again.err
    assert contents(lab) == before


def test_a_request_takes_its_name_from_the_policy(fedbnsl, tmp_path) -> None:
    make_site(tmp_path / "site")
    told = fedbnsl("participant", "request", tmp_path / "site", "--federation", "lab", "--out", "-")
    assert told.code == 0
    contradicted = fedbnsl("participant", "request", tmp_path / "site", "--federation", "lab", "--site", "south")
    assert contradicted.code == 2
    assert "the policy in" in contradicted.err
    nameless = fedbnsl("participant", "request", tmp_path / "other", "--federation", "lab")
    assert nameless.code == 2
    assert "--site NAME is needed" in nameless.err
    assert not (tmp_path / "other").exists()


def test_approve_revoke_and_renew_show_in_the_list(fedbnsl, lab, tmp_path) -> None:
    listed = fedbnsl("coordinator", "enrolled", lab)
    assert "no site is enrolled yet" in listed.out
    federation = Federation.open(lab)
    enrol(federation, tmp_path / "north", "north")
    enrol(federation, tmp_path / "south", "south")
    revoked = fedbnsl("coordinator", "revoke", lab, "south")
    assert revoked.out.startswith("revoked 1 certificate of south\n")
    assert "stays in it; fedbnsl coordinator eject RUN south" in revoked.out
    lines = fedbnsl("coordinator", "enrolled", lab).out.splitlines()
    assert lines[0] == f"federation 'lab' at 127.0.0.1:50051, authority {federation.fingerprint}"
    assert [line.split()[:3] for line in lines[1:]] == [["north", "valid", "until"], ["south", "revoked", "since"]]
    summary = json.loads(fedbnsl("coordinator", "enrolled", lab, "--json").out)
    assert set(summary) == {"federation", "fingerprint", "sites"}
    assert {site: [one["state"] for one in issued] for site, issued in summary["sites"].items()} == {
        "north": ["valid"],
        "south": ["revoked"],
    }
    assert set(summary["sites"]["north"][0]) == {"fingerprint", "key", "issued_at", "expires_at", "revoked_at", "state"}
    renewed = fedbnsl("coordinator", "renew", lab, "--days", "20")
    assert renewed.code == 0
    assert "the coordinator's certificate is valid until 2" in renewed.out


def test_serve_says_at_once_which_of_its_sites_cannot_join_and_refuses_one_that_was_revoked(fedbnsl, lab, tmp_path):
    federation = Federation.open(lab)
    for site in ("north", "south"):
        enrol(federation, tmp_path / site, site)
    enrol_at(federation, tmp_path / "east", "east", days=10, by=timedelta(days=-20))
    serve = ("coordinator", "serve", "lean", "--federation", lab, "--listen=127.0.0.1:0", "--variables=a,b")
    soon = ("--set=join_deadline_s=0.01", "--out=run")
    assert "certificate" not in fedbnsl(*serve, "--sites=north", "--set=n_participants=1", *soon[:1], "--out=all").out
    waited = fedbnsl(*serve, "--sites=north,nroth,east", *soon)
    assert waited.code == 7
    said = "no valid certificate: nroth (not enrolled), east (expired). Each can join once this is done: "
    assert f"{said}fedbnsl coordinator approve {lab} REQUEST. Enrolled, but not among them: south\n" in waited.out
    federation.revoke("south")
    refused = fedbnsl(*serve, "--sites=north,south,east", *soon[:1], "--out=other")
    assert refused.code == 14
    assert "the plan names south, whose certificate is revoked" in refused.err
    assert not Path("other").exists()
    federation.revoke("north")
    goes_on = fedbnsl(*serve, "--sites=north,nroth,east", *soon)
    assert goes_on.code == 7, "a run that was begun does not end because one of its sites was revoked"
    assert "no valid certificate: north (revoked), nroth" in goes_on.out


def test_a_renewal_of_a_site_goes_through_the_same_commands(fedbnsl, lab, tmp_path) -> None:
    site = tmp_path / "site"
    enrol(Federation.open(lab), site)
    request = ("participant", "request", site, "--federation", "lab", "--site", "north")
    refused = fedbnsl(*request)
    assert refused.code == 14
    assert "pass --renew" in refused.err
    renewed = fedbnsl(*request, "--renew")
    assert renewed.code == 0
    assert "the other sites have nothing to confirm" in renewed.out
    refused = fedbnsl("coordinator", "approve", lab, "north.request.pem", "--yes")
    assert refused.code == 14
    assert "pass --renew" in refused.err
    assert fedbnsl("coordinator", "approve", lab, "north.request.pem", "--yes", "--renew").code == 0
    told = Federation.open(lab).fingerprint
    assert fedbnsl("participant", "enrol", site, "north.bundle.toml", "--fingerprint", told).code == 0
    assert fedbnsl("coordinator", "revoke", lab, "north", "--keep-newest").code == 0
    assert [one.state for one in Federation.open(lab).enrolled()["north"]] == ["revoked", "valid"]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("coordinator", "init", "new", "--name", "lab"), 2, "Missing option '--host'"),
        (("coordinator", "init", "new", "--host", "h"), 2, "Missing option '--name'"),
        (("coordinator", "init", "new", "--name", "a/b", "--host", "h"), 2, "federation 'a/b'"),
        (("coordinator", "init", "new", "--name", "lab", "--host", "h:1"), 2, "without a port"),
        (("coordinator", "init", "new", "--name", "lab", "--host", "h", "--port", "0"), 2, "--port"),
        (("coordinator", "approve", "LAB", "absent.pem"), 2, "does not exist"),
        (("coordinator", "approve", "LAB", "-", "--yes"), 14, "no certificate request in PEM form"),
        (("coordinator", "approve", "LAB", "-", "--yes", "--days", "0"), 2, "--days"),
        (("coordinator", "approve", ".", "-", "--yes"), 14, "federation.toml cannot be read"),
        (("coordinator", "revoke", "LAB", "nobody"), 14, "has no certificate to revoke"),
        (("coordinator", "renew", "."), 14, "federation.toml cannot be read"),
        (("coordinator", "enrolled", "."), 14, "federation.toml cannot be read"),
        (("coordinator", "enrolled", "absent"), 2, "does not exist"),
        (("participant", "request", "new", "--site", "north"), 2, "Missing option '--federation'"),
        (("participant", "request", "new", "--site", "a b", "--federation", "lab"), 2, "site 'a b'"),
        (("participant", "enrol", ".", "absent.toml"), 2, "does not exist"),
        (("participant", "enrol", ".", "-", "--fingerprint", "AB"), 14, "is not a bundle"),
        (("participant", "check", "absent"), 2, "does not exist"),
        (("participant", "leave", "."), 2, "is not enrolled"),
        (("participant", "leave", ".", "--insecure"), 2, "name the coordinator"),
        (("participant", "leave", ".", "127.0.0.1:1", "--insecure"), 2, "--site NAME is needed"),
        (("participant", "join", "127.0.0.1:1", "--data", "x", "--public-data", "--site", "n"), 2, "--identity"),
        (("participant", "join", "--data", "x", "--public-data", "--identity", "."), 2, "is not enrolled"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_usage_ends_with_its_code_and_makes_nothing(arguments, code, text, fedbnsl, lab, tmp_path) -> None:
    before = contents(tmp_path)
    outcome = fedbnsl(*(lab if argument == "LAB" else argument for argument in arguments))
    assert outcome.code == code, outcome
    assert text in outcome.err
    assert "Traceback" not in outcome.err
    after = contents(tmp_path)
    after.pop(Path("lab/enrolment.lock"), None)
    assert after == before


# ---- against a coordinator ---------------------------------------------------------------------------------------


def test_leave_frees_the_membership_of_the_site_itself_only(fedbnsl, start, tmp_path) -> None:
    members = make_federation(tmp_path / "lab")
    coordinator = start(members)
    for site in ("north", "south"):
        enrol(members, tmp_path / site, site)
    session = Session(
        coordinator.address, Identity.open(tmp_path / "north").credentials(), patience_s=0.0, notice=lambda text: None
    )
    session.join(JoinRequest("north", VARIABLES, 50))
    session.close()
    assert list(coordinator.roster.members) == ["north"]
    foreign = fedbnsl("participant", "leave", tmp_path / "south", coordinator.address, "--site", "north")
    assert foreign.code == 2
    assert "this folder's site is 'south'" in foreign.err
    absent = fedbnsl("participant", "leave", tmp_path / "south", coordinator.address)
    assert absent.code == 5
    assert "has not joined this run" in absent.err
    assert list(coordinator.roster.members) == ["north"]
    left = fedbnsl("participant", "leave", tmp_path / "north", coordinator.address)
    assert (left.code, left.err) == (0, "")
    assert left.out == "north has left the run; it may come back with `participant join`\n"
    assert coordinator.roster.members == {}


def test_leave_in_plaintext_takes_the_name_from_the_option_or_the_policy(fedbnsl, start, tmp_path) -> None:
    coordinator = start(None)
    make_site(tmp_path / "site")
    for arguments in ((tmp_path / "site",), (tmp_path / "here", "--site", "north")):
        session = Session(coordinator.address, patience_s=0.0, notice=lambda text: None)
        session.join(JoinRequest("north", VARIABLES, 50))
        session.close()
        left = fedbnsl("participant", "leave", *arguments, coordinator.address, "--insecure")
        assert left.code == 0, left
        assert coordinator.roster.members == {}


def test_a_coordinator_says_nothing_about_strangers_at_its_port_in_the_words_of_a_library(lab, tmp_path) -> None:
    """grpc reads its settings when it is imported first, by whichever module."""
    (tmp_path / "plan.toml").write_text(
        "variables = ['a', 'b']\nrounds = 3\nn_participants = 1\njoin_deadline_s = 4\n", encoding="utf-8"
    )
    address = tmp_path / "address"
    options = ("--federation", lab, "--listen", "127.0.0.1:0", "--address-file", address, "--out", tmp_path / "run")
    serve = subprocess.Popen(
        [sys.executable, "-m", "fedbnsl", "coordinator", "serve", tmp_path / "plan.toml", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until = time.monotonic() + 60
        while not address.exists() and time.monotonic() < until:
            time.sleep(0.05)
        session = Session(address.read_text(encoding="utf-8"), patience_s=0.0, notice=lambda text: None)
        with pytest.raises(Exception, match="did not answer"):
            session.look()
        session.close()
        _, err = serve.communicate(timeout=60)
    finally:
        serve.kill()
        serve.wait()
    assert serve.returncode == 7
    assert err.startswith("error: 0 of 1 sites joined")


def test_a_year_of_renewals_of_five_sites_takes_two_commands_at_each_and_one_a_site_at_the_coordinator(
    fedbnsl, lab, tmp_path
) -> None:
    """Nobody confirms anything again, and the coordinator renews its own certificate once."""
    calls = Counter()
    sites = [f"site-{k}" for k in range(1, 6)]

    def call(where, *words):
        calls[where] += 1
        done = fedbnsl(*words)
        assert done.code == 0, done.err
        return done

    def enrol(site, *renew):
        call(site, "participant", "request", tmp_path / site, "--federation", "lab", "--site", site, *renew)
        call("coordinator", "coordinator", "approve", lab, f"{site}.request.pem", "--yes", *renew)
        told = Federation.open(lab).fingerprint
        call(site, "participant", "enrol", tmp_path / site, f"{site}.bundle.toml", "--fingerprint", told)

    for site in sites:
        enrol(site)
    call("coordinator", "coordinator", "roster", lab)
    digest = RosterSheet.from_text(Path("lab.sites.toml").read_text("utf-8"), origin="sheet").digest
    for site in sites:
        call(site, "participant", "peers", tmp_path / site, "--import", "lab.sites.toml", "--digest", digest)
    assert calls == {**dict.fromkeys(sites, 3), "coordinator": 6}, "the first year"
    before = [peers.confirmed(tmp_path / site) for site in sites]
    calls.clear()
    for site in sites:
        enrol(site, "--renew")
    call("coordinator", "coordinator", "renew", lab)
    assert calls == {**dict.fromkeys(sites, 2), "coordinator": 6}, "each further year"
    keys = {site: identity.key_of_certificate(Identity.open(tmp_path / site).certificate) for site in sites}
    for site, known in zip(sites, before, strict=True):
        assert known == {other: key for other, key in keys.items() if other != site}
