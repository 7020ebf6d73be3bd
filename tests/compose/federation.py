"""Steps from docker-compose.yml to a federation that can run: keys, certificates, policies.

Keys are made in the sites' volumes; requests and bundles go through pipes, where people would send them.
"""

import hashlib
import json
import os
import shutil
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SITES = ("site-1", "site-2", "site-3")
DATASET = "demo"
SYNTHETIC = ("--nodes=8", "--edges=8", "--sites=3", "--rows=5000", "--seed=2")


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
    plan
        File that the coordinator serves.
    """

    def __init__(self, name: str, tables: Path, plan: Path) -> None:
        self.name = name
        files = (ROOT / "docker-compose.yml", Path(__file__).with_name("same-kernels.yml"))
        self.command = [*compose_command(), "--project-name", name, *(f"--file={file}" for file in files)]
        self._env = {**os.environ, "FEDBNSL_TABLES": str(tables), "FEDBNSL_PLAN": str(plan)}

    def compose(self, *arguments: str) -> str:
        """What `docker-compose ARGUMENTS` prints."""
        return output_of(*self.command, *arguments, env=self._env)

    def serve(self, run: str, plan: Path) -> None:
        """From now on the services are those of another run: its folder, and the file that the coordinator serves."""
        self._env |= {"FEDBNSL_RUN": run, "FEDBNSL_PLAN": str(plan)}

    def once(self, service: str, *command: str, stdin: str = "", options: tuple[str, ...] = ()) -> str:
        """What a command prints in a container of a service that is there for this command only."""
        return output_of(
            *self.command, "run", "--rm", "-T", "--no-deps", *options, service, *command, stdin=stdin, env=self._env
        )

    def state(self, service: str) -> dict[str, Any]:
        """As `docker inspect` tells it."""
        container = self.compose("ps", "--all", "--quiet", service).strip()
        state: dict[str, Any] = json.loads(output_of("docker", "inspect", "--format", "{{json .State}}", container))
        return state

    def remove(self) -> None:
        """Containers, networks and volumes."""
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "5")


def enrol(project: Project) -> None:
    """A federation with its authority, and three sites whose keys never leave their volumes."""
    ca_key = ("--ca-key", "/authority/ca.key")
    project.once("authority", "coordinator", "init", "/federation", "--name", "demo", "--host", "coordinator", *ca_key)
    ca = project.once("coordinator", "/federation/ca.pem", options=("--entrypoint", "cat"))
    fingerprint = hashlib.sha256(ssl.PEM_cert_to_DER_cert(ca.strip())).hexdigest()
    for site in SITES:
        request = project.once(
            site, "participant", "request", "/site", "--federation", "demo", "--site", site, "--out", "-"
        )
        bundle = project.once(
            "authority", "coordinator", "approve", "/federation", "-", "--out", "-", "--yes", *ca_key, stdin=request
        )
        project.once(site, "participant", "enrol", "/site", "-", "--fingerprint", fingerprint, stdin=bundle)


def set_policies(project: Project, plan: Path, dictionary: Path | None = None) -> None:
    """Every site limits what its table may lose, looks at the plan and approves it."""
    known = [] if dictionary is None else ["--dictionary", "/dictionary.toml"]
    mounted = () if dictionary is None else ("--volume", f"{dictionary}:/dictionary.toml:ro")
    for site in SITES:
        project.once(
            site, "participant", "init", "/site", "--site", site, "--data", "/run/secrets/table.csv", *known,
            "--dataset", DATASET, "--coordinator", "coordinator", "--max-epsilon", "10",
            "--max-epsilon-against-all", "20", options=mounted,
        )  # fmt: skip
    approve(project, plan)


def approve(project: Project, plan: Path) -> None:
    """Every site looks at a plan and approves it."""
    mounted = ("--volume", f"{plan}:/plan.toml:ro")
    for site in SITES:
        project.once(site, "participant", "approve", "/plan.toml", "/site", "--yes", options=mounted)


def confirm_peers(project: Project) -> None:
    """Every site tells the others the fingerprint of its key, and confirms theirs."""
    prints = {site: json.loads(project.once(site, "participant", "peers", "/site", "--json")) for site in SITES}
    for site in SITES:
        others = [("--confirm", other, prints[other]["fingerprint"]) for other in SITES if other != site]
        project.once(site, "participant", "peers", "/site", *(word for words in others for word in words))
