"""A container that is a small machine: systemd is its first process, fedbnsl is in /opt, the units are installed."""

import io
import json
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import APIError
from docker.models.containers import Container

from waiting import until

ROOT = Path(__file__).parents[2]
BUILD_TIMEOUT_S = 600


class Machine:
    """The running container."""

    def __init__(self, container: Container) -> None:
        self._container = container

    def __call__(self, *command: str, stdin: str = "", user: str = "", env: dict[str, str] | None = None) -> str:
        """Standard output of a command that must succeed; of root, if no user is named."""
        set_ = [word for name, value in (env or {}).items() for word in ("--env", f"{name}={value}")]
        named = ["--user", user] if user else []
        done = subprocess.run(
            ["docker", "exec", "--interactive", *named, *set_, self._container.name, *command],
            input=stdin, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, f"exit code {done.returncode}: {command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def fails(self, *command: str) -> str:
        """What a command of root that must not succeed says."""
        code, output = self._container.exec_run(list(command))
        assert code != 0, f"succeeds: {command}"
        said: str = output.decode()
        return said

    def write(self, path: str, text: str) -> None:
        self("sh", "-c", f"cat > {path}", stdin=text)

    def fetch(self, path: str, folder: Path) -> None:
        """Copy a file or folder out of the machine."""
        chunks, _ = self._container.get_archive(path)
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
            archive.extractall(folder, filter="data")

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something; the AssertionError shows what the services said."""
        until(condition, what, lambda: self.said, look_s=0.2)

    @property
    def said(self) -> str:
        """The last lines of the services."""
        return self("journalctl", "--no-pager", "--output=cat", "--unit=fedbnsl*", "--lines=80")

    # ---- services ---------------------------------------------------------------------------------------------------

    def shown(self, unit: str, *properties: str) -> dict[str, str]:
        """Properties of a unit, as `systemctl show` tells them."""
        lines = self("systemctl", "show", unit, *(f"--property={name}" for name in properties)).splitlines()
        return dict(line.split("=", 1) for line in lines)

    def inside(self, unit: str, *command: str) -> tuple[str, ...]:
        """The command line by which root, with the capabilities of nobody, sees the files as the service does."""
        main = self.shown(unit, "MainPID", "User")
        return ("nsenter", f"--target={main['MainPID']}", "--mount", "runuser", "-u", main["User"], "--", *command)


@contextmanager
def machine(engine: docker.DockerClient) -> Iterator[Machine]:
    """A machine that has booted; removed afterwards."""
    there = {tag for image in engine.images.list() for tag in image.tags}
    if os.geteuid() != 0 and not {"fedbnsl-base:local", "fedbnsl-systemd:local"} <= there:
        pytest.skip("needs root, to make a small Debian with systemd (tests/compose/make-base --systemd)")
    subprocess.run([Path(__file__).with_name("make-machine")], check=True, timeout=BUILD_TIMEOUT_S)
    try:
        container = engine.containers.run(
            "fedbnsl-machine",
            detach=True,
            # What systemd needs for the namespaces of its services; not all that `privileged` gives: the kernel
            # and its devices are the host's.
            cap_add=["SYS_ADMIN", "SYS_PTRACE"],
            security_opt=["seccomp=unconfined", "apparmor=unconfined"],
            cgroupns="private",
            network_mode="none",
            tmpfs={"/run": "exec,mode=755", "/run/lock": "", "/tmp": "mode=1777"},
            volumes={str(ROOT / "deploy"): {"bind": "/source/deploy", "mode": "ro"}},
        )
    except APIError as error:
        pytest.skip(f"needs an engine that lets systemd run in a container: {error.explanation}")
    try:
        booted = Machine(container)
        asking = ["systemctl", "is-system-running", "--wait"]
        up = b"running"
        until(lambda: container.exec_run(asking).output.strip() == up, "systemd", lambda: container.logs().decode())
        yield booted
    finally:
        container.remove(force=True, v=True)


def json_lines(text: str) -> list[dict[str, Any]]:
    """The objects of a log that may be growing: without a last line that is not whole."""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("}\n")]
