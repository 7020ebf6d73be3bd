"""`fedbnsl participant check` against every fault that it knows, each provoked on loopback."""

import http.server
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator_thread import Start, start
from fedbnsl import __version__
from fedbnsl.cli import main
from fedbnsl.identity import certificates
from fedbnsl.protocol.messages import RunStatus
from fedbnsl_client.site import doctor
from fedbnsl_client.site import folder as site_folder
from fedbnsl_server.grpc_api import servicer as servicer_module
from fedbnsl_server.identity import authority, enrolment_table
from fedbnsl_server.identity.enrolment import Federation
from federation_folder import clock_off, enrol, enrol_at, make_federation
from free_port import free_port
from private_site import DATASET, NAMES, edit, make_site, private_plan, rows, write_table

__all__ = ["start"]  # a fixture

ORDER = ["files", "expiry", "name", "port", "tls", "identity", "version", "clock", "policy", "data"]


@dataclass
class Report:
    """What the command said, by check."""

    code: int
    ok: bool
    findings: dict[str, dict[str, Any]]

    def assert_failed(self, check: str, code: int, text: str, remedy: str) -> None:
        """This one failed, first, with all that come after it on the way to the coordinator not tried."""
        found = self.findings[check]
        assert found["state"] == "failed", self.findings
        assert text in found["text"]
        assert remedy in found["remedy"]
        assert self.code == found["exit_code"] == code
        assert not self.ok
        way = ORDER[: ORDER.index("policy")]
        if check in way:
            for later in way[way.index(check) + 1 :]:
                assert self.findings[later]["state"] == "skipped", later
                assert self.findings[later]["text"] == "not tried: an earlier step failed"

    def states(self) -> dict[str, str]:
        return {check: found["state"] for check, found in self.findings.items()}


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Callable[..., Report]:
    def run(*arguments: object) -> Report:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["participant", "check", *map(str, arguments), "--json"])
        out, err = capsys.readouterr()
        assert err == ""
        report = json.loads(out)
        assert set(report) == {"ok", "findings"}
        for found in report["findings"]:
            assert set(found) == {"check", "state", "text", "remedy", "exit_code"}
            assert found["state"] in ("ok", "warning", "failed", "skipped")
            assert found["text"]
            assert (found["exit_code"] != 0) is (found["state"] == "failed")
            assert "participant check" not in found["remedy"], "which is what was just called"
            assert bool(found["remedy"]) is (found["state"] in ("warning", "failed"))
        asked = ORDER[: ORDER.index("policy")] if "--connection-only" in arguments else ORDER
        assert [found["check"] for found in report["findings"]] == asked
        code = ended.value.code
        assert isinstance(code, int)
        return Report(code, report["ok"], {found["check"]: found for found in report["findings"]})

    return run


@pytest.fixture
def members(tmp_path: Path) -> Federation:
    return make_federation(tmp_path / "federation")


@pytest.fixture
def site(members: Federation, tmp_path: Path) -> Path:
    """A site with an identity, and no policy."""
    enrol(members, tmp_path / "site")
    return tmp_path / "site"


