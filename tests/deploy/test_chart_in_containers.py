"""The pods of the chart as containers of one network: the steps of docs/how-to/deploy.md, a run, new pods within it.

No cluster is needed for what mostly goes wrong: arguments, mounts, read-only secrets and roots, probes.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from compose.federation import ROOT, fedbnsl, output_of
from deploy.charts import rendered
from deploy.machine import json_lines
from deploy.pods import Pod
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.sources.csv_table import read_header
from fedbnsl_server.identity.enrolment import Federation
from federation_folder import make_federation
from waiting import until

pytestmark = pytest.mark.timeout(900)  # the first test waits for the images to be built

SITES = {"north": "site-1.csv", "south": "site-2.csv"}
SYNTHETIC = ("--nodes=8", "--edges=8", "--sites=2", "--rows=2000", "--seed=2")
SETTINGS = ("n_participants=2", "rounds=150", "rpc_timeout_s=5.0", "privacy.epsilon=1.0")
TOKEN = b"of-sixteen-characters-or-more\n"
FILES = ("ca.pem", "server.pem", "federation.toml", "enrolment.json")
WATCHED = {"metrics": {"enabled": True}}


class Cluster:
    """Pods by name, each on the volumes that its name had before."""

    def __init__(self, engine: docker.DockerClient, folder: Path, network: str) -> None:
        self._engine, self.folder, self._network = engine, folder, network
        self.pods: dict[str, Pod] = {}
        self.federation: Federation = make_federation(folder / "federation", name="heart", hosts=("hub",))

    def secrets(self) -> dict[str, dict[str, bytes]]:
        made = [self.federation.folder / name for name in FILES]
        federation = {file.name: file.read_bytes() for file in made if file.exists()}  # the table comes with a site
        tables = {site: {"table.csv": (self.folder / file).read_bytes()} for site, file in SITES.items()}
        # The site's page and metrics need a certificate; the probes ask their own pod, whatever it is called.
        tls = {"tls.pem": (self.federation.folder / "server.pem").read_bytes()}
        watched = {"fedbnsl-metrics-token": {"token": TOKEN}, "fedbnsl-site-tls": tls}
        return {"fedbnsl-federation": federation, **watched, **tables}

    def _install(self, name: str, values: dict[str, Any]) -> Pod:
        if name in self.pods:
            self.pods[name].end()
            self.pods[name].remove()
        env = {key: os.environ[key] for key in ("OPENBLAS_CORETYPE",) if key in os.environ}
        folder = self.folder / "volumes" / name
        self.pods[name] = Pod(
            self._engine, rendered(values), folder, secrets=self.secrets(), network=self._network, alias=name, env=env
        )
        return self.pods[name]

    def coordinator(self) -> Pod:
        return self._install("hub", {"coordinator": {"enabled": True, **WATCHED}})

    def site(self, name: str, **values: Any) -> Pod:
        about = {"enabled": True, "name": name, "coordinator": {"cidrs": ["192.0.2.1/32"]}, "table": {"secret": name}}
        return self._install(name, {"site": {**about, **values}})

    def until(self, condition: Any, what: str) -> None:
        until(condition, what, lambda: "\n".join(pod.said for pod in self.pods.values()), look_s=0.2)

    def file(self, name: str) -> str:
        """Of the run; empty, if it is not there yet."""
        return self.pods["hub"]("sh", "-c", f"cat /runs/heart/{name} 2>/dev/null || true")

    @property
    def rounds(self) -> int:
        return sum(event["event"] == "round" for event in json_lines(self.file("events.jsonl")))

    @property
    def state(self) -> str:
        result = self.file("result.json")
        return str(json.loads(result)["state"]) if result else ""


@pytest.fixture(scope="module")
def cluster(engine: docker.DockerClient) -> Iterator[Cluster]:
    subprocess.run([ROOT / "tests" / "compose" / "make-images"], check=True, timeout=600)
    name = f"fedbnsl-pods-{os.getpid()}"
    # Below runs/ and not in the system's temporary folder, which an engine in a virtual machine does not see.
    folder = ROOT / "runs" / name
    network = engine.networks.create(name, internal=True)
    fedbnsl("data", "synth", *SYNTHETIC, "--out", folder)
    made = Cluster(engine, folder, name)
    try:
        yield made
    finally:
        for pod in made.pods.values():
            pod.remove()
        network.remove()
        shutil.rmtree(folder, ignore_errors=True)


def enrol(cluster: Cluster, site: str) -> None:
    """From an empty volume to a site that may take part."""
    pod = cluster.site(site, maintenance=True)
    pod("fedbnsl", "participant", "init", "/site", "--site", site, "--data", "/table/table.csv", "--dataset", site,
        "--max-epsilon", "10", "--coordinator", "hub")  # fmt: skip
    request = pod("fedbnsl", "participant", "request", "/site", "--federation", "heart", "--out", "-")
    approval = ("approve", str(cluster.federation.folder), "-", "--yes", "--out", "-")
    bundle = output_of(sys.executable, "-m", "fedbnsl", "coordinator", *approval, stdin=request)
    fingerprint = cluster.federation.fingerprint
    pod("fedbnsl", "participant", "enrol", "/site", "-", "--fingerprint", fingerprint, stdin=bundle)


def test_pods_of_the_chart_are_enrolled_finish_a_run_and_are_replaced_within_it(cluster: Cluster) -> None:
    enrol(cluster, "north")
    hub = cluster.coordinator()
    hub.until("startup")
    enrol(cluster, "south")
    hub.renew("federation", cluster.secrets()["fedbnsl-federation"])
    cluster.pods["south"]("fedbnsl", "participant", "check", "/site", "--connection-only")  # there is no run yet
    plan = Plan.load("private-steps", SETTINGS)
    plan = plan.with_settings(variables=read_header(cluster.folder / SITES["north"]), sites=tuple(SITES))
    for site in SITES:
        cluster.pods[site]("fedbnsl", "participant", "approve", "/dev/stdin", "/site", "--yes", stdin=plan.to_toml())
        cluster.site(site, **WATCHED if site == "north" else {}).until("startup")
    hub("fedbnsl", "coordinator", "runs", "start", "/runs", "/dev/stdin", "--name", "heart", stdin=plan.to_toml())
    cluster.until(lambda: cluster.rounds > 10, "round 10")

    cluster.coordinator().until("startup")
    cluster.until(lambda: cluster.rounds > 30, "round 30")
    assert cluster.state != "finished"
    cluster.site("north", **WATCHED)
    cluster.until(lambda: cluster.state == "finished", "the end of the run")
    for pod in cluster.pods.values():
        pod.until("readiness")
        assert pod.passes("liveness")


def test_an_agent_without_its_coordinator_lives_and_is_not_ready(cluster: Cluster) -> None:
    hub, north = cluster.pods["hub"], cluster.pods["north"]
    assert hub.end() == 0
    cluster.until(lambda: not north.passes("readiness"), "an agent that notices")
    assert north.passes("liveness")


def test_an_agent_that_is_told_to_stop_ends_within_the_time_of_its_pod(cluster: Cluster) -> None:
    assert {site: cluster.pods[site].end() for site in SITES} == dict.fromkeys(SITES, 0)
