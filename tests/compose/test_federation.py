"""docker-compose.yml under faults of its containers and networks, and what its sites can see of each other: nothing."""

import hashlib
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator

import docker
import pytest

from compose.containers import COORDINATOR, RUN_FOLDER, Federation
from compose.federation import ROOT, SYNTHETIC, Project, compose_command, fedbnsl
from faults import invariants
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.sources.csv_table import read_header

pytestmark = pytest.mark.timeout(660)  # the first test waits for the images to be built

MIDDLE = 20  # rounds before a fault
# Long enough that a run that does not wait would be seen to go on.
FAULT_S = 3.0
SETTINGS = ("n_participants=3", "rounds=120", "rpc_timeout_s=5.0", "privacy.epsilon=1.0")
WAITING = (COORDINATOR, "site-1", "site-2")


@pytest.fixture(scope="module")
def federation(engine: docker.DockerClient) -> Iterator[Federation]:
    """Enrolled, with policies, and removed with everything that it made."""
    if not compose_command():
        pytest.skip("needs Docker Compose: neither `docker compose` nor `docker-compose` is there")
    name = f"fedbnsl-test-{os.getpid()}"
    # Below runs/ and not in the system's temporary folder, which an engine in a virtual machine does not see.
    folder = ROOT / "runs" / name
    project = Project(name, folder / "tables", folder / "plan.toml")
    try:
        fedbnsl("data", "synth", *SYNTHETIC, "--out", folder / "tables")
        variables = read_header(folder / "tables" / "site-1.csv")
        plan = Plan.load("private-steps", SETTINGS).with_settings(variables=variables)
        (folder / "plan.toml").write_text(plan.to_toml(), encoding="utf-8")
        yield Federation(engine, project, plan, folder)
    finally:
        project.remove()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def waiting(federation: Federation) -> Federation:
    """Two of three sites are there, so that nothing goes on while somebody looks at the containers."""
    federation.clear()
    federation.start(*WAITING)
    joined = "2 of 3 sites"
    federation.until(lambda: federation.said.count(joined) > 0, joined)
    return federation


def ends_well(federation: Federation) -> None:
    """Whatever happened: everybody was in every round, and what was used is what was paid for."""
    assert federation.end() == dict.fromkeys(federation.services, 0), federation.said
    assert federation.result["manifest"]["private"] is True
    assert federation.result["privacy"]["guarantee"]
    invariants.everybody_contributed(federation)
    invariants.budgets_held(federation, federation.kills)
    invariants.what_was_used_is_what_was_paid_for(federation)


def stands_still(federation: Federation, *, seconds: float) -> None:
    """No round ends, once the one that was being closed is."""
    time.sleep(1.0)
    before = federation.rounds
    time.sleep(seconds)
    assert before == federation.rounds < federation.plan.rounds


def test_a_run_waits_for_a_site_whose_network_is_cut(federation) -> None:
    federation.begin(rounds=MIDDLE)
    network = federation.network_of("site-1")
    network.disconnect(federation.services["site-1"])
    stands_still(federation, seconds=FAULT_S)
    network.connect(federation.services["site-1"], aliases=["site-1"])
    ends_well(federation)


def test_a_run_waits_for_a_site_that_is_frozen(federation) -> None:
    federation.begin(rounds=MIDDLE)
    federation.services["site-2"].pause()
    stands_still(federation, seconds=FAULT_S)
    federation.services["site-2"].unpause()
    ends_well(federation)


# The first process of the container, which passes signals on, is left to see it.
FIND_THE_SITE = """
import os
others = [pid for pid in os.listdir("/proc") if pid.isdigit() and pid != "1"]
[site] = [pid for pid in others if b"\\0join\\0" in open(f"/proc/{pid}/cmdline", "rb").read()]
print(site)
"""


def test_a_killed_site_is_started_by_the_engine_and_pays_once_more_at_most(federation) -> None:
    federation.begin(rounds=MIDDLE)
    site = federation.services["site-3"]
    before = site.attrs["RestartCount"]
    found = federation.python("site-3", FIND_THE_SITE)
    # Nobody waits for what it says: it may end with the container.
    site.exec_run(["python", "-c", f"import os; os.kill({found}, 9)"], detach=True)
    federation.kills["site-3"] += 1
    ends_well(federation)
    assert site.attrs["RestartCount"] == before + 1


def test_a_coordinator_that_is_told_to_stop_pauses_the_run(federation) -> None:
    federation.begin(rounds=MIDDLE)
    coordinator = federation.services[COORDINATOR]
    coordinator.stop(timeout=30)
    assert coordinator.wait()["StatusCode"] == 0
    federation.fetch(COORDINATOR, RUN_FOLDER, federation.folder)
    paused = federation.result
    assert paused["state"] == "interrupted"
    assert MIDDLE <= len(paused["rounds"]) < federation.plan.rounds
    coordinator.start()
    ends_well(federation)
    assert federation.result["manifest"]["run"] == paused["manifest"]["run"]