@pytest.fixture
def silent() -> Iterator[str]:
    """Accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def web_server() -> Iterator[str]:
    class Quiet(http.server.BaseHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


# ---- nothing wrong -----------------------------------------------------------------------------------------------


def test_a_site_that_is_well_passes_every_check(members, start: Start, check, tmp_path) -> None:
    folder = tmp_path / "site"
    make_site(folder)
    enrol(members, folder)
    report = check(folder, start(members).address)
    assert report.code == 0
    assert report.ok
    assert report.states() == dict.fromkeys(ORDER, "ok")
    assert report.findings["identity"]["text"] == "the coordinator knows this site as 'north'"
    assert "both certificates are accepted" in report.findings["tls"]["text"]


def test_a_site_without_a_policy_is_well_for_public_tables(site, members, start, check) -> None:
    report = check(site, start(members).address)
    assert report.code == 0
    assert report.states() == {**dict.fromkeys(ORDER, "ok"), "policy": "skipped", "data": "skipped"}


def test_plaintext_on_loopback_needs_no_certificate(start, check, tmp_path) -> None:
    make_site(tmp_path / "site")
    report = check(tmp_path / "site", start(None).address, "--insecure")
    assert report.code == 0
    assert report.states() == {**dict.fromkeys(ORDER, "ok"), **dict.fromkeys(("files", "expiry", "tls"), "skipped")}


def test_the_lines_come_in_order_with_their_remedies_below(site, members, start, capsys) -> None:
    members.revoke("north")
    with pytest.raises(SystemExit) as ended:
        main(["participant", "check", str(site), start(members).address])
    assert ended.value.code == 14
    lines = capsys.readouterr().out.splitlines()
    found = [line.split()[1] for line in lines if not line.startswith(" ")]
    assert found == ORDER
    (remedy,) = (line for line in lines if line.startswith(" "))
    assert lines.index(remedy) == ORDER.index("identity") + 1
    assert "coordinator enrolled" in remedy


def test_nothing_of_a_table_is_sent(members, start, check, tmp_path, monkeypatch) -> None:
    """The coordinator hears an empty question for its status, and nothing else."""
    heard: list[tuple[str, bytes]] = []

    def heeded(call: str) -> Callable[..., Any]:
        handle = getattr(servicer_module.Servicer, call)

        def heeding(self: Any, request: Any, context: Any) -> Any:
            heard.append((call, request.SerializeToString()))
            return handle(self, request, context)

        return heeding

    for call in ("Join", "PullTask", "PushUpdate", "Leave", "Status"):
        monkeypatch.setattr(servicer_module.Servicer, call, heeded(call))
    folder = tmp_path / "site"
    make_site(folder)
    enrol(members, folder)
    assert check(folder, start(members).address).code == 0
    assert heard == [("Status", b"")]


# ---- files and expiry --------------------------------------------------------------------------------------------


def test_a_site_that_is_not_enrolled_yet_has_no_invalid_identity_and_its_table_is_checked(check, tmp_path) -> None:
    make_site(tmp_path)
    report = check(tmp_path, "127.0.0.1:1")
    report.assert_failed("files", 2, "is not enrolled in a federation yet", "fedbnsl participant request")
    assert "participant enrol" in report.findings["files"]["remedy"]
    assert (report.findings["policy"]["state"], report.findings["data"]["state"]) == ("ok", "ok")


def test_a_missing_key(site, check) -> None:
    (key,) = (site / "identity").glob("key-*.pem")
    key.unlink()
    check(site).assert_failed("files", 14, f"{key} cannot be read", f"participant request {site} --federation lab")


def test_a_key_that_others_may_read_is_a_warning(site, members, start, check) -> None:
    (key,) = (site / "identity").glob("key-*.pem")
    key.chmod(0o640)
    report = check(site, start(members).address)
    assert report.code == 0
    assert report.findings["files"]["state"] == "warning"
    assert f"chmod 600 {key}" in report.findings["files"]["remedy"]
    assert report.findings["tls"]["state"] == "ok"


def test_a_damaged_bundle(site, check) -> None:
    (site / "identity" / "bundle.toml").write_text("[", encoding="utf-8")
    check(site).assert_failed("files", 14, "bundle.toml is not a bundle", "participant enrol FOLDER BUNDLE")


def test_a_file_that_cannot_be_read(site, check) -> None:
    bundle = site / "identity" / "bundle.toml"
    bundle.unlink()
    bundle.mkdir()
    check(site).assert_failed("files", 14, f"{bundle} cannot be read", "this user may read it")


@pytest.mark.parametrize(("by_days", "text"), [(-20, "it expired on"), (+20, "is not valid before")])
def test_an_own_certificate_out_of_its_time(by_days, text, members, check, tmp_path) -> None:
    enrol_at(members, tmp_path / "site", days=10, by=timedelta(days=by_days))
    report = check(tmp_path / "site")
    report.assert_failed("expiry", 14, text, "participant request")
    assert "clock" in report.findings["expiry"]["remedy"]


def test_an_own_certificate_that_ends_soon_is_a_warning(members, start, check, tmp_path) -> None:
    enrol(members, tmp_path / "site", days=5)
    report = check(tmp_path / "site", start(members).address)
    assert (report.code, report.findings["expiry"]["state"]) == (0, "warning")


# ---- the way there -----------------------------------------------------------------------------------------------


def test_an_unknown_host(site, check) -> None:
    check(site, "nowhere.invalid:50051").assert_failed("name", 6, "'nowhere.invalid' is unknown", "spelling")


def test_an_address_that_is_none(site, check) -> None:
    check(site, "nowhere").assert_failed("name", 2, "expected host:port", "--help")


def test_a_closed_port(site, check) -> None:
    check(site, f"127.0.0.1:{free_port()}").assert_failed("port", 6, "nobody listens", "coordinator serve")


def test_a_port_whose_packets_are_dropped(site, check, monkeypatch) -> None:
    """A full backlog drops them, as a firewall does."""
    monkeypatch.setattr(doctor, "_CONNECT_S", 0.3)
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        try:
            report = check(site, f"127.0.0.1:{full.getsockname()[1]}")
        finally:
            for one in waiting:
                one.close()
    report.assert_failed("port", 6, "no answer", "firewall")


def test_a_listener_that_never_answers(site, silent, check, monkeypatch) -> None:
    monkeypatch.setattr(doctor, "_CONNECT_S", 0.3)
    check(site, silent).assert_failed("tls", 6, "sends nothing within 0.3 s", "not a coordinator")


def test_a_coordinator_without_tls(site, start, check) -> None:
    check(site, start(None).address).assert_failed(
        "tls", 14, "does not speak TLS", "--insecure instead of --federation"
    )


def test_a_web_server_instead_of_a_coordinator(site, web_server, check) -> None:
    check(site, web_server).assert_failed("tls", 14, "does not speak TLS", "another program")


@pytest.mark.long
def test_a_web_server_instead_of_a_plaintext_coordinator(web_server, check, tmp_path) -> None:
    check(tmp_path, web_server, "--insecure").assert_failed(
        "identity", 6, "does not answer in plaintext", "no coordinator"
    )


@pytest.mark.long
def test_a_coordinator_with_tls_that_is_asked_in_plaintext(members, start, check, tmp_path) -> None:
    report = check(tmp_path, start(members).address, "--insecure")
    report.assert_failed("identity", 6, "does not answer in plaintext", "leave --insecure out")


def test_plaintext_beyond_this_machine_is_not_even_tried(check, tmp_path) -> None:
    check(tmp_path, "192.0.2.1:50051", "--insecure").assert_failed("files", 2, "not on this machine", "--help")
    check(tmp_path, "--insecure").assert_failed("files", 2, "name the coordinator", "--help")


# ---- certificates of the two sides -------------------------------------------------------------------------------


@pytest.mark.parametrize(("by_days", "text"), [(-20, "certificate has expired"), (+20, "certificate is not yet valid")])
def test_a_coordinators_certificate_out_of_its_time(by_days, text, site, members, start, check) -> None:
    with clock_off(enrolment_table, authority, certificates, by=timedelta(days=by_days)):
        members.renew(days=10)
        outdated = members.credentials()
    report = check(site, start(members, load=lambda: outdated).address)
    report.assert_failed("tls", 14, f"is not valid now ({text}", "coordinator renew")
    assert "this machine's clock" in report.findings["tls"]["remedy"]


@pytest.mark.parametrize("name", ["lab", "other"])
def test_a_coordinator_of_another_federation_also_under_the_same_name(name, site, start, check, tmp_path) -> None:
    other = make_federation(tmp_path / "other", name=name)
    check(site, start(other).address).assert_failed(
        "tls", 14, "not of this site's federation", "Is this the right coordinator?"
    )


def test_a_coordinator_under_another_host_name(start, check, tmp_path, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(authority, "_LOCAL_NAMES", ())
        elsewhere = make_federation(tmp_path / "elsewhere", hosts=("coordinator.example.org",))
    enrol(elsewhere, tmp_path / "site")
    address = start(elsewhere).address
    for called in (address, address.replace("127.0.0.1", "localhost")):
        check(tmp_path / "site", called).assert_failed("tls", 14, "is not for", "coordinator init --host")


def test_a_site_that_poses_as_the_coordinator(site, members, start, check, tmp_path) -> None:
    impostor = enrol(members, tmp_path / "impostor", "impostor")
    report = check(site, start(members, load=impostor.credentials).address)
    assert report.findings["tls"]["state"] == "failed"
    assert "unsuitable certificate purpose" in report.findings["tls"]["text"]


def test_a_coordinator_that_does_not_accept_the_sites_certificate(site, members, start, check, tmp_path) -> None:
    """It shows a good certificate, and trusts another authority."""
    other = make_federation(tmp_path / "other", name="other")
    shown = members.credentials()
    mixed = certificates.Credentials(shown.certificate, shown.key, other.credentials().ca)
    check(site, start(members, load=lambda: mixed).address).assert_failed(
        "tls", 14, "does not accept this site's certificate", "request a certificate there"
    )


def test_a_revoked_site(site, members, start, check) -> None:
    members.revoke("north")
    check(site, start(members).address).assert_failed("identity", 14, "is revoked", "coordinator enrolled")


def test_a_site_that_the_coordinator_does_not_know(site, members, start, check) -> None:
    (members.folder / "enrolment.json").unlink()
    check(site, start(members).address).assert_failed("identity", 14, "is not enrolled", "coordinator enrolled")


# ---- version and clock -------------------------------------------------------------------------------------------


def test_another_protocol(site, members, start, check, monkeypatch) -> None:
    monkeypatch.setattr(servicer_module, "RunStatus", partial(RunStatus, protocol_version=99, version="9.9"))
    check(site, start(members).address).assert_failed("version", 5, "speaks protocol 99 (fedbnsl 9.9)", "same version")


def test_another_version_of_the_same_protocol_is_a_warning(site, members, start, check, monkeypatch) -> None:
    monkeypatch.setattr(servicer_module, "RunStatus", partial(RunStatus, version="9.9"))
    report = check(site, start(members).address)
    assert (report.code, report.findings["version"]["state"]) == (0, "warning")
    assert report.findings["version"]["text"] == f"the coordinator runs fedbnsl 9.9, this site {__version__}"


@pytest.mark.parametrize(
    ("off_s", "state", "code", "text"),
    [
        (30, "ok", 0, "agree"),
        (600, "warning", 0, "behind"),
        (-600, "warning", 0, "ahead of"),
        (7200, "failed", 14, "behind"),
        (-7200, "failed", 14, "ahead of"),
    ],
)
def test_a_coordinators_clock_that_is_off(off_s, state, code, text, site, members, start, check, monkeypatch) -> None:
    clock = SimpleNamespace(time=lambda: time.time() + off_s, monotonic=time.monotonic)
    monkeypatch.setattr(servicer_module, "time", clock)
    report = check(site, start(members).address)
    found = report.findings["clock"]
    assert (found["state"], report.code) == (state, code)
    assert text in found["text"]
    if state != "ok":
        assert abs(off_s) - 15 <= int(found["text"].split("clock is ")[1].split(" s")[0]) <= abs(off_s)
        assert "NTP" in found["remedy"]


# ---- policy and data ---------------------------------------------------------------------------------------------


@pytest.fixture
def guarded(members: Federation, tmp_path: Path) -> Path:
    """A site with an identity, a policy and a ledger; nobody listens at its coordinator's address."""
    folder = tmp_path / "site"
    make_site(folder)
    enrol(members, folder)
    return folder


