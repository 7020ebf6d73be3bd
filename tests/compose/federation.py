"""Steps from docker-compose.yml to a federation that can run: keys, certificates, policies.

Keys are made in the sites' volumes; requests and bundles go through pipes, where people would send them.
"""

import hashlib
import http.client
import json
import os
import secrets
import shutil
import ssl
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from free_port import free_port

ROOT = Path(__file__).parents[2]
SITES = ("site-1", "site-2", "site-3")
DATASET = "demo"
SYNTHETIC = ("--nodes=8", "--edges=8", "--sites=3", "--rows=5000", "--seed=2")

T = TypeVar("T")


class StepError(Exception):
    """A step failed, or its result is not what it has to be."""


def compose_command() -> tuple[str, ...]:
    """The Compose that is there, as plugin or as a command of its own; empty: there is none."""
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0:
        return ("docker", "compose")
    return ("docker-compose",) if shutil.which("docker-compose") else ()


def output_of(*command: str | Path, stdin: str = "", env: dict[str, str] | None = None) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, cwd=ROOT, env=env)
    if done.returncode != 0:
        said = f"{done.stdout}{done.stderr}".rstrip()
        raise StepError(f"exit code {done.returncode}: {' '.join(map(str, command))}\n{said}")
    return done.stdout


def fedbnsl(*arguments: str | Path) -> str:
    """`fedbnsl ARGUMENTS` on this machine."""
    return output_of(sys.executable, "-m", "fedbnsl", *arguments)


class Project:
    """The services of docker-compose.yml under a name of their own.

    Parameters
    ----------
    name
        Of the Compose project.
    tables
        Folder with site-1.csv, ...
    one_run
        File of a plan: the services play one run of it and end. None: a coordinator with a queue of runs, and agents.
    """

    def __init__(self, name: str, tables: Path, one_run: Path | None = None) -> None:
        self.name = name
        files = [ROOT / "docker-compose.yml"]
        self.web_port, self.web_token = free_port(), secrets.token_hex(16)
        token_file = tables.parent / "web-token"
        token_file.parent.mkdir(parents=True, exist_ok=True)
        token_file.write_text(self.web_token, encoding="utf-8")
        self._env = {**os.environ, "FEDBNSL_TABLES": str(tables), "FEDBNSL_WEB_TOKEN": str(token_file)}
        self._env["FEDBNSL_WEB_PORT"] = str(self.web_port)
        if one_run is not None:
            files.append(Path(__file__).with_name("one-run.yml"))
            self._env["FEDBNSL_PLAN"] = str(one_run)
        self.command = [*compose_command(), "--project-name", name, *(f"--file={file}" for file in files)]
        self._ids: dict[str, str] = {}

    def compose(self, *arguments: str) -> str:
        """What `docker-compose ARGUMENTS` prints."""
        return output_of(*self.command, *arguments, env=self._env)

    def once(self, service: str, *command: str, stdin: str = "", options: tuple[str, ...] = ()) -> str:
        """What a command prints in a container of a service that is there for this command only."""
        return output_of(
            *self.command, "run", "--rm", "-T", "--no-deps", *options, service, *command, stdin=stdin, env=self._env
        )

    def within(self, service: str, *command: str, stdin: str = "") -> str:
        """What a command prints in the container of a service that is up."""
        if service not in self._ids:
            self._ids[service] = self.compose("ps", "--quiet", service).strip()
        return output_of("docker", "exec", "--interactive", self._ids[service], *command, stdin=stdin)

    def page(self, path: str) -> str:
        """What the coordinator's page answers, over TLS under the federation's authority."""
        trusted = ssl.create_default_context(cadata=self.within("coordinator", "cat", "/federation/ca.pem"))
        asked = http.client.HTTPSConnection("localhost", self.web_port, context=trusted, timeout=30)
        asked.request("GET", path, headers={"Authorization": f"Bearer {self.web_token}"})
        answer = asked.getresponse()
        text = answer.read().decode()
        if answer.status != 200:
            raise StepError(f"{path} of the page: {answer.status} {text}")
        return text

    def remove(self) -> None:
        """Containers, networks and volumes."""
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "5")


