"""Pods as containers: what a cluster would make of a rendered StatefulSet, as far as an engine can do it.

Volumes are folders, secrets and config maps are laid out as Kubernetes does it (links to links, of root), the root is
read-only, init containers come first, and probes are commands that are run in the container.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import docker
from docker.models.containers import Container

from waiting import until

_GROUP = 10001
_MEMORY = {"Mi": "m", "Gi": "g"}


def lay_out(folder: Path, files: Mapping[str, bytes], *, mode: int) -> None:
    """The files of a secret or config map, as the kubelet lays them out; new ones replace all others at once."""
    folder.mkdir(parents=True, exist_ok=True)
    real = folder / f"..{len(list(folder.glob('..[0-9]*')))}"
    real.mkdir()
    for name, content in files.items():
        (real / name).write_bytes(content)
        if os.geteuid() == 0:
            os.chown(real / name, 0, _GROUP)
            (real / name).chmod(mode)
        else:
            (real / name).chmod(mode | 0o004)  # the group is not theirs to give
    for made in (folder, real):
        made.chmod(0o755)
    (folder / "..new").symlink_to(real.name)
    (folder / "..new").replace(folder / "..data")
    for name in files:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")


class Pod:
    """The only pod of a StatefulSet.

    Parameters
    ----------
    folder
        Of the volumes of this pod; those that are claimed stay there for the next pod.
    secrets
        The files of each secret.
    resources
        All that were rendered: the workload and its config maps.
    """

    def __init__(
        self,
        engine: docker.DockerClient,
        resources: list[dict[str, Any]],
        folder: Path,
        *,
        secrets: Mapping[str, Mapping[str, bytes]],
        network: str,
        alias: str,
        env: Mapping[str, str],
    ) -> None:
        self._engine, self._folder, self._network, self._alias, self._env = engine, folder, network, alias, env
        [workload] = [each for each in resources if each["kind"] == "StatefulSet"]
        self.spec = workload["spec"]["template"]["spec"]
        for claim in workload["spec"]["volumeClaimTemplates"]:
            self._empty(claim["metadata"]["name"])
        maps = {each["metadata"]["name"]: each["data"] for each in resources if each["kind"] == "ConfigMap"}
        for volume in self.spec["volumes"]:
            name = volume["name"]
            shutil.rmtree(folder / name, ignore_errors=True)
            if "secret" in volume:
                of = secrets[volume["secret"]["secretName"]]
                wanted = {item["path"]: of[item["key"]] for item in volume["secret"].get("items", ())} or dict(of)
                lay_out(folder / name, wanted, mode=volume["secret"]["defaultMode"])
            elif "configMap" in volume:
                data = maps[volume["configMap"]["name"]]
                lay_out(folder / name, {key: text.encode() for key, text in data.items()}, mode=0o644)
            else:
                self._empty(name)
        for container in self.spec["initContainers"]:
            started = self._start(container)
            code, said = started.wait(timeout=120)["StatusCode"], started.logs()
            started.remove(v=True)
            assert code == 0, said.decode()
        [self.described] = self.spec["containers"]
        self.container = self._start(self.described)

    def _empty(self, name: str) -> None:
        (self._folder / name).mkdir(parents=True, exist_ok=True)
        (self._folder / name).chmod(0o777)  # in place of the group that a cluster gives it to

    def _start(self, described: dict[str, Any]) -> Container:
        may = described["securityContext"]
        limit = described["resources"]["limits"]["memory"]
        image = described["image"].rpartition(":")[0]
        endpoint = self._engine.api.create_endpoint_config(aliases=[self._alias])
        return self._engine.containers.run(
            image,
            described.get("args"),
            entrypoint=described.get("command"),
            detach=True,
            environment={**self._env, **{each["name"]: each["value"] for each in described.get("env", ())}},
            user=f"{may['runAsUser']}:{may['runAsGroup']}",
            read_only=may["readOnlyRootFilesystem"],
            cap_drop=may["capabilities"]["drop"],
            security_opt=["no-new-privileges:true"],
            mem_limit=limit[:-2] + _MEMORY[limit[-2:]],
            network=self._network,
            networking_config={self._network: endpoint},
            volumes=[
                f"{self._folder / mount['name']}:{mount['mountPath']}:{'ro' if mount.get('readOnly') else 'rw'}"
                for mount in described["volumeMounts"]
            ],
        )

    # ---- what the kubelet and people do ---------------------------------------------------------------------------

    def __call__(self, *command: str, stdin: str = "") -> str:
        """`kubectl exec`: standard output of a command that must succeed."""
        done = subprocess.run(
            ["docker", "exec", "--interactive", self.container.name, *command],
            input=stdin, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, f"exit code {done.returncode}: {command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def renew(self, volume: str, files: Mapping[str, bytes]) -> None:
        """What the kubelet does after a secret was replaced."""
        [mode] = [each["secret"]["defaultMode"] for each in self.spec["volumes"] if each["name"] == volume]
        lay_out(self._folder / volume, files, mode=mode)

    def passes(self, probe: str) -> bool:
        """Whether the container passes a probe now: startup, readiness or liveness."""
        code, _ = self.container.exec_run(self.described[f"{probe}Probe"]["exec"]["command"])
        return bool(code == 0)

    def until(self, probe: str) -> None:
        """Wait until a probe is passed; the AssertionError shows what the container said."""
        until(lambda: self.passes(probe), f"the probe {probe}", lambda: self.said, look_s=0.2)

    def end(self) -> int:
        """SIGTERM, and after the pod's time SIGKILL; the exit code."""
        self.container.stop(timeout=self.spec["terminationGracePeriodSeconds"])
        return int(self.container.wait()["StatusCode"])

    @property
    def said(self) -> str:
        text: str = self.container.logs(tail=40).decode()
        return text

    def remove(self) -> None:
        self.container.remove(force=True, v=True)