@pytest.mark.parametrize(
    ("old", "new", "code", "text"),
    [
        ('site = "north"', 'site = "south"', 2, "the policy's site is 'south', the certificate's 'north'"),
        ('coordinators = [\n    "127.0.0.1",\n    "localhost",\n]', "coordinators = []", 12, "rule `coordinators`"),
        ('coordinator_ca = ""', 'coordinator_ca = "AB:CD"', 12, "rule `coordinator_ca` = AB:CD"),
        ("min_rows", "min_row", 2, "no such rule; did you mean min_rows"),
    ],
    ids=["another site", "address", "authority", "misspelt"],
)
def test_a_policy_that_does_not_fit(old, new, code, text, guarded, members, start, check) -> None:
    edit(guarded / "policy.toml", old, new)
    report = check(guarded, start(members).address)
    report.assert_failed("policy", code, text, "policy.toml")
    assert report.states() | {"policy": "ok", "data": "ok"} == dict.fromkeys(ORDER, "ok"), "the way there is fine"


def test_the_authority_that_the_policy_names_is_accepted_in_any_spelling(guarded, members, start, check) -> None:
    named = f"sha256:{members.fingerprint.lower()}"
    edit(guarded / "policy.toml", 'coordinator_ca = ""', f'coordinator_ca = "{named}"')
    assert check(guarded, start(members).address).code == 0