def test_a_killed_coordinator_goes_on_with_its_run(federation) -> None:
    federation.begin(rounds=MIDDLE)
    coordinator = federation.services[COORDINATOR]
    coordinator.kill()
    assert coordinator.wait()["StatusCode"] == 128 + signal.SIGKILL
    federation.fetch(COORDINATOR, RUN_FOLDER, federation.folder)
    run = json.loads((federation.run / "run.json").read_text(encoding="utf-8"))["run"]
    coordinator.start()
    ends_well(federation)
    assert federation.result["manifest"]["run"] == run
    events = [json.loads(line) for line in (federation.run / "events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events].count("resumed") == 1


CALLS = """
import json, socket
def call(host):
    try:
        socket.create_connection((host, 50051), timeout=1).close()
    except ConnectionRefusedError:
        return "there, but does not listen"
    except OSError:
        return "not there"
    return "listens"
print(json.dumps([call(host) for host in {hosts}]))
"""


def test_a_site_reaches_its_coordinator_and_nobody_else(waiting) -> None:
    network = waiting.network_of("site-2")
    network.reload()
    address = {
        service: network.attrs["Containers"][waiting.services[service].id]["IPv4Address"].partition("/")[0]
        for service in (COORDINATOR, "site-2")
    }
    outside = "192.0.2.1"
    hosts = [COORDINATOR, "site-2", address["site-2"], address[COORDINATOR], outside]
    assert waiting.python("site-1", CALLS.format(hosts=hosts)) == ["listens", *["not there"] * 4]
    # On their own network the same names and addresses are there.
    assert waiting.python("site-2", CALLS.format(hosts=hosts)) == [
        "listens",
        "there, but does not listen",
        "there, but does not listen",
        "listens",
        "not there",
    ]
    assert all(
        waiting.network_of(site).attrs["Internal"] and len(waiting.network_of(site).attrs["Containers"]) == 2
        for site in WAITING[1:]
    )


BELONGINGS = """
import hashlib, json, os
def holds_a_secret(name, content):
    return name.endswith((".csv", ".db")) or b" PRIVATE KEY-----\\n" in content[:100]
found = {}
TOPS = "authority site federation runs run tmp home root var etc srv mnt"
for top in ("/" + name for name in TOPS.split()):
    for folder, _, names in os.walk(top):
        for path in (os.path.join(folder, name) for name in names):
            if os.path.isfile(path) and os.access(path, os.R_OK):
                content = open(path, "rb").read()
                if holds_a_secret(path, content):
                    found[path] = hashlib.sha256(content).hexdigest()
print(json.dumps(found))
"""


def test_a_site_has_its_own_table_key_and_ledger_and_nobody_elses(waiting) -> None:
    first, second = (waiting.python(site, BELONGINGS) for site in WAITING[1:])
    for site, files in zip(WAITING[1:], (first, second), strict=True):
        [key] = [file for file in files if file.startswith("/site/identity/")]
        assert set(files) == {key, "/site/ledger.db", "/run/secrets/table.csv"}
        table = (waiting.folder / "tables" / f"{site}.csv").read_bytes()
        assert files["/run/secrets/table.csv"] == hashlib.sha256(table).hexdigest()
    assert not set(first.values()) & set(second.values())
    assert set(waiting.python(COORDINATOR, BELONGINGS)) == {"/federation/server.pem"}, "not the authority's"


def test_a_coordinator_can_enrol_nobody(waiting) -> None:
    """Neither the authority's key nor a table of enrolment that can be written is in its container."""
    assert waiting.python(COORDINATOR, WRITES) == "Read-only file system"
    container = waiting.services[COORDINATOR]
    container.reload()
    mounts = {mount["Destination"] for mount in container.attrs["Mounts"]}
    assert mounts == {
        "/federation",
        "/runs",
        "/plan.toml",
        "/run/secrets/web-token",
        "/var/cache/fedbnsl",
    }  # the last holds compiled code


WRITES = """
import json
try:
    open("/federation/enrolment.json", "a").close()
    said = "written"
except OSError as error:
    said = error.strerror
print(json.dumps(said))
"""


# Of the first process, which the engine started; this one comes by another way.
RIGHTS = """
import json, os
status = dict(line.split(":", 1) for line in open("/proc/1/status"))
def writes(path):
    try:
        open(path, "w").close()
    except OSError as error:
        return error.strerror
    return "written"
print(json.dumps({
    "uids": sorted(set(status["Uid"].split())),
    "capabilities": {key: int(status[key], 16) for key in status if key.startswith("Cap")},
    "no new privileges": status["NoNewPrivs"].strip(),
    "root": writes("/new"),
    "root is read-only": bool(os.statvfs("/").f_flag & os.ST_RDONLY),
    "/tmp": writes("/tmp/new"),
}))
"""


@pytest.mark.parametrize("service", WAITING)
def test_a_container_has_no_rights_that_it_does_not_need(waiting, service) -> None:
    rights = waiting.python(service, RIGHTS)
    assert rights.pop("uids") == ["10001"]
    assert set(rights.pop("capabilities").values()) == {0}
    assert rights == {
        "no new privileges": "1",
        "root": "Read-only file system",
        "root is read-only": True,
        "/tmp": "written",
    }