def each_site(work: Callable[[str], T]) -> dict[str, T]:
    """What work does for every site, for all at once: most of it is waiting for containers."""
    with ThreadPoolExecutor(len(SITES)) as workers:
        return dict(zip(SITES, workers.map(work, SITES), strict=True))


def enrol(project: Project) -> None:
    """A federation with its authority, and three sites whose keys never leave their volumes."""
    ca_key = ("--ca-key", "/authority/ca.key")

    def request(site: str) -> str:
        words = ("participant", "request", "/site", "--federation", "demo", "--site", site, "--out", "-")
        return project.once(site, *words)

    project.compose("up", "--no-start", "--no-build")  # its networks and volumes, which requests would make all at once
    hosts = ("--host", "coordinator", "--host", "localhost")  # the second for who looks at the page on this machine
    project.once("authority", "coordinator", "init", "/federation", "--name", "demo", *hosts, *ca_key)
    ca = project.once("coordinator", "/federation/ca.pem", options=("--entrypoint", "cat"))
    fingerprint = hashlib.sha256(ssl.PEM_cert_to_DER_cert(ca.strip())).hexdigest()
    requests = each_site(request)
    approve = ("coordinator", "approve", "/federation", "-", "--out", "-", "--yes", *ca_key)
    bundles = {site: project.once("authority", *approve, stdin=requests[site]) for site in SITES}
    words = ("participant", "enrol", "/site", "-", "--fingerprint", fingerprint)
    each_site(lambda site: project.once(site, *words, stdin=bundles[site]))


def set_policies(project: Project, dictionary: Path | None = None) -> None:
    """Every site limits what its table may lose."""
    known = [] if dictionary is None else ["--dictionary", "/dictionary.toml"]
    mounted = () if dictionary is None else ("--volume", f"{dictionary}:/dictionary.toml:ro")
    each_site(
        lambda site: project.once(
            site, "participant", "init", "/site", "--site", site, "--data", "/run/secrets/table.csv", *known,
            "--dataset", DATASET, "--coordinator", "coordinator", "--max-epsilon", "10",
            "--max-epsilon-against-all", "20", options=mounted,
        )
    )  # fmt: skip


def approve(project: Project, plan: Path) -> None:
    """Every site looks at a plan and approves it."""
    mounted = ("--volume", f"{plan}:/plan.toml:ro")
    each_site(
        lambda site: project.once(site, "participant", "approve", "/plan.toml", "/site", "--yes", options=mounted)
    )


def queue(project: Project, name: str, plan: Path) -> None:
    """The coordinator's operator queues a run."""
    project.within("coordinator", "sh", "-c", "cat > /tmp/plan.toml", stdin=plan.read_text(encoding="utf-8"))
    words = ("fedbnsl", "coordinator", "runs", "start", "/runs", "/tmp/plan.toml", "--name", name)
    project.within("coordinator", *words)


def approve_offer(project: Project, name: str) -> None:
    """Every site's operator looks at the run that the coordinator offers, and approves it; its agent does the rest."""

    def look_and_approve(site: str) -> str:
        project.within(site, "fedbnsl", "participant", "runs", "/site", "--save", "/tmp/plans")
        return project.within(site, "fedbnsl", "participant", "approve", f"/tmp/plans/{name}.toml", "/site", "--yes")

    each_site(look_and_approve)


def confirm_peers(project: Project) -> None:
    """Every site tells the others the fingerprint of its key, and confirms theirs."""
    peers = ("fedbnsl", "participant", "peers", "/site")
    prints = {site: json.loads(said) for site, said in each_site(lambda s: project.within(s, *peers, "--json")).items()}

    def confirm(site: str) -> str:
        others = [("--confirm", other, prints[other]["fingerprint"]) for other in SITES if other != site]
        return project.within(site, *peers, *(word for words in others for word in words))

    each_site(confirm)