def test_an_authority_that_must_vouch_is_missed_in_plaintext(guarded, members, start, check) -> None:
    edit(guarded / "policy.toml", 'coordinator_ca = ""', f'coordinator_ca = "{members.fingerprint}"')
    report = check(guarded, start(None).address, "--insecure")
    report.assert_failed("policy", 12, "none, the wire is plaintext", "policy.toml")


def test_policy_and_data_are_looked_at_although_the_coordinator_is_away(guarded, check) -> None:
    report = check(guarded, f"127.0.0.1:{free_port()}")
    report.assert_failed("port", 6, "nobody listens", "coordinator serve")
    assert (report.findings["policy"]["state"], report.findings["data"]["state"]) == ("ok", "ok")
    assert report.findings["data"]["text"] == f"{DATASET} is as it was registered"


def test_a_table_that_was_centred_by_its_own_means_is_warned_of(guarded, check) -> None:
    write_table(guarded / "table.csv", rows() - rows().mean(axis=0))
    with site_folder.opened(guarded) as (policy, ledger):
        table = site_folder.read_table(guarded, policy, DATASET)
        ledger.registrations.register(DATASET, table.variables, table.X, supersedes=True)
    found = check(guarded, f"127.0.0.1:{free_port()}").findings["data"]
    assert found["state"] == "warning"
    assert "column(s) age, dose, mass: the mean is zero to rounding" in found["text"]


