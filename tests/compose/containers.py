"""The enrolled services of docker-compose.yml as containers that a test may hurt: run after run on the same ledgers."""

import io
import json
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
from docker.models.containers import Container
from docker.models.networks import Network

from compose.federation import SITES, Project, approve, enrol, set_policies
from fedbnsl.plan.plan import Plan
from waiting import until

COORDINATOR = "coordinator"
RUN_FOLDER = "/runs/run"


class Federation:
    """One coordinator and three sites, enrolled and with policies.

    Parameters
    ----------
    folder
        Holds the plan and the tables, and gets what a run leaves.
    """

    sites = SITES

    def __init__(self, engine: docker.DockerClient, project: Project, plan: Plan, folder: Path) -> None:
        self.plan, self.folder, self.kills = plan, folder, Counter[str]()
        self._engine, self._project = engine, project
        enrol(project)
        set_policies(project)
        approve(project, folder / "plan.toml")
        project.compose("up", "--detach", "--no-build")  # Compose 1.29 makes connections only as it starts a container
        self.services = {service: self._find(service) for service in (COORDINATOR, *SITES)}

    def _find(self, service: str) -> Container:
        labels = {"project": self._project.name, "service": service, "oneoff": "False"}
        wanted = [f"com.docker.compose.{key}={value}" for key, value in labels.items()]
        [container] = self._engine.containers.list(all=True, filters={"label": wanted})
        return container

    def network_of(self, site: str) -> Network:
        """The network that a site shares with the coordinator."""
        return self._engine.networks.get(f"{self._project.name}_net-{site}")

    # ---- one run after another --------------------------------------------------------------------------------------

    def start(self, *services: str) -> None:
        for service in services:
            self.services[service].start()

    def clear(self) -> None:
        """End what runs and remove what the last run left; policies and ledgers stay."""
        for service, container in self.services.items():
            container.reload()
            if container.status != "exited" and container.status != "created":
                container.kill()
                self.kills[service] += 1
        folders = {"runs": "/runs", **{site: f"/{site}" for site in SITES}}
        volumes = {f"{self._project.name}_{name}": {"bind": path, "mode": "rw"} for name, path in folders.items()}
        left = [RUN_FOLDER, *(f"/{site}/kept" for site in SITES)]
        # The coordinator's image, which declares no volume: the client would leave that behind.
        self._engine.containers.run(
            "fedbnsl-coordinator", ["-rf", *left], entrypoint="rm", network_mode="none", volumes=volumes, remove=True
        )

    def begin(self, *, rounds: int) -> None:
        """Start a run of everybody and wait until it is in the middle."""
        self.clear()
        self.start(*self.services)
        self.until(lambda: self.rounds >= rounds, f"round {rounds}")

    def end(self) -> dict[str, int]:
        """Wait until every container has ended; exit codes, and in `folder` the ledgers and the run."""
        self.until(lambda: {self._state(service)["Status"] for service in self.services} == {"exited"}, "the end")
        for site in SITES:
            for name in ("policy.toml", "ledger.db"):
                self.fetch(site, f"/site/{name}", self.folder / site)
        self.fetch(COORDINATOR, RUN_FOLDER, self.folder)
        return {service: self._state(service)["ExitCode"] for service in self.services}

    def _state(self, service: str) -> dict[str, Any]:
        self.services[service].reload()
        state: dict[str, Any] = self.services[service].attrs["State"]
        return state

    # ---- what can be seen -------------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something; the AssertionError shows the last lines of all containers."""
        until(condition, what, lambda: self.said, look_s=0.2)

    def fetch(self, service: str, path: str, folder: Path) -> None:
        """Copy a file or folder out of a container, which need not run."""
        chunks, _ = self.services[service].get_archive(path)
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
            archive.extractall(folder, filter="data")

    def python(self, service: str, program: str) -> Any:
        """The JSON that a program prints in a running container, as the user of the service."""
        once = {"RES_OPTIONS": "timeout:1 attempts:1"}  # a name that nobody knows is asked for outside, too
        code, output = self.services[service].exec_run(["python", "-c", program], environment=once)
        assert code == 0, output.decode()
        return json.loads(output)

    @property
    def events(self) -> list[dict[str, Any]]:
        """Of the run so far; the coordinator has to run."""
        _, output = self.services[COORDINATOR].exec_run(["cat", f"{RUN_FOLDER}/events.jsonl"])
        lines = [line for line in output.decode().splitlines(keepends=True) if line.startswith("{")]
        return [json.loads(line) for line in lines if line.endswith("\n")]

    @property
    def rounds(self) -> int:
        """Complete so far."""
        return sum(event["event"] == "round" for event in self.events)

    @property
    def said(self) -> str:
        """The last lines of all containers."""
        return "\n".join(
            f"---- {service}\n{container.logs(tail=30).decode()}" for service, container in self.services.items()
        )

    @property
    def run(self) -> Path:
        """Of the last run that ended."""
        return self.folder / "run"

    @property
    def result(self) -> dict[str, Any]:
        return json.loads((self.run / "result.json").read_text(encoding="utf-8"))
