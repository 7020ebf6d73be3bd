"""A Docker engine for tests of images and containers, or a skip that says what is missing."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import docker
import pytest


@contextmanager
def container_engine() -> Iterator[docker.DockerClient]:
    # Asked by the command, which builds need as well; a client that finds no engine leaves its socket open.
    if shutil.which("docker") is None:
        pytest.skip("needs Docker: there is no command `docker`")
    answer = subprocess.run(["docker", "version"], capture_output=True, text=True, timeout=30)
    if answer.returncode != 0:
        pytest.skip(f"needs a Docker engine that answers: {answer.stderr.strip()}")
    client = docker.from_env()
    yield client
    client.close()