def test_a_ledger_that_a_run_has_can_be_looked_at(guarded, members, start, check) -> None:
    address = start(members).address
    with site_folder.opened(guarded):
        report = check(guarded, address)
    assert (report.code, report.findings["data"]["state"]) == (0, "ok")


def test_a_health_check_leaves_the_ledger_to_the_run(guarded, members, start, check, monkeypatch) -> None:
    address = start(members).address
    monkeypatch.setattr(site_folder, "opened", lambda folder: pytest.fail("the ledger was taken"))
    assert check(guarded, address, "--connection-only").code == 0


def test_a_table_that_changed(guarded, members, start, check) -> None:
    write_table(guarded / "table.csv", rows(2))
    check(guarded, start(members).address).assert_failed("data", 11, DATASET, "")


def test_a_table_that_is_gone(guarded, members, start, check) -> None:
    (guarded / "table.csv").unlink()
    check(guarded, start(members).address).assert_failed("data", 4, "table.csv", "Correct the table")


def test_a_table_that_is_odd_is_a_warning(members, start, check, tmp_path) -> None:
    X = rows()
    X[:, 1] = (X[:, 1] > 0) + 1.0
    folder = tmp_path / "site"
    table = write_table(folder / "table.csv", X)
    with pytest.warns(UserWarning, match="dose"):
        make_site(folder, table=table)
    enrol(members, folder)
    report = check(folder, start(members).address)
    assert (report.code, report.findings["data"]["state"]) == (0, "warning")
    assert "dose" in report.findings["data"]["text"]


@pytest.fixture
def with_plan(tmp_path: Path) -> Callable[..., tuple[int, list[dict[str, Any]]]]:
    def run(folder: Path, address: str, capsys: pytest.CaptureFixture[str], **privacy: Any) -> Any:
        plan = tmp_path / "plan.toml"
        plan.write_text(private_plan(privacy=privacy).to_toml(), encoding="utf-8")
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["participant", "check", str(folder), address, "--plan", str(plan), "--json"])
        return ended.value.code, json.loads(capsys.readouterr().out)["findings"]

    return run


def test_with_a_plan_the_share_beyond_its_bounds_is_told(guarded, members, start, with_plan, capsys) -> None:
    address = start(members).address
    squares = rows() ** 2
    code, findings = with_plan(guarded, address, capsys, feature_bounds=[1.0])
    assert [found["check"] for found in findings] == [*ORDER, "plan"]
    assert (code, findings[-1]["state"]) == (0, "warning")
    assert "never from this table" in findings[-1]["remedy"]
    assert findings[-1]["details"] == {
        "same_value": {},
        "beyond": {name: pytest.approx(share) for name, share in zip(NAMES, (squares > 1.0).mean(axis=0), strict=True)},
        "beyond_any": pytest.approx((squares > 1.0).any(axis=1).mean()),
    }
    code, findings = with_plan(guarded, address, capsys, feature_bounds=[1e4])
    assert (code, findings[-1]["state"], findings[-1]["details"]["beyond_any"]) == (0, "ok", 0.0)
    assert findings[-1]["text"] == "0.00% of the records lie beyond feature_bounds (a bound on x^2, not on x)"


def test_nothing_of_the_plans_finding_is_sent(guarded, members, start, with_plan, capsys, monkeypatch) -> None:
    called: list[str] = []
    for name in ("Join", "PullTask", "PushUpdate", "Leave"):

        async def refused(self: Any, request: Any, context: Any, name: str = name) -> None:
            called.append(name)

        monkeypatch.setattr(servicer_module.Servicer, name, refused)
    assert with_plan(guarded, start(members).address, capsys)[0] == 0
    assert called == []


def test_a_plan_needs_the_table(guarded, capsys, tmp_path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(private_plan().to_toml(), encoding="utf-8")
    for options in (["--plan", str(plan), "--connection-only"], ["--dataset", "ward-7"]):
        with pytest.raises(SystemExit) as ended:
            main(["participant", "check", str(guarded), *options])
        assert ended.value.code == 2
        assert "--plan" in capsys.readouterr().err


def test_the_exit_code_is_that_of_the_first_failure(guarded, check) -> None:
    (guarded / "table.csv").unlink()
    report = check(guarded, f"127.0.0.1:{free_port()}")
    assert (report.findings["port"]["exit_code"], report.findings["data"]["exit_code"]) == (6, 4)
    assert report.code == 6
